# SPDX-License-Identifier: Apache-2.0
"""The linker with the pool groups that SGLang assembles for sparse attention (DSA) and DeepSeek-V4, whose models do not run here:
the pools are SGLang's own, on CPU tensors; two ranks hold the same bytes in every pool, so each page is stored once."""
import ctypes
import os
import sys
import time
import types

from support import check, done
from support.store import Store

sys.path.insert(0, os.path.dirname(__file__))

PAGES = 3


def dsa():
    """-> pool, page size, components"""
    import torch
    from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool
    pool = DSATokenToKVPool(
        size=64 * 16, page_size=64, kv_lora_rank=32, dtype=torch.bfloat16, qk_rope_head_dim=16, layer_num=3, device="cpu", index_head_dim=128,
        enable_memory_saver=False, kv_cache_dim=48)
    return pool, 64, ("FULL",)


def deepseek_v4():
    """-> pool, page size, components"""
    import torch
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool
    page = 256
    pool = DeepSeekV4TokenToKVPool(
        max_num_reqs=4, swa_size=page * 12, c4_size=page * 12 // 4, c128_size=page * 12 // 128, c4_state_pool_size=page * 12,
        c128_state_pool_size=page * 12, page_size=page, swa_page_size=page, dtype=torch.float8_e4m3fn, c4_state_dtype=torch.float32,
        c128_state_dtype=torch.float32, qk_nope_head_dim=448, qk_rope_head_dim=64, indexer_head_dim=128, layer_num=4, device="cpu",
        enable_memory_saver=False, compression_ratios=[0, 4, 128, 4], start_layer=0, end_layer=4)
    return pool, page, ("FULL", "SWA")


def rows_of(linker, transfers):
    """All bytes that these pages have, pool by pool, by the addresses that SGLang's own entries give."""
    out = {}
    for entry in linker.pools.values():
        source = next(t for t in transfers if t.name == entry.indices_from_pool)
        pointers, sizes = entry.get_page_buffer_meta(entry.translate_indices(source.device_indices))
        out[str(entry.name)] = b"".join(ctypes.string_at(pointer, size) for pointer, size in zip(pointers, sizes))
    return out


def overwrite(linker, seed):
    import torch
    draw = torch.Generator().manual_seed(seed)
    for entry in linker.pools.values():
        for component in entry.components:
            for buffer in component:
                raw = buffer.view(torch.uint8)
                raw.copy_(torch.randint(0, 255, raw.shape, generator=draw, dtype=torch.uint8))


def wait_offload(linker):
    deadline = time.monotonic() + 30
    while not linker.num_completed_offloads():
        if time.monotonic() > deadline:
            raise TimeoutError("an offload is not done")
        time.sleep(0.002)
    return linker.pop_completed_offload()


