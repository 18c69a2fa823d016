# SPDX-License-Identifier: Apache-2.0
"""What vLLM's cache groups are to kvonce: pools, pages, shards. Pure functions on plain values; no vLLM is imported.

A *page* is as many tokens as all groups have whole blocks of (the least common multiple of their block sizes). A group
whose blocks are smaller has several blocks in a page: one pool for each, over the same memory. A block is copied whole,
as the attention kernel has laid it out, padding left away.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvonce.engine import Place, Refused, Shard, check_hash_algorithm, check_kv_scales, shard_of_spec

#: vLLM's specs by the name of their exact type: a subclass may lay its bytes out in another way.
KIND_OF_SPEC = {
    "FullAttentionSpec": "full",
    "MLAAttentionSpec": "mla",
    "SlidingWindowSpec": "window",
    "MambaSpec": "state",
}
MAX_BLOCKS_PER_PAGE = 16  # of one group
MAX_POOLS = 64  # of a page group in kvonce
NULL_BLOCK = 0  # vLLM's block that stands for "not there"


@dataclasses.dataclass(frozen=True)
class Facts:
    """What of the engine's configuration decides whether and how it can be served."""

    tp_size: int = 1
    tp_rank: int = 0  #: 0 in the scheduler's process
    pp_size: int = 1
    dcp_size: int = 1
    pcp_size: int = 1
    dtype: str = "bfloat16"
    kv_dtype: str = "auto"
    kv_scales: str = "none"
    hash_algorithm: str = "sha256"
    hash_tokens: int = 0  #: tokens per page hash of the engine
    prefix_caching: bool = True
    mamba_mode: str = "none"
    total_kv_heads: int | None = None  #: of the model, all ranks together
    device: str = "cpu"
    draft: str = ""  #: the draft method, where it keeps KV of its own
    blocks: int = 0  #: of every layer
    layout: str = ""  #: as the engine names it

    @property
    def place(self) -> Place:
        """This rank among the tensor-parallel ones; other axes are refused."""
        return Place(tp=self.tp_rank, tp_size=self.tp_size)


@dataclasses.dataclass(frozen=True)
class Pool:
    """One pool: the `part`-th block of each page of cache group `group`."""

    name: str  #: as in `shard.<name>`: "full0", "mla0", "window1", "state2"; with a part: "full0.3"
    key: str  #: the pool's name in kvonce: name and a digest of what else decides the object's bytes
    kind: str
    group: int
    part: int
    blocks_per_page: int
    trailing: int  #: 0: needed of every page; n: of the last n
    shard: Shard
    layers: tuple[str, ...]

    @property
    def is_state(self) -> bool:
        """True for recurrent state: blocks come from boundary offloads alone."""
        return self.kind == "state"


