# SPDX-License-Identifier: Apache-2.0
# Time limit: 600 s
"""The external linker with Kimi-Linear on two ranks: latent attention stored once, recurrent state of each rank by itself.

The states come late: SGLang copies them to the request before the forward's first layer, and that has to wait."""
from _faulty_linker import trouble
from _scenarios import control_differs, linker, restored_equals_computed
from support import check, control, done
from support import sglang_engine as se
from support.store import Store


def main():
    with Store() as store:
        # Its weights are made in the engine: there are no files that a digest could be made of.
        engine = se.engine("kimi", tp=2, **linker(store, linker="FaultyLinker", module="_faulty_linker", model_id="kimi"))
        tokens, right = restored_equals_computed(engine, length=110, ends_at=72, name="Kimi TP2",
                                                 before_restore=lambda: trouble("slow"))
        trouble("slow", False)
        counts = store.objects()
        pages = {page for call in control.puts() if call.pool == "kv" for page in call.pages}
        states = {page for call in control.puts() if call.pool == "mamba" for page in call.pages}
        check(counts[("kv", 0)] == len(pages) and ("kv", 1) not in counts, "latent pages are stored once", counts, len(pages))
        check(counts[("mamba", 0)] == counts[("mamba", 1)] == len(states) > 0, "states are stored once for each rank", counts, len(states))
        trouble("put")  # what the controls restore wrongly must not be offered to the store
        control_differs(engine, tokens, right, name="Kimi TP2")
        for what, sentence in (("zero", "zeros for the state"), ("other", "the state of the other rank")):
            control_differs(engine, tokens, right, name=f"Kimi TP2, {sentence}", seed=what, switch=lambda on, what=what: trouble(what, on))
        engine.shutdown()
    done()


if __name__ == "__main__":
    main()
