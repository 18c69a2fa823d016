# SPDX-License-Identifier: Apache-2.0
"""HiCache with kvonce as its storage, on one rank: host pages go to the store and come back."""
from _scenarios import PAGE, control_differs, hicache, objects_once, restored_equals_computed
from support import done
from support import sglang_engine as se
from support.store import Store


def main():
    with Store() as store:
        engine = se.engine("llama", page_size=PAGE, **hicache(store))
        tokens, right = restored_equals_computed(engine, name="HiCache Llama", before_restore=store.settle)
        objects_once(store, "kv", "HiCache Llama")
        control_differs(engine, tokens, right, name="HiCache Llama")
        engine.shutdown()
    done()


if __name__ == "__main__":
    main()
