# SPDX-License-Identifier: Apache-2.0
"""Answers of lookups by request, so that a request that waits and is asked for again costs no round trip."""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass
class Answer:
    """What the store said of one request's pages."""

    keys: list[str]
    stops: list[int]  #: restorable prefix lengths in pages, ascending
    lease: Any  #: kvonce.Lease; None: nothing is leased
    epoch: Any  #: engine.Epoch under which it was asked
    until: float  #: no longer used for repeated questions after this
    leased_until: float  #: the lease may have ended after this
    optional_missing: frozenset[str] = frozenset()
    life: int = 0  #: the store's incarnation that answered; 0: none was connected


class LookupBook:
    """At most one answer a request, at most `most` in all; the oldest goes first.

    Leases of answers that are replaced or pushed out are returned to be released: by the caller, in its own time.
    """

    def __init__(self, most: int = 4096, clock: Callable[[], float] = time.monotonic):
        self._answers: collections.OrderedDict[str, Answer] = collections.OrderedDict()
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()

    def repeated(self, rid: str, keys: list[str], life: int) -> Answer | None:
        """The answer to the very same question, while it is fresh and its epoch is, and while the store that gave it is there (life:
        its incarnation now, 0 while there is none): of a store that is gone nothing can be loaded."""
        answer = self._answers.get(rid)
        if answer is None or answer.life != life or answer.until <= self._clock() or answer.keys != keys:
            return None
        if answer.epoch is not None and not answer.epoch.live:
            return None
        return answer

    def keep(self, rid: str, answer: Answer) -> list[Answer]:
        """Notes an answer. Returns those whose leases nobody will use any more.

        One that was asked anew because it got old is not among them: another rank may still load under its lease.
        """
        dropped = []
        with self._lock:
            old = self._answers.pop(rid, None)
            if old is not None and old.lease is not None and old.keys != answer.keys:
                dropped.append(old)
            self._answers[rid] = answer
            while len(self._answers) > self._most:
                _, oldest = self._answers.popitem(last=False)
                if oldest.lease is not None:
                    dropped.append(oldest)
        return dropped

    def take(self, rid: str) -> Answer | None:
        """Hands the answer over to a load: the load has the lease from now on."""
        with self._lock:
            return self._answers.pop(rid, None)

    def clear(self) -> list[Answer]:
        """Forgets all; returns the answers that had leases."""
        with self._lock:
            answers, self._answers = self._answers, collections.OrderedDict()
        return [answer for answer in answers.values() if answer.lease is not None]

    def __len__(self) -> int:
        return len(self._answers)


class Chains:
    """Which page comes before which, from the lookups of late: SGLang's offloads do not tell. Bounded; only a hint."""

    def __init__(self, most: int = 200_000):
        self._before: dict[str, tuple[str, int]] = {}  # page -> (the page before it, its own depth)
        self._new: collections.deque[list[str]] = collections.deque(maxlen=256)
        self._most = most

    def learn(self, keys: list[str]) -> None:
        """A chain was asked for. Cheap: what follows from it is worked out in the thread that asks `parent`."""
        self._new.append(keys)

    def parent(self, key: str) -> tuple[str | None, int]:
        """(the page before this one or None, pages before this one as far as known)."""
        while self._new:
            keys = self._new.popleft()
            if len(self._before) + len(keys) > self._most:
                self._before.clear()
            base = self._before[keys[0]][1] if keys[0] in self._before else 0
            self._before.update((page, (before, base + i)) for i, (page, before) in enumerate(zip(keys[1:], keys, strict=False), 1))
        return self._before.get(key, (None, 0))
