# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters for the small models, as PEFT writes them. Their weights are so large that each changes the answers."""
import json
import os

from support.models import CONFIGS

RANK = 8


def write(folder, engine, model, seed):
    """Puts an adapter of this model there, or another content in its place; the weights whole, so that a reader has the old or the new ones."""
    import torch
    from safetensors.torch import save_file

    config = CONFIGS[engine][model]
    hidden, heads, kv_heads, width = (config[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"))
    outs = {"q_proj": heads * width, "k_proj": kv_heads * width, "v_proj": kv_heads * width}
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
        "target_modules": sorted(outs), "base_model_name_or_path": model}))
    save_file(weights, folder / "new.safetensors")
    os.replace(folder / "new.safetensors", folder / "adapter_model.safetensors")
