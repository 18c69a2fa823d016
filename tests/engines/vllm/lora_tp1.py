# SPDX-License-Identifier: Apache-2.0
"""Two LoRA adapters on one Llama: each has pages of its own, and an adapter that is replaced in place finds nothing of the old one."""
import tempfile
from pathlib import Path

from support import adapters, check, control, done
from support import vllm_engine as ve
from support.compare import difference, prompt
from support.store import Store
from support.vllm_scenario import SECONDS, counted, forget, generate, restores_as_its_own_cache, scheduler, switch

TOKENS = prompt("adapters", 700)


class Adapter:
    """One adapter of the engine, asked by its name and path as the engine's users do."""

    def __init__(self, llm, folder, name, number, seed):
        self._llm, self._number, self.name, self.folder = llm, number, name, folder / name
        self.replace(seed)

    def request(self, **more):
        from vllm.lora.request import LoRARequest
        return LoRARequest(self.name, self._number, str(self.folder), **more)

    def replace(self, seed):
        """Other content under the same name and path. The engine has read it, and kvonce knows what it is, when this returns."""
        adapters.write(self.folder, "vllm", "llama", seed)
        generate(self._llm, prompt("reads the adapter", 20), new_tokens=1, lora_request=self.request(load_inplace=True))
        content = scheduler(self._llm).connector._scheduler._adapters._now[self._number]
        content.digest.result(SECONDS)
        check(content.salt is not None, f"adapter {self.name} is read")

    def ask(self):
        return generate(self._llm, TOKENS, lora_request=self.request())

    def first(self):
        """-> cold answer, answer of the engine's own cache"""
        cold = self.ask()
        check(cold.cached == 0, f"adapter {self.name} finds nothing that another has stored", cold.cached)
        local = self.ask()
        check(local.cached > 0, f"the engine's own cache has the pages of adapter {self.name}", local.cached)
        return cold, local

    def restored(self, cold, local, what):
        return restores_as_its_own_cache(self._llm, TOKENS, cold, local, f"adapter {self.name} {what}", lora_request=self.request())


def each_has_its_own(llm, a, b):
    """The base model and both adapters store the same prompt; each gets its own back. -> answers of a"""
    of_a = a.first()
    base = generate(llm, TOKENS)
    check(base.cached == 0, "the base model finds nothing that an adapter has stored", base.cached)
    of_b = b.first()
    colds = base, of_a[0], of_b[0]
    far = min(difference(one, other) for at, one in enumerate(colds) for other in colds[:at])
    check(far > 0.1, "the base model and the adapters answer differently", far)
    a.restored(*of_a, "is restored")
    b.restored(*of_b, "is restored")
    again = generate(llm, TOKENS)
    restores_as_its_own_cache(llm, TOKENS, base, generate(llm, TOKENS), "the base model")
    check(again.tokens == base.tokens, "the base model's answer stays what it was")
    control.moves_nothing(True)
    forget(llm)
    wrong = a.ask()
    control.moves_nothing(False)
    check(wrong.cached == of_a[1].cached, "control: the engine believes in a restore that moved nothing")
    check(difference(wrong, of_a[0]) > 0.1, "control: and it changes the answer", difference(wrong, of_a[0]))
    return of_a


def replaced_in_place(llm, a, same, old):
    """Adapter a gets the content that the adapter `same` has. old: what a answered until then."""
    right, _ = same.first()
    check(difference(right, old[0]) > 0.1, "the new content answers differently", difference(right, old[0]))
    a.restored(*old, "is in the engine's own cache when it is replaced")
    a.replace(seed=3)
    mixed = a.ask()
    check(mixed.cached > 0, "vLLM itself has kept its pages of the old content", mixed.cached)
    forget(llm)
    new = a.first()
    check(difference(new[0], right) == 0.0, "the replaced adapter answers as one that had this content from the start")
    a.restored(*new, "after it was replaced")
    a.replace(seed=1)
    a.restored(*old, "with its first content again")


def main():
    with Store() as store, tempfile.TemporaryDirectory() as folder:
        llm = ve.llm("llama", num_gpu_blocks_override=24, kv_transfer_config=switch(store),
                     enable_lora=True, max_loras=3, max_lora_rank=adapters.RANK)
        a, b, same = (Adapter(llm, Path(folder), name, seed, seed) for seed, name in enumerate(("a", "b", "c"), 1))
        replaced_in_place(llm, a, same, each_has_its_own(llm, a, b))
        check(counted(llm, "errors") == 0, "nothing failed")


if __name__ == "__main__":
    main()
    done()
