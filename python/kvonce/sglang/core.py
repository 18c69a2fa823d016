# SPDX-License-Identifier: Apache-2.0
"""The linker without SGLang: what its ten calls do, on pool views. `linker.py` joins it to SGLang's classes.

What must hold over all ranks of an engine: the answers of load() and offload() depend on the transfers alone. A rank in
trouble tells it where SGLang reduces over the ranks: in lookup(), finish_layer_wise_loading() and pop_completed_offload().
"""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..engine import Counters, Epochs, Failures, Place, Settings, Shard
from ..engine.breaker import Breaker
from . import updates
from .layer_counter import LayerCounter
from .leases import Releaser
from .loads import Loader, LoadJob
from .lookups import Answer, Chains, LookupBook
from .offloads import Offloader
from .transfers import PoolView, page_hashes, resolve

_log = logging.getLogger("kvonce")

_LEASE_SECONDS = 10.0
_FRESH_SECONDS = 4.0  # an answer is used again for so long; the rest of its lease is for the load
_LEASE_MARGIN_SECONDS = 1.0
_MISS_SECONDS = 1.0  # as the store itself keeps an empty answer
_UNSETTLED_SECONDS = 0.05  # of a miss that is none a moment later
_PROBE_SECONDS = 1.0
_COUNTER_GRACE_SECONDS = 15.0
_DRAIN_SECONDS = 5.0
#: Why a lookup that raised is a miss, by the error's reason.
_SLOW = {"deadline": "slow_lookup", "store_lost": "no_store"}


class Built:
    """What one weight epoch has in the store: page group, this rank and its pools. Made in every epoch's namespace."""

    def __init__(self, namespace: Any, views: Sequence[PoolView], shards: dict[str, Shard], place: Place):
        from kvonce import Component, GroupPool, Layer

        self.views = views
        pools = [
            GroupPool(v.pool_name, shards=shards[v.text].counts, trailing_pages=v.trailing_pages, optional=v.optional) for v in views
        ]
        self.group = namespace.group(group_name(views, shards, place), pools, ranks=place.ranks)
        self.rank = self.group.rank(*place.index)
        self.pools = {}
        for v in views:
            parts = [
                Component(name, [Layer(address, stride, size, v.rows) for address, stride, size in layers])
                for name, layers in v.components
            ]
            self.pools[v.text] = self.rank.register_pool(v.pool_name, parts, rows=v.rows, shard=shards[v.text].index, unit=v.unit)

    def close(self) -> None:
        """Ends the rank; waits for lent rows."""
        self.rank.close()


def group_name(views: Sequence[PoolView], shards: dict[str, Shard], place: Place) -> str:
    """One name for one set of pools and ranks: engines of another size, or with a draft, have a group of their own."""
    text = repr([(v.pool_name, shards[v.text].counts, v.trailing_pages, v.optional) for v in views])
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"sglang linker tp{place.tp_size} cp{place.cp_size} {digest}"


