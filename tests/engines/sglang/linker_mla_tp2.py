# SPDX-License-Identifier: Apache-2.0
# Time limit: 480 s
"""The external linker with latent attention: two ranks store a page once, and an engine of one rank restores it."""
import json
import tempfile
from pathlib import Path

from _faulty_linker import trouble
from _scenarios import PAGE, apart, control_differs, linker, objects_once, restored_equals_computed, store_at
from support import check, control, done
from support import sglang_engine as se
from support.compare import prompt
from support.store import Store


def two_ranks(address, answer_file):
    store = store_at(address)
    engine = se.engine("mla", tp=2, page_size=PAGE, **linker(store, linker="FaultyLinker", module="_faulty_linker"))
    tokens, right = restored_equals_computed(engine, name="MLA TP2")
    objects_once(store, "kv", "MLA TP2")
    check(len({call.pid for call in control.puts()}) == 2, "both ranks offered the pages")
    answer = se.generate(engine, prompt("MLA for one rank", 200))
    se.flush(engine)
    Path(answer_file).write_text(json.dumps([answer.tokens, answer.logprobs]))
    trouble("put")  # what the control restores wrongly must not be offered: the ranks would be found to differ, and the pool be split
    control_differs(engine, tokens, right, name="MLA TP2")
    trouble("put", False)
    engine.shutdown()


def one_rank(address, answer_file):
    store = store_at(address)
    tokens, logprobs = json.loads(Path(answer_file).read_text())
    engine = se.engine("mla", tp=1, page_size=PAGE, **linker(store))
    restored = se.generate(engine, prompt("MLA for one rank", 200))
    check(restored.cached >= 192, "one rank restores what two have stored", restored.cached)
    check(restored.tokens == tokens, "with the same tokens", restored.tokens)
    furthest = max(abs(a - b) for a, b in zip(restored.logprobs, logprobs, strict=True))
    check(furthest < 1e-2, "and the log probabilities of another split of the work", furthest)
    check(set(store.objects()) == {("kv", 0)}, "in the same pool, without the number of ranks", store.objects())
    engine.shutdown()


def main():
    with Store() as store, tempfile.TemporaryDirectory() as folder:
        for engine in (two_ranks, one_rank):
            apart(engine, store.address, f"{folder}/answer.json")
    done()


if __name__ == "__main__":
    main()
