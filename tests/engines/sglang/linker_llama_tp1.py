# SPDX-License-Identifier: Apache-2.0
"""The external linker on one rank: restores, a store that goes away and comes back, new weights."""
from _scenarios import PAGE, control_differs, linker, new_weights, objects_once, restored_equals_computed
from support import check, control, done
from support import sglang_engine as se
from support.compare import prompt
from support.store import Store


def main():
    with Store() as store:
        engine = se.engine("llama", page_size=PAGE, **linker(store))
        restored_equals_computed(engine, name="Llama")
        objects_once(store, "kv", "Llama")

        # A prompt that continues one: only what is new is put.
        tokens = prompt("Llama turn", 160)
        se.generate(engine, tokens)
        before = {page for call in control.puts() for page in call.pages}
        longer = tokens + prompt("Llama turn 2", 96)
        cold = se.generate(engine, longer)
        check(cold.cached >= 144, "the second turn starts from the first", cold.cached)
        se.flush(engine)
        new = {page for call in control.puts() for page in call.pages} - before
        check(len(new) <= 96 // PAGE + 2, "the second turn puts its own pages only", len(new))
        se.pollute(engine, seed="turns")
        again = se.generate(engine, longer)
        check(again.cached >= 240 and again.tokens == cold.tokens, "both turns come back together", again.cached)

        # Several requests at once, one batch of loads.
        prompts = [prompt(f"Llama batch {n}", 100 + 16 * n) for n in range(3)]
        first = [se.generate(engine, one) for one in prompts]
        locally = se.generate(engine, prompts)
        se.flush(engine)
        se.pollute(engine, seed="batch")
        together = se.generate(engine, prompts)
        for n, (a, b, c) in enumerate(zip(first, locally, together)):
            check(c.cached >= 96 and c.tokens == a.tokens, f"request {n} of a batch is restored", c.cached, b.cached)

        new_weights(engine)

        tokens, right = restored_equals_computed(engine, name="Llama before the control")
        control_differs(engine, tokens, right, name="Llama")
        engine.shutdown()
    done()


if __name__ == "__main__":
    main()
