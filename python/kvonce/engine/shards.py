# SPDX-License-Identifier: Apache-2.0
"""Which part of the content a rank holds, per pool: pure functions on plain values.

A shard is (counts, index) on the axes tensor, pipeline and context parallel. Ranks that give the same index of the same
counts hold identical objects. Data parallel ranks are no axis: they change nothing in the bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from .config import ConfigError, Refused

Axes = tuple[int, int, int]

#: Kinds of pools that hold, by construction, the same bytes on every tensor-parallel rank.
REPLICATED_KINDS = frozenset({"mla", "indexer"})
#: Kinds whose bytes differ on every tensor-parallel rank.
RANK_KINDS = frozenset({"state", "draft"})
#: Kinds that are split by heads: replicated within a head group where there are fewer KV heads than ranks.
HEAD_KINDS = frozenset({"heads"})
KINDS = REPLICATED_KINDS | RANK_KINDS | HEAD_KINDS


@dataclasses.dataclass(frozen=True)
class Place:
    """Where this process stands: its index and the number of ranks on each axis.

    tp is the *attention* tensor-parallel rank (SGLang: attn_tp_rank of attn_tp_size), never the global one.
    """

    tp: int = 0
    tp_size: int = 1
    pp: int = 0
    pp_size: int = 1
    cp: int = 0
    cp_size: int = 1

    def __post_init__(self):
        for axis in ("tp", "pp", "cp"):
            index, of = getattr(self, axis), getattr(self, axis + "_size")
            if not 0 <= index < of <= 65_535:
                raise ValueError(f"{axis} rank is {index} of {of}: must be below the size, and the size at most 65,535")

    @property
    def ranks(self) -> Axes:
        """(tp, pp, cp) sizes: what `Namespace.group` wants."""
        return (self.tp_size, self.pp_size, self.cp_size)

    @property
    def index(self) -> Axes:
        """(tp, pp, cp) of this rank."""
        return (self.tp, self.pp, self.cp)


@dataclasses.dataclass(frozen=True)
class Shard:
    """A pool's declaration: number of shards per axis, and this rank's index on each."""

    counts: Axes
    index: Axes

    @property
    def count(self) -> int:
        """Number of different objects per page."""
        return self.counts[0] * self.counts[1] * self.counts[2]

    @property
    def flat(self) -> int:
        """This rank's shard as one number below `count`; tp runs fastest, as in the store."""
        return self.index[0] + self.counts[0] * (self.index[1] + self.counts[1] * self.index[2])


def _head_groups(tp: int, tp_size: int, heads: int) -> tuple[int, int]:
    """(number of different head groups, that of this rank) for `heads` KV heads in all over `tp_size` ranks."""
    if heads <= 0:
        raise ConfigError(f"kvonce: a pool of {heads} KV heads cannot be split by heads")
    if heads >= tp_size or tp_size % heads != 0:
        return tp_size, tp  # every rank has heads of its own, or an uneven split: per rank is always right
    return heads, tp // (tp_size // heads)


def _finish(tp_part: tuple[int, int], place: Place, cp_replicated: bool) -> Shard:
    cp = (1, 0) if cp_replicated else (place.cp_size, place.cp)
    return Shard((tp_part[0], place.pp_size, cp[0]), (tp_part[1], place.pp, cp[1]))


def _by_rule(rule: str, place: Place, kv_heads: int | None, pool: str) -> tuple[int, int]:
    if rule == "replicated":
        return 1, 0
    if rule == "rank":
        return place.tp_size, place.tp
    if kv_heads is None:
        raise ConfigError(f"kvonce: setting shard.{pool} is heads, but the number of KV heads of this pool is not known")
    return _head_groups(place.tp, place.tp_size, kv_heads)


def counts_of_declared(declared: Sequence[int], place: Place) -> int:
    """Number of shards on the tp axis when rank r of the tp group declares the shard declared[r].

    Raises Refused when the declarations are no numbering 0 .. n-1 without a gap, or their number is not the group's.
    """
    if len(declared) != place.tp_size:
        raise Refused(f"kvonce: {len(declared)} ranks declare a shard, but the group has {place.tp_size}.")
    count = max(declared) + 1
    if min(declared) < 0 or len(set(declared)) != count:
        raise Refused(f"kvonce: the ranks declare the shards {list(declared)}: they must number 0 to {count - 1} without a gap.")
    return count


def shard_of_entry(
    pool: str,
    place: Place,
    *,
    kind: str,
    rank_replicated: bool = False,
    kv_heads: int | None = None,
    declared: Sequence[int] | None = None,
    overrides: Mapping[str, str] | None = None,
    cp_replicated: bool = False,
) -> Shard:
    """The shard of one entry of an engine's device pool group (SGLang).

    kind: "mla", "indexer" (same bytes on every rank), "state" (recurrent), "draft" (an entry of its own), "heads".
    rank_replicated: the whole group holds the same bytes on every rank, packed draft layers and states included.
    kv_heads: KV heads of the model in all ranks together, for "heads" and for the override of that name.
    declared: the entries' own `shard`, of every rank of the tp group in order, where a version has it; see counts_of_declared.
    overrides: Settings.shards; the strongest word.
    First of: override, declared, rank_replicated, kind. Raises ConfigError, Refused, ValueError (an unknown kind).
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}: must be one of {', '.join(sorted(KINDS))}")
    rule = (overrides or {}).get(pool)
    if rule is not None:
        return _finish(_by_rule(rule, place, kv_heads, pool), place, cp_replicated)
    if declared is not None:
        return _finish((counts_of_declared(declared, place), declared[place.tp]), place, cp_replicated)
    if rank_replicated or kind in REPLICATED_KINDS:
        part = (1, 0)
    elif kind in HEAD_KINDS and kv_heads is not None:
        part = _head_groups(place.tp, place.tp_size, kv_heads)
    else:
        part = (place.tp_size, place.tp)
    return _finish(part, place, cp_replicated)


def shard_of_spec(
    pool: str,
    place: Place,
    *,
    mla: bool = False,
    state: bool = False,
    tp_replicated: bool = False,
    max_tp_shards: int | None = None,
    kv_heads: int | None = None,
    overrides: Mapping[str, str] | None = None,
    cp_replicated: bool = False,
) -> Shard:
    """The shard of one cache group from the engine's spec of it (vLLM).

    mla, state: the spec is of latent attention, of recurrent state. tp_replicated: the spec's own word.
    max_tp_shards: the spec's number of different parts (KV heads in all); kv_heads: the same from the model's config,
    where the spec has no such field. overrides: Settings.shards. Raises ConfigError.
    """
    heads = max_tp_shards if max_tp_shards else kv_heads
    rule = (overrides or {}).get(pool)
    if rule is not None:
        part = _by_rule(rule, place, heads, pool)
    elif mla or tp_replicated:
        part = (1, 0)
    elif state or not heads:
        part = (place.tp_size, place.tp)
    else:
        part = _head_groups(place.tp, place.tp_size, heads)
    return _finish(part, place, cp_replicated)


def stages_text(layers: Iterable[tuple[int, int]]) -> str:
    """The pipeline stages' layers for Identity.layout, e.g. [(0, 30), (30, 61)] -> "0-29,30-60"; one stage: empty."""
    stages = list(layers)
    return "" if len(stages) < 2 else ",".join(f"{first}-{end - 1}" for first, end in stages)
