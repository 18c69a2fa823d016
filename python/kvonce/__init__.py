# SPDX-License-Identifier: Apache-2.0
"""kvonce keeps the KV-cache pages of inference engines once, however many ranks hold them.

Units: time-outs in seconds; sizes in bytes, as int or text ("1GiB"); a page hash is 32 bytes. `Pages` is bytes of n * 32, an
(n, 32) uint8 array, or a list of 32-byte hashes or 64-digit hex texts. `Indices` is an integer array (numpy, torch on the CPU,
anything with the buffer protocol or DLPack), a range, or a list. A miss is None or 0, never an exception.
"""

from ._errors import BadArgument, Closed, Deadline, Error, Forked, StoreLost
from ._native import (
    REASONS,
    Component,
    Event,
    Future,
    Group,
    GroupPool,
    Layer,
    Lease,
    LoadFuture,
    LoadResult,
    Lookup,
    LookupFuture,
    Namespace,
    PageStat,
    Pool,
    PutFuture,
    PutResult,
    Rank,
    Reason,
    Runtime,
    Verdict,
    version,
)

__version__ = version().split()[0]


def _await(future):
    """The result of a kvonce future for `await`; a cancelled task cancels the call."""
    import asyncio

    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def finish():
        if not waiter.done():
            waiter.set_result(None)

    def done(_):
        try:
            loop.call_soon_threadsafe(finish)
        except RuntimeError:
            pass  # the loop has been closed: nobody waits any more

    if not future.done():
        future.add_done_callback(done)
        try:
            yield from waiter.__await__()
        except asyncio.CancelledError:
            future.cancel()
            raise
    return future.result(0)


Future.__await__ = _await

__all__ = [
    "REASONS",
    "BadArgument",
    "Closed",
    "Component",
    "Deadline",
    "Error",
    "Event",
    "Forked",
    "Future",
    "Group",
    "GroupPool",
    "Layer",
    "Lease",
    "LoadFuture",
    "LoadResult",
    "Lookup",
    "LookupFuture",
    "Namespace",
    "PageStat",
    "Pool",
    "PutFuture",
    "PutResult",
    "Rank",
    "Reason",
    "Runtime",
    "StoreLost",
    "Verdict",
    "version",
]
