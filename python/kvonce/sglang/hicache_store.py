# SPDX-License-Identifier: Apache-2.0
"""What HiCacheStorage does with kvonce: puts and gets of host pool pages, and which prefix lengths are there."""

from __future__ import annotations

import collections
import hashlib
import importlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..engine import Counters, Epochs, ModelIdentity, Place, Refused, Settings, Shard, draft_pool_name, shard_of_entry
from .hit_policies import block_pages_covered, leading, trailing_stops
from .host_pools import STAGED_PAGES, HostPool
from .startup import Facts, draft_identity, kv_heads_in_all
from .transfers import KV, host_indices, page_hashes, text_of

_log = logging.getLogger("kvonce")

_LEASE_SECONDS = 20.0
_LEASES_MOST = 256
_EVENTS_MOST = 4096
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
    """Calls come from several threads of SGLang's. `pools` is the adapter's own and may grow."""

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
        self._mixed = False
        self._metrics = _Metrics()
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

    def weights_changed(self) -> None:
        """New weights are being put in place: what is stored is of the old ones. HiCache's own copies are flushed by SGLang."""
        self._mixed = True
        self.epochs.update("update")
        self._drop_leases()

    def weights_replaced(self, flushed: bool) -> None:
        """The update is over. While SGLang has not flushed, host pages of the old weights may come: nothing is kept or looked up."""
        self._mixed = not flushed

    def check_names(self) -> None:
        """Raises Refused for a draft's pool whose model is not known: told at once, not at each attempt to register."""
        for name, pool in dict(self.pools).items():
            self._name(name, pool)

    def settle(self) -> None:
        """Registers now what the first page would register."""
        self._epoch()

    # -- calls ---------------------------------------------------------------------------------------------------------

    def leading_kv(self, keys: Sequence[str]) -> int:
        """Leading pages whose KV all ranks' shards have; they are leased for a while."""
        if not self._wanted(self.settings.reads, len(keys)):
            return 0
        epoch, built = self._epoch()
        if built is None:
            return self._miss(keys)
        found = self._lookup(epoch, built.pages, keys)
        n = found.resident_pages if found is not None and len(built.pools) == 1 else self._there(built, KV, keys, leading)
        self.counters.lookup(len(keys) * self._tokens, n * self._tokens, (found.reason if found is not None else "slow_lookup") or "absent")
        return n

    def stops(self, keys: Sequence[str], transfers: Sequence[Any]) -> tuple[list[int], dict[Any, int]]:
        """(prefix lengths that every pool allows, ascending; leading pages or deepest stop by pool)."""
        if not self._wanted(self.settings.reads, len(keys)):
            return [], {}
        epoch, built = self._epoch()
        if built is None:
            self._miss(keys)
            return [], {}
        self._lookup(epoch, built.group, keys)
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
        self.counters.add("offered_pages", len(keys))
        epoch, built = self._epoch()
        if built is None or name not in built.pools or not self.settings.writes:
            return self._skipped(len(keys), "role" if not self.settings.writes else "no_store")
        pool, slots = self.pools[name], host_indices(indices)
        if len(slots) != len(keys) * pool.page_slots:
            return self._skipped(len(keys), "bad_argument")
        if not pool.staged:
            return self._put(epoch, built, name, keys, slots, prefix)
        out: list[bool] = []
        for start in range(0, len(keys), STAGED_PAGES):
            part = keys[start : start + STAGED_PAGES]
            with pool.lock:
                pool.stage_in_slots([int(slots[(start + i) * pool.page_slots]) for i in range(len(part))])
                out += self._put(epoch, built, name, part, range(len(part)), [*prefix, *keys[:start]])
        return out

    def get(self, name: str, keys: Sequence[str], indices: Any) -> list[bool]:
        """Loads pages of one pool into these slots of its host pool."""
        epoch, built = self._epoch()
        if built is None or name not in built.pools or not self.settings.reads:
            return [False] * len(keys)
        pool, slots = self.pools[name], host_indices(indices)
        if len(slots) != len(keys) * pool.page_slots:
            return [False] * len(keys)
        if not pool.staged:
            return self._load(epoch, built, name, keys, slots)
        out: list[bool] = []
        for start in range(0, len(keys), STAGED_PAGES):
            part = keys[start : start + STAGED_PAGES]
            with pool.lock:
                good = self._load(epoch, built, name, part, range(len(part)))
                for i, ok in enumerate(good):
                    if ok:
                        pool.stage_out(i, int(slots[(start + i) * pool.page_slots]))
            out += good
        return out

    def put_flat(self, keys: Sequence[str], pages: Sequence[Any]) -> list[bool]:
        """Puts KV pages that are given as flat tensors."""
        self.counters.add("offered_pages", len(keys))
        epoch, built = self._epoch()
        pool = self.pools[KV]
        if built is None or not pool.staged or not self.settings.writes:
            return self._skipped(len(keys), "role" if not self.settings.writes else "no_store")
        out: list[bool] = []
        for start in range(0, len(keys), STAGED_PAGES):
            part = keys[start : start + STAGED_PAGES]
            with pool.lock:
                pool.stage_in(pages[start : start + len(part)])
                out += self._put(epoch, built, KV, part, range(len(part)), keys[:start])
        return out

    def get_flat(self, keys: Sequence[str], targets: Sequence[Any]) -> list[Any]:
        """KV pages as flat tensors, None where one is not there."""
        epoch, built = self._epoch()
        pool = self.pools[KV]
        if built is None or not pool.staged or not self.settings.reads:
            return [None] * len(keys)
        out: list[Any] = []
        for start in range(0, len(keys), STAGED_PAGES):
            part = keys[start : start + STAGED_PAGES]
            with pool.lock:
                good = self._load(epoch, built, KV, part, range(len(part)))
                for i, (ok, target) in enumerate(zip(good, targets[start : start + len(part)], strict=True)):
                    page = pool.staged_page(i) if ok else None
                    if page is not None and target is not None:
                        target.reshape(-1).view(page.dtype).copy_(page)
                        page = target
                    elif page is not None:
                        page = page.clone()
                    out.append(page)
        return out

    def clear(self) -> None:
        """Removes this engine's namespace."""
        self._drop_leases()
        epoch, _ = self._epoch()
        if epoch is not None:
            epoch.namespace.clear()

    def metrics(self) -> Any:
        """SGLang's StorageMetrics of what came since the last call; None where it has no such class."""
        return self._metrics.drain()

    def close(self) -> None:
        """Lets go of the store."""
        self._drop_leases()
        if self.epochs is not None:
            self.epochs.close()
        self.link.close()

    # -- what a test's control replaces --------------------------------------------------------------------------------

    def issue_load(self, built: _Built, lease: Any, pages: bytes, name: str, rows: Any) -> Any:
        """One load of kvonce; its future."""
        return built.rank.load(lease, pages, {built.pools[name]: rows}, timeout=self.settings.load_ms / 1000)

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _tokens(self) -> int:
        return self.pools[KV].page_slots

    def _epoch(self) -> tuple[Any, _Built | None]:
        epoch = self.epochs.current() if self.epochs is not None and not self._mixed else None
        return (None, None) if epoch is None else (epoch, epoch.built.now(self._version))

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

    def _miss(self, keys: Sequence[str]) -> int:
        self.counters.lookup(len(keys) * self._tokens, 0, "no_store")
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

    def _lookup(self, epoch: Any, group: Any, keys: Sequence[str]) -> Any:
        """Leases what is there; None when the store did not answer in time."""
        try:
            found = group.lookup(page_hashes(keys), lease_time=_LEASE_SECONDS, timeout=self.settings.lookup_ms / 1000)
        except Exception as error:
            if not getattr(error, "reason", ""):
                raise
            return None
        if found.lease is not None:
            self._keep(keys, found.lease, found.lease_left, epoch)
        return found

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
        self._release(dropped)

    def _lease(self, epoch: Any, built: _Built, keys: Sequence[str]) -> Any:
        with self._lock:
            lease, of, end = self._leases.get(self._by_page.get(keys[0], ""), (None, None, 0.0))
        if lease is not None and of is epoch and end > time.monotonic():
            return lease
        found = self._lookup(epoch, built.pages, keys)
        return found.lease if found is not None else None

    def _drop_leases(self) -> None:
        with self._lock:
            leases = [lease for lease, _, _ in self._leases.values()]
            self._leases.clear()
            self._by_page.clear()
        self._release(leases)

    def _release(self, leases: Sequence[Any]) -> None:
        runtime = self.link.runtime
        for lease in leases:
            if runtime is not None:
                try:
                    runtime.release(lease)
                except Exception as error:  # it ends by itself
                    _log.debug("kvonce: a lease was not released: %s", error)

    def _put(self, epoch: Any, built: _Built, name: str, keys: Sequence[str], rows: Any, prefix: Sequence[str]) -> list[bool]:
        from kvonce import Verdict

        good = (int(Verdict.stored), int(Verdict.joined), int(Verdict.already_stored))
        with epoch.hold() as held:
            if not held:
                return self._skipped(len(keys), "stale_epoch")
            parent = page_hashes(prefix[-1:]) if prefix else None
            began = time.monotonic()
            future = built.rank.put(
                page_hashes(keys), {built.pools[name]: rows}, parent=parent, first_depth=len(prefix), timeout=self.settings.put_ms / 1000
            )
            result = future.result()
        self.counters.put(len(keys), result.causes())
        if name == KV:
            self._metrics.add("backup", len(keys), len(keys) * built.pools[name].object_bytes, time.monotonic() - began)
        return [verdict in good for verdict in bytes(result.verdicts(built.pools[name]))]

    def _load(self, epoch: Any, built: _Built, name: str, keys: Sequence[str], rows: Any) -> list[bool]:
        with epoch.hold() as held:
            lease = self._lease(epoch, built, keys) if held else None
            if lease is None:
                self.counters.add("failed_load_tokens", len(keys) * self._tokens, "absent" if held else "stale_epoch")
                return [False] * len(keys)
            began = time.monotonic()
            result = self.issue_load(built, lease, page_hashes(keys), name, rows).result()
        out = [reason == 0 for reason in bytes(result.reasons(built.pools[name]))]
        if name == KV:
            self.counters.add("loaded_tokens", sum(out) * self._tokens)
            self._metrics.add("prefetch", sum(out), sum(out) * built.pools[name].object_bytes, time.monotonic() - began)
        for cause, n in result.causes().items():
            self.counters.add("failed_load_tokens", n * self._tokens, cause)
        return out


