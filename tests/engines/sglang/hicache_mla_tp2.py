# SPDX-License-Identifier: Apache-2.0
"""HiCache with latent attention on two ranks: SGLang has rank 0 write, and both restore."""
from _scenarios import PAGE, control_differs, hicache, objects_once, restored_equals_computed
from support import check, control, done
from support import sglang_engine as se
from support.store import Store


def main():
    with Store() as store:
        engine = se.engine("mla", tp=2, page_size=PAGE, **hicache(store))
        tokens, right = restored_equals_computed(engine, name="HiCache MLA TP2", before_restore=store.settle)
        objects_once(store, "kv", "HiCache MLA TP2")
        check(len({call.pid for call in control.puts()}) == 1, "one rank writes")
        check(len({call.pid for call in control.loads()}) == 2, "both ranks restore")
        control_differs(engine, tokens, right, name="HiCache MLA TP2")
        engine.shutdown()
    done()


if __name__ == "__main__":
    main()
