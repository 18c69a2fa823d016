# SPDX-License-Identifier: Apache-2.0
"""Around every hook: nothing that goes wrong in kvonce is raised into the engine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def guarded(answer: Callable[[], Any] = lambda: None, after: Callable[..., None] | None = None) -> Callable:
    """Around a hook: when it raises, the engine gets `answer()`. after(self, *args of the hook): what has to be put in order then.

    `self` has `failures` (kvonce.engine.Failures). What ends a process (KeyboardInterrupt, SystemExit) goes through.
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
