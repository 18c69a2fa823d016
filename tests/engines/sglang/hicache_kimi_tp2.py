# SPDX-License-Identifier: Apache-2.0
# Time limit: 600 s
"""HiCache with Kimi-Linear on two ranks, by SGLang's own controller for models with several pools: latent pages once, recurrent state of
each rank by itself."""
from _scenarios import Hits, control_differs, hicache, objects_once, objects_per_rank, restored_equals_computed
from _told_hicache import TOLD, told
from support import check, control, done
from support import sglang_engine as se
from support.store import Store

SIDE_POOLS = {
    ("batch_exists_v2", "HybridCacheController._storage_hit_query"),
    ("batch_get_v2", "HybridCacheController._page_transfer_sidecar"),
    ("batch_set_v2", "HybridCacheController._page_backup_with_stable_layout")}


def main():
    name = "HiCache Kimi TP2"
    with Store() as store:
        # Its weights are made in the engine: there are no files that a digest could be made of.
        engine = se.engine("kimi", tp=2, **hicache(store, model_id="kimi", **TOLD))
        hits = Hits(store, name)
        tokens, right = restored_equals_computed(engine, name=name, length=110, ends_at=72, before_restore=hits.begin)
        hits.end(right.cached, ranks=2)
        objects_once(store, "kv", name)
        objects_per_rank(store, "mamba", 2, name)
        calls = {(one.call, one.by) for one in told()}
        check(SIDE_POOLS <= calls, f"{name}: SGLang's controller of several pools asks for the states, stores and loads them", calls)
        for pool in ("kv", "mamba"):
            check(len({call.pid for call in control.loads() if call.pool == pool}) == 2, f"{name}: both ranks restore pool {pool}")
        control_differs(engine, tokens, right, name=name)
        engine.shutdown()
    done()


if __name__ == "__main__":
    main()
