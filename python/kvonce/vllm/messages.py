# SPDX-License-Identifier: Apache-2.0
"""What the scheduler's process tells the rank processes in each step, and what they answer. All of it may be pickled."""

from __future__ import annotations

import dataclasses
from typing import Any

Rows = dict[str, list[int]]  #: pool key -> one block id per page, -1: that page has none in that pool


@dataclasses.dataclass
class Load:
    """Pages to restore for a request that waits for them."""

    request: str
    updates: int  #: weight updates before the lookup
    epoch: str  #: value of the weight epoch under which the pages were found
    lease: Any
    hashes: bytes  #: 32 bytes a page
    rows: Rows
    tokens: int  #: that the engine counts on

    @property
    def pages(self) -> int:
        """Number of pages."""
        return len(self.hashes) // 32


@dataclasses.dataclass
class Save:
    """Pages of a request that are complete when this step's forward is."""

    job: int
    request: str
    first_page: int
    parent: bytes | None  #: hash of the page before the first
    hashes: bytes
    rows: Rows

    @property
    def pages(self) -> int:
        """Number of pages."""
        return len(self.hashes) // 32


@dataclasses.dataclass
class Step:
    """One step's work for the ranks."""

    updates: int = 0  #: weight updates so far: a load that was found under fewer is stale
    epoch: str | None = None  #: value of the weight epoch; None: not known now, so nothing is saved
    loads: list[Load] = dataclasses.field(default_factory=list)
    saves: list[Save] = dataclasses.field(default_factory=list)
    held: list[str] = dataclasses.field(default_factory=list)  #: finished requests whose blocks wait for their saves


@dataclasses.dataclass
class Done:
    """Save jobs that ended on a rank, or on several: how many ranks, and on how many of them all was stored."""

    jobs: dict[int, tuple[int, int]] = dataclasses.field(default_factory=dict)
    refused: str = ""  #: why a rank takes no part at all

    def __bool__(self) -> bool:
        return bool(self.jobs or self.refused)

    def merge(self, other: Done) -> Done:
        """Adds another rank's."""
        for job, (ranks, stored) in other.jobs.items():
            mine = self.jobs.get(job, (0, 0))
            self.jobs[job] = (mine[0] + ranks, mine[1] + stored)
        self.refused = self.refused or other.refused
        return self


@dataclasses.dataclass
class Results:
    """What a rank reports of its requests in a step."""

    sent: set[str] = dataclasses.field(default_factory=set)
    received: set[str] = dataclasses.field(default_factory=set)
    failed: set[str] = dataclasses.field(default_factory=set)  #: part of `received`
