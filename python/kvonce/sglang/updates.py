# SPDX-License-Identifier: Apache-2.0
"""Hears of weight updates through SGLang's own plug-in hooks: `reset` looks the same after a flush and after new weights."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("kvonce")

#: Where the updates of a version are: module, class. The first that is there is taken.
_PLACES = (
    ("sglang.srt.managers.scheduler_components.weight_updater", "SchedulerWeightUpdaterManager"),
    ("sglang.srt.managers.scheduler_update_weights_mixin", "SchedulerUpdateWeightsMixin"),
)
_PREFIX = "update_weights_from_"


def watch(changed: Callable[[], None], done: Callable[[bool], None] | None = None) -> bool:
    """Calls `changed` in this process before every weight update, and done(flushed) after it: whether SGLang has flushed what
    the old weights made. False: this version's updates cannot be heard.

    No function of SGLang is replaced by hand: the hooks are those that it offers to plug-ins.
    """
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    except ImportError:
        return False
    for module_name, class_name in _PLACES:
        try:
            owner = getattr(importlib.import_module(module_name), class_name)
        except (ImportError, AttributeError):
            continue
        names = [name for name in vars(owner) if name.startswith(_PREFIX)]
        if not names:
            continue
        before = {name: vars(owner)[name] for name in names}

        def heard(*_args: Any, **_kwargs: Any) -> None:
            try:
                changed()
            except Exception:
                _log.exception("kvonce: a weight update was not noted")

        def ended(result: Any, *args: Any, **_kwargs: Any) -> None:
            if done is not None:
                wanted = any(getattr(arg, "flush_cache", False) for arg in args)
                done(wanted and bool(getattr(result, "success", False)))

        for name in names:
            HookRegistry.register(f"{module_name}.{class_name}.{name}", heard, HookType.BEFORE)
            HookRegistry.register(f"{module_name}.{class_name}.{name}", ended, HookType.AFTER)
        HookRegistry.apply_hooks()
        # Another plug-in's hook on the same function may have been applied before: then ours is not heard.
        return all(vars(owner)[name] is not before[name] for name in names)
    return False
