# SPDX-License-Identifier: Apache-2.0
"""What HiCacheStorage does with kvonce: puts and gets of host pool pages, and which prefix lengths are there."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..engine import Counters, Epochs, ModelIdentity, Place, Refused, Settings, Shard, draft_pool_name, shard_of_entry
from ..engine.breaker import Breaker
from . import updates
from .hit_policies import block_pages_covered, leading, trailing_stops
from .host_pools import STAGED_PAGES, HostPool
from .leases import Releaser
from .startup import Facts, draft_identity, kv_heads_in_all
from .storage_metrics import StorageMetrics
from .transfers import KV, host_indices, page_hashes, text_of

_log = logging.getLogger("kvonce")

_LEASE_SECONDS = 20.0
_LEASES_MOST = 256
_PROBE_SECONDS = 1.0
_TELL_SECONDS = 5.0  # so often it is told that something is waited for
_CLEAR_SECONDS = 5.0
_REMAKE_SECONDS = 2.0  # after a registration that failed
_EPOCH_SECONDS = 1.0  # for the name of new weights, which a thread asks the store for
#: Why a lookup has no answer, by the error's reason.
_NO_ANSWER = {"deadline": "slow_lookup", "store_lost": "no_store"}
#: Pools of which a prefix needs the last pages only.
_TRAILING = ("mamba", "swa", "auxiliary_swa", "draft_swa")


class _Built:
    """One weight epoch's page group, rank and pools, for one set of pools."""

    def __init__(
        self, group: Any, pages: Any, rank: Any, pools: dict[str, Any], shards: dict[str, Shard], version: int, names: dict[str, str]
    ):
        self.group = group
        self.pages = pages  #: a group of the pools of which every page is needed, for leases where there is no state
        self.rank = rank
        self.pools = pools
        self.shards = shards
        self.version = version
        self.names = names  #: pool -> its name in the store


