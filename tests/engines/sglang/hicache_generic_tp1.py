# SPDX-License-Identifier: Apache-2.0
"""HiCache with kvonce as its storage, on one rank, without interface_v1: SGLang hands pages over one by one."""
from _scenarios import PAGE, control_differs, hicache, objects_once, restored_equals_computed
from support import done
from support import sglang_engine as se
from support.store import Store


def main():
    with Store() as store:
        engine = se.engine("llama", page_size=PAGE, **hicache(store, interface_v1=0))
        tokens, right = restored_equals_computed(engine, name="HiCache Llama, page by page", before_restore=store.settle)
        objects_once(store, "kv", "HiCache Llama, page by page")
        control_differs(engine, tokens, right, name="HiCache Llama, page by page")
        engine.shutdown()
    done()


if __name__ == "__main__":
    main()
