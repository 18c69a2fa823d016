# SPDX-License-Identifier: Apache-2.0
"""Keeps calls from waiting, each for its own deadline, for a store that has stopped to answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

_PROBE_SECONDS = 1.0  # at most so often the store is asked whether it answers again


class Breaker:
    """After `limit` deadlines in a row no call waits until the store has answered a probe, or another life of it is there."""

    def __init__(self, limit: int = 2, clock: Callable[[], float] = time.monotonic):
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._life = 0
        self._late = 0
        self._probing: object | None = None
        self._probe_at = 0.0

    def waits(self, life: int, probe: Callable[[], Any]) -> bool:
        """Whether the store (its incarnation: `life`) may be waited for. Where it may not, `probe` is called once a second at most:
        it asks the store something, without waiting, and returns the future, which raises where there is no answer in time."""
        with self._lock:
            if life != self._life:
                self._life, self._late, self._probing = life, 0, None
            if self._late < self._limit:
                return True
            if self._probing is not None or self._clock() < self._probe_at:
                return False
            token = self._probing = object()
            self._probe_at = self._clock() + _PROBE_SECONDS
        try:
            probe().add_done_callback(lambda future: self._probed(token, future))
        except Exception:  # no answer either
            self._probed(token, None)
        return False

    def late(self) -> None:
        """A call has waited to its deadline."""
        with self._lock:
            self._late += 1

    def answered(self) -> None:
        """The store has answered a call."""
        if self._late:
            with self._lock:
                self._late = 0

    def _probed(self, token: object, future: Any) -> None:
        good = False
        try:
            if future is not None:
                future.result(0.001)
                good = True
        except Exception:  # late, or lost: the next probe is a second later
            good = False
        with self._lock:
            if self._probing is token:
                self._probing = None
                if good:
                    self._late = 0
