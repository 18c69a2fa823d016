# SPDX-License-Identifier: Apache-2.0
"""Which prefix lengths a pool allows, by SGLang's hit policies. Pure functions on `have`: one byte a page, 1 where it is there."""

from __future__ import annotations

from collections.abc import Sequence


def leading(have: bytes | Sequence[int]) -> int:
    """Pages before the first that is missing."""
    found = bytes(have).find(0)
    return len(have) if found < 0 else found


def trailing_stops(have: bytes | Sequence[int], window: int) -> list[int]:
    """Prefix lengths whose last `window` pages (all, where there are fewer) are there, ascending."""
    window = max(1, window)
    stops, run = [], 0
    for n, there in enumerate(have, 1):
        run = run + 1 if there else 0
        if run >= min(window, n):
            stops.append(n)
    return stops


def block_pages_covered(have: bytes | Sequence[int], group_pages: int, block_pages: int, pages: int) -> int:
    """Pages of the prefix that the leading complete groups stand for: each `group_pages` keys stand for `block_pages` pages.

    have: of the keys of the groups, in order. The last group may stand for fewer pages than a block.
    """
    if group_pages < 1 or block_pages < 1:
        return 0
    return min(pages, leading(have) // group_pages * block_pages)