class LinkerCore:
    """views: this rank's pools. link: engine.Connection. epochs: engine.Epochs whose `built` has group, rank, pools as Built.

    refusal: why nothing is served (one sentence); then link and epochs are None, and every answer is that of an empty store.
    """

    def __init__(
        self,
        views: Sequence[PoolView],
        num_layers: int,
        page_tokens: int,
        settings: Settings,
        counters: Counters,
        *,
        link: Any = None,
        epochs: Epochs | None = None,
        refusal: str = "",
        clock: Callable[[], float] = time.monotonic,
    ):
        self.views = list(views)
        self.page_tokens = page_tokens
        self.settings = settings
        self.counters = counters
        self.link = link
        self.epochs = epochs
        self.refusal = refusal
        self._clock = clock
        load_seconds = settings.load_ms / 1000
        self.layer_done_counter = LayerCounter(num_layers, load_seconds + _COUNTER_GRACE_SECONDS)
        self._book = LookupBook(clock=clock)
        self._chains = Chains()
        self._queued: dict[str, LoadJob] = {}
        self._batches: dict[int, list[Answer]] = {}
        self._finished: list[Answer] = []
        self._breaker = Breaker(clock=clock)
        self._releaser = Releaser(self._release)
        self._failures = Failures(counters)
        self._loader = Loader(
            self.layer_done_counter,
            load_seconds=load_seconds,
            page_tokens=page_tokens,
            issue=self.issue_load,
            gate=self.make_gate,
            renew=self._renew,
            release=self._give_back,
            counters=counters,
        )
        self._offloader = Offloader(put=self.issue_put, chains=self._chains, counters=counters)

    # -- SGLang's calls ------------------------------------------------------------------------------------------------

    def lookup(self, rid: str, transfers: Sequence[Any]) -> list[int]:
        """Every prefix length in pages, ascending, that can be restored in all pools and on all ranks. Never raises."""
        try:
            chain = next((t for t in transfers if str(getattr(t.name, "value", t.name)) == "kv"), None)
            if chain is None or not chain.keys:
                return []
            keys = list(chain.keys)
            known = self._book.repeated(rid, keys, self._life())
            if known is not None:
                self.counters.add("lookups", 1, "repeated")
                return known.stops
            return self._ask(rid, keys, transfers)
        except Exception:
            self.complain("lookup")
            return []

    def load(self, rid: str, transfers: Sequence[Any]) -> bool:
        """Accepts a load for the next start; the answer depends on the transfers alone. Never raises."""
        try:
            resolved = resolve(self.views, transfers, partial=True)
        except Exception:  # of the transfers: so it is on all ranks
            self.complain("load")
            return False
        if resolved is None:
            return False
        job = LoadJob(rid, resolved, None)
        self.cancel_queued_load(rid)
        self._queued[rid] = job
        try:
            job.answer = self._book.take(rid)
            self._loader.accept(job)
        except Exception:  # told when the batch is finished
            self.complain("load")
        return True

    def start_layer_wise_loading(self) -> int:
        """Starts what was accepted; the counter's index for the forward, -1: nothing. Never raises."""
        self._give_back_finished()
        if not self._queued:
            return -1
        jobs, self._queued = list(self._queued.values()), {}
        index = self.layer_done_counter.update_producer()
        try:
            self._batches[index] = [job.answer for job in jobs if job.answer is not None and job.answer.lease is not None]
            # A store that was lost since the lookup is no reason not to try: the pages are in this process's memory.
            self._loader.start(index, jobs, self._epoch())
        except Exception as error:
            self.complain("load")
            self.layer_done_counter.fail(index, error)
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        """Waits for the batch's last write; True: all of it is in place. Never raises."""
        landed = False
        try:
            landed = self.layer_done_counter.finish(counter_index)
            if not landed:
                self._loader.quiet(counter_index)
            # The lease is one for all ranks, and the others may not have begun: it is given back when SGLang calls next,
            # which is after it has reduced this very answer over all ranks.
            self._finished += self._batches.pop(counter_index, [])
        except Exception:
            self.complain("load")
        return landed

    def cancel_queued_load(self, rid: str) -> bool:
        """True when the load had not been started; its slots are not touched then. Never raises."""
        job = self._queued.pop(rid, None)
        if job is None:
            return False
        try:
            self._loader.drop(job)
            if job.answer is not None:
                self._finished.append(job.answer)
        except Exception:
            self.complain("load")
        return True

    def offload(self, transfers: Sequence[Any], ready: Callable[[], bool] | None, refuse: str = "") -> bool:
        """Accepts pages to be kept; the answer depends on the transfers alone. No row is read before ready() is True. Never raises.

        refuse: a cause for which they are not kept all the same."""
        try:
            resolved = resolve(self.views, transfers, partial=True)
        except Exception:  # of the transfers: so it is on all ranks
            self.complain("offload")
            return False
        if resolved is None:
            return False
        epoch = None
        try:
            if not refuse:
                epoch = self._epoch()
                refuse = self._why_not_put(resolved.pages, epoch)
        except Exception:
            self.complain("offload")
            refuse = "failed"
        self._offloader.add(resolved, epoch, ready, refuse)
        return True

    def num_completed_offloads(self) -> int:
        """Offloads that are done and not taken, counted from the oldest without a gap. Called in every step."""
        if self._finished:
            self._give_back_finished()
        return self._offloader.completed()

    def pop_completed_offload(self) -> bool:
        """Takes the oldest; True: stored in all its pools."""
        return self._offloader.pop()

    def weights_changed(self) -> None:
        """New weights are being put in place: nothing is kept or looked up while `updates.mixed`, and nothing older after that."""
        if self.epochs is not None:
            self.epochs.update("update")

    def reset(self, knows_updates: bool = False) -> None:
        """Returns when no slot is read or written any more. The store keeps what it has. Never raises.

        knows_updates: weights_changed() was called for every update.
        """
        self._quiesce()
        try:
            if not knows_updates and self.epochs is not None:
                self.epochs.reset()
        except Exception:
            self.complain("reset")

    def settle(self, seconds: float) -> None:
        """Waits so long, at the engine's start, for the store to know this rank: its first requests are served then. Never raises."""
        try:
            if self.epochs is not None and self.link.connected:
                self.epochs.wait(seconds)
        except Exception:
            self.complain("start")

    def close(self) -> None:
        """As reset, and lets go of the store. Never raises."""
        self._quiesce()
        parts = [self._loader.close, lambda: self._offloader.close(_DRAIN_SECONDS), lambda: self._releaser.close(_PROBE_SECONDS)]
        for part in [*parts, *(one.close for one in (self.epochs, self.link) if one is not None)]:
            try:
                part()
            except Exception:
                self.complain("close")

    # -- what a test's control replaces --------------------------------------------------------------------------------

    def make_gate(self) -> Any:
        """What a load waits for before it writes."""
        from kvonce import Event

        return Event()

    def issue_load(
        self, epoch: Any, lease: Any, pages: bytes, rows: dict[str, Any], begin: int, end: int, timeout: float, after: Any = None
    ) -> Any:
        """One load of kvonce: these pages' layers [begin, end) of these pools, into these rows, not before `after`. Its future."""
        built = epoch.built
        by_pool = {built.pools[name]: indices for name, indices in rows.items()}
        return built.rank.load(lease, pages, by_pool, layer_begin=begin, layer_end=end, after=after, timeout=timeout)

    def issue_put(
        self, epoch: Any, pages: bytes, rows: dict[str, Any], parent: bytes | None, depth: int, ready: Callable[[], bool] | None
    ) -> Any:
        """One put of kvonce; its future."""
        built = epoch.built
        by_pool = {built.pools[name]: indices for name, indices in rows.items()}
        seconds = self.settings.put_ms / 1000
        return built.rank.put(pages, by_pool, parent=parent, first_depth=depth, after=ready, timeout=seconds)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _epoch(self) -> Any:
        if updates.mixed():
            updates.complain()
            return None
        return None if self.epochs is None else self.epochs.current()

    def _life(self) -> int:
        return self.link.incarnation if self.link is not None and self.link.connected else 0

    def _why_not(self, pages: int, wanted: bool, epoch: Any) -> str:
        if self.refusal:
            return "refused"
        if not wanted:
            return "role"
        if pages * self.page_tokens < self.settings.min_tokens:
            return "too_short"
        if epoch is None and updates.mixed():
            return "stale_pages"
        if epoch is None:
            return "no_store" if self.link is None or not self.link.connected else "no_epoch"
        return ""

    def _why_not_put(self, pages: int, epoch: Any) -> str:
        # A short node may continue a long prefix, so min_tokens says nothing about offloads.
        return self._why_not(max(pages, -(-self.settings.min_tokens // self.page_tokens)), self.settings.writes, epoch)

    def _ask(self, rid: str, keys: list[str], transfers: Sequence[Any]) -> list[int]:
        asked = len(keys) * self.page_tokens
        life = self._life()
        epoch = self._epoch()
        cause = self._why_not(len(keys), self.settings.reads, epoch)
        if not cause and resolve(self.views, transfers, partial=False) is None:
            return []
        if not cause and not self._breaker.waits(life, lambda: self._probe(epoch)):
            cause = "not_answering"
        stops: list[int] = []
        lease, left, optional_missing = None, 0.0, frozenset()
        if not cause:
            try:
                found = epoch.built.group.lookup(
                    page_hashes(keys), request_id=rid[:4096], lease_time=_LEASE_SECONDS, timeout=self.settings.lookup_ms / 1000
                )
                least = -(-self.settings.min_tokens // self.page_tokens)
                stops = list(range(1, found.pages + 1)) if found.every_stop else list(found.stops)
                stops = [stop for stop in stops if stop >= least] if least > 1 else stops
                # Of an answer that the store has kept for another rank, less than the whole time may be left.
                lease, left, cause = found.lease, found.lease_left, found.reason or ""
                optional_missing = frozenset(found.optional_missing)
                self._breaker.answered()
            except Exception as error:
                reason = getattr(error, "reason", "")
                if not reason:
                    raise
                if reason == "deadline":
                    self._breaker.late()
                cause = _SLOW.get(reason, reason)
        hit = (stops[-1] if stops else 0) * self.page_tokens
        self.counters.lookup(asked, hit, cause)
        now = self._clock()
        leased_until = now + left - _LEASE_MARGIN_SECONDS
        fresh_until = now + (_UNSETTLED_SECONDS if cause in ("no_epoch", "not_answering") else _MISS_SECONDS)
        if stops:
            fresh_until = min(now + _FRESH_SECONDS, leased_until)
        answer = Answer(keys, stops, lease, epoch, fresh_until, leased_until, optional_missing, life)
        self._give_back(self._book.keep(rid, answer))
        self._chains.learn(keys)
        return stops

    def _renew(self, job: LoadJob, epoch: Any) -> Answer | None:
        """A new lease for a load whose own has ended; of this rank alone. None: the pages are gone."""
        try:
            keys = job.resolved.keys
            found = epoch.built.group.lookup(page_hashes(keys), lease_time=_LEASE_SECONDS, timeout=self.settings.lookup_ms / 1000)
        except Exception:
            return None
        if found.lease is None:
            return None
        now = self._clock()
        leased_until = now + found.lease_left - _LEASE_MARGIN_SECONDS
        return Answer(keys, [], found.lease, epoch, now, leased_until, frozenset(found.optional_missing))

    @staticmethod
    def _probe(epoch: Any) -> Any:
        return epoch.built.group.lookup_async(bytes(32), probe=True, timeout=_PROBE_SECONDS)

    def _release(self, lease: Any) -> None:
        runtime = self.link.runtime if self.link is not None else None
        if runtime is not None:
            runtime.release(lease)

    def _give_back(self, answers: Sequence[Answer | None]) -> None:
        self._releaser.give([answer.lease for answer in answers if answer is not None])

    def _give_back_finished(self) -> None:
        finished, self._finished = self._finished, []
        self._give_back(finished)

    def _quiesce(self) -> None:
        """Ends what is under way; returns when no slot is read or written any more, however long that takes."""
        try:
            for rid in list(self._queued):
                self.cancel_queued_load(rid)
            self._give_back(self._book.clear())
            self._give_back_finished()
            while not self._loader.wait_idle(self.settings.load_ms / 1000 + _DRAIN_SECONDS):
                _log.error("kvonce: loads are still under way at a reset; waiting for them")
            self._offloader.drain(_DRAIN_SECONDS)
            for answers in self._batches.values():
                self._give_back(answers)
        except Exception:
            self.complain("reset")
        self._batches.clear()
        self.layer_done_counter.reset()

    def complain(self, where: str) -> None:
        """Counts an exception that is being handled, and tells the first of its kind."""
        error = sys.exc_info()[1]
        if error is not None:
            self._failures.tell(where, error)
