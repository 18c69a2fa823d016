# SPDX-License-Identifier: Apache-2.0
"""The external linker on two ranks that hold different KV heads: an object for each. New weights: one epoch for both."""
from _scenarios import PAGE, control_differs, linker, new_weights, objects_per_rank, restored_equals_computed
from support import done
from support import sglang_engine as se
from support.store import Store


def main():
    with Store() as store:
        engine = se.engine("llama", tp=2, page_size=PAGE, **linker(store))
        tokens, right = restored_equals_computed(engine, name="Llama TP2")
        objects_per_rank(store, "kv", 2, "Llama TP2")
        control_differs(engine, tokens, right, name="Llama TP2")
        new_weights(engine)
        engine.shutdown()
    done()


if __name__ == "__main__":
    main()
