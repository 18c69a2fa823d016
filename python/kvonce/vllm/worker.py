# SPDX-License-Identifier: Apache-2.0
"""A rank's side: copies blocks to the store and back, and tells what became of it. Knows no vLLM class."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any

from kvonce.engine import Counters, Epoch, Epochs, Failures, Settings

from .messages import Done, Load, Results, Save, Step


@dataclasses.dataclass
class Loading:
    """A load under way."""

    load: Load
    epoch: Epoch
    future: Any


@dataclasses.dataclass
class Saving:
    """A save under way."""

    save: Save
    epoch: Epoch
    future: Any


@dataclasses.dataclass
class Waiting:
    """A load or a save whose epoch is not registered yet."""

    work: Load | Save
    value: str  #: of the epoch
    until: float
    after: Callable[[], bool] | None


class WorkerSide:
    """One per rank process. All calls on the thread that runs the model.

    epochs: None where this rank takes no part (refused says why); every load then fails and every save is given up.
    `epoch.built` has `rank` (kvonce.Rank) and `pools` (by key). connected: whether a store answers; what comes while that has
    not registered the epoch yet waits for it, no longer than a load or a put may take.
    """

    def __init__(
        self,
        settings: Settings,
        epochs: Epochs | None,
        counters: Counters,
        refused: str = "",
        failures: Failures | None = None,
        connected: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.settings = settings
        self.epochs = epochs
        self.counters = counters
        self.failures = failures or Failures(counters)
        self._refused = refused
        self._connected = connected
        self._clock = clock
        self._updates = 0
        self._value: str | None = None  # of the step's epoch
        self._told: str | None = None  # of the epoch that was asked for last
        self._waiting: list[Waiting] = []
        self._loads: list[Loading] = []
        self._saves: dict[int, Saving] = {}
        self._saving: dict[str, set[int]] = {}  # request -> jobs
        self._held: set[str] = set()
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._done = Done()

    # -- starts --------------------------------------------------------------------------------------------------------

    def begin(self, step: Step) -> None:
        """A step begins: which weights there are, which finished requests' blocks wait for their saves."""
        self._updates = max(self._updates, step.updates)
        self._value = step.epoch
        self._held.update(step.held)

    def start_loads(self, step: Step, after: Callable[[], bool] | None = None) -> None:
        """Starts this step's loads; no byte of a block is written before `after` answers True."""
        self._go_on()
        for load in step.loads:
            self._start(load, load.epoch, self.settings.load_ms, after)

    def start_saves(self, step: Step, after: Callable[[], bool] | None = None) -> None:
        """Starts this step's saves; no byte of a block is read before `after` answers True."""
        for save in step.saves:
            self._saving.setdefault(save.request, set()).add(save.job)
            self._start(save, step.epoch, self.settings.put_ms, after)

    def no_loads(self, step: Step) -> None:
        """Starting went wrong: those that have not started have failed, so nobody waits for them."""
        known = {work.request for work in self._under_way() if isinstance(work, Load)} | self._received
        for load in step.loads:
            if load.request not in known:
                self._end(load, "error")

    def no_saves(self, step: Step) -> None:
        """Starting went wrong: those that have not started are answered, so their blocks are not kept."""
        known = {work.job for work in self._under_way() if isinstance(work, Save)} | set(self._done.jobs)
        for save in step.saves:
            if save.job not in known:
                self._end(save, "error")

    def _under_way(self) -> list[Load | Save]:
        works: list[Load | Save] = [waiting.work for waiting in self._waiting]
        return works + [loading.load for loading in self._loads] + [saving.save for saving in self._saves.values()]

    def _start(self, work: Load | Save, value: str | None, milliseconds: float, after: Callable[[], bool] | None) -> None:
        """Starts it, or lets it wait; whatever becomes of it, it ends."""
        try:
            cause = self._refusal(work, value)
            if not cause:
                self._told = value
                waiting = Waiting(work, value or "", self._clock() + milliseconds / 1000, after)
                cause = self._try(waiting)
                if cause is None:
                    self._waiting.append(waiting)
        except Exception as error:
            cause = self._raised(work, error)
        if cause:
            self._end(work, cause)

    def _refusal(self, work: Load | Save, value: str | None) -> str:
        if self.epochs is None:
            return "refused"
        if isinstance(work, Load):
            if not work.rows or not any(max(column) >= 0 for column in work.rows.values()):
                return "cancelled"
            if work.updates != self._updates or (self._value is not None and value != self._value):
                return "stale_epoch"
        return "no_store" if value is None else ""

    def _try(self, waiting: Waiting) -> str | None:
        """Empty: started; None: its epoch is being registered; else why it cannot be."""
        epoch = self.epochs.at(waiting.value)
        if epoch is None:
            return None if self._connected() else "no_store"
        if not epoch.acquire():
            return "no_store"
        work = waiting.work
        try:
            future = (self.load if isinstance(work, Load) else self.put)(epoch, work, waiting.after)
        except BaseException:
            epoch.release()
            raise
        if isinstance(work, Load):
            self._loads.append(Loading(work, epoch, future))
        else:
            self._saves[work.job] = Saving(work, epoch, future)
        return ""

    def _go_on(self) -> None:
        """What has waited for its epoch starts as soon as that is there."""
        waiting, self._waiting = self._waiting, []
        now = self._clock()
        for one in waiting:
            work = one.work
            try:
                if one.value != self._told or (isinstance(work, Load) and work.updates != self._updates):
                    cause = "stale_epoch"
                elif now > one.until:
                    cause = "no_epoch"
                else:
                    cause = self._try(one)
                    if cause is None:
                        self._waiting.append(one)
            except Exception as error:
                cause = self._raised(work, error)
            if cause:
                self._end(work, cause)

    def _raised(self, work: Load | Save, error: Exception) -> str:
        self.failures.tell("load" if isinstance(work, Load) else "put", error)
        return getattr(error, "reason", "") or "error"

    def load(self, epoch: Epoch, load: Load, after: Callable[[], bool] | None) -> Any:
        """Starts one load; the future's result tells. Tests put another in its place."""
        rows = {epoch.built.pools[key]: column for key, column in load.rows.items() if max(column) >= 0}
        return epoch.built.rank.load(load.lease, load.hashes, rows, after=after, timeout=self.settings.load_ms / 1000)

    def put(self, epoch: Epoch, save: Save, after: Callable[[], bool] | None) -> Any:
        """Starts one save; the future's result tells."""
        rows = {epoch.built.pools[key]: column for key, column in save.rows.items()}
        timeout = self.settings.put_ms / 1000
        return epoch.built.rank.put(
            save.hashes, rows, parent=save.parent, first_depth=save.first_page, after=after, timeout=timeout
        )

    # -- ends ----------------------------------------------------------------------------------------------------------

    def results(self) -> Results:
        """What ended since the last call. A load of weights that were replaced meanwhile has failed."""
        self._go_on()
        self._poll_saves()
        loads = [(loading, loading.future.done()) for loading in self._loads]
        self._loads = [loading for loading, ended in loads if not ended]
        for loading in [loading for loading, ended in loads if ended]:
            self._end(loading.load, self._load_cause(loading))
            self._let_go(loading.epoch)
        sent = {request for request in self._held if request not in self._saving}
        self._held -= sent
        results = Results(sent, self._received, self._failed)
        self._received, self._failed = set(), set()
        return results

    def _load_cause(self, loading: Loading) -> str:
        try:
            result = loading.future.result()
            ok, causes = result.ok, result.causes()
        except Exception as error:
            reason = getattr(error, "reason", "") or "error"
            return "slow_load" if reason == "deadline" else reason
        if loading.load.updates != self._updates:
            return "stale_epoch"
        if ok:
            return ""
        return max(causes, key=causes.get) if causes else "error"

    def _let_go(self, epoch: Epoch) -> None:
        try:
            epoch.release()
        except Exception as error:
            self.failures.tell("epoch", error)

    def _end(self, work: Load | Save, cause: str) -> None:
        """It is over, for this cause where it has failed."""
        if isinstance(work, Save):
            self._end_save(work, not cause, {cause: work.pages} if cause else {})
            return
        self._received.add(work.request)
        if cause:
            self._failed.add(work.request)
            self.counters.add("failed_load_tokens", work.tokens, cause)
        else:
            self.counters.add("loaded_tokens", work.tokens)

    def _end_save(self, save: Save, stored: bool, causes: dict[str, int]) -> None:
        self._done.jobs[save.job] = (1, int(stored))
        jobs = self._saving.get(save.request, set())
        jobs.discard(save.job)
        if not jobs:
            self._saving.pop(save.request, None)
        self.counters.put(save.pages, causes)

    def _poll_saves(self) -> None:
        for job, saving in [(job, saving) for job, saving in self._saves.items() if saving.future.done()]:
            del self._saves[job]
            try:
                result = saving.future.result()
                stored, causes = result.ok, result.causes()
            except Exception as error:
                stored, causes = False, {getattr(error, "reason", "") or "error": saving.save.pages}
            self._end_save(saving.save, stored, causes)
            self._let_go(saving.epoch)

    def take_done(self) -> Done:
        """Save jobs that ended since the last call, for the scheduler."""
        done, self._done = self._done, Done()
        done.refused, self._refused = self._refused, ""
        return done

    def wait(self, seconds: float, requests: Iterable[str] | None = None) -> bool:
        """Waits for saves (of these requests, or all) to end; True when they have."""
        end = time.monotonic() + seconds
        wanted = None if requests is None else set(requests)
        for saving in list(self._saves.values()):
            if wanted is None or saving.save.request in wanted:
                saving.future.wait(max(0.0, end - time.monotonic()))
        return all(saving.future.done() for saving in self._saves.values() if wanted is None or saving.save.request in wanted)
