# SPDX-License-Identifier: Apache-2.0
# Time limit: 300 s
"""Two LoRA adapters on one Llama: each restores its own pages only. What an adapter's path held before is not found, neither when it is
loaded anew nor by the next engine, although SGLang names the adapters of its start by name and path alone."""
import json
import tempfile
from pathlib import Path

from _scenarios import PAGE, apart, control_differs, linker, store_at
from support import adapters, check, done
from support import sglang_engine as se
from support.compare import Answer, difference, prompt
from support.store import Store

TOKENS = prompt("adapters", 200)
ANSWER = "answer.json"  # in the folder of the adapters


def engine_with(store, folder):
    """Adapters a and b are there from the start."""
    return se.engine("llama", page_size=PAGE, max_loras_per_batch=2, lora_paths={name: f"{folder}/{name}" for name in "ab"}, **linker(store))


def ask(engine, name):
    return se.generate(engine, TOKENS, lora_path=name)


def first(engine, name):
    """-> cold answer, answer of the engine's own cache"""
    cold = ask(engine, name)
    check(cold.cached == 0, f"adapter {name} finds nothing that another has stored", cold.cached)
    local = ask(engine, name)
    check(local.cached > 0, f"the engine's own cache has the pages of adapter {name}", local.cached)
    return cold, local


def restored(engine, name, cold, local, what="is restored"):
    se.flush(engine)
    se.pollute(engine, seed=f"{name} {what}")
    answer = ask(engine, name)
    check(answer.cached == local.cached, f"adapter {name} {what}: as much as the engine's own cache had", answer.cached)
    check(answer.tokens == cold.tokens and difference(answer, local) == 0.0, f"adapter {name} {what}: log probabilities to the last bit")


def load(engine, name, folder, seed):
    adapters.write(folder / name, "sglang", "llama", seed)
    answer = engine.load_lora_adapter(name, str(folder / name))
    check(answer.success, f"adapter {name} is loaded", answer)


def one_engine(address, folder):
    engine, folder = engine_with(store_at(address), folder), Path(folder)
    answers = {name: first(engine, name) for name in ("a", None, "b")}
    colds = [cold for cold, _ in answers.values()]
    far = min(difference(one, other) for at, one in enumerate(colds) for other in colds[:at])
    check(far > 0.1, "the base model and the adapters answer differently", far)
    for name, (cold, local) in answers.items():
        restored(engine, name, cold, local)

    load(engine, "c", folder, seed=3)
    right, _ = first(engine, "c")
    check(engine.unload_lora_adapter("a").success, "adapter a is unloaded")
    load(engine, "a", folder, seed=3)
    cold, local = first(engine, "a")
    check(difference(cold, right) == 0.0 and difference(cold, colds[0]) > 0.1, "adapter a answers as its new content does")
    restored(engine, "a", cold, local, "loaded anew")
    Path(folder, ANSWER).write_text(json.dumps([cold.tokens, cold.logprobs]))
    control_differs(engine, TOKENS, answers[None][1], name="the base model")
    engine.shutdown()


def next_engine(address, folder):
    """Its adapter a has another content than that of the first one's start, under the same name and path."""
    engine = engine_with(store_at(address), folder)
    cold, local = first(engine, "a")
    check(difference(cold, Answer(*json.loads(Path(folder, ANSWER).read_text()))) == 0.0, "the next engine answers as its adapter's content does")
    restored(engine, "a", cold, local, "in the next engine")
    engine.shutdown()


def main():
    with Store() as store, tempfile.TemporaryDirectory() as folder:
        for seed, name in enumerate("ab", 1):
            adapters.write(Path(folder, name), "sglang", "llama", seed)
        apart(one_engine, store.address, folder)
        apart(next_engine, store.address, folder)
    done()


if __name__ == "__main__":
    main()
