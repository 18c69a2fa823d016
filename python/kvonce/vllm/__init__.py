# SPDX-License-Identifier: Apache-2.0
"""kvonce in vLLM: a KV connector of its own, chosen by switches.

    --kv-transfer-config '{"kv_connector": "KvonceConnector", "kv_connector_module_path": "kvonce.vllm",
                           "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}'

`layout`, `scheduler` and `worker` know no vLLM class, so their logic can be used and tested without an engine; `connector`
is the thin shell that vLLM loads.
"""

from __future__ import annotations

from typing import Any

__all__ = ["KvonceConnector"]


def __getattr__(name: str) -> Any:
    if name == "KvonceConnector":
        from .connector import KvonceConnector

        return KvonceConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
