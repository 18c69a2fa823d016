# SPDX-License-Identifier: Apache-2.0
"""What the scheduler's side keeps of each request and of each save."""

from __future__ import annotations

import dataclasses
from typing import Any

from kvonce.engine import Epoch

from .adapters import NONE, Content
from .messages import Load, Save


@dataclasses.dataclass
class Answer:
    """What a lookup found for a request: its first `pages` pages, under a lease."""

    epoch: Epoch
    pages: int
    lease: Any
    start: int  #: tokens that the engine had itself
    asked: int  #: pages asked for
    until: float  #: time when the lease gets too short


@dataclasses.dataclass
class Asking:
    """A lookup under way."""

    epoch: Epoch
    future: Any
    pages: int
    since: float
    dropped: bool = False


@dataclasses.dataclass
class Tracked:
    """A request of the engine."""

    request: Any
    next_page: int = 0  #: the first that was not offered yet
    asking: Asking | None = None
    answer: Answer | None = None
    loading: Load | None = None
    skipped: int = 0  #: pages that could not be offered when they were complete
    restored: int = 0  #: pages that a load brought
    counted: bool = False
    failed: bool = False  #: a load failed: compute it
    stale: bool = False  #: holds KV of weights that were replaced
    content: Content = NONE  #: of its adapter when it began
    ours: bool = True  #: False: something went wrong with it, or its adapter was replaced meanwhile; it is left alone
    scheduled: bool = False  #: since it came, or was preempted
    mixed: bool = False  #: began with pages of the engine's own cache that older weights may have made
    jobs: set[int] = dataclasses.field(default_factory=set)

    @property
    def salt(self) -> bytes | None:
        """Of its adapter's content; None: not known now."""
        return self.content.salt


@dataclasses.dataclass
class Stored:
    """Pages that all ranks have stored, for KV events."""

    hashes: list[bytes]
    parent: bytes | None
    tokens: list[int]
    lora: Any


@dataclasses.dataclass
class Saving:
    """A save that not all ranks have answered, and the blocks that are kept for it."""

    save: Save
    blocks: int
    pinned: list[Any]
    stored: Stored | None
    since: float
