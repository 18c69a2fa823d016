# SPDX-License-Identifier: Apache-2.0
"""Loads of a batch, layer group by layer group, from a thread of their own.

Whatever happens, every layer of a batch is completed or failed by the batch's deadline, and a batch is failed only after
the last write to the engine's slots.
"""

from __future__ import annotations

import bisect
import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..engine import Counters
from .layer_counter import LayerCounter
from .lookups import Answer
from .transfers import PoolView, Resolved, page_hashes

_log = logging.getLogger("kvonce")

_LAYER_GROUPS = 8  # of a batch: the first layers' forward may begin when an eighth is there
_LEASE_CAUSES = frozenset({"lease_expired", "lease_unknown"})
_CLOSE_SECONDS = 5.0


def layer_groups(num_layers: int, most: int = _LAYER_GROUPS) -> list[tuple[int, int]]:
    """Consecutive layer ranges [begin, end) that cover all layers, at most `most` of them, the earlier ones smaller."""
    groups = min(num_layers, most)
    edges = [num_layers * i // groups for i in range(groups + 1)] if groups else [0]
    return list(zip(edges, edges[1:], strict=False))


@dataclasses.dataclass
class LoadJob:
    """One request's load, accepted and not begun yet."""

    rid: str
    resolved: Resolved
    answer: Answer | None


class _Part:
    """Pools of one job that have parts in the same layers: one load of kvonce per layer group."""

    def __init__(self, views: Sequence[PoolView], rows: dict[str, Any]):
        self.layers = views[0].layers
        self.rows = {view.text: rows[view.text] for view in views}
        self.optional = all(view.optional for view in views)

    def span(self, begin: int, end: int) -> tuple[int, int]:
        """The pools' own layers that belong to the engine's layers [begin, end)."""
        return bisect.bisect_left(self.layers, begin), bisect.bisect_left(self.layers, end)


class _Running:
    """A job under way."""

    def __init__(self, job: LoadJob, answer: Answer | None):
        self.job = job
        self.answer = answer
        self.pages = page_hashes(job.resolved.keys)
        self.renewed = False
        rows = job.resolved.rows()
        missing = answer.optional_missing if answer is not None else frozenset()
        alike: dict[tuple[Any, ...], list[PoolView]] = {}
        for view, _ in job.resolved.parts:
            if not (view.optional and view.pool_name in missing):
                alike.setdefault((view.layers, view.optional), []).append(view)
        self.parts = [_Part(views, rows) for views in alike.values()]
        self.futures: list[list[tuple[_Part, Any]]] = []  # per layer group


class Loader:
    """The thread. `issue(epoch, lease, pages, rows, begin, end, timeout)` starts one load of kvonce and gives its future;
    `renew(job, epoch)` asks for a new lease, None when there is none; `release(answers)` gives leases back."""

    def __init__(
        self,
        counter: LayerCounter,
        *,
        load_seconds: float,
        page_tokens: int,
        issue: Callable[..., Any],
        renew: Callable[[LoadJob, Any], Answer | None],
        release: Callable[[list[Answer]], None],
        counters: Counters,
    ):
        self._counter = counter
        self._seconds = load_seconds
        self._page_tokens = page_tokens
        self._issue = issue
        self._renew = renew
        self._release = release
        self._counters = counters
        self._groups = layer_groups(counter.num_layers)
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._lock = threading.Lock()
        self._open = 0
        self._thread = threading.Thread(target=self._work, name="kvonce-load", daemon=True)
        self._thread.start()

    def start(self, index: int, jobs: list[LoadJob], epoch: Any) -> None:
        """Loads a batch under the counter's index."""
        self._put(lambda: self._batch(index, jobs, epoch))

    def give_back(self, answers: list[Answer]) -> None:
        """Releases leases, off the caller's thread."""
        if answers:
            self._put(lambda: self._release(answers))

    def wait_idle(self, timeout: float) -> bool:
        """True when nothing is under way any more within the time."""
        return self._idle.wait(timeout)

    def close(self) -> None:
        """Ends the thread when what is under way has ended."""
        self._queue.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(self._seconds + _CLOSE_SECONDS)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _put(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._open += 1
            self._idle.clear()
        self._queue.put(work)

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception:
                self._counters.add("errors", 1, "load")
                _log.exception("kvonce: a load thread's work failed")
            with self._lock:
                self._open -= 1
                if self._open == 0:
                    self._idle.set()

    def _batch(self, index: int, jobs: list[LoadJob], epoch: Any) -> None:
        """Every way out of here completes or fails all layers of the batch."""
        deadline = time.monotonic() + self._seconds
        running: list[_Running] = []
        try:
            if epoch is None or not epoch.acquire():
                raise _Failed("no_store" if epoch is None else "stale_epoch")
            try:
                for job in jobs:
                    running.append(self._begin(job, epoch, deadline))
                self._issue_all(running, range(len(self._groups)), epoch, deadline)
                for g, (begin, end) in enumerate(self._groups):
                    for one in running:
                        self._settle(one, g, epoch, deadline)
                    for layer in range(begin, end):
                        self._counter.complete(index, layer)
            finally:
                self._quiesce(running)
                epoch.release()
            for one in running:
                self._counters.add("loaded_tokens", one.job.resolved.pages * self._page_tokens)
        except Exception as error:
            cause = error.cause if isinstance(error, _Failed) else type(error).__name__
            if not isinstance(error, _Failed):
                self._counters.add("errors", 1, "load")
                _log.exception("kvonce: a load failed")
            for job in jobs:
                self._counters.add("failed_load_tokens", job.resolved.pages * self._page_tokens, cause)
            _log.warning("kvonce: a batch of %d loads failed: %s", len(jobs), cause)
            self._counter.fail(index, error)

    def _begin(self, job: LoadJob, epoch: Any, deadline: float) -> _Running:
        answer = job.answer
        if answer is not None and answer.epoch is not epoch:
            raise _Failed("stale_epoch")
        if answer is None or answer.lease is None or answer.leased_until <= time.monotonic():
            answer = self._renew(job, epoch) or answer
        if answer is None or answer.lease is None:
            raise _Failed("lease_expired")
        return _Running(job, answer)

    def _issue_all(self, running: list[_Running], groups: Sequence[int], epoch: Any, deadline: float) -> None:
        """All loads of these layer groups, the first layers of all requests first."""
        for g in groups:
            begin, end = self._groups[g]
            for one in running:
                futures = []
                for part in one.parts:
                    first, last = part.span(begin, end)
                    if first < last:
                        left = max(deadline - time.monotonic(), 0.001)
                        futures.append((part, self._issue(epoch, one.answer.lease, one.pages, part.rows, first, last, left)))
                if g < len(one.futures):
                    one.futures[g] = futures
                else:
                    one.futures.append(futures)

    def _settle(self, one: _Running, g: int, epoch: Any, deadline: float) -> None:
        """Waits for one request's layer group. A lease that ended early is asked for anew, once."""
        causes = self._causes(one.futures[g], deadline)
        if causes and _LEASE_CAUSES.issuperset(causes) and not one.renewed:
            one.renewed = True
            self._quiesce([one])
            answer = self._renew(one.job, epoch)
            if answer is not None and answer.lease is not None:
                self._release([one.answer])
                one.answer = answer
                self._issue_all([one], range(g, len(self._groups)), epoch, deadline)
                causes = self._causes(one.futures[g], deadline)
        if causes:
            raise _Failed(max(causes, key=causes.__getitem__))

    def _causes(self, futures: list[tuple[_Part, Any]], deadline: float) -> dict[str, int]:
        """Why pages of these loads are not there, by cause; pools that a prefix can do without do not count."""
        out: dict[str, int] = {}
        for part, future in futures:
            if not future.wait(max(deadline - time.monotonic(), 0.0) + _CLOSE_SECONDS):
                raise _Failed("slow_load")
            result = future.result(0.001)
            if result.ok or part.optional:
                continue
            for cause, n in result.causes().items():
                name = "slow_load" if cause == "deadline" else cause
                out[name] = out.get(name, 0) + n
        return out

    def _quiesce(self, running: list[_Running]) -> None:
        """Cancels what has not ended, and waits for the last write."""
        pending = [future for one in running for futures in one.futures for _, future in futures if not future.done()]
        for future in pending:
            future.cancel()
        for future in pending:
            future.wait(_CLOSE_SECONDS)


class _Failed(Exception):
    """A batch that will not be loaded, for a reason that has a name."""

    def __init__(self, cause: str):
        super().__init__(f"load failed: {cause}")
        self.cause = cause
