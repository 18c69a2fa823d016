# SPDX-License-Identifier: Apache-2.0
"""What SGLang's own storage metrics are fed with."""

from __future__ import annotations

import importlib
import threading
from typing import Any

_EVENTS_MOST = 4096


class StorageMetrics:
    """Pages and bandwidth of each put and load of KV pages since they were last asked for."""

    def __init__(self):
        self._lock = threading.Lock()
        self._events: dict[str, list[tuple[int, float]]] = {"prefetch": [], "backup": []}

    def add(self, what: str, pages: int, moved: int, seconds: float) -> None:
        """Notes one call; bandwidth is in GB/s, as SGLang's is."""
        with self._lock:
            events = self._events[what]
            events.append((pages, moved / 1e9 / max(seconds, 1e-9)))
            del events[:-_EVENTS_MOST]

    def drain(self) -> Any:
        """SGLang's own object, or None."""
        made = _new_storage_metrics()
        with self._lock:
            events, self._events = self._events, {"prefetch": [], "backup": []}
        if made is not None:
            for what, values in events.items():
                getattr(made, f"{what}_pgs").extend(pages for pages, _ in values)
                getattr(made, f"{what}_bandwidth").extend(rate for _, rate in values)
        return made


def _new_storage_metrics() -> Any:
    for module in ("sglang.srt.observability.metrics_collector", "sglang.srt.metrics.collector"):
        try:
            return importlib.import_module(module).StorageMetrics()
        except (ImportError, AttributeError):
            continue
    return None
