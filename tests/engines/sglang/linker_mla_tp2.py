# SPDX-License-Identifier: Apache-2.0
# Time limit: 480 s
"""The external linker with latent attention: two ranks store a page once, and an engine of one rank restores it."""
from _faulty_linker import trouble
from _scenarios import PAGE, control_differs, linker, objects_once, restored_equals_computed
from support import check, control, done
from support import sglang_engine as se
from support.compare import prompt
from support.store import Store


def main():
    with Store() as store:
        engine = se.engine("mla", tp=2, page_size=PAGE, **linker(store, linker="FaultyLinker", module="_faulty_linker"))
        tokens, right = restored_equals_computed(engine, name="MLA TP2")
        pages = objects_once(store, "kv", "MLA TP2")
        writers = {call.pid for call in control.puts()}
        check(len(writers) == 2, "both ranks offered the pages", len(writers))
        other = prompt("MLA for one rank", 200)
        wanted = se.generate(engine, other)
        trouble("put")  # what the control restores wrongly must not be offered: the ranks would be found to differ, and the pool be split
        control_differs(engine, tokens, right, name="MLA TP2")
        trouble("put", False)
        se.flush(engine)
        engine.shutdown()

        engine = se.engine("mla", tp=1, page_size=PAGE, **linker(store))
        restored = se.generate(engine, other)
        check(restored.cached >= 192, "one rank restores what two have stored", restored.cached)
        check(restored.tokens == wanted.tokens, "with the same tokens", restored.tokens)
        check(max(abs(a - b) for a, b in zip(restored.logprobs, wanted.logprobs)) < 1e-2, "and log probabilities as of another split",
              max(abs(a - b) for a, b in zip(restored.logprobs, wanted.logprobs)))
        check(set(store.objects()) == {("kv", 0)} and pages > 0, "in the same pool, without the number of ranks", store.objects())
        engine.shutdown()
    done()


if __name__ == "__main__":
    main()
