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
_TELL_SECONDS = 5.0  # so often it is told that something is waited for


class _Offload:
    __slots__ = ("cause", "counted", "done", "epoch", "future", "ok", "ready", "resolved", "told")

    def __init__(self, resolved: Resolved, epoch: Any, ready: Callable[[], bool] | None):
        self.resolved = resolved
        self.epoch = epoch
        self.ready = ready
        self.future: Any = None
        self.cause = ""
        self.ok = False
        self.done = False
        self.told = False  # its outcome is counted, once
        self.counted = False  # its pages are in the backlog


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
        """Accepts an offload. `refuse`: a cause for which it is only accepted for the order's sake and told as not stored.

        Never raises: the engine has one place in its order for it, so there must be one here.
        """
        one = _Offload(resolved, epoch, ready)
        with self._changed:
            self._fifo.append(one)
            if not refuse and self._pages + resolved.pages > _BACKLOG_PAGES:
                refuse = "backlog"
        held = False
        try:
            self._counters.add("offered_pages", resolved.pages)
            if not refuse:
                held = epoch.acquire()
                refuse = "" if held else "stale_epoch"
            if not refuse:
                with self._changed:
                    self._pages += resolved.pages
                    one.counted = True
                self._queue.put(one)
                return
        except Exception:
            self._counters.add("errors", 1, "offload")
            _log.warning("kvonce: an offload was not taken", exc_info=True)
            refuse = "failed"
        self._counters.add("skipped_pages", resolved.pages, refuse)
        one.epoch = epoch if held else None
        self._over(one)

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
        return bool(self._fifo) and self._fifo.popleft().ok

    def drain(self, timeout: float) -> None:
        """Waits for what is under way, `timeout` seconds at most; then cancels it and waits for the last read, however long: the rows
        will hold something else. Forgets all."""
        with self._changed:
            quiet = self._changed.wait_for(self._all_done, timeout)
            pending = [] if quiet else [one for one in self._fifo if not one.done]
            for one in pending:
                one.cause = one.cause or "cancelled"
        for one in pending:
            self._cancel(one)
        with self._changed:
            while not self._changed.wait_for(self._all_done, _TELL_SECONDS):
                _log.error("kvonce: an offload still reads the engine's memory; waiting for it")
            self._fifo.clear()

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
            except Exception as error:
                self._counters.add("errors", 1, "offload")
                _log.warning("kvonce: an offload of %d pages was not taken: %s", one.resolved.pages, error)
                self._finish(one)
                continue
            # From here on kvonce reads the rows: it is over when the future says so, and not before.
            with self._changed:
                one.future = future
            if one.cause:
                self._cancel(one)
            try:
                future.add_done_callback(lambda done, one=one: self._finish(one, done))
            except Exception as error:
                self._counters.add("errors", 1, "offload")
                _log.warning("kvonce: an offload is waited for: %s", error)
                while not future.wait(_TELL_SECONDS):
                    _log.error("kvonce: an offload still reads the engine's memory; waiting for it")
                self._finish(one, future)

    def _cancel(self, one: _Offload) -> None:
        try:
            if one.future is not None:
                one.future.cancel()
        except Exception as error:  # then it ends by itself
            self._counters.add("errors", 1, "offload")
            _log.warning("kvonce: an offload could not be cancelled: %s", error)

    def _finish(self, one: _Offload, future: Any = None) -> None:
        with self._changed:
            if one.told:
                return
            one.told = True
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
            self._over(one)

    def _over(self, one: _Offload) -> None:
        """Once for each: its rows are the engine's again."""
        epoch, one.epoch = one.epoch, None
        try:
            if epoch is not None:
                epoch.release()
        except Exception:
            _log.warning("kvonce: an epoch was not released", exc_info=True)
        with self._changed:
            one.done = True
            if one.counted:
                self._pages -= one.resolved.pages
            self._changed.notify_all()
