# SPDX-License-Identifier: Apache-2.0
"""SGLang's transfers (which pages, which slots) as what kvonce takes: page hashes and index arrays.

Nothing here imports SGLang or torch: a transfer is anything with `name`, `keys`, `device_indices`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

KV = "kv"


def text_of(name: Any) -> str:
    """The text of a pool's name, which SGLang gives as an enum or as text (whose hashes differ)."""
    return str(getattr(name, "value", name))


def page_hashes(keys: Sequence[str]) -> bytes:
    """32 bytes a page: SGLang's keys are 64 hexadecimal digits; any other key counts by its SHA-256."""
    try:
        pages = bytes.fromhex("".join(keys))
        if len(pages) == 32 * len(keys):
            return pages
    except ValueError:
        pass
    return b"".join(hashlib.sha256(key.encode()).digest() for key in keys)


def host_indices(indices: Any) -> Any:
    """Slots as a flat array of 64-bit integers in this process's memory. A tensor of a device is copied, which waits for it."""
    if hasattr(indices, "detach"):
        return indices.detach().to("cpu").flatten().long().contiguous()
    return indices


def padded(indices: Any, pages: int, unit: int) -> Any:
    """Indices of the last pages of `pages`, `unit` a page, with -1 (no row) for the pages before them."""
    missing = pages * unit - len(indices)
    if missing == 0:
        return indices
    if hasattr(indices, "new_full"):
        out = indices.new_full((pages * unit,), -1)
        out[missing:] = indices
        return out
    return [-1] * missing + list(indices)


@dataclasses.dataclass
class PoolView:
    """One pool of the engine as the linker sees it."""

    name: Any  #: the engine's own key of the pool
    source: str  #: the transfer whose slots it uses
    unit: int  #: slots a page
    rows: int  #: pages that the buffers have room for
    layers: tuple[int, ...]  #: the engine's layers that it has a part in, ascending
    components: list[tuple[str, list[tuple[int, int, int]]]]  #: name, then (address, stride, bytes) of a page per layer
    kind: str  #: see engine.shards.KINDS
    pool_name: str = ""  #: in the store; empty: the engine's
    trailing_pages: int = 0
    optional: bool = False
    kv_heads: int | None = None  #: of all ranks together
    declared: int | None = None  #: the shard that the engine itself declares for this rank
    translate: Callable[[Any], Any] | None = None  #: from the source's slots to this pool's
    keep: Any = None  #: what owns the memory

    def __post_init__(self):
        self.pool_name = self.pool_name or self.text

    @property
    def text(self) -> str:
        return text_of(self.name)

    def slots(self, transfer: Any) -> Any:
        """This pool's slots of a transfer."""
        indices = transfer.device_indices
        if self.translate is not None:
            indices = self.translate(indices)
        return host_indices(indices)


@dataclasses.dataclass
class Resolved:
    """A request's transfers spread over the pools: the pages of the whole chain, and which pool takes part with which."""

    keys: list[str]
    parts: list[tuple[PoolView, Any]]  #: pool, transfer

    @property
    def pages(self) -> int:
        return len(self.keys)

    def rows(self) -> dict[str, Any]:
        """Per pool name (PoolView.text) an index array of pages x unit, -1 where a page has no row.

        Raises ValueError where a transfer's pages are not the chain's last ones, or its slots not as many as it needs.
        """
        out = {}
        for view, transfer in self.parts:
            n = len(transfer.keys)
            if n > self.pages or (n < self.pages and list(transfer.keys) != self.keys[self.pages - n :]):
                raise ValueError(f"pool {view.text}: its {n} pages are not the last ones of the chain of {self.pages}")
            slots = view.slots(transfer)
            if len(slots) != n * view.unit:
                raise ValueError(f"pool {view.text}: {len(slots)} slots for {n} pages of {view.unit}")
            out[view.text] = padded(slots, self.pages, view.unit)
        return out


def resolve(views: Sequence[PoolView], transfers: Sequence[Any], *, partial: bool) -> Resolved | None:
    """Spreads logical transfers over the pools. None: nothing to do. The answer depends on the transfers alone.

    partial: pools whose transfer is not there are left out; else every pool's must be there.
    """
    by_name = {text_of(transfer.name): transfer for transfer in transfers}
    chain = by_name.get(KV)
    if chain is None or not chain.keys:
        return None
    parts = []
    for view in views:
        transfer = by_name.get(view.source)
        if transfer is not None and transfer.keys:
            parts.append((view, transfer))
        elif not partial:
            return None
    return Resolved(list(chain.keys), parts) if parts else None
