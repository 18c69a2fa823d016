# SPDX-License-Identifier: Apache-2.0
"""SGLang's own pools on CPU tensors, without an engine: for tests of the adapters' classes."""
import contextlib
import hashlib

import torch
from sglang.srt import runtime_context
from sglang.srt.mem_cache import memory_pool
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

PAGE = 4
TOKENS = 128
HEADS, HEAD_BYTES = 2, 8


@contextlib.contextmanager
def place(tp_rank=0, tp_size=1, **fields):
    """This process's place in the topology, as after a launch. -> the published ServerArgs"""
    with (runtime_context.get_context().override_server_args(tp_size=tp_size, **fields) as server_args,
          runtime_context.get_parallel().override(
              tp_rank=tp_rank, pp_rank=0, attn_tp_rank=tp_rank, attn_cp_rank=0, attn_dp_rank=0, attn_dcp_rank=0)):
        yield server_args


def mha(layers=3, heads=HEADS):
    return memory_pool.MHATokenToKVPool(
        size=TOKENS, page_size=PAGE, dtype=torch.float16, head_num=heads, head_dim=HEAD_BYTES, layer_num=layers, device="cpu",
        enable_memory_saver=False, enable_alt_stream=False)


def mla(layers=3):
    return memory_pool.MLATokenToKVPool(
        size=TOKENS, page_size=PAGE, dtype=torch.float16, kv_lora_rank=16, qk_rope_head_dim=4, layer_num=layers, device="cpu",
        enable_memory_saver=False)


def kimi(tp_size, slots=16):
    """-> (pool of layers 1 and 3 with latent attention, request pool with the state of layers 0 and 2)"""
    from sglang.srt.configs.mamba_utils import KimiLinearCacheParams, KimiLinearStateShape
    shape = KimiLinearStateShape.create(tp_world_size=tp_size, num_heads=4, head_dim=8)
    requests = memory_pool.HybridReqToTokenPool(
        size=8, mamba_size=slots, mamba_spec_state_size=8, max_context_len=512, device="cpu", enable_memory_saver=False,
        cache_params=KimiLinearCacheParams(shape=shape, layers=[0, 2]), mamba_layer_ids=[0, 2], enable_mamba_extra_buffer=True, start_layer=0)
    pool = memory_pool.HybridLinearKVPool(
        size=TOKENS, dtype=torch.float16, page_size=PAGE, head_num=1, head_dim=20, full_attention_layer_ids=[1, 3], device="cpu",
        mamba_pool=requests.mamba_pool, use_mla=True, kv_lora_rank=16, qk_rope_head_dim=4, start_layer=0)
    return pool, requests


def params(pool, requests=None, components=(ComponentType.FULL,), **more):
    """What SGLang hands to a linker."""
    allocator = PagedTokenToKVPoolAllocator(TOKENS, PAGE, torch.float16, "cpu", pool, need_sort=False)
    requests = requests or memory_pool.ReqToTokenPool(size=8, max_context_len=512, device="cpu", enable_memory_saver=False)
    return CacheInitParams(disable=False, req_to_token_pool=requests, token_to_kv_pool_allocator=allocator, page_size=PAGE,
                           tree_components=tuple(components), **more)


def keys(name, pages):
    """Page hashes as SGLang's: 64 hexadecimal digits."""
    return [hashlib.sha256(f"{name} {n}".encode()).hexdigest() for n in range(pages)]


def slots(first_page, pages):
    """Token slots of consecutive pages."""
    return torch.arange(first_page * PAGE, (first_page + pages) * PAGE)


def kv(names, indices=None):
    return PoolTransfer(name=PoolName.KV, keys=list(names), device_indices=indices)


def state(name, slot=None):
    return PoolTransfer(name=PoolName.MAMBA, keys=[name], hit_policy=PoolHitPolicy.TRAILING_PAGES,
                        device_indices=None if slot is None else torch.tensor([slot]))


def fill(tensors, seed):
    """Random bytes, the same for the same seed."""
    draw = torch.Generator().manual_seed(seed)
    for tensor in tensors:
        tensor.copy_(torch.randn(tensor.shape, generator=draw).to(tensor.dtype))
