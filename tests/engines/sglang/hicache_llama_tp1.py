# SPDX-License-Identifier: Apache-2.0
# Time limit: 300 s
"""HiCache with kvonce as its storage, on one rank: host pages go to the store and come back; new weights, a store in trouble."""
from _scenarios import PAGE, control_differs, hicache, new_weights, objects_once, restored_equals_computed
from support import check, done
from support import sglang_engine as se
from support.compare import difference, prompt
from support.store import Store


def trouble(engine, store):
    """A store that stands still at a flush, and one that is killed: the engine lives, and what it answers is right."""
    tokens = prompt("HiCache trouble", 200)
    right = se.generate(engine, tokens)
    store.settle()
    for what, end in (("stands still", store.resume), ("is killed", store.start)):
        store.pause() if what == "stands still" else store.kill()
        se.flush(engine)
        se.pollute(engine, seed=what)
        got = se.generate(engine, tokens)
        check(got.cached == 0 and got.tokens == right.tokens, f"a store that {what}: computed", got.cached)
        se.flush(engine)
        end()
    for attempt in range(20):
        again = prompt(f"HiCache again {attempt}", 200)
        se.generate(engine, again)
        local = se.generate(engine, again)
        se.flush(engine)
        se.pollute(engine, seed=f"again {attempt}")
        restored = se.generate(engine, again)
        if restored.cached == local.cached:
            check(difference(restored, local) == 0.0, "the next store is used without a restart of the engine")
            return
    check(False, "the engine uses the next store")


def main():
    with Store() as store:
        engine = se.engine("llama", page_size=PAGE, **hicache(store))
        tokens, right = restored_equals_computed(engine, name="HiCache Llama", before_restore=store.settle)
        objects_once(store, "kv", "HiCache Llama")
        control_differs(engine, tokens, right, name="HiCache Llama")
        new_weights(engine, before_restore=store.settle)
        trouble(engine, store)
        engine.shutdown()
    done()


if __name__ == "__main__":
    main()
