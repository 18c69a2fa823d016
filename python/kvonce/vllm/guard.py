# SPDX-License-Identifier: Apache-2.0
"""Nothing that goes wrong in kvonce is raised into the engine: it is counted, and told once."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from kvonce.engine import Counters

_log = logging.getLogger("kvonce")


class Failures:
    """Counts what was raised, by where; the first of each is told, with its traceback in the log at level debug."""

    def __init__(self, counters: Counters | None = None):
        self._counters = counters
        self._told: set[str] = set()

    def tell(self, where: str, error: BaseException) -> None:
        """Never raises."""
        try:
            if self._counters is not None:
                self._counters.add("errors", 1, where)
            level = logging.DEBUG if where in self._told else logging.WARNING
            self._told.add(where)
            _log.log(level, "kvonce: %s failed, the engine goes on without its answer: %s: %s", where, type(error).__name__, error)
            _log.debug("kvonce: where %s failed", where, exc_info=error)
        except Exception:  # text of an error that cannot be made, say
            pass


def guarded(answer: Callable[[], Any] = lambda: None, after: Callable[..., None] | None = None) -> Callable:
    """Around a hook: when it raises, the engine gets `answer()`. after(self, *args of the hook): what has to be put in order then.

    `self` has `failures`. What ends a process (KeyboardInterrupt, SystemExit) goes through.
    """

    def around(hook: Callable) -> Callable:
        @functools.wraps(hook)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return hook(self, *args, **kwargs)
            except Exception as error:
                self.failures.tell(hook.__name__, error)
            if after is not None:
                try:
                    after(self, *args, **kwargs)
                except Exception as error:
                    self.failures.tell(hook.__name__, error)
            return answer()

        return call

    return around
