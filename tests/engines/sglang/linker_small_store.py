# SPDX-License-Identifier: Apache-2.0
# Time limit: 480 s
"""Two ranks with more work than the store has room for, and a pool that is wrongly called replicated: the tokens stay right."""
from _scenarios import PAGE, apart, linker, store_at
from support import check, done
from support import sglang_engine as se
from support.compare import difference, prompt
from support.store import Store


def too_small(address):
    engine = se.engine("llama", tp=2, page_size=PAGE, **linker(store_at(address)))
    right, restored = {}, 0
    for n in range(12):
        tokens = prompt(f"small {n}", 400)
        se.generate(engine, tokens)
        right[n] = se.generate(engine, tokens)
        se.flush(engine)
    for n in range(12):
        se.pollute(engine, seed=f"small {n}")
        again = se.generate(engine, prompt(f"small {n}", 400))
        restored += again.cached > 0
        check(again.tokens == right[n].tokens, f"a store that is too small: prompt {n} is answered right", again.cached)
        se.flush(engine)
    check(restored < 12, "it was too small", restored)
    evicted = store_at(address).stat()["since_start"]["evicted_objects"]
    check(evicted > 0, "and had to let pages go", evicted)
    engine.shutdown()


def wrongly_replicated(address):
    store = store_at(address)
    engine = se.engine("llama", tp=2, page_size=PAGE, **linker(store, **{"shard.kv": "replicated"}))
    tokens = prompt("replicated", 300)
    cold = se.generate(engine, tokens)
    se.flush(engine)
    demotions = store.stat()["since_start"]["demotions"]
    check(demotions >= 1, "the samples show that the ranks' pages differ", demotions)
    for n in range(2):
        fresh = prompt(f"replicated {n}", 300)
        first = se.generate(engine, fresh)
        local = se.generate(engine, fresh)
        se.flush(engine)
        se.pollute(engine, seed=f"replicated {n}")
        again = se.generate(engine, fresh)
        check(again.tokens == first.tokens, "after the demotion no wrong page is served", again.cached)
        check(again.cached == local.cached > 0, "all of what was stored after it is restored", again.cached)
        check(difference(again, local) == 0.0, "and it is right to the last bit", difference(again, local))
    again = se.generate(engine, tokens)
    check(again.tokens == cold.tokens, "the first prompt too", again.cached)
    engine.shutdown()


def main():
    with Store(memory="2MiB") as store:
        apart(too_small, store.address)
    with Store() as store:
        apart(wrongly_replicated, store.address)
    done()


if __name__ == "__main__":
    main()
