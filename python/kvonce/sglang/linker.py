# SPDX-License-Identifier: Apache-2.0
"""kvonce.sglang.Linker: the external linker that SGLang loads by `--unified-cache-external-linker-backend dynamic`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinker

from ..engine import Connection, Counters, Epochs, Refused, Settings
from . import updates
from .core import Built, LinkerCore
from .device_pools import Assembled, assemble, name_drafts, shards_of
from .startup import Facts, check_place, draft_identity, engine_name, identity_of, place_of

_log = logging.getLogger("kvonce")

_START_SECONDS = 5.0  # an engine's start waits so long for a store that is connected


class Linker(UnifiedCacheLinker):
    """Answers SGLang's calls through a LinkerCore. Never raises on the data path.

    A set-up that cannot be served is told in one warning, and the engine runs as without a store.
    """

    #: A test's control derives from it.
    core_class = LinkerCore

    def __init__(
        self,
        server_args: Any,
        params: Any,
        *,
        components: Any = (),
        extra_config: Any = None,
        forward_stream: Any = None,
        **_newer: Any,
    ):
        self.forward_stream = forward_stream
        self.pools: Any = {}
        self._listener: updates.Listener | None = None
        self._knows_updates = False
        self.core = self._open(server_args, params, components, extra_config)
        self.layer_done_counter = self.core.layer_done_counter
        self.core.settle(_START_SECONDS)

    def _open(self, server_args: Any, params: Any, components: Any, extra_config: Any) -> LinkerCore:
        facts = Facts(server_args)
        counters = Counters("", "")
        settings = Settings()
        assembled: Assembled | None = None
        link: Connection | None = None
        core: LinkerCore | None = None
        try:
            settings = Settings.parse(extra_config)
            place = place_of(facts, params)
            counters = Counters(settings.engine_id or engine_name(), f"tp{place.tp}" + (f" cp{place.cp}" if place.cp_size > 1 else ""))
            check_place(facts, place)
            assembled = assemble(params, components, facts, place)
            self.pools = assembled.pools
            views = assembled.views
            if any(view.kind == "draft" for view in views):
                name_drafts(views, draft_identity(facts, settings))
            shards = shards_of(assembled, place, settings, lambda own: _declared(own, params, place.tp_size))
            identity = identity_of(facts, settings, layout=assembled.layout, page_tokens=params.page_size, kv_dtype=assembled.kv_dtype)
            link = Connection(settings, counters.engine, counters.rank, counters)
            epochs = Epochs(
                link,
                identity,
                build=lambda namespace: Built(namespace, views, shards, place),
                retire=Built.close,
                on_reset=settings.on_reset,
                counters=counters,
            )
            _log.info("kvonce: serves %s", ", ".join(f"{v.pool_name} shard {shards[v.text].flat} of {shards[v.text].count}" for v in views))
            core = self.core_class(views, assembled.num_layers, params.page_size, settings, counters, link=link, epochs=epochs)
            _gate_states(params, core.layer_done_counter)
            updates.pools_are([params.token_to_kv_pool_allocator])
            self._listener = updates.Listener(core.weights_changed)
            self._knows_updates = updates.watch(self._listener)
            return core
        except Refused as refused:
            refusal = refused.text
        except Exception as error:  # the engine goes on, whatever it is
            _log.exception("kvonce: the linker could not be set up")
            refusal = f"kvonce: the linker could not be set up: {error}"
        if self._listener is not None:
            updates.unwatch(self._listener)
        if core is not None:
            core.close()
        elif link is not None:
            link.close()
        _log.warning("%s SGLang goes on without kvonce.", refusal)
        views, layers = (assembled.views, assembled.num_layers) if assembled is not None else ([], 1)
        return self.core_class(views, layers, params.page_size, settings, counters, refusal=refusal)

    # -- the contract of 0.5.23 ----------------------------------------------------------------------------------------

    def lookup(self, rid: str, transfers: Sequence[Any]) -> list[int]:
        """Every prefix length in pages that all pools and all ranks' shards have."""
        return self.core.lookup(rid, transfers)

    def load(self, rid: str, transfers: Sequence[Any]) -> bool:
        """Accepts a load; begun by the next start_layer_wise_loading."""
        return self.core.load(rid, transfers)

    def start_layer_wise_loading(self) -> int:
        """Begins what was accepted; the index for layer_done_counter, or -1."""
        return self.core.start_layer_wise_loading()

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        """True when all of the batch is in place; by the linker's own deadline at last."""
        return self.core.finish_layer_wise_loading(counter_index)

    def cancel_queued_load(self, rid: str) -> bool:
        """True when the load was accepted, but not begun."""
        return self.core.cancel_queued_load(rid)

    def offload(self, transfers: Sequence[Any], session_id: str | None = None, **_newer: Any) -> bool:
        """Accepts a node's pages; read only after the events that say that they are written."""
        try:
            ready = self._ready()
        except Exception:  # when they are written is not known: they are not read
            self.core.complain("offload")
            return self.core.offload(transfers, None, refuse="failed")
        return self.core.offload(transfers, ready)

    def num_completed_offloads(self) -> int:
        """Offloads that are done, in the order in which they came."""
        return self.core.num_completed_offloads()

    def pop_completed_offload(self) -> bool:
        """The oldest one's outcome."""
        return self.core.pop_completed_offload()

    def reset(self) -> None:
        """A flush keeps the store's pages; new weights begin a new epoch."""
        self.core.reset(self._knows_updates)
        if self._knows_updates:
            updates.flushed()

    def close(self) -> None:
        """Lets go of the store."""
        if self._listener is not None:
            updates.unwatch(self._listener)
        self.core.close()

    # -- of drafts of the contract before 0.5.23 -----------------------------------------------------------------------

    def num_completed_loads(self) -> int:
        """Removed in 0.5.23: loads are reported by finish_layer_wise_loading."""
        return 0

    def pop_completed_load(self) -> bool:
        """Removed in 0.5.23."""
        return False

    # -- inside --------------------------------------------------------------------------------------------------------

    def _ready(self) -> Callable[[], bool] | None:
        """True once all events that precede the rows' last write have passed."""
        record = getattr(self, "record_offload_ready", None)
        events = record() if record is not None else []
        return (lambda: all(event.query() for event in events)) if events else None


def _gate_states(params: Any, counter: Any) -> None:
    """Makes recurrent states wait for their load: SGLang copies a request's state out of the tree before the forward's first layer.

    SGLang 0.5.23 gives a linker's counter to the KV pool alone; for HiCache it gives it to the pool of states as well.
    """
    register = getattr(getattr(params, "req_to_token_pool", None), "register_layer_transfer_counter", None)
    if register is not None:
        register(counter)


def _declared(own: int, params: Any, tp_size: int) -> list[int]:
    """The shards that the ranks of the attention's group declare for one entry, in the order of the ranks."""
    if tp_size == 1:
        return [own]
    import torch.distributed as dist

    group = getattr(params, "attn_tp_cache_group", None) or getattr(params, "tp_cache_group", None)
    out: list[Any] = [None] * tp_size
    dist.all_gather_object(out, own, group=group)
    return [int(one) for one in out]
