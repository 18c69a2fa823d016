# SPDX-License-Identifier: Apache-2.0
"""Hears of new weights and of flushes through SGLang's own plug-in hooks: `reset` looks the same after both.

What is known of an engine's weights belongs to the process, not to one storage backend: HiCache's backend can be detached
and attached again while the engine runs, and what came meanwhile counts. No function of SGLang is replaced by hand.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

_log = logging.getLogger("kvonce")

_PREFIX = "update_weights_from_"
#: What else changes weights, in a place of _SCHEDULERS or _RUNNERS: method -> kind. A trainer that writes into the weights
#: itself (P2P, RDMA) calls nothing between begin and end.
_KINDS = {
    "begin_weight_update": "begin",
    "end_weight_update": "end",
    "load_weights_from_distributed": "update",
    "resume_memory_occupation": "resume",
    "check_weights": "check",
}
#: Where a scheduler is told of new weights: module, class. It hears them on all ranks alike; it looks its methods up when it
#: starts, so that hooks of a later time are not heard.
_SCHEDULERS = (
    ("sglang.srt.managers.scheduler_components.weight_updater", "SchedulerWeightUpdaterManager"),
    ("sglang.srt.managers.scheduler_update_weights_mixin", "SchedulerUpdateWeightsMixin"),
)
#: Where a model's weights are replaced: looked up at every call. Not heard within a call of the scheduler's that is.
_RUNNERS = (
    ("sglang.srt.model_executor.model_runner_components.weight_updater", "WeightUpdater"),
    ("sglang.srt.model_executor.model_runner", "ModelRunner"),
)
#: The trees whose `reset` is a flush, and which a storage backend is detached from.
_TREES = (
    ("sglang.srt.mem_cache.unified_radix_cache", "UnifiedRadixCache"),
    ("sglang.srt.mem_cache.hiradix_cache", "HiRadixCache"),
    ("sglang.srt.mem_cache.hi_mamba_radix_cache", "HiMambaRadixCache"),
)

_STALE = (
    "kvonce: the weights were replaced while SGLang keeps pages of the old ones: nothing is stored or restored until it is flushed"
    " (flush_cache with the last update, or /flush_cache before the first or after the last one; on_reset does not change this)."
)
_UNKNOWN = (
    "kvonce: attached to a running engine, whose pages may be older than its weights: nothing is stored or restored until"
    " /flush_cache (set on_reset to keep where weights are never updated)."
)


@dataclasses.dataclass(frozen=True)
class Listener:
    """Who hears of this process's weights; all calls come from the thread that updates or flushes."""

    changed: Callable[[], None]  #: new weights are about to be in place, and pages of the old ones may be left
    stopping: Callable[[bool], None] | None = None  #: True: SGLang now waits for the threads that call us; False: it does no more


class _State:
    """What this process knows. SGLang updates and flushes from one thread; others ask."""

    def __init__(self):
        self.listeners: list[Listener] = []
        self.heard = False  # at the scheduler
        self.heard_at_runners = False
        self.tried = False
        self.unknown = False  # the hooks came after the engine's start: it may have been updated before
        self.number = 0
        self.open = False  # between begin_weight_update and end_weight_update
        self.mixed = False
        self.pools: list[Any] = []  # all that hold KV pages: an allocator of the device's, host pools
        self.told = False


_lock = threading.RLock()
_state = _State()
_inside = threading.local()


def watch(listener: Listener, *, late: bool = False, trusted: bool = False) -> bool:
    """From now on `listener` hears of every weight update and flush in this process, until `unwatch`. False: this version's
    updates cannot be heard.

    late: the engine runs already. What came before the first call is then not known, which counts as one update that left old
    pages, unless `trusted`: the operator says that there was none.
    """
    with _lock:
        if not _state.tried:
            _hook(late)
        if not (_state.heard_at_runners if _state.unknown else _state.heard or _state.heard_at_runners):
            return False
        if _state.unknown and not trusted and _state.number == 0:
            _state.number, _state.mixed, _state.told = 1, True, True
            _log.warning(_UNKNOWN)
        _state.listeners.append(listener)
        return True


def unwatch(listener: Listener) -> None:
    """Ends what `watch` began; nothing where it did not."""
    with _lock:
        _state.listeners[:] = [one for one in _state.listeners if one is not listener]


def number() -> int:
    """Updates of this process's weights so far; the same on all ranks."""
    return _state.number


def mixed() -> bool:
    """Whether SGLang may have pages that older weights made: until new ones are in place and the old pages are gone. The only place that
    knows it: nothing is kept or looked up meanwhile."""
    return _state.mixed


def complain() -> None:
    """Tells, once, why nothing is kept: called when that is noticed, so not while an update is still to be followed by its flush."""
    with _lock:
        told = _state.told or _state.open or not _state.mixed
        _state.told = _state.told or not told
    if not told:
        _log.warning(_STALE)


def pools_are(pools: Iterable[Any]) -> None:
    """What holds the engine's KV pages: where all of it is free after an update, no old page is left."""
    with _lock:
        _state.pools = [pool for pool in pools if pool is not None]


