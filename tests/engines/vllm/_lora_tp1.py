# SPDX-License-Identifier: Apache-2.0
# Time limit: 480 s
"""A LoRA adapter: restored like any other prefix, and replaced in place: nothing of the old one is stored under the new one's name."""
import json
import os
from pathlib import Path

from support import check, control, done
from support import vllm_engine as ve
from support.compare import difference, prompt
from support.store import Store
from support.vllm_scenario import forget, settle, switch

RANK, HIDDEN = 8, 256


def write_adapter(folder, seed):
    """Files come by renaming: nobody sees half of one."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(3):
        for name, size in (("q_proj", 256), ("v_proj", 64)):
            module = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{module}.lora_A.weight"] = torch.randn((RANK, HIDDEN), generator=generator) * 0.1
            weights[f"{module}.lora_B.weight"] = torch.randn((size, RANK), generator=generator) * 0.1
    folder.mkdir(exist_ok=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": ["q_proj", "v_proj"], "bias": "none",
              "task_type": "CAUSAL_LM", "base_model_name_or_path": "llama"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(weights, folder / "new")
    os.replace(folder / "new", folder / "adapter_model.safetensors")


def generate(llm, tokens, folder, inplace=False):
    """An Answer; all is saved when it returns."""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    lora = LoRARequest("adapter", 1, str(folder), load_inplace=inplace)
    sampling = SamplingParams(max_tokens=8, temperature=0, logprobs=0, ignore_eos=True, detokenize=False)
    (raw,) = llm.generate([{"prompt_token_ids": list(tokens)}], sampling, use_tqdm=False, lora_request=lora)
    settle(llm)
    return ve._answer(raw)


def known(llm, folder):
    """A first short request, so that the adapter's content is known: until then its requests are misses."""
    from support.vllm_scenario import scheduler

    generate(llm, prompt("short", 20), folder, inplace=True)
    (content,) = scheduler(llm).connector._scheduler._adapters._now.values()
    check(content.digest.result(60) is not None, "the adapter's files have been read")


def main():
    folder = Path("adapter").absolute()
    write_adapter(folder, 1)
    with Store() as store:
        llm = ve.llm("llama", num_gpu_blocks_override=24, enable_lora=True, max_lora_rank=RANK, max_loras=1, kv_transfer_config=switch(store))
        known(llm, folder)
        tokens = prompt("adapters", 700)
        first = generate(llm, tokens, folder)
        local = generate(llm, tokens, folder)
        forget(llm)
        restored = generate(llm, tokens, folder)
        check(restored.cached == local.cached == 640, "a prefix of the adapter is restored", restored.cached)
        check(difference(restored, local) == 0.0, "bit for bit")
        write_adapter(folder, 2)
        known(llm, folder)
        before = len(control.puts())
        mixed = generate(llm, tokens + prompt("goes on", 300), folder, inplace=True)
        check(mixed.cached == 640, "vLLM goes on with its own pages of the old adapter", mixed.cached)
        check(len(control.puts()) == before, "neither those nor what is computed behind them is stored")
        forget(llm)
        second = generate(llm, tokens, folder, inplace=True)
        check(second.cached == 0, "so nothing is found under the new adapter", second.cached)
        check(difference(second, first) > 0.01, "control: the adapters differ", difference(second, first))
        local = generate(llm, tokens, folder, inplace=True)
        forget(llm)
        restored = generate(llm, tokens, folder, inplace=True)
        check(restored.cached == 640, "and what the new one computes is stored and restored", restored.cached)
        check(difference(restored, local) == 0.0, "bit for bit")


if __name__ == "__main__":
    main()
    done()