class HostStore:
    """Calls come from several threads of SGLang's. `pools` is the adapter's own and may grow.

    A call waits no longer than lookup_ms + load_ms, or put_ms; not at all while the store does not answer, or while SGLang stops
    the threads that call. It returns after the last access to the host pages that it was given.
    """

    def __init__(
        self,
        pools: Mapping[str, HostPool],
        place: Place,
        settings: Settings,
        counters: Counters,
        link: Any,
        *,
        is_mla: bool,
        facts: Facts,
    ):
        self.pools = pools
        self.place = place
        self.settings = settings
        self.counters = counters
        self.link = link
        self.epochs: Epochs | None = None
        self._is_mla = is_mla
        self._facts = facts
        self._draft: ModelIdentity | None = None
        self._lock = threading.RLock()
        self._version = 0
        self._changes = 0  # grows with every update
        self._stopped = False
        self._waiting: dict[int, tuple[Any, threading.Event]] = {}  # futures that calls wait for
        self._breaker = Breaker(limit=1)
        self._releaser = Releaser(self._release_one)
        self._metrics = StorageMetrics()
        self._leases: collections.OrderedDict[str, tuple[Any, Any, float]] = collections.OrderedDict()  # first key -> lease, epoch, end
        self._by_page: dict[str, str] = {}  # page -> first key of the lookup that covers it

    # -- in the store --------------------------------------------------------------------------------------------------

    def build(self, namespace: Any) -> Any:
        """Registers all pools that are known by now in this namespace."""
        return _Holder(self, namespace)

    @staticmethod
    def retire(holder: Any) -> None:
        """Ends what `build` made."""
        holder.close()

    def pools_changed(self) -> None:
        """A pool came later: the next call registers it."""
        self._version += 1

    def weights_changed(self, number: int) -> None:
        """`number` updates have been heard in all: what is stored is of older weights. So may be the engine's pages, while `updates.mixed`."""
        with self._lock:
            if self.epochs.number >= number:
                return
            self._changes += 1
            while self.epochs.number < number:
                self.epochs.update("update")
        self._drop_leases()

    def stopping(self, on: bool) -> None:
        """SGLang waits for the threads that call us, until it says off: all of them return at once."""
        with self._lock:
            self._stopped = on
            for _, woken in self._waiting.values() if on else ():
                woken.set()

    def check_names(self) -> None:
        """Raises Refused for a draft's pool whose model is not known: told at once, not at each attempt to register."""
        for name, pool in dict(self.pools).items():
            self._name(name, pool)

    def settle(self, seconds: float) -> None:
        """Waits so long, when the backend is attached, for the store to know this rank."""
        if self.link.connected:
            self.epochs.wait(seconds)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def leading_kv(self, keys: Sequence[str]) -> int:
        """Leading pages whose KV all ranks' shards have; they are leased for a while."""
        if not self._wanted(self.settings.reads, len(keys)):
            return 0
        epoch, built = self._epoch()
        found, cause = self._lookup(epoch, built.pages, keys) if built is not None else (None, self._cause())
        if found is None:
            return self._miss(keys, cause)
        n = found.resident_pages if len(built.pools) == 1 else self._there(built, KV, keys, leading)
        self.counters.lookup(len(keys) * self._tokens, n * self._tokens, found.reason or "absent")
        return n

    def stops(self, keys: Sequence[str], transfers: Sequence[Any]) -> tuple[list[int], dict[Any, int]]:
        """(prefix lengths that every pool allows, ascending; leading pages or deepest stop by pool)."""
        if not self._wanted(self.settings.reads, len(keys)):
            return [], {}
        epoch, built = self._epoch()
        found, cause = self._lookup(epoch, built.group, keys) if built is not None else (None, self._cause())
        if found is None:
            self._miss(keys, cause)
            return [], {}
        kv = self._there(built, KV, keys, leading)
        stops = set(range(1, kv + 1))
        hits: dict[Any, int] = {}
        for transfer in transfers:
            name, policy = text_of(transfer.name), text_of(transfer.hit_policy)
            if name not in built.pools:
                stops, boundary = set(), 0
            elif policy == "trailing_pages":
                window = len(transfer.keys) if transfer.keys else 1
                allowed = self._there(built, name, keys[:kv], lambda have, window=window: trailing_stops(have, window)) if kv else []
                boundary = allowed[-1] if allowed else 0
                stops &= set(allowed)
            elif policy == "block_groups":
                groups = list(transfer.keys or ())
                size, block = int(getattr(transfer, "group_pages", 0)), int(getattr(transfer, "block_pages", 0))
                have = self._there(built, name, groups, bytes) if groups else b""
                boundary = block_pages_covered(have, size, block, len(keys))
            else:  # all_pages, and any policy that is not known here: the strictest
                boundary = self._there(built, name, keys[:kv], leading) if kv else 0
                stops &= set(range(1, boundary + 1))
            hits[transfer.name] = boundary
        out = sorted(stops)
        self.counters.lookup(len(keys) * self._tokens, (out[-1] if out else 0) * self._tokens, "absent")
        return out, hits

    def put(self, name: str, keys: Sequence[str], indices: Any, prefix: Sequence[str]) -> list[bool]:
        """Puts pages of one pool from these slots of its host pool."""
        end = time.monotonic() + self.settings.put_ms / 1000
        epoch, built = self._to_put(name, keys)
        if built is None:
            return [False] * len(keys)
        pool, slots = self.pools[name], host_indices(indices)
        if len(slots) != len(keys) * pool.page_slots:
            return self._skipped(len(keys), "bad_argument")
        if not pool.staged:
            return self._put(epoch, built, name, keys, slots, prefix, end)

        def stage(start: int, n: int) -> None:
            pool.stage_in_slots([int(slots[(start + i) * pool.page_slots]) for i in range(n)])

        return self._put_staged(epoch, built, name, keys, prefix, end, stage)

    def get(self, name: str, keys: Sequence[str], indices: Any) -> list[bool]:
        """Loads pages of one pool into these slots of its host pool."""
        end = time.monotonic() + self.settings.load_ms / 1000
        epoch, built = self._epoch()
        if built is None or name not in built.pools or not self.settings.reads:
            return [False] * len(keys)
        pool, slots = self.pools[name], host_indices(indices)
        if len(slots) != len(keys) * pool.page_slots:
            return [False] * len(keys)
        if not pool.staged:
            return self._load(epoch, built, name, keys, slots, end)

        def unstage(start: int, i: int, good: bool) -> bool:
            if good:
                pool.stage_out(i, int(slots[(start + i) * pool.page_slots]))
            return good

        return self._load_staged(epoch, built, name, keys, end, unstage)

    def put_flat(self, keys: Sequence[str], pages: Sequence[Any]) -> list[bool]:
        """Puts KV pages that are given as flat tensors."""
        end = time.monotonic() + self.settings.put_ms / 1000
        epoch, built = self._to_put(KV, keys)
        pool = self.pools[KV]
        if built is None or not pool.staged:
            return [False] * len(keys)
        return self._put_staged(epoch, built, KV, keys, (), end, lambda start, n: pool.stage_in(pages[start : start + n]))

    def get_flat(self, keys: Sequence[str], targets: Sequence[Any]) -> list[Any]:
        """KV pages as flat tensors, None where one is not there."""
        end = time.monotonic() + self.settings.load_ms / 1000
        epoch, built = self._epoch()
        pool = self.pools[KV]
        if built is None or not pool.staged or not self.settings.reads:
            return [None] * len(keys)

        def unstage(start: int, i: int, good: bool) -> Any:
            page, target = pool.staged_page(i) if good else None, targets[start + i]
            if page is None or target is None:
                return None if page is None else page.clone()
            target.reshape(-1).view(page.dtype).copy_(page)
            return target

        return self._load_staged(epoch, built, KV, keys, end, unstage)

    def clear(self) -> None:
        """Removes this engine's namespace."""
        self._drop_leases()
        epoch, _ = self._epoch()
        if epoch is not None:
            clearing = threading.Thread(target=self._clear_one, args=(epoch.namespace,), name="kvonce-clear", daemon=True)
            clearing.start()
            clearing.join(_CLEAR_SECONDS)  # a store that does not answer does not hold the scheduler up

    def metrics(self) -> Any:
        """SGLang's StorageMetrics of what came since the last call; None where it has no such class."""
        return self._metrics.drain()

    def close(self) -> None:
        """Lets go of the store."""
        self.stopping(True)
        self._drop_leases()
        self._releaser.close(_PROBE_SECONDS)
        if self.epochs is not None:
            self.epochs.close()
        self.link.close()

    # -- what a test's control replaces --------------------------------------------------------------------------------

    def issue_load(self, built: _Built, lease: Any, pages: bytes, name: str, rows: Any, timeout: float) -> Any:
        """One load of kvonce; its future."""
        return built.rank.load(lease, pages, {built.pools[name]: rows}, timeout=timeout)

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _tokens(self) -> int:
        return self.pools[KV].page_slots

    def _epoch(self, seconds: float = 0.0) -> tuple[Any, _Built | None]:
        """The epoch of what the caller has in hand now, for which it waits so long. Not of weights that came while it was asked for:
        these pages are older."""
        changes = self._changes
        if updates.mixed() or self._stopped or self.epochs is None:
            updates.complain()
            return None, None
        epoch = self.epochs.wait(seconds) if seconds > 0 and self.link.connected else self.epochs.current()
        built = epoch.built.now(self._version) if epoch is not None else None
        if built is None or updates.mixed() or self._stopped or changes != self._changes:
            return None, None
        return epoch, built

    def _cause(self) -> str:
        """Why there is no epoch."""
        if self._stopped:
            return "cancelled"
        if updates.mixed():
            return "stale_pages"
        return "no_epoch" if self.link.connected else "no_store"

    def _to_put(self, name: str, keys: Sequence[str]) -> tuple[Any, _Built | None]:
        self.counters.add("offered_pages", len(keys))
        # SGLang's thread for writing calls this, once for each page: what is not kept now, right after new weights, never is.
        epoch, built = self._epoch(min(_EPOCH_SECONDS, self.settings.put_ms / 1000) if self.settings.writes else 0.0)
        if not self.settings.writes:
            self._skipped(len(keys), "role")
        elif built is None or name not in built.pools:
            self._skipped(len(keys), self._cause())
        else:
            return epoch, built
        return None, None

    def _clear_one(self, namespace: Any) -> None:
        try:
            namespace.clear()
        except Exception as error:
            self.counters.add("errors", 1, "clear")
            _log.warning("kvonce: the namespace was not cleared: %s", error)

    def make(self, namespace: Any, version: int) -> _Built:
        """Registers group, rank and pools."""
        from kvonce import Component, GroupPool, Layer

        pools = dict(self.pools)
        shards = {name: self._shard(name, pool) for name, pool in pools.items()}
        names = {name: self._name(name, pool) for name, pool in pools.items()}
        trailing = {n: 1 if n in _TRAILING or n.endswith("_state") else 0 for n in pools}
        group_pools = [
            GroupPool(names[n], shards=shards[n].counts, trailing_pages=trailing[n], optional=n.startswith("draft")) for n in sorted(pools)
        ]
        text = repr([(names[n], shards[n].counts) for n in sorted(pools)])
        label = f"sglang hicache tp{self.place.tp_size} cp{self.place.cp_size} {hashlib.sha256(text.encode()).hexdigest()[:12]}"
        group = namespace.group(label, group_pools, ranks=self.place.ranks)
        whole = [pool for n, pool in zip(sorted(pools), group_pools, strict=True) if not trailing[n] and not n.startswith("draft")]
        pages = namespace.group(f"{label} pages", whole, ranks=self.place.ranks) if len(whole) < len(group_pools) else group
        rank = group.rank(*self.place.index)
        registered = {}
        for n in sorted(pools):
            pool = pools[n]
            ranges = [Layer(address, stride, size, pool.rows) for address, stride, size in pool.ranges]
            registered[n] = rank.register_pool(names[n], [Component("page", ranges)], rows=pool.rows, shard=shards[n].index, unit=pool.unit)
        return _Built(group, pages, rank, registered, shards, version, names)

    def _name(self, name: str, pool: HostPool) -> str:
        if not name.startswith("draft"):
            return name
        if self._draft is None:
            self._draft = draft_identity(self._facts, self.settings)
        if self._draft is None:
            raise Refused(f"kvonce: pool {name} is a draft's, but the engine names no draft model.")
        return draft_pool_name(name, self._draft)

    def _shard(self, name: str, pool: HostPool) -> Shard:
        heads = getattr(pool.pool, "head_num", None)
        if name == "mamba" or name.endswith("_state"):
            kind = "state"
        elif name.startswith("draft"):
            kind = "draft"
        elif self._is_mla:
            kind = "mla"  # what SGLang itself writes from one rank only
        else:
            kind = "heads"
        known = kv_heads_in_all(self._facts, int(heads), self.place) if kind == "heads" and heads else None
        replicated = self._is_mla and kind == "draft"  # written by rank 0 only, like all but the state
        return shard_of_entry(name, self.place, kind=kind, rank_replicated=replicated, kv_heads=known, overrides=self.settings.shards)

    def _wanted(self, wanted: bool, pages: int) -> bool:
        return wanted and pages * self._tokens >= self.settings.min_tokens and pages > 0

    def _miss(self, keys: Sequence[str], cause: str) -> int:
        self.counters.lookup(len(keys) * self._tokens, 0, cause)
        return 0

    def _skipped(self, pages: int, cause: str) -> list[bool]:
        self.counters.add("skipped_pages", pages, cause)
        return [False] * pages

    def _there(self, built: _Built, name: str, keys: Sequence[str], say: Any) -> Any:
        """say(one byte a page: 1 where all ranks' shards of the pool have it)."""
        pages = page_hashes(keys)
        have: bytes | None = None
        for shard in range(built.shards[name].count):
            one = bytes(built.group.exists(built.names[name], shard, pages))
            have = one if have is None else bytes(a & b for a, b in zip(have, one, strict=True))
        return say(have or b"")

    def _lookup(self, epoch: Any, group: Any, keys: Sequence[str]) -> tuple[Any, str]:
        """(what is there, now leased; or None, and why there is no answer)."""
        if not self._breaker.waits(self.link.incarnation, lambda: self._probe(group)):
            return None, "not_answering"
        try:
            timeout = self.settings.lookup_ms / 1000
            found = self._await(group.lookup_async(page_hashes(keys), lease_time=_LEASE_SECONDS, timeout=timeout), touches=False)
        except Exception as error:
            reason = getattr(error, "reason", "")
            if not reason:
                raise
            if reason == "deadline":
                self._breaker.late()
            return None, _NO_ANSWER.get(reason, reason)
        if found is None:
            return None, "cancelled"
        self._breaker.answered()
        if found.lease is not None:
            self._keep(keys, found.lease, found.lease_left, epoch)
        return found, ""

    @staticmethod
    def _probe(group: Any) -> Any:
        return group.lookup_async(bytes(32), probe=True, timeout=_PROBE_SECONDS)

    def _await(self, future: Any, touches: bool = True) -> Any:
        """The future's result, which comes by its own deadline; None: SGLang stops the caller. Then it is cancelled, and where it
        touches host pages it is waited for all the same: until it has ended they are in use."""
        woken = threading.Event()
        with self._lock:
            self._waiting[id(future)] = (future, woken)
            if self._stopped:
                woken.set()
        try:
            future.add_done_callback(lambda _: woken.set())
            woken.wait()
            if not future.done():
                future.cancel()
                if not touches:
                    return None
            while not future.wait(_TELL_SECONDS):
                _log.error("kvonce: a copy of host pages has not ended; waiting for it")
            return future.result(0.001)
        finally:
            with self._lock:
                self._waiting.pop(id(future), None)

    def _keep(self, keys: Sequence[str], lease: Any, left: float, epoch: Any) -> None:
        dropped = []
        with self._lock:
            old = self._leases.pop(keys[0], None)
            if old is not None:
                dropped.append(old[0])
            self._leases[keys[0]] = (lease, epoch, time.monotonic() + left - 2.0)
            self._by_page.update(dict.fromkeys(keys, keys[0]))
            while len(self._leases) > _LEASES_MOST:
                _, (oldest, _, _) = self._leases.popitem(last=False)
                dropped.append(oldest)
            if len(self._by_page) > 200_000:
                self._by_page.clear()
        self._releaser.give(dropped)

    def _lease(self, epoch: Any, built: _Built, keys: Sequence[str]) -> Any:
        with self._lock:
            lease, of, end = self._leases.get(self._by_page.get(keys[0], ""), (None, None, 0.0))
        if lease is not None and of is epoch and end > time.monotonic():
            return lease
        found, _ = self._lookup(epoch, built.pages, keys)
        return found.lease if found is not None else None

    def _drop_leases(self) -> None:
        with self._lock:
            leases = [lease for lease, _, _ in self._leases.values()]
            self._leases.clear()
            self._by_page.clear()
        self._releaser.give(leases)

    def _release_one(self, lease: Any) -> None:
        runtime = self.link.runtime
        if runtime is not None:
            runtime.release(lease)

    def _put(self, epoch: Any, built: _Built, name: str, keys: Sequence[str], rows: Any, prefix: Sequence[str], end: float) -> list[bool]:
        from kvonce import Verdict

        good = (int(Verdict.stored), int(Verdict.joined), int(Verdict.already_stored))
        if not self._breaker.waits(self.link.incarnation, lambda: self._probe(built.pages)):
            return self._skipped(len(keys), "not_answering")
        with epoch.hold() as held:
            if not held:
                return self._skipped(len(keys), "stale_epoch")
            parent = page_hashes(prefix[-1:]) if prefix else None
            began = time.monotonic()
            left = max(end - began, 0.001)
            future = built.rank.put(page_hashes(keys), {built.pools[name]: rows}, parent=parent, first_depth=len(prefix), timeout=left)
            result = self._await(future)
        causes = result.causes()
        if any("deadline" in cause for cause in causes):
            self._breaker.late()
        else:
            self._breaker.answered()
        self.counters.put(len(keys), causes)
        if name == KV:
            self._metrics.add("backup", len(keys), len(keys) * built.pools[name].object_bytes, time.monotonic() - began)
        return [verdict in good for verdict in bytes(result.verdicts(built.pools[name]))]

    def _put_staged(
        self, epoch: Any, built: _Built, name: str, keys: Sequence[str], prefix: Sequence[str], end: float, stage: Callable[[int, int], None]
    ) -> list[bool]:
        out: list[bool] = []
        for start in range(0, len(keys), STAGED_PAGES):
            part = keys[start : start + STAGED_PAGES]
            with _staging(self.pools[name], end) as free:
                if not free or self._stopped:
                    out += self._skipped(len(part), "backlog" if not self._stopped else "cancelled")
                    continue
                stage(start, len(part))
                out += self._put(epoch, built, name, part, range(len(part)), [*prefix, *keys[:start]], end)
        return out

    def _load(self, epoch: Any, built: _Built, name: str, keys: Sequence[str], rows: Any, end: float) -> list[bool]:
        with epoch.hold() as held:
            lease = self._lease(epoch, built, keys) if held else None
            if lease is None:
                self.counters.add("failed_load_tokens", len(keys) * self._tokens, "absent" if held else "stale_epoch")
                return [False] * len(keys)
            began = time.monotonic()
            # As all time may have gone to a lock, or to the lookup.
            result = self._await(self.issue_load(built, lease, page_hashes(keys), name, rows, max(end - began, 0.001)))
        out = [reason == 0 for reason in bytes(result.reasons(built.pools[name]))]
        if name == KV:
            self.counters.add("loaded_tokens", sum(out) * self._tokens)
            self._metrics.add("prefetch", sum(out), sum(out) * built.pools[name].object_bytes, time.monotonic() - began)
        for cause, n in result.causes().items():
            self.counters.add("failed_load_tokens", n * self._tokens, cause)
        return out

    def _load_staged(
        self, epoch: Any, built: _Built, name: str, keys: Sequence[str], end: float, unstage: Callable[[int, int, bool], Any]
    ) -> list[Any]:
        out: list[Any] = []
        for start in range(0, len(keys), STAGED_PAGES):
            part = keys[start : start + STAGED_PAGES]
            with _staging(self.pools[name], end) as free:
                good = [False] * len(part)
                if free and not self._stopped:
                    good = self._load(epoch, built, name, part, range(len(part)), end)
                out += [unstage(start, i, ok) for i, ok in enumerate(good)]
        return out


