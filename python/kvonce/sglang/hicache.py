# SPDX-License-Identifier: Apache-2.0
"""kvonce.sglang.HiCacheStorage: the storage backend that SGLang's HiCache loads by `--hicache-storage-backend dynamic`.

No call on the data path raises, and none answers None: what goes wrong is a miss, counted by cause.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.mem_cache import hicache_storage as hs

from ..engine import Connection, Counters, Epochs, Failures, Refused, Settings
from . import updates
from .hicache_store import HostStore
from .host_pools import HostPool, open_pool
from .startup import Facts, check_place, dtype_name, engine_name, identity_of, place_of
from .transfers import KV, text_of

_log = logging.getLogger("kvonce")

_START_SECONDS = 5.0  # attaching waits so long for a store that is connected

#: Keys of the extra config that are SGLang's.
_ENGINE_KEYS = frozenset(
    {
        "backend_name",
        "module_path",
        "class_name",
        "interface_v1",
        "tp_lcm_size",
        "prefetch_threshold",
        "prefetch_timeout_base",
        "prefetch_timeout_per_ki_token",
        "prefetch_timeout_max",
        "hicache_storage_pass_prefix_keys",
    }
)


#: At a flush SGLang waits 10 s for the threads that call us, and ends the scheduler when they are still there: what one call waits for
#: must stay well below that.
_CALL_MS_MOST = 8000
_DEFAULTS = {"load_ms": 5000, "put_ms": 5000}


class HiCacheStorage(hs.HiCacheStorage):
    """One per rank. Pools may be registered at any time; the first call that needs them registers them with the store."""

    #: A test's control derives from it.
    store_class = HostStore

    def __init__(self, storage_config: Any = None, kwargs: Any = None, **_newer: Any):
        del kwargs
        self.registered_pools: dict[Any, Any] = {}
        self.mem_pool_host: Any = None
        self._config = storage_config
        self._facts = Facts(storage_config)
        self._lock = threading.RLock()
        self._pools: dict[str, HostPool] = {}
        self._store: HostStore | None = None
        self._refusal = ""
        self._told: set[str] = set()
        self._listener = updates.Listener(self._weights_changed, self._stopping)
        self.counters = Counters("", "")
        self._failures = Failures(self.counters)
        extra = dict(getattr(storage_config, "extra_config", None) or {})
        self._generic = not extra.get("interface_v1")
        try:
            self.settings = Settings.parse(extra, ignore=_ENGINE_KEYS, defaults=_DEFAULTS)
            _check_times(self.settings)
            self.place = place_of(_Placed(storage_config, self._facts))
            self.counters = Counters(self.settings.engine_id or engine_name(), f"tp{self.place.tp}")
            self._failures = Failures(self.counters)
            check_place(self._facts, self.place)
            self._watch()
        except Exception as error:
            self.settings = Settings()
            self._refuse(error)

    # -- registration --------------------------------------------------------------------------------------------------

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """The KV host pool."""
        self.mem_pool_host = mem_pool_host
        self._register(KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Any pool of the group, the KV pool included."""
        self.registered_pools[host_pool_name] = host_pool
        self._register(text_of(host_pool_name), host_pool)

    def on_host_pools_registered(self) -> None:
        """All pools known at start are there: the store is told of them now instead of at the first page."""
        self._call("attach", lambda store: store.settle(_START_SECONDS), None)

    # -- plain models --------------------------------------------------------------------------------------------------

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Leading pages whose KV is there, of all ranks."""
        return self._call("exists", lambda store: store.leading_kv(keys), 0)

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Puts KV pages; True where a page is stored now, by whomever."""
        return self._call("set", lambda store: store.put(KV, keys, host_indices, _prefix(extra_info)), [False] * len(keys))

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Loads KV pages into the host pool; True where a page is there and verified."""
        return self._call("get", lambda store: store.get(KV, keys, host_indices), [False] * len(keys))

    # -- models with several pools -------------------------------------------------------------------------------------

    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """Which prefix lengths all pools allow."""
        stops, hits = self._call("exists", lambda store: store.stops(keys, pool_transfers or []), ([], {}))
        result = hs.PoolTransferResult(stops[-1] if stops else 0, hits)
        if hasattr(result, "restorable_prefix_pages"):
            result.restorable_prefix_pages = stops
        return result

    def batch_set_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """Puts pages of side pools."""
        return {t.name: self._transfer("set", t, extra_info) for t in transfers}

    def batch_get_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """Loads pages of side pools into their host pools."""
        return {t.name: self._transfer("get", t, extra_info) for t in transfers}

    # -- generic calls: whole pages as flat tensors --------------------------------------------------------------------

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """The page as a flat tensor (target_location where given), None where it is not there."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """As get, for many."""
        targets = target_locations if target_locations is not None else [None] * len(keys)
        return self._call("get", lambda store: store.get_flat(keys, targets), [None] * len(keys))

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Puts a page given as a tensor."""
        return self.batch_set([key], [value if value is not None else target_location])

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        """True when all are stored."""
        pages = values if values is not None else target_locations
        if pages is None:
            return not keys
        return self._call("set", lambda store: all(store.put_flat(keys, pages)), False)

    def exists(self, key: str) -> bool:
        """Whether this page's KV is there."""
        return self.batch_exists([key]) == 1

    # -- the rest ------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """The engine wants its pages gone: those of its own namespace, not other models'."""
        self._call("clear", lambda store: store.clear(), None)

    def get_stats(self) -> Any:
        """SGLang's StorageMetrics of what came since the last call; None where it has no such class."""
        return self._call("stats", lambda store: store.metrics(), None)

    def close(self) -> None:
        """Lets go of the store. Idempotent."""
        with self._lock:
            store, self._store = self._store, None
            self._refusal = self._refusal or "kvonce: closed."
        updates.unwatch(self._listener)
        if store is not None:
            try:
                store.close()
            except Exception:
                _log.exception("kvonce: the storage backend was not closed in order")

    # -- inside --------------------------------------------------------------------------------------------------------

    def _register(self, text: str, pool: Any) -> None:
        try:
            with self._lock:
                if self._refusal or (text in self._pools and self._pools[text].pool is pool):
                    return
                self._check_pool(text, pool)
                self._pools[text] = open_pool(text, pool, self._generic and text == KV, self._tell)
                if self._store is not None:
                    self._store.pools_changed()
        except Exception as error:
            self._refuse(error)

    def _check_pool(self, text: str, pool: Any) -> None:
        if int(getattr(pool, "dcp_size", 1) or 1) > 1:
            raise Refused(f"kvonce: pool {text} is spread by decode context parallelism, which is not served.")
        if getattr(pool, "storage_format_tag", None):
            raise Refused(f"kvonce: pool {text} has a byte format of its own ({pool.storage_format_tag}), which is not served.")
        mla = bool(getattr(self._config, "is_mla_model", False))
        if text.startswith("draft") and mla and self.place.tp_size > 1 and "MHA" in type(pool).__name__:
            raise Refused("kvonce: SGLang's HiCache saves an MLA model's split draft on rank 0 only, so it is never whole: use the linker.")

    def _watch(self) -> None:
        keep = self.settings.on_reset == "keep"
        # An engine that was started without a storage backend runs already when one is attached. Where it is not known, it may.
        late = not self._facts.get("hicache_storage_backend")
        # HiCache has no reset that could tell of an update: unheard, pages of older weights would be served as those of the newer.
        if not updates.watch(self._listener, late=late, trusted=keep) and not keep:
            raise Refused("kvonce: weight updates cannot be heard in this version of SGLang: set on_reset to keep where there are none.")

    def _weights_changed(self) -> None:
        if self._store is not None:
            self._store.weights_changed(updates.number())

    def _stopping(self, on: bool) -> None:
        if self._store is not None:
            self._store.stopping(on)

    def _opened(self) -> HostStore | None:
        """The store; None where it cannot be set up: told once, and not tried again at each page."""
        with self._lock:
            if self._store is None and not self._refusal:
                try:
                    self._store = self._open()
                    # What was heard before, or while no backend was attached, counts. From here on it is told, without this lock.
                    self._store.weights_changed(updates.number())
                except Exception as error:
                    self._refuse(error)
            return self._store

    def _open(self) -> HostStore:
        kv = self._pools.get(KV)
        if kv is None:
            raise Refused("kvonce: no KV host pool was registered.")
        layout = "sglang host rows " + kv.mode
        dtype = dtype_name(getattr(kv.pool, "dtype", "auto"))
        name = str(getattr(self._config, "model_name", "") or "")
        self.settings.check_pools(self._pools)
        identity = identity_of(self._facts, self.settings, layout=layout, page_tokens=kv.page_slots, kv_dtype=dtype, model_name=name)
        link = Connection(self.settings, self.counters.engine, self.counters.rank, self.counters)
        try:
            store = self.store_class(
                self._pools,
                self.place,
                self.settings,
                self.counters,
                link,
                is_mla=bool(getattr(self._config, "is_mla_model", False)),
                facts=self._facts,
            )
            store.check_names()
            store.epochs = Epochs(
                link, identity, build=store.build, retire=store.retire, on_reset=self.settings.on_reset, counters=self.counters
            )
        except Exception:
            link.close()
            raise
        return store

    def _call(self, where: str, what: Callable[[HostStore], Any], miss: Any) -> Any:
        if self._refusal:
            return miss
        try:
            store = self._opened()
            return miss if store is None else what(store)
        except Refused as refused:
            self._refuse(refused)
        except Exception as error:
            self._failures.tell(where, error)
        return miss

    def _transfer(self, what: str, transfer: Any, extra_info: Any) -> list[bool]:
        keys = list(transfer.keys or [])
        name = text_of(transfer.name)
        if transfer.host_indices is None or not keys:
            return [False] * len(keys)
        if what == "set":
            return self._call(what, lambda store: store.put(name, keys, transfer.host_indices, _prefix(extra_info)), [False] * len(keys))
        return self._call(what, lambda store: store.get(name, keys, transfer.host_indices), [False] * len(keys))

    def _refuse(self, error: Exception) -> None:
        text = error.text if isinstance(error, Refused) else f"kvonce: the storage backend could not be set up: {error}"
        if not isinstance(error, Refused):
            _log.exception("kvonce: the storage backend could not be set up")
        updates.unwatch(self._listener)
        if not self._refusal:
            self._refusal = text
            _log.warning("%s SGLang goes on without kvonce.", text)

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            _log.warning("%s", text)


def _check_times(settings: Settings) -> None:
    """Raises Refused where one call could wait so long that a flush ends the scheduler."""
    for name in ("load_ms", "put_ms"):
        longest = settings.lookup_ms + getattr(settings, name)
        if longest > _CALL_MS_MOST:
            raise Refused(
                f"kvonce: lookup_ms and {name} are {longest:,} ms together: in HiCache they may be {_CALL_MS_MOST:,}, since SGLang gives its"
                " storage threads 10 s to stop at a flush."
            )


class _Placed:
    """The rank's place as HiCache's own config tells it; all else from the engine."""

    def __init__(self, config: Any, facts: Facts):
        self._config = config
        self._facts = facts

    def get(self, name: str, default: Any = None) -> Any:
        field = {"attn_tp_size": "tp_size", "attn_tp_rank": "tp_rank"}.get(name, name)  # HiCache's tp_rank is the attention group's
        value = getattr(self._config, field, None)
        return value if value is not None else self._facts.get(name, default)


def _prefix(extra_info: Any) -> Sequence[str]:
    """The pages before the call's own, where the engine tells them."""
    return getattr(extra_info, "prefix_keys", None) or ()
