# SPDX-License-Identifier: Apache-2.0
"""Hears of weight updates through SGLang's own plug-in hooks: `reset` looks the same after a flush and after new weights."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("kvonce")

#: Where the updates of a version are: module, class. The first that is there is taken.
_PLACES = (
    ("sglang.srt.managers.scheduler_components.weight_updater", "SchedulerWeightUpdaterManager"),
    ("sglang.srt.managers.scheduler_update_weights_mixin", "SchedulerUpdateWeightsMixin"),
)
_PREFIX = "update_weights_from_"


_lock = threading.Lock()
#: Who hears of this process's updates. SGLang applies hooks to a function once, so all share one hook.
_listeners: list[tuple[Callable[[], None], Callable[[bool], None] | None]] = []
_hooked: bool | None = None  # None: not tried yet, or there was nothing to hook


def watch(changed: Callable[[], None], done: Callable[[bool], None] | None = None) -> bool:
    """Calls `changed` in this process before every weight update, and done(flushed) after it: whether SGLang has flushed what
    the old weights made; until `unwatch(changed)`. False: this version's updates cannot be heard.

    No function of SGLang is replaced by hand: the hooks are those that it offers to plug-ins.
    """
    global _hooked
    with _lock:
        if _hooked is None:
            _hooked = _hook()
        if _hooked:
            _listeners.append((changed, done))
        return bool(_hooked)


def unwatch(changed: Callable[[], None]) -> None:
    """Ends what `watch` began for `changed`; nothing where it did not."""
    with _lock:
        _listeners[:] = [pair for pair in _listeners if pair[0] != changed]


def _tell(what: Callable[[Any], None]) -> None:
    with _lock:
        listeners = list(_listeners)
    for listener in listeners:
        try:
            what(listener)
        except Exception:  # the engine's update goes on, and the others hear of it
            _log.exception("kvonce: a weight update was not noted")


def _heard(*_args: Any, **_kwargs: Any) -> None:
    _tell(lambda listener: listener[0]())


def _ended(result: Any, *args: Any, **_kwargs: Any) -> None:
    flushed = any(getattr(arg, "flush_cache", False) for arg in args) and bool(getattr(result, "success", False))
    _tell(lambda listener: listener[1](flushed) if listener[1] is not None else None)


def _hook() -> bool | None:
    """Whether all updates will be heard; None: there is nothing to hook."""
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    except ImportError:
        return None
    for module_name, class_name in _PLACES:
        try:
            owner = getattr(importlib.import_module(module_name), class_name)
        except (ImportError, AttributeError):
            continue
        before = {name: value for name, value in vars(owner).items() if name.startswith(_PREFIX)}
        if not before:
            continue
        for name in before:
            HookRegistry.register(f"{module_name}.{class_name}.{name}", _heard, HookType.BEFORE)
            HookRegistry.register(f"{module_name}.{class_name}.{name}", _ended, HookType.AFTER)
        HookRegistry.apply_hooks()
        # Another plug-in's hook on the same function may have been applied before: then ours is not heard.
        return all(vars(owner)[name] is not value for name, value in before.items())
    return None
