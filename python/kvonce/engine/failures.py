# SPDX-License-Identifier: Apache-2.0
"""Nothing that goes wrong in kvonce is raised into the engine: it is counted, and told once."""

from __future__ import annotations

import logging
import threading

from .counters import Counters

_log = logging.getLogger("kvonce")


class Failures:
    """Counts what was raised, by where; the first of each is told (a warning), the others at level debug."""

    def __init__(self, counters: Counters | None = None):
        self._counters = counters
        self._lock = threading.Lock()
        self._told: set[str] = set()

    def tell(self, where: str, error: BaseException) -> None:
        """Never raises."""
        try:
            if self._counters is not None:
                self._counters.add("errors", 1, where)
            with self._lock:
                level = logging.DEBUG if where in self._told else logging.WARNING
                self._told.add(where)
            _log.log(
                level, "kvonce: %s failed, the engine goes on without its answer: %s: %s", where, type(error).__name__, error, exc_info=error)
        except Exception:  # text of an error that cannot be made, say
            pass
