# SPDX-License-Identifier: Apache-2.0
"""kvonce's counters in vLLM's own statistics and in its Prometheus page."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from kvonce.engine import COUNTERS, Counters


class KvonceStats(KVConnectorStats):
    """What was counted since the last time. `data`: {"name:label": number}, as it survives any serialization."""

    @classmethod
    def since(cls, counters: Counters, before: dict[tuple[str, str], int]) -> KvonceStats:
        """The change since the snapshot `before`."""
        return cls({f"{name}:{label}": value for (name, label), value in counters.delta(before).items()})

    def reset(self) -> None:
        """Forgets all."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Adds another rank's."""
        for key, value in other.data.items():
            self.data[key] = self.data.get(key, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's log line."""
        return {key.rstrip(":").replace(":", " "): value for key, value in sorted(self.data.items())}

    def is_empty(self) -> bool:
        """True when nothing was counted."""
        return not self.data


class KvonceProm(KVConnectorPromMetrics):
    """`vllm:kvonce_<counter>_total`, one family per counter, with its cause, source or outcome as a label."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._families = {
            name: self._counter_cls(
                name=f"vllm:kvonce_{name}_total", documentation=text, labelnames=labelnames + ([label] if label else [])
            )
            for name, (text, label) in COUNTERS.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds one interval's numbers. What this version does not know is left out."""
        for key, value in transfer_stats_data.items():
            name, _, label = key.partition(":")
            if name not in self._families:
                continue
            values = list(self.per_engine_labelvalues[engine_idx]) + ([label] if COUNTERS[name][1] else [])
            self._families[name].labels(*values).inc(value)
