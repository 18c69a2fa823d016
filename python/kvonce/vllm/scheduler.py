# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side: looks up, plans loads and saves, keeps blocks until they are read. Knows no vLLM class: requests,
block pool and scheduler output are taken as they come."""

from __future__ import annotations

import collections
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvonce.engine import Counters, Epoch, Epochs, Failures, Settings

from .adapters import Adapters, salted
from .layout import NULL_BLOCK, Plan
from .messages import Done, Load, Rows, Save, Step
from .tracked import Answer, Asking, Saving, Stored, Tracked

_log = logging.getLogger("kvonce")

QUICK_SECONDS = 0.001  # lookups may hold the scheduler's loop for this long, all of a step together
LATE_SECONDS = 1.0  # a lookup that overran its own deadline by this is given up
LEASE_SPARE_SECONDS = 20.0  # a request may wait for blocks for so long before it is asked for again
KEPT_SHARE = 0.5  # of the engine's blocks may be kept for saves that are running
SOON_SECONDS = 0.1  # a save that takes longer is not worth waiting for
KNOWN_PAGES = 65_536  # hashes of pages that were stored lately
NO_CACHE = object()


class SchedulerSide:
    """One per engine. All calls on the scheduler's thread.

    release(lease): gives a lease back; never raises. ranks: rank processes that answer each save. connected: whether a store
    answers, for the causes of misses.
    """

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        epochs: Epochs,
        release: Callable[[Any], None],
        counters: Counters,
        ranks: int,
        cause: Callable[[str, int], str] = lambda reason, pages: reason,
        events: bool = False,
        adapters: Adapters | None = None,
        failures: Failures | None = None,
        connected: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.plan = plan
        self.settings = settings
        self.epochs = epochs
        self.counters = counters
        self.refused = ""  # why a rank takes no part
        self.failures = failures or Failures(counters)
        self._release = release
        self._ranks = ranks
        self._cause = cause
        self._connected = connected
        self._clock = clock
        self._events_on = events
        self._adapters = adapters or Adapters()
        self._requests: dict[str, Tracked] = {}
        self._loads: list[Load] = []
        self._loading: dict[str, Load] = {}
        self._held: list[str] = []
        self._holding: set[str] = set()
        self._jobs: dict[int, Saving] = {}
        self._kept = 0  # blocks of all jobs
        self._acks: dict[int, tuple[int, int]] = {}
        self._next_job = 0
        self._block_pool: Any = None
        self._known: collections.OrderedDict[bytes, None] = collections.OrderedDict()
        self._life = 0
        self._off = 0  # 1: switched off
        self._cache: Any = None  # what stands for the engine's own cache as it was in the last step
        self._old_cache: Any = NO_CACHE  # that which may hold pages of replaced weights
        self._holds: dict[int, bool] = {}  # whether an adapter is as it was, looked up once a step; by id of its Content
        self._quick = QUICK_SECONDS
        self.events: list[Stored] = []
        self.cleared = False  # for KV events: all was forgotten

    # -- requests ------------------------------------------------------------------------------------------------------

    def bind_block_pool(self, pool: Any) -> None:
        """vLLM's block pool: blocks that are read are kept by its reference counts."""
        self._block_pool = pool

    def track(self, request: Any) -> Tracked:
        """The state of a request; made when it is new."""
        found = self._requests.get(request.request_id)
        if found is None or found.request is not request:
            found = self._requests[request.request_id] = Tracked(request)
            found.content = self._adapters.content(getattr(request, "lora_request", None), self._cache_life())
        return found

    def disown(self, request: Any) -> None:
        """Something went wrong with the request: it is neither looked up nor saved any more. The engine computes it."""
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            tracked = self._requests[request.request_id] = Tracked(request)
        tracked.ours = False
        self._drop(tracked)

    def forget(self, request: Any) -> None:
        """Ending the request went wrong: its blocks are the engine's. Those that saves read are kept by reference."""
        self._requests.pop(request.request_id, None)

    def switch_off(self, why: str) -> None:
        """From now on nothing is looked up or saved, and loads that are running have failed."""
        self.refused = why
        self._off = 1
        _log.error("%s kvonce is not used any more.", why)

    @property
    def _updates(self) -> int:
        return self.epochs.number + self._off

    def _cache_life(self) -> Any:
        """Stands for the engine's own cache until that is emptied: vLLM puts another table in its place then."""
        return getattr(self._block_pool, "cached_block_hash_to_block", None)

    def _mixes(self, tracked: Tracked) -> bool:
        """Whether pages that the request has from the engine's own cache may be of weights that were replaced: all that is
        computed behind them is, then, too."""
        life = self._cache_life()
        lora = getattr(tracked.request, "lora_request", None)
        return life is self._old_cache or self._adapters.replaced(lora, life)

    def _serves(self, tracked: Tracked) -> bool:
        """Whether the request's pages have a name in the store: not while its adapter's content is not known, nor when that was
        replaced since the request came."""
        if not tracked.ours or tracked.salt is None:
            return False
        key = id(tracked.content)
        if key not in self._holds:
            self._holds[key] = self._adapters.holds(getattr(tracked.request, "lora_request", None), tracked.content)
        if not self._holds[key]:
            self.disown(tracked.request)
        return tracked.ours

    def _names(self, tracked: Tracked, first: int, end: int) -> bytes:
        """What the pages first .. end-1 of a request are called in the store."""
        return salted(self.plan.page_hashes(tracked.request.block_hashes, first, end), tracked.salt or b"")

    def matched(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """(tokens beyond `computed` that can be loaded, whether any); (None, False) while the store is being asked."""
        tracked = self.track(request)
        page = self.plan.page_tokens
        # At least one token is computed: recurrent state cannot be rewound by one.
        limit = min((request.num_tokens - 1) // page, self.plan.hashed_pages(request.block_hashes))
        tracked.mixed = computed > 0 and self._mixes(tracked)
        if not self.settings.reads or self.refused or tracked.failed:
            return 0, False
        if getattr(request, "skip_reading_prefix_cache", False):
            return 0, False
        if limit * page <= computed or limit * page < self.settings.min_tokens:
            self._drop(tracked)
            return 0, False
        if not self._serves(tracked):
            if tracked.ours:
                self._count(tracked, limit * page - computed, 0, "adapter")
            return 0, False
        epoch = self.epochs.current()
        if epoch is None:
            self._drop(tracked)
            self._count(tracked, limit * page - computed, 0, self._no_epoch())
            return 0, False
        answer = self._answer(tracked, epoch, limit, computed)
        if answer is None:
            return None, False
        tokens = answer.pages * page - computed
        if tokens <= 0:
            self._drop(tracked)
            return 0, False
        answer.start = computed
        return tokens, True

    def _no_epoch(self) -> str:
        return "no_epoch" if self._connected() else "no_store"

    def _answer(self, tracked: Tracked, epoch: Epoch, limit: int, computed: int) -> Answer | None:
        now = self._clock()
        answer = tracked.answer
        if answer is not None:
            if answer.epoch is epoch and answer.asked == limit and now < answer.until:
                return answer
            self._drop(tracked)
        asking = tracked.asking
        if asking is not None and (asking.epoch is not epoch or asking.pages != limit):
            self._drop(tracked)
            asking = None
        if asking is None:
            asking = self._ask(tracked, epoch, limit)
            if asking.future is not None and self._quick > 0:
                asking.future.wait(self._quick)
                self._quick -= self._clock() - now
        if asking.future is not None and not asking.future.done():
            if now < asking.since + self.settings.lookup_ms / 1000 + LATE_SECONDS:
                return None
            self._drop(tracked)
            asking.future = None
        tracked.asking = None
        pages, lease, reason = 0, None, "slow_lookup"
        if asking.future is not None:
            try:
                result = asking.future.result()
                pages, lease, reason = result.pages, result.lease, result.reason or "absent"
            except Exception as error:
                reason = "slow_lookup" if getattr(error, "reason", "") == "deadline" else getattr(error, "reason", "") or "error"
        page = self.plan.page_tokens
        self._count(tracked, limit * page - computed, max(0, pages * page - computed), self._cause(reason, pages))
        tracked.next_page = max(tracked.next_page, pages)
        until = asking.since + self.lease_seconds - self.settings.load_ms / 1000
        tracked.answer = Answer(epoch, pages, lease, computed, limit, until)
        return tracked.answer

    @property
    def lease_seconds(self) -> float:
        """Life of a lookup's lease."""
        return self.settings.load_ms / 1000 + LEASE_SPARE_SECONDS

    def _ask(self, tracked: Tracked, epoch: Epoch, limit: int) -> Asking:
        asking = Asking(epoch, None, limit, self._clock())
        tracked.asking = asking
        try:
            asking.future = epoch.built.group.lookup_async(
                self._names(tracked, 0, limit), lease_time=self.lease_seconds, timeout=self.settings.lookup_ms / 1000
            )
        except Exception as error:
            self.failures.tell("lookup", error)
        return asking

    def _count(self, tracked: Tracked, asked: int, hit: int, cause: str) -> None:
        if not tracked.counted:
            tracked.counted = True
            self.counters.lookup(asked, hit, cause)

    def _drop(self, tracked: Tracked) -> None:
        """Gives back what was found or asked for."""
        answer, tracked.answer = tracked.answer, None
        if answer is not None and answer.lease is not None:
            self._release(answer.lease)
        asking, tracked.asking = tracked.asking, None
        if asking is not None and asking.future is not None:
            try:
                asking.future.add_done_callback(self._release_found)
                asking.future.cancel()
            except Exception as error:  # its lease ends by itself
                self.failures.tell("lookup", error)

    def _release_found(self, future: Any) -> None:
        try:
            lease = future.result().lease
        except Exception:
            return  # cancelled or failed: it found nothing
        if lease is not None:
            self._release(lease)

    def allocated(self, request: Any, tables: Sequence[Sequence[int]], tokens: int) -> None:
        """Blocks are there; `tokens` of the answer are wanted (0: none). tables: block ids by cache group."""
        tracked = self.track(request)
        answer, tracked.answer = tracked.answer, None
        if tokens <= 0:
            tracked.answer = answer
            self._drop(tracked)
            return
        lease = answer.lease if answer is not None else None
        try:
            load = self._planned_load(tracked, answer, tables, tokens)
        except Exception as error:
            self.failures.tell("load", error)
            load = self._nothing(request, tokens, lease)
        tracked.loading = load
        tracked.restored = answer.start // self.plan.page_tokens + load.pages if answer is not None and load.rows else 0
        self._loading[request.request_id] = load
        self._loads.append(load)

    def _planned_load(self, tracked: Tracked, answer: Answer | None, tables: Sequence[Sequence[int]], tokens: int) -> Load:
        if answer is None:
            raise RuntimeError(f"{tokens} tokens of request {tracked.request.request_id} are wanted that were never offered")
        first, end = answer.start // self.plan.page_tokens, (answer.start + tokens) // self.plan.page_tokens
        rows = self._load_rows(tables, answer.start, first, end)
        names = self._names(tracked, first, end)
        return Load(tracked.request.request_id, self._updates, answer.epoch.value, answer.lease, names, rows, tokens)

    def _nothing(self, request: Any, tokens: int, lease: Any = None) -> Load:
        """A load of no row: the ranks report it as failed, so the engine computes the tokens."""
        return Load(request.request_id, self._updates, "", lease, b"", {}, tokens)

    def not_planned(self, request: Any, tokens: int) -> None:
        """Planning a load went wrong, and the engine waits for its end: it hears that the load has failed."""
        self.disown(request)
        if tokens > 0 and request.request_id not in self._loading:
            load = self._requests[request.request_id].loading = self._loading[request.request_id] = self._nothing(request, tokens)
            self._loads.append(load)

    def _load_rows(self, tables: Sequence[Sequence[int]], start: int, first: int, end: int) -> Rows:
        page = self.plan.page_tokens
        rows: Rows = {}
        for pool in self.plan.pools:
            table = tables[pool.group]
            if pool.is_state:
                # The state at the end alone; its block stands where the engine put it, the last one of the table.
                at = len(table) - 1
                while at >= 0 and table[at] == NULL_BLOCK:
                    at -= 1
                rows[pool.key] = [-1] * (end - first - 1) + [table[at] if at >= 0 else -1]
                continue
            block = page // pool.blocks_per_page
            column = []
            for number in range(first, end):
                at = number * pool.blocks_per_page + pool.part
                held = (at + 1) * block <= start  # the engine has it itself
                column.append(-1 if held or at >= len(table) or table[at] == NULL_BLOCK else table[at])
            rows[pool.key] = column
        return rows

    def finished(self, request: Any) -> bool:
        """The request has ended. True: its blocks must be kept until `Results.sent` names it."""
        tracked = self._requests.pop(request.request_id, None)
        if tracked is None:
            return False
        self._drop(tracked)
        if tracked.loading is not None:
            # The engine itself waits for the end of the load and frees the blocks then; saves hold theirs by reference.
            queued = [load for load in self._loads if load is tracked.loading]
            if queued:
                self._loads = [load for load in self._loads if load is not tracked.loading]
                self._loads.append(dataclasses.replace(tracked.loading, rows={}))  # reported as failed, nothing is moved
            return False
        if not tracked.jobs:
            return False
        self._held.append(request.request_id)
        self._holding.add(request.request_id)
        return True

    def reset(self) -> bool:
        """New weights, perhaps: nothing that was stored before is used any more (unless on_reset is "keep")."""
        if not self.epochs.reset():
            return True
        for tracked in self._requests.values():
            self._drop(tracked)
            tracked.stale = getattr(tracked.request, "num_computed_tokens", 0) > 0
            tracked.next_page = tracked.restored = 0
        # The engine empties its own cache at the same time, if no block is in use.
        life = self._cache_life()
        self._old_cache = life if life is None or life is self._cache else NO_CACHE
        self._known.clear()
        self.cleared = True
        return True

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step(self, output: Any) -> Step:
        """What the ranks have to do in the step that `output` (vLLM's SchedulerOutput) describes."""
        step = Step(self._updates, None, self._loads, [], self._held)
        self._quick = QUICK_SECONDS
        self._loads, self._held = [], []
        self._cache = self._cache_life()
        self._holds.clear()
        try:
            epoch = self.epochs.current()
            step.epoch = epoch.value if epoch is not None else None
            self._look_for_another_life()
            preempted = output.preempted_req_ids or ()
            for request in preempted:
                tracked = self._requests.get(request)
                if tracked is not None:
                    tracked.stale = tracked.mixed = tracked.scheduled = False  # all its KV is computed anew
            if self.settings.writes and not self.refused:
                self._plan_saves(output, step, preempted)
        except Exception as error:
            self.failures.tell("step", error)
        return step

    def _look_for_another_life(self) -> None:
        life = self.epochs.life
        if life == 0 or life == self._life:
            return
        before, self._life = self._life, life
        if before:
            self._known.clear()
            for tracked in self._requests.values():
                tracked.next_page = 0  # what was stored may be gone; what is still there is told so at once

    def _plan_saves(self, output: Any, step: Step, preempted: Iterable[str]) -> None:
        state = output.kv_connector_block_state
        boundaries = state.boundary_state_offloads if state is not None and self.plan.states else {}
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        computed.update(zip(output.scheduled_cached_reqs.req_ids, output.scheduled_cached_reqs.num_computed_tokens, strict=True))
        for name, scheduled in output.num_scheduled_tokens.items():
            tracked = self._requests.get(name)
            if tracked is None or not tracked.ours:
                continue
            try:  # what goes wrong with one request is nothing to the others
                self._plan_saves_of(tracked, name, computed[name], scheduled, boundaries.get(name, ()), state, step)
            except Exception as error:
                self._left_alone(tracked, error)
        for name, entries in boundaries.items():
            if name in output.num_scheduled_tokens or name in preempted or name in output.finished_req_ids:
                continue  # done above, or its blocks may be another's by now
            tracked = self._requests.get(name)
            if tracked is None or tracked.stale or tracked.mixed:
                continue
            try:
                if self._serves(tracked):
                    offers = self._boundaries(entries, tracked.request.block_hashes)
                    self._save(tracked, name, tracked.next_page, 0, None, offers, step)
            except Exception as error:
                self._left_alone(tracked, error)

    def _left_alone(self, tracked: Tracked, error: Exception) -> None:
        self.failures.tell("save", error)
        self.disown(tracked.request)

    def _plan_saves_of(
        self, tracked: Tracked, name: str, computed: int, scheduled: int, entries: Any, state: Any, step: Step
    ) -> None:
        page = self.plan.page_tokens
        if not tracked.scheduled:
            tracked.scheduled = True
            tracked.mixed |= computed > tracked.restored * page and self._mixes(tracked)
        if tracked.stale or tracked.mixed:
            return
        hashes = tracked.request.block_hashes
        ready = min((computed + scheduled) // page, self.plan.hashed_pages(hashes))
        offers = self._boundaries(entries, hashes)
        if (ready > tracked.next_page or offers) and ready * page >= self.settings.min_tokens and self._serves(tracked):
            self._save(tracked, name, ready, computed, state.get_block_ids(name), offers, step)

    def _boundaries(self, entries: Iterable[tuple[int, int, int]], hashes: Sequence[bytes]) -> dict[int, dict[int, int]]:
        """{page: {group: block}} of the recurrent states that are at a page's end."""
        found: dict[int, dict[int, int]] = {}
        for group, block, tokens in entries:
            number, rest = divmod(tokens, self.plan.page_tokens)
            if rest == 0 and block != NULL_BLOCK and 0 < number <= self.plan.hashed_pages(hashes):
                found.setdefault(number - 1, {})[group] = block
        return found

    def _save(self, tracked: Tracked, name: str, ready: int, computed: int, tables: Any, offers: dict, step: Step) -> None:
        if step.epoch is None:  # offered again in a later step
            self.counters.add("skipped_pages", max(0, ready - tracked.skipped), self._no_epoch())
            tracked.skipped = max(ready, tracked.skipped)
            return
        first = tracked.next_page
        # Pages that the engine had itself were stored when they were made, as far as is known.
        own = computed // self.plan.page_tokens
        while first < min(own, ready) and self._names(tracked, first, first + 1) in self._known:
            first += 1
        tracked.next_page = max(ready, tracked.next_page)
        if first < ready and tables is not None:
            rows = self._save_rows(tables, first, ready)
            for number in [number for number in offers if first <= number < ready]:
                for pool in self.plan.states:
                    if pool.group in offers[number]:
                        rows.setdefault(pool.key, [-1] * (ready - first))[number - first] = offers[number][pool.group]
                del offers[number]
            self._add_save(tracked, name, first, ready, rows, step)
        for number, blocks in offers.items():
            if number + 1 == tracked.restored:
                continue  # this very state came from the store
            rows = {pool.key: [blocks[pool.group]] for pool in self.plan.states if pool.group in blocks}
            self._add_save(tracked, name, number, number + 1, rows, step)

    def _save_rows(self, tables: Sequence[Sequence[int]], first: int, end: int) -> Rows:
        rows: Rows = {}
        for pool in self.plan.positional:
            table, step = tables[pool.group], pool.blocks_per_page
            column = [block if block != NULL_BLOCK else -1 for block in table[first * step + pool.part : end * step : step]]
            column += [-1] * (end - first - len(column))
            rows[pool.key] = column
        return rows

    def _add_save(self, tracked: Tracked, name: str, first: int, end: int, rows: Rows, step: Step) -> None:
        rows = {key: column for key, column in rows.items() if max(column) >= 0}
        if not rows:
            return
        blocks = sorted({block for column in rows.values() for block in column if block >= 0})
        self.counters.add("offered_pages", end - first)
        if self._kept and self._kept + len(blocks) > self.plan.blocks * KEPT_SHARE:
            self.counters.add("skipped_pages", end - first, "backlog")
            return
        parent = self._names(tracked, first - 1, first) if first else None
        save = Save(self._next_job, name, first, parent, self._names(tracked, first, end), rows)
        self._next_job += 1
        stored = self._stored(tracked.request, save) if self._events_on else None
        pinned = [self._block_pool.blocks[block] for block in blocks] if self._block_pool is not None else []
        if pinned:  # nothing that may fail comes between this and the job
            self._block_pool.touch(pinned)
        self._jobs[save.job] = Saving(save, len(blocks), pinned, stored, self._clock())
        self._kept += len(blocks)
        tracked.jobs.add(save.job)
        step.saves.append(save)

    def _stored(self, request: Any, save: Save) -> Stored:
        page = self.plan.page_tokens
        tokens = list(request.all_token_ids[save.first_page * page : (save.first_page + save.pages) * page])
        hashes = request.block_hashes  # as the engine knows them
        pages = [self.plan.page_hash(hashes, number) for number in range(save.first_page, save.first_page + save.pages)]
        parent = self.plan.page_hash(hashes, save.first_page - 1) if save.first_page else None
        return Stored(pages, parent, tokens, getattr(request, "lora_request", None))

    # -- answers of the ranks ------------------------------------------------------------------------------------------

    def received(self, done: Iterable[str], failed: Iterable[str]) -> None:
        """Loads that ended on all ranks, and which of them failed on any."""
        failed = set(failed)
        for name in done:
            load = self._loading.pop(name, None)
            if load is None:
                continue
            if load.lease is not None:
                self._release(load.lease)
            tracked = self._requests.get(name)
            if tracked is not None:
                tracked.loading = None
                if name in failed:
                    tracked.failed, tracked.restored, tracked.next_page, tracked.stale = True, 0, 0, False

    def sent(self, names: Iterable[str]) -> None:
        """Finished requests whose blocks are free now."""
        self._holding.difference_update(names)

    def done(self, done: Done) -> None:
        """Save jobs that ended on some ranks. Blocks are let go when all have answered."""
        if done.refused and not self.refused:
            self.refused = done.refused
            _log.error("%s A rank takes no part, so kvonce is not used.", done.refused)
        for job, (ranks, stored) in done.jobs.items():
            before = self._acks.get(job, (0, 0))
            now = (before[0] + ranks, before[1] + stored)
            if now[0] < self._ranks:
                self._acks[job] = now
                continue
            self._acks.pop(job, None)
            try:
                self._ended(job, now[1] == self._ranks)
            except Exception as error:
                self.failures.tell("done", error)

    def _ended(self, job: int, stored: bool) -> None:
        found = self._jobs.pop(job, None)
        if found is None:
            return
        self._kept -= found.blocks
        tracked = self._requests.get(found.save.request)
        if tracked is not None:
            tracked.jobs.discard(job)
        if found.pinned:
            self._block_pool.free_blocks(found.pinned)
        if stored:
            self._remember(found.save)
            if found.stored is not None:
                self.events.append(found.stored)

    def _remember(self, save: Save) -> None:
        for at in range(0, len(save.hashes), 32):
            self._known[save.hashes[at : at + 32]] = None
        while len(self._known) > KNOWN_PAGES:
            self._known.popitem(last=False)

    @property
    def busy(self) -> bool:
        """True while saves are running: the engine must go on stepping to hear of their end."""
        return bool(self._jobs or self._holding)

    @property
    def frees_soon(self) -> bool:
        """True while blocks that nobody else holds wait for saves that began lately: better to wait for them than to preempt."""
        lately = self._clock() - SOON_SECONDS
        return any(block.ref_cnt == 1 for saving in self._jobs.values() if saving.since > lately for block in saving.pinned)
