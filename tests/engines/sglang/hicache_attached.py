# SPDX-License-Identifier: Apache-2.0
# Time limit: 300 s
"""kvonce attached as HiCache's storage to an engine that runs, detached, and attached again; weights that are replaced meanwhile."""
import json
import time

from _scenarios import PAGE, control_differs, hicache, kept_again, objects_once, other_weights, restored_equals_computed, update
from support import check, control, done
from support import sglang_engine as se
from support.compare import difference, prompt
from support.store import Store

SECONDS = 60
STORAGE = {"hicache_storage_backend", "hicache_storage_prefetch_policy", "hicache_storage_backend_extra_config"}


def asked(engine, what, call):
    """SGLang does it only while it has no request; that is so a moment after an answer."""
    deadline = time.monotonic() + SECONDS
    while not (answer := engine.loop.run_until_complete(call())).success:
        if "not idle" not in answer.message or time.monotonic() > deadline:
            raise RuntimeError(f"{what}: {answer.message}")
        time.sleep(0.05)
    print(f"{what}: {answer.message}", flush=True)


def attach(engine, arguments):
    asked(engine, "attach", lambda: engine.tokenizer_manager.attach_hicache_storage(
        "dynamic", arguments["hicache_storage_backend_extra_config"], arguments["hicache_storage_prefetch_policy"], "write_through"))


def detach(engine):
    asked(engine, "detach", engine.tokenizer_manager.detach_hicache_storage)


def forget(engine, seed):
    se.flush(engine)
    se.pollute(engine, seed=seed)


def main():
    with Store() as store:
        arguments = hicache(store)
        engine = se.engine("llama", page_size=PAGE, **{name: value for name, value in arguments.items() if name not in STORAGE})
        tokens = prompt("attached", 200)
        cold = se.generate(engine, tokens)
        attach(engine, arguments)
        # It was not there when the weights may have been replaced: SGLang's pages may be older ones until a flush.
        se.generate(engine, prompt("before the flush", 200))
        se.flush(engine)
        check(not control.puts(), "nothing is stored before the first flush")
        first, local = restored_equals_computed(engine, name="attached", before_restore=store.settle)
        objects_once(store, "kv", "attached")
        check(se.generate(engine, tokens).tokens == cold.tokens, "answers are those of the engine without a storage")

        detach(engine)
        puts = len(control.puts())
        forget(engine, "detached")
        check(se.generate(engine, first).cached == 0, "detached: nothing is restored")
        check(len(control.puts()) == puts, "detached: nothing is stored")

        attach(engine, arguments)
        forget(engine, "attached again")
        again = se.generate(engine, first)
        check(again.cached == local.cached, "attached again: what was stored before is restored", again.cached)
        check(difference(again, local) == 0.0, "attached again: log probabilities to the last bit", difference(again, local))
        control_differs(engine, first, local, name="attached again")

        detach(engine)
        se.flush(engine)
        engine.begin_weight_update()  # a trainer writes into them
        engine.end_weight_update()
        attach(engine, arguments)
        check(se.generate(engine, tokens).cached == 0, "weights written into while detached: nothing of before is restored")
        kept_again(engine, tokens, "weights written into while detached", store.settle)

        detach(engine)
        update(engine, other_weights("llama"))
        attach(engine, arguments)
        new = se.generate(engine, tokens)
        check(new.cached == 0, "weights replaced while detached: nothing of the old ones is restored", new.cached)
        check(new.tokens != cold.tokens or difference(new, cold) > 0.1, "the new weights answer otherwise", difference(new, cold))
        kept_again(engine, tokens, "weights replaced while detached", store.settle)
        engine.shutdown()
    done()


if __name__ == "__main__":
    main()
