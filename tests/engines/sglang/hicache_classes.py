# SPDX-License-Identifier: Apache-2.0
# Time limit: 480 s
"""HiCacheStorage on SGLang's own host pools, made by SGLang's factory: all layouts, in place and page by page, side pools with all
three hit policies, ranks that write and ranks that do not, and SGLang's own injected failures."""
import os
import sys

import torch

from support import check, done
from support.store import Store

sys.path.insert(0, os.path.dirname(__file__))

PAGES = 6


def main():
    import _pools as p
    import kvonce_sglang_cpu.host_pools
    kvonce_sglang_cpu.host_pools.install()
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolHitPolicy, PoolName, PoolTransfer
    from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
    from sglang.srt.mem_cache.storage import StorageBackendFactory

    started = {"hicache_storage_backend": "dynamic"}  # with the engine, not attached while it runs

    def host(pool, layout):
        made = MHATokenToKVPoolHost if hasattr(pool, "k_buffer") and pool.k_buffer is not None and hasattr(pool, "head_num") else MLATokenToKVPoolHost
        info = pool.get_device_pool_infos()[0].buffer_info
        more = {} if made is MHATokenToKVPoolHost else {"target_layer_num": pool.layer_num, "override_kv_cache_dim": pool.kv_cache_dim}
        return made(info, 1.0, 0, p.PAGE, layout, pin_memory=False, device_capacity_tokens=p.TOKENS, start_layer=0, end_layer=pool.layer_num, **more)

    def backend(store, host_pool, rank=0, ranks=1, is_mla=False, v1=1, side=(), **extra):
        config = HiCacheStorageConfig(
            tp_rank=rank, tp_size=ranks, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=is_mla, enable_storage_metrics=True,
            is_page_first_layout=True, model_name="classes",
            extra_config={"backend_name": "kvonce", "module_path": "kvonce.sglang", "class_name": "HiCacheStorage", "interface_v1": v1,
                          "store": store.address, "model_id": f"classes {type(host_pool).__name__}", "lookup_ms": 2_500, **extra})
        made = StorageBackendFactory.create_backend("dynamic", config, host_pool)
        made.register_mem_pool_host(host_pool)
        made.register_mem_host_pool_v2(host_pool, PoolName.KV)
        for name, pool in side:
            made.register_mem_host_pool_v2(pool, name)
        made.on_host_pools_registered()
        return made

    def pages_of(pool, first, n):
        return torch.stack([pool.get_data_page(page * p.PAGE).clone() for page in range(first, first + n)])

    def tensors(pool):
        buffer = pool.kv_buffer
        return list(buffer) if isinstance(buffer, (list, tuple)) else [buffer]

    with p.place(**started) as _, Store() as store:
        for kind, device in (("MHA", p.mha()), ("MLA", p.mla())):
            layouts = ("layer_first", "page_first", "page_first_direct") + (("page_head",) if kind == "MHA" else ())
            for layout in layouts:
                for v1 in (1, 0):
                    name = f"{kind}, {layout}, {'in place' if v1 else 'page by page'}"
                    pool = host(device, layout)
                    p.fill(tensors(pool), 11)
                    kv = backend(store, pool, is_mla=kind == "MLA", v1=v1)
                    keys = p.keys(name, PAGES)
                    wanted = pages_of(pool, 3, PAGES)
                    indices = p.slots(3, PAGES)
                    check(kv.batch_exists(keys) == 0, f"{name}: nothing is there at first")
                    if v1:
                        stored = kv.batch_set_v1(keys, indices)
                        check(stored == [True] * PAGES, f"{name}: stored", stored)
                    else:
                        check(kv.batch_set(keys, [pool.get_data_page(int(indices[n * p.PAGE])) for n in range(PAGES)]), f"{name}: stored")
                    check(kv.batch_exists([*keys, *p.keys("none", 1)]) == PAGES, f"{name}: all pages are there, and no others")
                    p.fill(tensors(pool), 12)
                    target = p.slots(15, PAGES)
                    if v1:
                        got = kv.batch_get_v1([*keys, *p.keys("none", 1)], torch.cat([target, p.slots(25, 1)]))
                        check(got == [True] * PAGES + [False], f"{name}: what is there comes back, what is not does not", got)
                    else:
                        flat = kv.batch_get(keys, [pool.get_dummy_flat_data_page() for _ in keys])
                        check(all(page is not None for page in flat) and kv.get(p.keys("none", 1)[0], pool.get_dummy_flat_data_page()) is None,
                              f"{name}: what is there comes back, what is not does not")
                        for n, page in enumerate(flat):
                            pool.set_from_flat_data_page(int(target[n * p.PAGE]), page)
                    check(torch.equal(pages_of(pool, 15, PAGES), wanted), f"{name}: byte for byte")
                    stats = kv.get_stats()
                    check(sum(stats.backup_pgs) == PAGES and sum(stats.prefetch_pgs) == PAGES, f"{name}: counted", stats)
                    check(not kv.get_stats().backup_pgs, f"{name}: counted once")
                    kv.close()

    with p.place(0, 2, **started), Store() as store:
        both = []
        for rank in range(2):
            device, requests = p.kimi(2)
            kv_host = host(device.full_kv_pool, "page_first")
            info = requests.mamba_pool.get_device_pool_infos()[0].buffer_info
            states = MambaPoolHost(info, 1.0, 0, device_capacity=16, pin_memory=False, layout="page_first")
            p.fill([kv_host.kv_buffer], 1)
            p.fill([states.temporal_buffer, *states.conv_buffer], 10 + rank)
            both.append((backend(store, kv_host, rank, 2, is_mla=True, side=[(PoolName.MAMBA, states)], engine_id="both"), kv_host, states))
        keys = p.keys("hybrid", PAGES)

        def state_of(states, slot):
            return [states.temporal_buffer[slot].clone(), *(conv[slot].clone() for conv in states.conv_buffer)]

        def mamba(names, slot):
            return PoolTransfer(name=PoolName.MAMBA, keys=list(names), host_indices=torch.tensor([slot]), hit_policy=PoolHitPolicy.TRAILING_PAGES)

        wanted = [state_of(states, 3) for _, _, states in both]
        for rank, (kv, _, _) in enumerate(both):
            said = kv.batch_set_v2([mamba(keys[-1:], 3)])
            check(list(said.values()) == [[True]], f"rank {rank}: its state is stored", said)
            said = kv.batch_set_v2([mamba(keys[1:2], 4)])
        check(both[0][0].batch_set_v1(keys, p.slots(2, PAGES)) == [True] * PAGES, "rank 0 stores the latent pages")
        for rank, (kv, kv_host, states) in enumerate(both):
            found = kv.batch_exists_v2(keys, [mamba(keys[-1:], 0)])
            check((found.kv_hit_pages, found.restorable_prefix_pages) == (PAGES, [2, PAGES]), f"rank {rank}: prefixes end where a state is", found)
            p.fill([states.temporal_buffer, *states.conv_buffer, kv_host.kv_buffer], 99)
            check(kv.batch_get_v1(keys, p.slots(12, PAGES)) == [True] * PAGES, f"rank {rank}: latent pages")
            check(kv.batch_get_v2([mamba(keys[-1:], 7)]) == {PoolName.MAMBA: [True]}, f"rank {rank}: state")
            check(all(torch.equal(a, b) for a, b in zip(state_of(states, 7), wanted[rank])), f"rank {rank}: its own state, byte for byte")
        check(torch.equal(pages_of(both[0][1], 12, PAGES), pages_of(both[1][1], 12, PAGES)), "both ranks have the same latent pages")
        check(not any(torch.equal(a, b) for a, b in zip(*wanted)), "the ranks' states differ")
        whole = both[0][0].batch_exists_v2(keys, [PoolTransfer(name=PoolName.MAMBA, keys=keys, hit_policy=PoolHitPolicy.ALL_PAGES)])
        check(whole.kv_hit_pages == 0, "a pool of which every page is needed", whole)
        groups = PoolTransfer(name=PoolName.MAMBA, keys=[keys[1], keys[-1], keys[0]], hit_policy=PoolHitPolicy.BLOCK_GROUPS, block_pages=2, group_pages=1)
        blocks = both[0][0].batch_exists_v2(keys, [groups])
        check((blocks.kv_hit_pages, blocks.extra_pool_hit_pages[PoolName.MAMBA]) == (PAGES, 4), "groups of blocks tell their own, and limit nothing", blocks)
        unknown = both[0][0].batch_exists_v2(keys, [PoolTransfer(name=PoolName.SWA, keys=keys, hit_policy=PoolHitPolicy.ALL_PAGES)])
        check(unknown.kv_hit_pages == 0, "a pool that nobody registered cannot be restored", unknown)
        built = both[0][0]._store.epochs.current().built.now(0)
        built.group.remove_key("mamba", 1, bytes.fromhex(keys[-1]))
        for rank, (kv, _, _) in enumerate(both):
            found = kv.batch_exists_v2(keys, [mamba(keys[-1:], 0)])
            check(found.restorable_prefix_pages == [2], f"rank {rank}: without one rank's state the shorter prefix", found)
        for kv, _, _ in both:
            kv.close()

    with p.place(**started), Store() as store:
        os.environ["SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE"] = "0.5"
        pool = host(p.mha(), "page_first")
        kv = backend(store, pool)
        keys = p.keys("failures", 64)[:20]
        for _ in range(10):
            kv.batch_set_v1(keys, p.slots(0, 20))
        hits = {kv.batch_exists(keys) for _ in range(20)}
        check(hits == {0, 20}, "injected failures are misses, nothing else", hits)
        del os.environ["SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE"]
        store.kill()
        check(kv.batch_exists(keys) == 0 and kv.batch_get_v1(keys, p.slots(0, 20)) == [False] * 20, "a store that is gone is a miss")
        check(kv.batch_set_v1(keys, p.slots(0, 20)) == [False] * 20, "and keeps nothing")
        kv.close()
    done()


if __name__ == "__main__":
    main()
