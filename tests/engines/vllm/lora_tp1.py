# SPDX-License-Identifier: Apache-2.0
"""Two LoRA adapters on one Llama: each has pages of its own, and an adapter that is replaced in place finds nothing of the old one."""
import json
import os
import tempfile
from pathlib import Path

from support import check, control, done
from support import vllm_engine as ve
from support.compare import difference, prompt
from support.models import CONFIGS
from support.store import Store
from support.vllm_scenario import SECONDS, counted, forget, generate, restores_as_its_own_cache, scheduler, switch

RANK = 8
TOKENS = prompt("adapters", 700)


def write(folder, seed):
    """An adapter's files as PEFT writes them. They are put in place whole, so that a reader has the old or the new ones."""
    import torch
    from safetensors.torch import save_file

    config = CONFIGS["vllm"]["llama"]
    hidden, heads, width = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    outs = {"q_proj": heads * width, "k_proj": config["num_key_value_heads"] * width, "v_proj": config["num_key_value_heads"] * width}
    draw = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name, out in outs.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{at}.lora_A.weight"] = torch.randn(RANK, hidden, generator=draw) * 0.1
            weights[f"{at}.lora_B.weight"] = torch.randn(out, RANK, generator=draw) * 0.1
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK, "lora_dropout": 0.0, "bias": "none",
        "target_modules": sorted(outs), "base_model_name_or_path": "llama"}))
    save_file(weights, folder / "new.safetensors")
    os.replace(folder / "new.safetensors", folder / "adapter_model.safetensors")


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
        write(self.folder, seed)
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
                     enable_lora=True, max_loras=3, max_lora_rank=RANK)
        a, b, same = (Adapter(llm, Path(folder), name, seed, seed) for seed, name in enumerate(("a", "b", "c"), 1))
        replaced_in_place(llm, a, same, each_has_its_own(llm, a, b))
        check(counted(llm, "errors") == 0, "nothing failed")


if __name__ == "__main__":
    main()
    done()
