# SPDX-License-Identifier: Apache-2.0
"""What vLLM's configuration objects say, as the plain values of layout.Facts and engine.Identity."""

from __future__ import annotations

import json
import platform
from typing import Any

from kvonce.engine import Identity, Settings

from .layout import Facts, Plan

#: Draft methods that keep no KV of their own.
DRAFTS_WITHOUT_KV = frozenset({"ngram", "ngram_gpu", "suffix"})


def hash_tokens(vllm_config: Any, kv_cache_config: Any) -> int:
    """Tokens per page hash: where the engine says it, else its block size."""
    cache = vllm_config.cache_config
    for holder, name in ((kv_cache_config, "hash_block_size"), (cache, "hash_block_size"), (cache, "block_size")):
        value = getattr(holder, name, None)
        if value:
            return int(value)
    return 0


def facts_of(vllm_config: Any, kv_cache_config: Any, tp_rank: int) -> Facts:
    """The facts of this engine; tp_rank: 0 in the scheduler's process."""
    parallel, cache, model = vllm_config.parallel_config, vllm_config.cache_config, vllm_config.model_config
    speculative = getattr(vllm_config, "speculative_config", None)
    method = getattr(speculative, "method", None) if speculative is not None else None
    # vLLM computes scales while running in some versions: those are in no file.
    computed = bool(getattr(cache, "calculate_kv_scales", False))
    return Facts(
        tp_size=parallel.tensor_parallel_size,
        tp_rank=tp_rank,
        pp_size=parallel.pipeline_parallel_size,
        dcp_size=getattr(parallel, "decode_context_parallel_size", 1),
        pcp_size=getattr(parallel, "prefill_context_parallel_size", 1),
        dtype=_dtype(model.dtype),
        kv_dtype=str(cache.cache_dtype),
        kv_scales="computed" if computed else "checkpoint",
        hash_algorithm=str(cache.prefix_caching_hash_algo),
        hash_tokens=hash_tokens(vllm_config, kv_cache_config),
        prefix_caching=bool(cache.enable_prefix_caching),
        mamba_mode=str(getattr(cache, "mamba_cache_mode", "none")),
        total_kv_heads=_kv_heads(model),
        device=str(vllm_config.device_config.device_type),
        draft="" if method is None or method in DRAFTS_WITHOUT_KV else str(method),
        blocks=int(kv_cache_config.num_blocks),
        layout=str(getattr(kv_cache_config, "kv_cache_layout", None) or getattr(cache, "kv_cache_layout", None) or ""),
    )


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _kv_heads(model: Any) -> int | None:
    try:
        return int(model.get_total_num_kv_heads())
    except (AttributeError, TypeError, ValueError):
        return None


def identity_of(vllm_config: Any, facts: Facts, plan: Plan, settings: Settings) -> Identity:
    """The identity of this engine's pages: nothing in it depends on the number of ranks. Raises Refused."""
    import vllm

    model = vllm_config.model_config
    extra = {
        # The kernels lay a block out as they like, which may change with the version and with the processor's abilities.
        "vllm": ".".join(vllm.__version__.split(".")[:2]),
        "cpu": _processor(),
    }
    overrides = getattr(model, "hf_overrides", None)
    if overrides:
        extra["overrides"] = json.dumps(overrides, sort_keys=True, default=repr) if isinstance(overrides, dict) else repr(overrides)
    if getattr(model, "quantization", None):
        extra["quantization"] = str(model.quantization)
    skipped = getattr(vllm_config.cache_config, "kv_cache_dtype_skip_layers", None)
    if skipped:
        extra["kv-skip"] = ",".join(map(str, skipped))
    state = [getattr(vllm_config.cache_config, name, "auto") for name in ("mamba_cache_dtype", "mamba_ssm_cache_dtype")]
    if plan.states:
        extra["state"] = "/".join(map(str, state))
    load = getattr(vllm_config, "load_config", None)
    return Identity(
        model=settings.model_identity(
            str(model.model),
            str(getattr(model, "revision", None) or ""),
            getattr(load, "load_format", None),
            getattr(load, "model_loader_extra_config", None),
        ),
        dtype=facts.dtype,
        page_tokens=plan.page_tokens,
        layout=f"vllm {facts.device} {facts.layout}".rstrip(),
        kv_dtype="" if facts.kv_dtype == "auto" else facts.kv_dtype,
        kv_scales="none" if facts.kv_dtype == "auto" else facts.kv_scales,
        hash_scheme=f"vllm-{facts.hash_algorithm}-{facts.hash_tokens}",
        namespace=settings.namespace,
        tenant=settings.tenant,
        extra=extra,
    )


def _processor() -> str:
    import torch

    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