def flushed() -> None:
    """SGLang has dropped all pages: none of older weights is left, unless new ones are still being put in place."""
    with _lock:
        if not _state.open:
            _state.mixed = False


# -- the hooks ---------------------------------------------------------------------------------------------------------


def _tell(what: str, *args: Any) -> None:
    with _lock:
        listeners = list(_state.listeners)
    for listener in listeners:
        call = getattr(listener, what)
        try:
            if call is not None:
                call(*args)
        except Exception:  # the engine's update goes on, and the others hear of it
            _log.exception("kvonce: a weight update was not noted")


def _update(kind: str) -> Callable[..., Any]:
    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "now", False) or not _changes(kind, args):
            return original(*args, **kwargs)
        _inside.now = True
        try:
            _begun()
            result = original(*args, **kwargs)
            _ended(kind, result, args)
            return result
        finally:
            _inside.now = False

    return around


def _changes(kind: str, args: tuple[Any, ...]) -> bool:
    """Whether this call changes weights at all."""
    try:
        if kind == "check":
            return getattr(args[1], "action", "") == "reset_tensors"
        if kind == "resume":  # memory that was given up comes back empty, unless it was kept in host memory
            manager, request = args[0], args[1]
            given_up = getattr(getattr(manager, "memory_saver_adapter", None), "enabled", True)
            return bool(given_up) and (not request.tags or "weights" in request.tags)
    except Exception as error:  # another version's arguments
        _log.debug("kvonce: %s: %s", kind, error)
    return True


def _begun() -> None:
    with _lock:
        if _state.open:  # of the update that was begun: nothing is kept or looked up until its end
            return
        _state.number += 1
        _state.mixed, _state.told = True, False
    _tell("changed")


def _ended(kind: str, result: Any, args: tuple[Any, ...]) -> None:
    good = bool(result[0]) if isinstance(result, tuple) and result else bool(getattr(result, "success", True))
    with _lock:
        if kind in ("begin", "end") and good:
            _state.open = kind == "begin"
        if _state.open:
            return
        # Of the request, not of the object that is called, which has a function of that name.
        flush = good and any(getattr(arg, "flush_cache", None) is True for arg in args[1:])
        if flush or _nothing_is_kept():
            _state.mixed = False


def _nothing_is_kept() -> bool:
    try:
        return bool(_state.pools) and all(_is_free(pool) for pool in _state.pools)
    except Exception as error:  # another version's allocator: not known
        _log.debug("kvonce: whether pages are kept is not known: %s", error)
        return False


def _is_free(pool: Any) -> bool:
    page = max(1, int(getattr(pool, "page_size", 1) or 1))
    size = getattr(pool, "logical_size", None)
    return int(pool.available_size()) == int(pool.size if size is None else size) // page * page


def _reset(original: Callable[..., Any], tree: Any, *args: Any, **kwargs: Any) -> Any:
    result = _stopping(original, tree, *args, **kwargs)
    controller = getattr(tree, "cache_controller", None)
    host = getattr(controller, "mem_pool_host", None)
    entries = [entry.host_pool for entry in getattr(host, "entries", None) or ()] or [host]
    allocator = getattr(tree, "token_to_kv_pool_allocator", None)
    if allocator is not None:
        pools_are([allocator, *entries])
    flushed()
    return result


def _stopping(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    _tell("stopping", True)
    try:
        return original(*args, **kwargs)
    finally:
        _tell("stopping", False)


def _hook(late: bool) -> None:
    """Notes in _state which places will be heard; a version without hooks is tried again."""
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    except ImportError:
        return
    wanted = {}
    for places in (_SCHEDULERS, _RUNNERS):
        for module, name, owner in _found(places):
            methods = {m: _KINDS.get(m, "update") for m in vars(owner) if m.startswith(_PREFIX) or m in _KINDS}
            if methods:
                wanted[places] = (owner, {m: vars(owner)[m] for m in methods})
                for method, kind in methods.items():
                    HookRegistry.register(f"{module}.{name}.{method}", _update(kind), HookType.AROUND)
                break
    if not wanted:
        return
    for module, name, owner in _found(_TREES):
        for method, hook in (("reset", _reset), ("detach_storage_backend", _stopping)):
            if method in vars(owner):
                HookRegistry.register(f"{module}.{name}.{method}", hook, HookType.AROUND)
    HookRegistry.apply_hooks()
    # Another plug-in's hook on the same function may have been applied before: then ours is not heard.
    heard = {places: all(vars(owner)[m] is not was for m, was in before.items()) for places, (owner, before) in wanted.items()}
    _state.heard, _state.heard_at_runners = heard.get(_SCHEDULERS, False), heard.get(_RUNNERS, False)
    _state.tried, _state.unknown = True, late


def _found(places: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str, Any]]:
    for module, name in places:
        try:
            yield module, name, getattr(importlib.import_module(module), name)
        except Exception as error:  # not in this version
            _log.debug("kvonce: no %s: %s", module, error)
