# SPDX-License-Identifier: Apache-2.0
"""Gives leases back without making anybody wait: each takes an answer of the store."""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

_log = logging.getLogger("kvonce")

_MOST = 4096
_NO_ANSWER = frozenset({"deadline", "store_lost", "closed"})


class Releaser:
    """`release(lease)` may wait and raise. The thread lives while there is something to do."""

    def __init__(self, release: Callable[[Any], None]):
        self._release = release
        self._queue: collections.deque[Any] = collections.deque(maxlen=_MOST)  # the oldest ends by itself
        self._changed = threading.Condition()
        self._running = False
        self._closed = False

    def give(self, leases: Iterable[Any]) -> None:
        """Releases them soon; None is left out. Never waits, never raises."""
        with self._changed:
            self._queue.extend(lease for lease in leases if lease is not None)
            if not self._queue or self._running or self._closed:
                return
            self._running = True
        try:
            threading.Thread(target=self._work, name="kvonce-release", daemon=True).start()
        except RuntimeError as error:  # no more threads for now: they end by themselves
            _log.debug("kvonce: leases were not released: %s", error)
            with self._changed:
                self._running = False
                self._queue.clear()

    def close(self, timeout: float) -> None:
        """Waits at most so many seconds for what was given; takes no more."""
        end = time.monotonic() + timeout
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._running, max(0.0, end - time.monotonic()))
            self._queue.clear()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._queue:
                    self._running = False
                    self._changed.notify_all()
                    return
                lease = self._queue.popleft()
            try:
                self._release(lease)
            except Exception as error:  # they end by themselves soon
                _log.debug("kvonce: a lease was not released: %s", error)
                if getattr(error, "reason", "") in _NO_ANSWER:
                    with self._changed:
                        self._queue.clear()
