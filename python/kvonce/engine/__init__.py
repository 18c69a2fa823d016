# SPDX-License-Identifier: Apache-2.0
"""What the adapters of all engines share: settings, identity, weight epochs, shards, counters, and the connection.

Nothing here imports an engine, torch, or (before a connection is opened) the native library. An adapter's start:

    settings = Settings.parse(extra_config, ignore=KEYS_OF_THE_ENGINE)        # Refused: one sentence, the engine goes on
    model = settings.model_identity(model_path, revision)                     # digest of config and weights, or model_id
    identity = Identity(model=model, dtype="bfloat16", page_tokens=64, layout="sglang mla rows",
                        namespace=settings.namespace, tenant=settings.tenant)
    link = Connection(settings, engine_id="launch-7f3a", rank=0)              # survives the loss of the store
    epochs = Epochs(link, identity, build=make_group_and_pools, on_reset=settings.on_reset)
    epochs.wait(5.0)                                                          # at the start only: a thread registers
    epoch = epochs.current()                                                  # never waits; None: not known now, all is a miss
    if epoch is not None:
        with epoch.hold():                                                    # rows of this moment go under this epoch
            epoch.built.rank.put(...)

`make_group_and_pools(namespace)` is the adapter's: it registers page group, rank and pools in the namespace that it is
given and returns whatever object holds them. It is called again, with another namespace, after each weight update and
never for one epoch twice at a time.
"""

from .config import ConfigError, Refused, Settings, nearest, refuse
from .connection import Connection
from .counters import CAUSES, COUNTERS, Counters, prometheus
from .epochs import Epoch, Epochs
from .failures import Failures
from .identity import (
    Identity,
    ModelIdentity,
    OtherLayouts,
    check_hash_algorithm,
    check_kv_scales,
    draft_pool_name,
    model_identity,
)
from .shards import Place, Shard, counts_of_declared, shard_of_entry, shard_of_spec, stages_text

__all__ = [
    "CAUSES",
    "COUNTERS",
    "ConfigError",
    "Connection",
    "Counters",
    "Epoch",
    "Epochs",
    "Failures",
    "Identity",
    "ModelIdentity",
    "OtherLayouts",
    "Place",
    "Refused",
    "Settings",
    "Shard",
    "check_hash_algorithm",
    "check_kv_scales",
    "counts_of_declared",
    "draft_pool_name",
    "model_identity",
    "nearest",
    "prometheus",
    "refuse",
    "shard_of_entry",
    "shard_of_spec",
    "stages_text",
]
