# SPDX-License-Identifier: Apache-2.0
"""The engine's device pools as pool views: SGLang's own group where it assembles one, plain MHA and MLA pools by us."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..engine import ModelIdentity, Place, Refused, Settings, Shard, draft_pool_name, shard_of_entry
from .startup import Facts, dtype_name, kv_heads_in_all
from .transfers import KV, PoolView, text_of

#: Words in the names of pools that hold a sparse attention's index.
_INDEXER = "indexer"
_DRAFT = "draft"
_STATE = "mamba"
_WINDOW = "swa"


class Assembled:
    """views of all pools, the layers that a load counts, and what SGLang reads as `linker.pools`."""

    def __init__(self, views: list[PoolView], num_layers: int, pools: Mapping[Any, Any], rank_replicated: bool, kv_dtype: str):
        self.views = views
        self.num_layers = num_layers
        self.pools = pools
        self.rank_replicated = rank_replicated
        self.kv_dtype = kv_dtype

    @property
    def layout(self) -> str:
        """How rows are laid out, for the identity: without sizes, ranks and drafts."""
        parts = sorted(f"{v.text}:{v.kind}" for v in self.views if v.kind != "draft")
        return "sglang device rows " + " ".join(parts)


def assemble(params: Any, components: Any, facts: Facts, place: Place) -> Assembled:
    """Raises Refused for pools that are not served."""
    from sglang.srt.mem_cache.hicache_storage import PoolName
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

    kv = params.token_to_kv_pool_allocator.get_kvcache()
    page = params.page_size
    names = {text_of(c).lower() for c in components} | {getattr(c, "name", "").lower() for c in components}
    device = str(getattr(kv, "device", "cpu"))
    if not device.startswith("cpu"):
        raise Refused(f"kvonce: the KV pools are on {device}: this version moves pages of host memory only.")
    kv_dtype = dtype_name(getattr(kv, "dtype", "auto"))
    if type(kv) in (MHATokenToKVPool, MLATokenToKVPool) and not names & {_STATE, _WINDOW}:
        if getattr(params, "mtp_draft_device_pools", ()):
            raise Refused("kvonce: draft layers packed into the KV pool are not served for this model.")
        views = [_plain(kv, PoolName.KV, page, facts, place)]
        for draft in getattr(params, "sidecar_draft_device_pools", ()):
            if len(views) > 1:
                raise Refused("kvonce: more than one draft pool is not served.")
            view = _plain(draft, PoolName.DRAFT, page, facts, place)
            view.source, view.kind = KV, "draft"
            views.append(view)
        return Assembled(views, kv.layer_num, {v.name: v for v in views}, False, kv_dtype)

    from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import resolve_hybrid_device_pool_group

    try:
        group = resolve_hybrid_device_pool_group(kvcache=kv, page_size=page, params=params, components=components)
    except (ValueError, NotImplementedError, RuntimeError) as error:
        raise Refused(f"kvonce: SGLang assembles no pool group for a {type(kv).__name__}: {error}") from error
    return from_group(group, params, facts, place, kv_dtype)


def from_group(group: Any, params: Any, facts: Facts, place: Place, kv_dtype: str) -> Assembled:
    """Views of SGLang's DevicePoolGroup, each entry by itself."""
    replicated = bool(getattr(group, "rank_replicated", False))
    views = []
    for entry in group.entries:
        view = _from_entry(entry, replicated, facts, place)
        declared = getattr(entry, "shard", None)
        view.declared = None if declared is None else int(declared)
        view.trailing_pages = _trailing_pages(view.source, params)
        views.append(view)
    return Assembled(views, group.num_layers, group.entry_map, replicated, kv_dtype)


def shards_of(assembled: Assembled, place: Place, settings: Settings, gather: Callable[[int], Sequence[int]]) -> dict[str, Shard]:
    """The shard of every pool. `gather`: what the ranks of the attention's group declare, in order. Raises Refused."""
    settings.check_pools([v.text for v in assembled.views])
    return {
        v.text: shard_of_entry(
            v.text,
            place,
            kind=v.kind,
            rank_replicated=assembled.rank_replicated,
            kv_heads=v.kv_heads,
            declared=None if v.declared is None else gather(v.declared),
            overrides=settings.shards,
        )
        for v in assembled.views
    }


def name_drafts(views: Sequence[PoolView], draft: ModelIdentity | None) -> None:
    """A draft's pool is named by the draft's own identity and is optional: engines without it share the target's pages.

    Raises Refused where there is a draft pool, but no draft model is known.
    """
    for view in views:
        if view.kind == "draft":
            if draft is None:
                raise Refused(f"kvonce: pool {view.text} is a draft's, but the engine names no draft model.")
            view.pool_name = draft_pool_name(view.text, draft)
            view.optional = True


