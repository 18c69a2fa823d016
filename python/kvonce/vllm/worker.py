# SPDX-License-Identifier: Apache-2.0
"""A rank's side: copies blocks to the store and back, and tells what became of it. Knows no vLLM class."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any

from kvonce.engine import Counters, Epoch, Epochs, Settings

from .guard import Failures
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


class WorkerSide:
    """One per rank process. All calls on the thread that runs the model.

    epochs: None where this rank takes no part (refused says why); every load then fails and every save is given up.
    `epoch.built` has `rank` (kvonce.Rank) and `pools` (by key).
    """

    def __init__(
        self, settings: Settings, epochs: Epochs | None, counters: Counters, refused: str = "", failures: Failures | None = None
    ):
        self.settings = settings
        self.epochs = epochs
        self.counters = counters
        self.failures = failures or Failures(counters)
        self._refused = refused
        self._updates = 0
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
        self._held.update(step.held)

    def start_loads(self, step: Step, after: Callable[[], bool] | None = None) -> None:
        """Starts this step's loads; no byte of a block is written before `after` answers True."""
        for load in step.loads:
            try:
                cause = self._start_load(load, after)
            except Exception as error:
                cause = getattr(error, "reason", "") or "error"
                self.failures.tell("load", error)
            if cause:
                self._end_load(load, cause)

    def no_loads(self, step: Step) -> None:
        """Starting went wrong: those that have not started have failed, so nobody waits for them."""
        known = {loading.load.request for loading in self._loads} | self._received
        for load in step.loads:
            if load.request not in known:
                self._end_load(load, "error")

    def _start_load(self, load: Load, after: Callable[[], bool] | None) -> str:
        if self.epochs is None:
            return "refused"
        if not load.rows or not any(max(column) >= 0 for column in load.rows.values()):
            return "cancelled"
        if load.updates != self._updates:
            return "stale_epoch"
        epoch = self.epochs.at(load.epoch)
        if epoch is None or not epoch.acquire():
            return "no_store"
        try:
            future = self.load(epoch, load, after)
        except BaseException:
            epoch.release()
            raise
        self._loads.append(Loading(load, epoch, future))
        return ""

    def load(self, epoch: Epoch, load: Load, after: Callable[[], bool] | None) -> Any:
        """Starts one load; the future's result tells. Tests put another in its place."""
        rows = {epoch.built.pools[key]: column for key, column in load.rows.items() if max(column) >= 0}
        return epoch.built.rank.load(load.lease, load.hashes, rows, after=after, timeout=self.settings.load_ms / 1000)

    def start_saves(self, step: Step, after: Callable[[], bool] | None = None) -> None:
        """Starts this step's saves; no byte of a block is read before `after` answers True."""
        for save in step.saves:
            try:
                cause = self._start_save(save, step.epoch, after)
            except Exception as error:
                cause = getattr(error, "reason", "") or "error"
                self.failures.tell("put", error)
            if cause:
                self._end_save(save, False, {cause: save.pages})

    def no_saves(self, step: Step) -> None:
        """Starting went wrong: those that have not started are answered, so their blocks are not kept."""
        for save in step.saves:
            if save.job not in self._saves and save.job not in self._done.jobs:
                self._end_save(save, False, {"error": save.pages})

    def _start_save(self, save: Save, value: str | None, after: Callable[[], bool] | None) -> str:
        if self.epochs is None:
            return "refused"
        epoch = self.epochs.at(value)
        if epoch is None or not epoch.acquire():
            return "no_store"
        try:
            rows = {epoch.built.pools[key]: column for key, column in save.rows.items()}
            future = epoch.built.rank.put(
                save.hashes,
                rows,
                parent=save.parent,
                first_depth=save.first_page,
                after=after,
                timeout=self.settings.put_ms / 1000,
            )
        except BaseException:
            epoch.release()
            raise
        self._saves[save.job] = Saving(save, epoch, future)
        self._saving.setdefault(save.request, set()).add(save.job)
        return ""

    # -- ends ----------------------------------------------------------------------------------------------------------

    def results(self) -> Results:
        """What ended since the last call. A load of weights that were replaced meanwhile has failed."""
        self._poll_saves()
        loads = [(loading, loading.future.done()) for loading in self._loads]
        self._loads = [loading for loading, ended in loads if not ended]
        for loading in [loading for loading, ended in loads if ended]:
            self._end_load(loading.load, self._load_cause(loading))
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

    def _end_load(self, load: Load, cause: str) -> None:
        self._received.add(load.request)
        if cause:
            self._failed.add(load.request)
            self.counters.add("failed_load_tokens", load.tokens, cause)
        else:
            self.counters.add("loaded_tokens", load.tokens)

    def _end_save(self, save: Save, stored: bool, causes: dict[str, int]) -> None:
        self._done.jobs[save.job] = (1, int(stored))
        self.counters.put(save.pages, causes)

    def _poll_saves(self) -> None:
        for job, saving in [(job, saving) for job, saving in self._saves.items() if saving.future.done()]:
            del self._saves[job]
            jobs = self._saving[saving.save.request]
            jobs.discard(job)
            if not jobs:
                del self._saving[saving.save.request]
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
