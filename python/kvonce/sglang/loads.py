# SPDX-License-Identifier: Apache-2.0
"""Loads of a batch, layer group by layer group, from a thread of their own.

Whatever happens, every layer of a batch is completed or failed by the batch's deadline, and the engine is told of a failed
batch only after the last write to its slots.
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
    running: _Running | None = None  #: its loads of kvonce, which wait for their gates; None: they are still to be made


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
    """A job's loads of kvonce, under an epoch that is held until they have ended."""

    def __init__(self, job: LoadJob, answer: Answer | None, epoch: Any):
        self.job = job
        self.answer = answer
        self.epoch = epoch
        self.pages = page_hashes(job.resolved.keys)
        self.renewed = False
        self.gates: list[Any] = []  # per layer group: nothing of it is written before; empty: none
        rows = job.resolved.rows()
        missing = answer.optional_missing if answer is not None else frozenset()
        alike: dict[tuple[Any, ...], list[PoolView]] = {}
        for view, _ in job.resolved.parts:
            if not (view.optional and view.pool_name in missing):
                alike.setdefault((view.layers, view.optional), []).append(view)
        self.parts = [_Part(views, rows) for views in alike.values()]
        self.futures: list[list[tuple[_Part, Any]]] = []  # per layer group


class Loader:
    """The thread. `issue(epoch, lease, pages, rows, begin, end, timeout, after)` starts one load of kvonce, which writes nothing
    before `after` (None: at once), and gives its future; `gate()` makes such an `after`, with a method `signal`;
    `renew(job, epoch)` asks for a new lease, None when there is none; `release(answers)` gives leases back."""

    def __init__(
        self,
        counter: LayerCounter,
        *,
        load_seconds: float,
        page_tokens: int,
        issue: Callable[..., Any],
        gate: Callable[[], Any],
        renew: Callable[[LoadJob, Any], Answer | None],
        release: Callable[[list[Answer]], None],
        counters: Counters,
    ):
        self._counter = counter
        self._seconds = load_seconds
        self._page_tokens = page_tokens
        self._issue = issue
        self._gate = gate
        self._renew = renew
        self._release = release
        self._counters = counters
        self._groups = layer_groups(counter.num_layers)
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._open = 0
        self._waiting: set[int] = set()  # batches that the thread has not begun
        self._writing: set[int] = set()  # batches that it has
        self._thread = threading.Thread(target=self._work, name="kvonce-load", daemon=True)
        self._thread.start()

    def accept(self, job: LoadJob) -> None:
        """Makes the job's loads of kvonce now, while its lease is known to hold: a store that is lost from here on does not matter to
        them. They write nothing before the batch begins. Raises what the job's slots or kvonce raise: then, and where the lease does
        not hold, they are made when the batch begins."""
        answer = job.answer
        if answer is None or answer.lease is None or answer.epoch is None or answer.leased_until <= time.monotonic():
            return
        if not answer.epoch.live or not answer.epoch.acquire():
            return
        running = None
        try:
            running = _Running(job, answer, answer.epoch)
            running.gates = [self._gate() for _ in self._groups]
            self._issue_all([running], range(len(self._groups)), time.monotonic() + self._seconds)
        except Exception:
            self._put(lambda: self._end([running] if running is not None else [], answer.epoch))
            raise
        job.running = running

    def drop(self, job: LoadJob) -> None:
        """An accepted job that will not begin: nothing of it is written."""
        running, job.running = job.running, None
        if running is not None:
            self._put(lambda: self._end([running], running.epoch))

    def start(self, index: int, jobs: list[LoadJob], epoch: Any) -> None:
        """Loads a batch under the counter's index. epoch: the current one, for jobs that were not leased; None: there is none."""
        with self._changed:
            self._waiting.add(index)
        self._put(lambda: self._batch(index, jobs, epoch))

    def quiet(self, index: int) -> None:
        """Returns when nothing of the batch is written any more, and nothing will be. A copy that is stuck is waited for, however long:
        its target must not be used for something else."""
        with self._changed:
            self._waiting.discard(index)
            while not self._changed.wait_for(lambda: index not in self._writing, _CLOSE_SECONDS):
                _log.error("kvonce: a load still writes to the engine's memory; waiting for it")

    def wait_idle(self, timeout: float) -> bool:
        """True when nothing is under way any more within the time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._open == 0, timeout)

    def close(self) -> None:
        """Ends the thread when what is under way has ended."""
        self._queue.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(self._seconds + _CLOSE_SECONDS)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _put(self, work: Callable[[], None]) -> None:
        with self._changed:
            self._open += 1
        self._queue.put(work)

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception:
                self._counters.add("errors", 1, "load")
                _log.exception("kvonce: a load thread's work failed")
            with self._changed:
                self._open -= 1
                self._changed.notify_all()

    def _batch(self, index: int, jobs: list[LoadJob], epoch: Any) -> None:
        """Every way out of here completes or fails all layers of the batch, after the last write."""
        deadline = time.monotonic() + self._seconds
        running: list[_Running] = []
        with self._changed:
            begun = index in self._waiting
            self._waiting.discard(index)
            if begun:
                self._writing.add(index)
        try:
            try:
                if not begun:
                    raise _Failed("slow_load")  # the engine waits for it no more
                for job in jobs:
                    running.append(self._begin(job, epoch))
                for g in range(len(self._groups)):
                    for one in running:
                        if one.gates:
                            one.gates[g].signal()
                        else:
                            self._issue_all([one], [g], deadline)
                for g, (begin, end) in enumerate(self._groups):
                    for one in running:
                        self._settle(one, g, deadline)
                    for layer in range(begin, end):
                        self._counter.complete(index, layer)
            finally:
                for job in jobs:
                    if job.running is not None:
                        self._end([job.running], job.running.epoch)
                        job.running = None
                with self._changed:
                    self._writing.discard(index)
                    self._changed.notify_all()
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

    def _begin(self, job: LoadJob, current: Any) -> _Running:
        """The job's loads, held under their epoch: job.running from here on."""
        answer = job.answer
        epoch = job.running.epoch if job.running is not None else current or (answer.epoch if answer is not None else None)
        if epoch is None:
            raise _Failed("no_store")
        if not epoch.live or (answer is not None and answer.epoch is not epoch):
            raise _Failed("stale_epoch")
        if job.running is not None:
            return job.running
        if not epoch.acquire():
            raise _Failed("stale_epoch")
        try:
            if answer is None or answer.lease is None or answer.leased_until <= time.monotonic():
                answer = self._renew(job, epoch) or answer
            if answer is None or answer.lease is None:
                raise _Failed("lease_expired")
            job.running = _Running(job, answer, epoch)
        except Exception:
            epoch.release()
            raise
        return job.running

    def _issue_all(self, running: list[_Running], groups: Sequence[int], deadline: float) -> None:
        """All loads of these layer groups, the first layers of all requests first."""
        for g in groups:
            begin, end = self._groups[g]
            for one in running:
                while len(one.futures) <= g:
                    one.futures.append([])
                one.futures[g] = []
                gate = one.gates[g] if one.gates and not one.renewed else None
                for part in one.parts:
                    first, last = part.span(begin, end)
                    if first < last:
                        left = max(deadline - time.monotonic(), 0.001)
                        future = self._issue(one.epoch, one.answer.lease, one.pages, part.rows, first, last, left, gate)
                        one.futures[g].append((part, future))

    def _settle(self, one: _Running, g: int, deadline: float) -> None:
        """Waits for one request's layer group. A lease that ended early is asked for anew, once."""
        causes = self._causes(one.futures[g], deadline)
        if causes and _LEASE_CAUSES.issuperset(causes) and not one.renewed:
            one.renewed = True
            self._quiesce([one])
            answer = self._renew(one.job, one.epoch)
            if answer is not None and answer.lease is not None:
                self._release([one.answer])
                one.answer = answer
                self._issue_all([one], range(g, len(self._groups)), deadline)
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

    def _end(self, running: list[_Running], epoch: Any) -> None:
        try:
            self._quiesce(running)
        finally:
            epoch.release()

    def _quiesce(self, running: list[_Running]) -> None:
        """Cancels what has not ended, and waits for the last write, however long."""
        pending = [future for one in running for futures in one.futures for _, future in futures if not future.done()]
        for future in pending:
            future.cancel()
        for future in pending:
            while not future.wait(_CLOSE_SECONDS):
                _log.error("kvonce: a load still writes to the engine's memory; waiting for it")


class _Failed(Exception):
    """A batch that will not be loaded, for a reason that has a name."""

    def __init__(self, cause: str):
        super().__init__(f"load failed: {cause}")
        self.cause = cause