# -- inside ------------------------------------------------------------------------------------------------------------


def _plain(pool: Any, name: Any, page: int, facts: Facts, place: Place) -> PoolView:
    """A plain MHA or MLA pool: one row a slot, `page` slots a page."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

    if int(getattr(pool, "page_size", page)) != page:
        raise Refused(f"kvonce: a pool with pages of {pool.page_size} tokens beside a tree with pages of {page} is not served.")
    _check_unscaled(pool)
    if type(pool) is MHATokenToKVPool:
        buffers = [("k", pool.k_buffer), ("v", pool.v_buffer)]
        kind, heads = "heads", kv_heads_in_all(facts, int(pool.head_num), place)
    elif type(pool) is MLATokenToKVPool:
        buffers = [("latent", pool.kv_buffer)]
        kind, heads = "mla", None
    else:
        raise Refused(f"kvonce: a pool of type {type(pool).__name__} is not served.")
    components = [(part, [_buffer(tensor, page) for tensor in tensors]) for part, tensors in buffers]
    rows = min(tensor.shape[0] for _, tensors in buffers for tensor in tensors) // page
    return PoolView(name, text_of(name), page, rows, tuple(range(pool.layer_num)), components, kind, kv_heads=heads, keep=pool)


def _check_unscaled(pool: Any) -> None:
    for field in ("k_scale_buffer", "native_k_scale_buffer", "kv_scale_buffer", "dq_k_buffer"):
        if getattr(pool, field, None) is not None:
            raise Refused(f"kvonce: a {type(pool).__name__} with scales of its own ({field}) is not served: they are not carried.")
    if getattr(pool, "layer_shard_enabled", False):
        raise Refused("kvonce: a KV pool whose layers are spread over ranks is not served.")


def _buffer(tensor: Any, slots: int) -> tuple[int, int, int]:
    """(address, stride, bytes) of a page of `slots` rows that lie one behind the other."""
    stride = tensor.stride(0) * tensor.element_size()
    row = tensor[0].numel() * tensor.element_size()
    if not tensor[0].is_contiguous() or (slots > 1 and stride != row):
        raise Refused("kvonce: a pool whose rows do not lie one behind the other is not served.")
    return tensor.data_ptr(), stride * slots, row * slots


def _from_entry(entry: Any, replicated: bool, facts: Facts, place: Place) -> PoolView:
    text = text_of(entry.name)
    layers = sorted(entry.layer_mapping)
    unit = int(entry.page_size)
    components: list[tuple[str, list[tuple[int, int, int]]]] = []
    rows = None
    for c, tensors in enumerate(entry.components):
        meta = entry.buffer_meta[c]
        chosen: dict[int, list[tuple[int, int, int]]] = {}
        for layer in layers:
            mapped = entry.layer_mapping[layer]
            for j, index in enumerate([mapped] if isinstance(mapped, int) else list(mapped)):
                tensor, (address, stride, size) = tensors[index], meta[index]
                span = max(1, round(size * tensor.shape[0] / max(tensor.nbytes, 1)))  # rows that make a page
                rows = tensor.shape[0] // span if rows is None else min(rows, tensor.shape[0] // span)
                chosen.setdefault(j, []).append((address, stride * span, size))
        components += [(f"{c}.{j}", parts) for j, parts in sorted(chosen.items())]
    kind, heads = _kind_of(entry, text, replicated, facts, place)
    mapper = getattr(entry, "translate_indices", None)
    return PoolView(
        entry.name,
        text_of(entry.indices_from_pool),
        unit,
        rows or 1,
        tuple(layers),
        components,
        kind,
        kv_heads=heads,
        translate=mapper,
        keep=entry,
    )


def _kind_of(entry: Any, text: str, replicated: bool, facts: Facts, place: Place) -> tuple[str, int | None]:
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

    pool = entry.device_pool
    if text.startswith(_DRAFT):
        return "draft", None
    if text == _STATE or text.endswith("_state"):
        return "state", None
    if _INDEXER in text:
        return "indexer", None
    if isinstance(pool, MLATokenToKVPool) or replicated:
        return "mla", None
    if hasattr(pool, "head_num"):
        _check_unscaled(pool)
        return "heads", kv_heads_in_all(facts, int(pool.head_num), place)
    return "state", None  # not known to be alike: per rank is always right


def _trailing_pages(source: str, params: Any) -> int:
    if source == KV:
        return 0
    if source == _STATE:
        return 1
    window = getattr(params, "swa_retain_window", None) or getattr(params, "sliding_window_size", None)
    if source == _WINDOW and window:
        return -(-int(window) // params.page_size)
    raise Refused(f"kvonce: how many pages of pool {source} a prefix needs is not known.")