def group(name, make, store):
    import torch
    import _pools as p
    from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

    from kvonce.sglang import Linker

    def transfers(keys, first_page=None):
        slots = None if first_page is None else torch.arange(first_page * page, (first_page + PAGES) * page)
        out = [PoolTransfer(name=PoolName.KV, keys=list(keys), device_indices=slots)]
        if "SWA" in names:
            last = None if slots is None else slots[-page:]
            out.append(PoolTransfer(name=PoolName.SWA, keys=[keys[-1]], device_indices=last, hit_policy=PoolHitPolicy.TRAILING_PAGES))
        return out

    keys = p.keys(name, PAGES)
    written = None
    for rank in range(2):
        with p.place(rank, 2) as server_args:
            pool, page, names = make()
            components = {getattr(ComponentType, one) for one in names}
            params = types.SimpleNamespace(
                token_to_kv_pool_allocator=types.SimpleNamespace(get_kvcache=lambda pool=pool: pool), page_size=page, mtp_draft_device_pools=(),
                sidecar_draft_device_pools=(), sliding_window_size=128, swa_retain_window=128, pp_size=1, pp_rank=0, attn_cp_size=1, attn_cp_rank=0)
            linker = Linker(server_args, params, components=components, forward_stream=None,
                            extra_config={"store": store.address, "model_id": name, "lookup_ms": 10_000, "load_ms": 30_000})
            check(linker.core.refusal == "", f"{name}: served", linker.core.refusal, [str(one) for one in linker.pools])
            linker.record_offload_ready = lambda: []
            if rank == 0:
                overwrite(linker, 1)
                put = transfers(keys, 1)
                written = rows_of(linker, put)
                check(linker.offload(put) and wait_offload(linker), f"{name}: rank 0 stores all pools", {k: len(v) for k, v in written.items()})
            overwrite(linker, 2 + rank)
            check(linker.lookup("r", transfers(keys)) == ([PAGES] if "SWA" in names else list(range(1, PAGES + 1))), f"{name}, rank {rank}: found")
            load = transfers(keys, 5)
            check(linker.load("r", load) and linker.finish_layer_wise_loading(linker.start_layer_wise_loading()), f"{name}, rank {rank}: loaded")
            got = rows_of(linker, load)
            check(got == written, f"{name}, rank {rank}: each pool's rows come back byte for byte", [k for k in got if got[k] != written[k]])
            shards = {v.pool_name: linker.core.epochs.current().built.pools[v.text].name for v in linker.core.views}
            check(len(shards) == len(linker.pools), f"{name}: all of the group's pools take part", sorted(shards))
            linker.reset()
            linker.close()


def refusals(store):
    """What cannot be served is said in one sentence, and the linker answers as an empty store."""
    import _pools as p
    from sglang.srt.mem_cache import memory_pool
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

    from kvonce.sglang import Linker

    class Odd(memory_pool.MLATokenToKVPool):
        pass

    def odd():
        pool = p.mla()
        pool.__class__ = Odd
        return pool

    def on_a_gpu():
        pool = p.mla()
        pool.device = "cuda:0"
        return pool

    def scaled():
        pool = p.mha()
        pool.k_scale_buffer = [pool.k_buffer[0]]
        return pool

    for name, pool, config, more, words in (
            ("an unknown setting", p.mla(), {"stor": store.address}, {}, "did you mean store"),
            ("a subclass of a pool's type", odd(), {}, {}, "Odd"),
            ("a pool on a GPU", on_a_gpu(), {}, {}, "cuda:0"),
            ("a pool with scales", scaled(), {}, {}, "scales"),
            ("packed drafts", p.mla(), {}, {"mtp_draft_device_pools": (p.mla(),)}, "draft"),
            ("stages of a pipeline", p.mla(), {}, {"pp_size": 2}, "pipeline"),
            ("a model without files", p.mla(), {"model_id": ""}, {}, "model_id"),
            ("a shard of no pool", p.mla(), {"shard.kw": "rank"}, {}, "shard.kv")):
        with p.place(0, 2) as server_args:
            given = {"store": store.address, "model_id": "refusals", **config} if "stor" not in config else config
            linker = Linker(server_args, p.params(pool, **more), components={ComponentType.FULL}, extra_config=given, forward_stream=None)
            linker.record_offload_ready = lambda: []
            said = linker.core.refusal
            check(words in said and said.count(". ") == 0, f"refused: {name}", said)
            keys = p.keys("refused", 2)
            offload = [p.kv(keys, p.slots(0, 2))]
            taken = linker.offload(offload)
            stored = [linker.pop_completed_offload() for _ in range(linker.num_completed_offloads())]
            check(linker.lookup("r", [p.kv(keys)]) == [] and stored == [False] * taken and linker.start_layer_wise_loading() == -1,
                  f"refused: {name}: nothing is restored or kept, and nothing raises")
            linker.reset()
            linker.close()


def main():
    with Store() as store:
        refusals(store)
        group("DSA", dsa, store)
        group("DeepSeek-V4", deepseek_v4, store)
    done()


if __name__ == "__main__":
    main()