@contextlib.contextmanager
def _staging(pool: HostPool, end: float) -> Iterator[bool]:
    """The pool's staging buffer, for one caller at a time: whether it is this one's before `end`."""
    free = pool.lock.acquire(timeout=max(end - time.monotonic(), 0.0))
    try:
        yield free
    finally:
        if free:
            pool.lock.release()


class _Holder:
    """What an epoch has built: made anew, on a thread, when a pool came later."""

    def __init__(self, store: HostStore, namespace: Any):
        self._store = store
        self._namespace = namespace
        self._lock = threading.Lock()
        self._making = False
        self._closed = False
        self._not_before = 0.0
        self._old: list[_Built] = []
        self._built = store.make(namespace, store._version)

    def now(self, version: int) -> _Built:
        """The registration of the pools known by now, or of those known before while that is being made. Never waits."""
        with self._lock:
            if self._built.version != version and not self._making and time.monotonic() >= self._not_before:
                self._making = True
                threading.Thread(target=self._remake, args=(version,), name="kvonce-pools", daemon=True).start()
            return self._built

    def _remake(self, version: int) -> None:
        made = None
        try:
            made = self._store.make(self._namespace, version)
        except Exception as error:  # the pools known before go on
            self._store.counters.add("errors", 1, "pools")
            _log.warning("kvonce: a pool that came later could not be registered: %s", error)
        with self._lock:
            self._making = False
            self._not_before = time.monotonic() + _REMAKE_SECONDS if made is None else 0.0
            if made is not None and not self._closed:
                self._old.append(self._built)
                self._built, made = made, None
        if made is not None:
            made.rank.close()

    def close(self) -> None:
        """Ends the ranks; waits for lent rows."""
        with self._lock:
            self._closed = True
            ranks = [built.rank for built in [*self._old, self._built]]
        for rank in ranks:
            rank.close()
