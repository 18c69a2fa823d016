# SPDX-License-Identifier: Apache-2.0
"""HiCache's generic way in the engine: without `interface_v1` SGLang's own controller hands over whole pages as flat tensors."""
from _scenarios import Hits, control_differs, hicache, objects_once, restored_equals_computed
from _told_hicache import TOLD, told
from support import check, control
from support import sglang_engine as se
from support.store import Store

WAY = {("batch_set", "HiCacheController._generic_page_set"), ("batch_get", "HiCacheController._generic_page_get")}


def run(name, model, layout, tp, page_size, length):
    """Computed, evicted from device and host, restored; by that way, and seen by the control."""
    with Store() as store:
        engine = se.engine(model, tp=tp, page_size=page_size, **hicache(store, interface_v1=0, layout=layout, **TOLD))
        hits = Hits(store, name)
        tokens, right = restored_equals_computed(engine, name=name, length=length, before_restore=hits.begin)
        hits.end(right.cached, ranks=tp)
        objects_once(store, "kv", name)
        calls = {(one.call, one.by) for one in told() if "exists" not in one.call}
        check(calls == WAY, f"{name}: SGLang's controller goes the generic way, and no other", calls)
        check(len({call.pid for call in control.loads()}) == tp, f"{name}: every rank restores")
        control_differs(engine, tokens, right, name=name)
        engine.shutdown()
