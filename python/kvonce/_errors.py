# SPDX-License-Identifier: Apache-2.0
"""The exceptions of kvonce. A miss is never one: calls answer None, 0, or a reason per page."""


class Error(Exception):
    """A call that failed as a whole.

    reason: one of kvonce.REASONS, as "store_lost". text: what was wrong, with which value, and what is allowed.
    """

    # No __init__: the C++ side makes these, and must run no Python code while the interpreter may be ending.
    @property
    def reason(self) -> str:
        return self.args[0]

    @property
    def text(self) -> str:
        return self.args[1]

    def __str__(self) -> str:
        return f"{self.text} [{self.reason}]"


class BadArgument(Error, ValueError):
    """The call itself is wrong; the text names the argument, its value and what is allowed."""


class StoreLost(Error, ConnectionError):
    """The store is not there. The runtime connects again by itself; calls fail until then."""

    __str__ = Error.__str__


class Deadline(Error, TimeoutError):
    """The time of the call has passed."""

    __str__ = Error.__str__


class Closed(Error, RuntimeError):
    """The runtime, rank or pool was closed."""


class Forked(Error, RuntimeError):
    """The object belongs to the parent of this process; the child has to start a Runtime of its own."""
