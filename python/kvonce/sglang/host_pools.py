# SPDX-License-Identifier: Apache-2.0
"""SGLang's host pools as kvonce pools.

A pool whose pages lie at regular places (every layout that gives addresses does: layer_first, page_first, page_first_direct,
page_head) is used where it is. Any other, and every pool in the generic mode, goes through a staging buffer, page by page.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..engine import Refused

STAGED_PAGES = 128  # as many as SGLang hands over at once


class HostPool:
    """One host pool. `text`: its name; `page_slots`: indices that SGLang gives for a page."""

    def __init__(self, text: str, pool: Any, staged: bool, why_staged: str = ""):
        self.text = text
        self.pool = pool
        self.page_slots = int(getattr(pool, "page_size", 1) or 1)
        self.rows = int(pool.size) // self.page_slots
        self.staged = staged
        self.why_staged = why_staged
        self.lock = threading.Lock()  # of the staging buffer
        self.ranges: list[tuple[int, int, int]] = []  # (address, stride, bytes) of a page
        self._staging: Any = None

    @property
    def unit(self) -> int:
        """Indices a page in what `put` and `load` are given."""
        return 1 if self.staged else self.page_slots

    @property
    def mode(self) -> str:
        """How a page's bytes are ordered, for the identity."""
        return f"flat {getattr(self.pool, 'layout', '')}" if self.staged else str(getattr(self.pool, "layout", ""))

    def prepare(self) -> None:
        """Finds the places of the pages; raises Refused where there are none that kvonce can use."""
        if self.staged:
            page = self.pool.get_data_page(0, flat=True).cpu()
            size = page.numel() * page.element_size()
            self._staging = page.new_empty((STAGED_PAGES, page.numel()))
            self.ranges = [(self._staging.data_ptr(), size, size)]
            self.rows = STAGED_PAGES
        else:
            self.ranges = regular_ranges(self.pool, self.page_slots, self.rows)

    # -- staging: the caller has `lock` --------------------------------------------------------------------------------

    def stage_in(self, pages: Sequence[Any]) -> None:
        """Copies flat pages into the first rows of the staging buffer. Raises ValueError for a page of another size."""
        for row, page in enumerate(pages):
            target = self._staging[row]
            flat = page.reshape(-1).view(target.dtype)
            if flat.numel() != target.numel():
                raise ValueError(f"pool {self.text}: a page of {flat.numel()} elements, expected {target.numel()}")
            target.copy_(flat)

    def stage_in_slots(self, slots: Sequence[int]) -> None:
        """As stage_in, of the pages that begin at these slots."""
        self.stage_in([self.pool.get_data_page(slot, flat=True) for slot in slots])

    def staged_page(self, row: int) -> Any:
        """The flat page in this row."""
        return self._staging[row]

    def stage_out(self, row: int, slot: int) -> None:
        """Copies a row into the pool's page that begins at this slot."""
        self.pool.set_from_flat_data_page(slot, self._staging[row].clone())


def regular_ranges(pool: Any, page_slots: int, rows: int) -> list[tuple[int, int, int]]:
    """(address of page 0, stride, bytes) of each range of a page: the pool itself is asked for pages 0, 1 and the last.

    Raises Refused when the answers do not lie on a straight line, or the pool gives none.
    """
    import torch

    def ranges_of(page: int) -> list[tuple[int, int]]:
        pointers, sizes = pool.get_page_buffer_meta(torch.arange(page * page_slots, (page + 1) * page_slots))
        return list(zip(map(int, pointers), map(int, sizes), strict=True))

    try:
        first, second, last = ranges_of(0), ranges_of(min(1, rows - 1)), ranges_of(rows - 1)
    except (ValueError, NotImplementedError, AttributeError, AssertionError) as error:
        raise Refused(f"kvonce: a {type(pool).__name__} gives no addresses in this layout: {error}") from error
    out = []
    for (a, size), (b, size_b), (z, size_z) in zip(first, second, last, strict=True):
        stride = b - a if rows > 1 else size
        if size != size_b or size != size_z or stride < size or z != a + stride * (rows - 1):
            layout = getattr(pool, "layout", "?")
            raise Refused(f"kvonce: the pages of a {type(pool).__name__} in layout {layout} do not lie at even distances.")
        out.append((a, stride, size))
    if not out:
        raise Refused(f"kvonce: a {type(pool).__name__} has no buffers.")
    return out


def open_pool(text: str, pool: Any, generic: bool, log: Callable[[str], None]) -> HostPool:
    """A prepared HostPool: direct where that works and the engine asked for it. Raises Refused when neither way works."""
    if not generic:
        direct = HostPool(text, pool, staged=False)
        try:
            direct.prepare()
            return direct
        except Refused as refused:
            if not (hasattr(pool, "get_data_page") and hasattr(pool, "set_from_flat_data_page")):
                raise
            log(f"{refused.text} Its pages take an extra copy.")
    staged = HostPool(text, pool, staged=True)
    try:
        staged.prepare()
    except (ValueError, NotImplementedError, AttributeError, RuntimeError) as error:
        raise Refused(f"kvonce: pool {text} ({type(pool).__name__}) can be read neither in place nor page by page: {error}") from error
    return staged