class _Holder:
    """What an epoch has built: made anew when a pool came later."""

    def __init__(self, store: HostStore, namespace: Any):
        self._store = store
        self._namespace = namespace
        self._lock = threading.Lock()
        self._old: list[_Built] = []
        self._built = store.make(namespace, store._version)

    def now(self, version: int) -> _Built:
        """The registration of the pools known by now."""
        with self._lock:
            if self._built.version != version:
                self._old.append(self._built)
                self._built = self._store.make(self._namespace, version)
            return self._built

    def close(self) -> None:
        """Ends the ranks; waits for lent rows."""
        for built in [*self._old, self._built]:
            built.rank.close()


class _Metrics:
    """Pages and bandwidth of each put and load of KV pages since they were last asked for."""

    def __init__(self):
        self._lock = threading.Lock()
        self._events: dict[str, list[tuple[int, float]]] = {"prefetch": [], "backup": []}

    def add(self, what: str, pages: int, moved: int, seconds: float) -> None:
        """Notes one call; bandwidth is in GB/s, as SGLang's is."""
        with self._lock:
            events = self._events[what]
            events.append((pages, moved / 1e9 / max(seconds, 1e-9)))
            del events[:-_EVENTS_MOST]

    def drain(self) -> Any:
        """SGLang's own object, or None."""
        made = _new_storage_metrics()
        with self._lock:
            events, self._events = self._events, {"prefetch": [], "backup": []}
        if made is not None:
            for what, values in events.items():
                getattr(made, f"{what}_pgs").extend(pages for pages, _ in values)
                getattr(made, f"{what}_bandwidth").extend(rate for _, rate in values)
        return made


def _new_storage_metrics() -> Any:
    for module in ("sglang.srt.observability.metrics_collector", "sglang.srt.metrics.collector"):
        try:
            return importlib.import_module(module).StorageMetrics()
        except (ImportError, AttributeError):
            continue
    return None
