# SPDX-License-Identifier: Apache-2.0
"""Offloads: put in the order in which they came, from a thread of their own, and told in that order."""

from __future__ import annotations

import collections
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from ..engine import Counters
from .lookups import Chains
from .transfers import Resolved, page_hashes

_log = logging.getLogger("kvonce")

_BACKLOG_PAGES = 65_536


class _Offload:
    __slots__ = ("cause", "done", "epoch", "future", "ok", "ready", "resolved")

    def __init__(self, resolved: Resolved, epoch: Any, ready: Callable[[], bool] | None):
        self.resolved = resolved
        self.epoch = epoch
        self.ready = ready
        self.future: Any = None
        self.cause = ""
        self.ok = False
        self.done = False


class Offloader:
    """`put(epoch, pages, rows, parent, depth, ready)` starts one put of kvonce and gives its future.

    The rows are read by kvonce after `ready()` answers True, never before; a result is told after the last read.
    """

    def __init__(self, *, put: Callable[..., Any], chains: Chains, counters: Counters):
        self._put = put
        self._chains = chains
        self._counters = counters
        self._fifo: collections.deque[_Offload] = collections.deque()
        self._queue: queue.SimpleQueue[_Offload | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._pages = 0
        self._thread = threading.Thread(target=self._work, name="kvonce-offload", daemon=True)
        self._thread.start()

    def add(self, resolved: Resolved, epoch: Any, ready: Callable[[], bool] | None, refuse: str = "") -> None:
        """Accepts an offload. `refuse`: a cause for which it is only accepted for the order's sake and told as not stored."""
        one = _Offload(resolved, epoch, ready)
        self._counters.add("offered_pages", resolved.pages)
        with self._changed:
            self._fifo.append(one)
            if not refuse and self._pages + resolved.pages > _BACKLOG_PAGES:
                refuse = "backlog"
            if not refuse:
                self._pages += resolved.pages
        if not refuse and not epoch.acquire():
            with self._changed:
                self._pages -= resolved.pages
            refuse = "stale_epoch"
        if refuse:
            self._counters.add("skipped_pages", resolved.pages, refuse)
            one.done = True
            return
        self._queue.put(one)

    def completed(self) -> int:
        """How many of the oldest offloads are done, without a gap."""
        n = 0
        for one in self._fifo:
            if not one.done:
                break
            n += 1
        return n

    def pop(self) -> bool:
        """Takes the oldest offload, which must be done. True: all of it is stored."""
        return self._fifo.popleft().ok

    def drain(self, timeout: float) -> bool:
        """Waits for what is under way, then cancels it and waits for the last read. Forgets all. True: nothing is read any more."""
        with self._changed:
            if not self._changed.wait_for(self._all_done, timeout):
                for one in self._fifo:
                    if one.future is not None and not one.done:
                        one.future.cancel()
                    one.cause = one.cause or "cancelled"
            quiet = self._changed.wait_for(self._all_done, timeout)
            self._fifo.clear()
        return quiet

    def close(self, timeout: float) -> None:
        """Ends the thread; what is under way is cancelled after `timeout` seconds."""
        self.drain(timeout)
        self._queue.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _all_done(self) -> bool:
        return all(one.done for one in self._fifo)

    def _work(self) -> None:
        while (one := self._queue.get()) is not None:
            try:
                if one.cause:
                    self._finish(one)
                    continue
                parent, depth = self._chains.parent(one.resolved.keys[0])
                future = self._put(
                    one.epoch,
                    page_hashes(one.resolved.keys),
                    one.resolved.rows(),
                    page_hashes([parent]) if parent else None,
                    depth,
                    one.ready,
                )
                with self._changed:
                    one.future = future
                    if one.cause:
                        future.cancel()
                future.add_done_callback(lambda done, one=one: self._finish(one, done))
            except Exception as error:
                self._counters.add("errors", 1, "offload")
                _log.warning("kvonce: an offload of %d pages was not taken: %s", one.resolved.pages, error)
                self._finish(one)

    def _finish(self, one: _Offload, future: Any = None) -> None:
        try:
            if future is None:
                self._counters.add("not_stored_pages", one.resolved.pages, one.cause or "failed")
            else:
                result = future.result(0.001)
                one.ok = result.ok
                self._counters.put(one.resolved.pages, result.causes())
        except Exception as error:
            self._counters.add("errors", 1, "offload")
            self._counters.add("not_stored_pages", one.resolved.pages, str(getattr(error, "reason", "") or "failed"))
        finally:
            one.epoch.release()
            with self._changed:
                one.done = True
                self._pages -= one.resolved.pages
                self._changed.notify_all()