@dataclasses.dataclass(frozen=True)
class Plan:
    """All pools of a model and the size of a page."""

    page_tokens: int
    hash_tokens: int
    pools: tuple[Pool, ...]
    blocks: int
    place: Place

    @property
    def positional(self) -> tuple[Pool, ...]:
        """Pools whose blocks stand in the block table at their page's place."""
        return tuple(pool for pool in self.pools if not pool.is_state)

    @property
    def states(self) -> tuple[Pool, ...]:
        """Pools of recurrent state."""
        return tuple(pool for pool in self.pools if pool.is_state)

    def page_hash(self, hashes: Sequence[bytes], page: int) -> bytes:
        """The engine's hash of the prefix that ends with page number `page`: 32 bytes."""
        return bytes(hashes[(page + 1) * self.page_tokens // self.hash_tokens - 1])

    def page_hashes(self, hashes: Sequence[bytes], first: int, end: int) -> bytes:
        """Hashes of the pages first .. end-1, 32 bytes each."""
        step = self.page_tokens // self.hash_tokens
        return b"".join(hashes[(first + 1) * step - 1 : end * step : step])

    def hashed_pages(self, hashes: Sequence[bytes]) -> int:
        """Number of leading pages whose hash is known."""
        return len(hashes) * self.hash_tokens // self.page_tokens


def inner_specs(spec: Any) -> list[Any]:
    """The specs of the layers of a group: vLLM wraps them where they differ in size."""
    inner = getattr(spec, "kv_cache_specs", None)
    return list(inner.values()) if inner else [spec]


def _kind(number: int, spec: Any) -> str:
    names = {type(inner).__name__ for inner in inner_specs(spec)}
    if len(names) != 1:
        raise Refused(f"kvonce: cache group {number} mixes {', '.join(sorted(names))}, which is not served.")
    name = names.pop()
    if name not in KIND_OF_SPEC:
        raise Refused(f"kvonce: cache group {number} is of type {name}, which is not served.")
    return KIND_OF_SPEC[name]


def _digest(spec: Any, kind: str, layers: Iterable[str], facts: Facts) -> str:
    """Of all that decides an object's bytes and may depend on the rank count, so is not in the namespace."""
    parts = [kind, str(spec.block_size), facts.layout, ",".join(layers)]
    fields = ("shapes", "dtypes", "mamba_type") if kind == "state" else ("num_kv_heads", "head_size", "head_size_v", "dtype")
    parts += [str(getattr(spec, field, "")) for field in fields]
    parts += [str(getattr(spec, field, "")) for field in ("num_head_slots", "state_content_bytes", "tokens_per_state")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def trailing_pages(window: int, page_tokens: int, block_tokens: int, part: int) -> int:
    """Of how many last pages the `part`-th block is seen through a window of `window` tokens (that of the next token
    counted). 0: of none."""
    tokens_after = page_tokens - (part + 1) * block_tokens
    return max(0, math.ceil((window - 1 - tokens_after) / page_tokens))


def _kv_heads(spec: Any, facts: Facts) -> int | None:
    """KV heads of the whole model, where this group's spec agrees with it; None: not known for this group."""
    total = facts.total_kv_heads
    if not total or getattr(spec, "num_kv_heads", None) != max(1, total // facts.tp_size):
        return None
    return total


def check(facts: Facts) -> None:
    """Raises Refused with one sentence for what cannot be served."""
    if facts.pp_size > 1:
        raise Refused(f"kvonce: pipeline parallelism ({facts.pp_size} stages) is not served.")
    if facts.dcp_size > 1 or facts.pcp_size > 1:
        raise Refused("kvonce: context parallelism is not served.")
    if facts.device != "cpu":
        raise Refused(f"kvonce: KV caches in {facts.device} memory are not served by this version, only those of the CPU backend.")
    if facts.draft:
        raise Refused(f"kvonce: speculative decoding by {facts.draft} keeps draft KV in the target's blocks, which is not served.")
    check_hash_algorithm(facts.hash_algorithm)
    check_kv_scales(facts.dtype if facts.kv_dtype == "auto" else facts.kv_dtype, facts.kv_scales)


def make_plan(groups: Sequence[Any], facts: Facts, overrides: Mapping[str, str] | None = None) -> Plan:
    """The plan for vLLM's cache groups (`kv_cache_config.kv_cache_groups`). Raises Refused, ConfigError."""
    check(facts)
    if not groups:
        raise Refused("kvonce: this model keeps no KV cache.")
    specs = [inner_specs(group.kv_cache_spec)[0] for group in groups]
    kinds = [_kind(number, group.kv_cache_spec) for number, group in enumerate(groups)]
    for number, (group, spec) in enumerate(zip(groups, specs, strict=True)):
        if not getattr(group, "enable_kv_transfer", True) or not getattr(spec, "prefix_cacheable", True):
            raise Refused(f"kvonce: cache group {number} may not be transferred, so no prefix can be restored.")
        if getattr(group, "is_eagle_group", False):
            raise Refused(f"kvonce: cache group {number} holds a draft model's KV, which is not served.")
        if getattr(group, "host_resident", False):
            raise Refused(f"kvonce: cache group {number} lies in a host pool of the engine, which is not served.")
    if "state" in kinds and (not facts.prefix_caching or facts.mamba_mode != "align"):
        raise Refused(
            "kvonce: recurrent state can be kept only with prefix caching on in the mode \"align\" "
            f"(it is {'on' if facts.prefix_caching else 'off'}, in the mode {facts.mamba_mode!r})."
        )
    page = math.lcm(*(spec.block_size for spec in specs))
    if facts.hash_tokens < 1 or page % facts.hash_tokens:
        raise Refused(f"kvonce: pages of {page} tokens are no multiple of the engine's hash block of {facts.hash_tokens} tokens.")
    pools: list[Pool] = []
    for number, (group, spec, kind) in enumerate(zip(groups, specs, kinds, strict=True)):
        pools += _pools(number, group, spec, kind, page, facts, overrides)
    if len(pools) > MAX_POOLS:
        raise Refused(f"kvonce: {len(pools)} pools would be needed, and a page group has at most {MAX_POOLS}.")
    return Plan(page, facts.hash_tokens, tuple(pools), facts.blocks, facts.place)


def _pools(number: int, group: Any, spec: Any, kind: str, page: int, facts: Facts, overrides: Any) -> list[Pool]:
    # State is at a page's end: it has one block, however small its blocks are.
    blocks = 1 if kind == "state" else page // spec.block_size
    if blocks > MAX_BLOCKS_PER_PAGE:
        raise Refused(f"kvonce: a page of {page} tokens has {blocks} blocks of cache group {number}, more than {MAX_BLOCKS_PER_PAGE}.")
    layers = tuple(group.layer_names)
    base = f"{kind}{number}"
    shard = shard_of_spec(
        base,
        facts.place,
        mla=kind == "mla",
        state=kind == "state",
        tp_replicated=bool(getattr(spec, "tp_replicated", False)),
        max_tp_shards=getattr(spec, "max_tp_shards", None),
        kv_heads=None if kind == "state" else _kv_heads(spec, facts),
        overrides=overrides,
    )
    digest = _digest(spec, kind, layers, facts)
    pools = []
    for part in range(blocks):
        trailing = 0
        if kind == "state":
            trailing = 1
        elif kind == "window":
            trailing = trailing_pages(spec.sliding_window, page, spec.block_size, part)
            if trailing == 0:
                continue  # never seen again once its page is complete
        name = base if blocks == 1 else f"{base}.{part}"
        pools.append(Pool(name, f"{name}-{digest}", kind, number, part, blocks, trailing, shard, layers))
    return pools


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True when these elements lie in one piece, in whatever order of the axes."""
    end = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride != end:
            return False
        end *= size
    return True


@dataclasses.dataclass(frozen=True)
class Rows:
    """One tensor of one layer: block b starts at pointer + b * stride bytes and has `size` bytes."""

    pointer: int
    stride: int
    size: int


def rows_of_tensor(name: str, tensor: Any, blocks: int) -> Rows:
    """The blocks of a layer's cache tensor (as torch's: shape, stride(), data_ptr(), element_size()). Raises Refused."""
    shape, strides, item = tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size()
    if not shape or shape[0] == 0 or shape[0] % blocks:
        raise Refused(f"kvonce: the cache of layer {name} has shape {shape}, which is not by {blocks} blocks.")
    per_block = shape[0] // blocks  # the kernel's blocks may be smaller than the manager's
    inner = (per_block, *shape[1:]), (strides[0], *strides[1:])
    if not is_dense(*inner):
        raise Refused(f"kvonce: a block of layer {name} (shape {shape}, strides {strides}) is not in one piece.")
    return Rows(tensor.data_ptr(), strides[0] * per_block * item, math.prod(inner[0]) * item)


def layer_rows(layers: Sequence[str], caches: Mapping[str, Any], blocks: int) -> list[list[Rows]]:
    """Per tensor kind of a layer (K and V in one, or conv and temporal state), the rows of every layer. Raises Refused."""
    kinds: list[list[Rows]] = []
    for name in layers:
        if name not in caches:
            raise Refused(f"kvonce: the engine has no cache tensor for layer {name}.")
        value = caches[name]
        tensors = list(value) if isinstance(value, (list, tuple)) else [value]
        if kinds and len(kinds) != len(tensors):
            raise Refused(f"kvonce: layer {name} has {len(tensors)} cache tensors, others of its group {len(kinds)}.")
        kinds = kinds or [[] for _ in tensors]
        for kind, tensor in zip(kinds, tensors, strict=True):
            kind.append(rows_of_tensor(name, tensor, blocks))
    return kinds
