# SPDX-License-Identifier: Apache-2.0
"""What an adapter counts: by cause, hits in tokens. Cheap enough for every step; may be called from any thread."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

#: name -> (help, name of its label or None). The whole list: an unknown name is an error.
COUNTERS: dict[str, tuple[str, str | None]] = {
    "asked_tokens": ("tokens of prefixes that the engine asked the store for, each request once", None),
    "hit_tokens": ("of these, tokens that were restorable, by where they lay", "source"),
    "missed_tokens": ("of these, tokens that were not, by cause", "cause"),
    "lookups": ("lookups by outcome: hit, partial, miss, repeated (answered without asking the store)", "outcome"),
    "loaded_tokens": ("tokens whose pages were loaded and verified", None),
    "failed_load_tokens": ("tokens whose load was accepted but failed, by cause", "cause"),
    "offered_pages": ("pages that the engine offered for keeping", None),
    "stored_pages": ("of these, pages that are stored in all their pools, whoever moved the bytes", None),
    "not_stored_pages": ("of these, pages that are not, by cause", "cause"),
    "skipped_pages": ("pages that the engine offered and that were never announced, by cause", "cause"),
    "epochs": ("weight epochs opened, by what opened them", "cause"),
    "stores_lost": ("times that the connection to the store was lost", None),
    "errors": ("calls into kvonce that raised, by where", "cause"),
}

#: Causes of misses, failed loads and pages not kept that adapters add to kvonce.Reason and kvonce.Verdict names.
CAUSES: dict[str, str] = {
    "other_layout": "stored, if at all, with another page size or layout",
    "no_store": "no store is connected",
    "no_epoch": "the store has not said yet which weight epoch this is",
    "too_short": "shorter than min_tokens",
    "role": "the setting role leaves it out",
    "refused": "the set-up cannot be served; see the log",
    "backlog": "too much is under way already",
    "slow_lookup": "no answer within lookup_ms",
    "slow_load": "not done within load_ms",
    "not_answering": "the store has not answered lately; it is asked again when it answers a probe",
    "stale_epoch": "found under weights that have been replaced since",
    "stale_pages": "the engine may still have pages of weights that were replaced",
    "adapter": "the files of its LoRA adapter are being read, or changed without a load in place",
    "failed": "a call into kvonce raised; see errors and the log",
    "no_room": "the engine had no free slots for it",
    "cancelled": "the engine dropped the request",
}

Key = tuple[str, str]

#: Of one report to the store: kvonce.Runtime.report takes no more.
REPORT_COUNTERS = 64


class Counters:
    """Counters of one rank of one engine. All values only grow."""

    def __init__(self, engine: str = "", rank: int | str = ""):
        self.engine = engine
        self.rank = str(rank)
        self._lock = threading.Lock()
        self._values: dict[Key, int] = {}
        self._changes = 0

    def add(self, name: str, n: int = 1, label: str = "") -> None:
        """Adds n >= 0 to a counter of COUNTERS; `label` (cause, source, outcome) where it has one. Raises ValueError."""
        known = COUNTERS.get(name)
        if known is None or (known[1] is None) != (label == "") or n < 0:
            raise ValueError(f"add({name!r}, {n}, {label!r}): must be one of COUNTERS, with a label where it has one, and n >= 0")
        if n:
            with self._lock:
                self._values[name, label] = self._values.get((name, label), 0) + n
                self._changes += 1

    def lookup(self, asked: int, hit: int, cause: str = "", source: str = "memory") -> None:
        """One request's first lookup, in tokens: `cause` says why the rest, if any, is not there."""
        if not 0 <= hit <= asked:
            raise ValueError(f"lookup: {hit} tokens hit of {asked} asked")
        self.add("asked_tokens", asked)
        self.add("hit_tokens", hit, source)
        self.add("missed_tokens", asked - hit, cause or "absent")
        if asked:
            self.add("lookups", 1, "hit" if hit == asked else "partial" if hit else "miss")

    def put(self, pages: int, causes: Mapping[str, int]) -> None:
        """The result of one put of `pages` pages; causes: pages not stored, by cause (PutResult.causes())."""
        lost = min(pages, sum(causes.values()))
        self.add("stored_pages", pages - lost)
        for cause, n in causes.items():
            self.add("not_stored_pages", n, cause)

    def snapshot(self) -> dict[Key, int]:
        """{(name, label): value}; what was never counted is not there. May be pickled."""
        with self._lock:
            return dict(self._values)

    def total(self, name: str) -> int:
        """A counter's sum over its labels."""
        return sum(value for (counter, _label), value in self.snapshot().items() if counter == name)

    def delta(self, since: Mapping[Key, int]) -> dict[Key, int]:
        """What came since an earlier snapshot; what did not change is not there."""
        now = self.snapshot()
        return {key: value - since.get(key, 0) for key, value in now.items() if value != since.get(key, 0)}

    def merge(self, delta: Mapping[Key, int]) -> None:
        """Adds another's delta: that of a worker process, say."""
        for (name, label), value in delta.items():
            self.add(name, value, label)

    @property
    def changes(self) -> int:
        """Grows with every counted event: unchanged means that nothing was counted since."""
        return self._changes

    def report(self) -> dict[str, int]:
        """For kvonce.Runtime.report: each counter's sum by its name, and by cause as `name:cause`, the largest 64 in all."""
        values = self.snapshot()
        sums: dict[str, int] = {}
        for (name, _label), value in values.items():
            sums[name] = sums.get(name, 0) + value
        labelled = sorted(((-value, name, label) for (name, label), value in values.items() if label))
        found = {name: sums[name] for name in COUNTERS if name in sums}
        for value, name, label in labelled[: REPORT_COUNTERS - len(found)]:
            found[f"{name}:{label}"[:64]] = -value
        return found

    def prometheus(self) -> str:
        """All counters in Prometheus' text format, labelled engine and rank."""
        return prometheus([self])

    def line(self) -> str:
        """One line for a log: what was asked and hit, and why not."""
        values = self.snapshot()
        misses = sorted(((v, label) for (name, label), v in values.items() if name == "missed_tokens"), reverse=True)
        text = f"asked {self.total('asked_tokens'):,} tokens, hit {self.total('hit_tokens'):,}"
        text += f", loaded {self.total('loaded_tokens'):,}"
        text += f"; stored {self.total('stored_pages'):,} of {self.total('offered_pages'):,} pages"
        return text + ("; missed: " + ", ".join(f"{label} {v:,}" for v, label in misses) if misses else "")


def prometheus(all_counters: Iterable[Counters]) -> str:
    """Several ranks' counters as one exposition, each family once."""
    lists = [(c, c.snapshot()) for c in all_counters]
    lines = []
    for name, (text, label_name) in COUNTERS.items():
        rows = []
        for counters, values in lists:
            for (counter, label), value in sorted(values.items()):
                if counter != name:
                    continue
                labels = [("engine", counters.engine), ("rank", counters.rank)]
                labels += [(label_name, label)] if label_name else []
                rows.append(f"kvonce_{name}_total{{{','.join(f'{k}={_quote(v)}' for k, v in labels)}}} {value}")
        if rows:
            lines += [f"# HELP kvonce_{name}_total {text}", f"# TYPE kvonce_{name}_total counter", *rows]
    return "\n".join(lines) + "\n" if lines else ""


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
