# SPDX-License-Identifier: Apache-2.0
"""SGLang on the CPU: its arguments, and what tests do with it. Import this before sglang."""
import os
import time

from support import models
from support.compare import Answer, prompt

ARGS = {
    "device": "cpu", "skip_tokenizer_init": True, "attention_backend": "torch_native", "sampling_backend": "pytorch",
    "disable_cuda_graph": True, "max_total_tokens": 2048, "max_running_requests": 4, "context_length": 1024, "grammar_backend": "none",
    "log_level": "warning", "random_seed": 1, "enable_cache_report": True}

# Kimi-Linear: its kernels run in Triton's interpreter (prompts of 60 to 400 tokens take seconds), with pages of one token.
KIMI = {"dtype": "float32", "page_size": 1, "mamba_radix_cache_strategy": "no_buffer", "disable_overlap_schedule": True, "load_format": "dummy",
        # Without a bound its states take most of the memory that is free, in each rank.
        "max_mamba_cache_size": 64}

# The one LoRA backend that computes without a GPU.
LORA = {"lora_backend": "torch_native"}


def engine(model, tp=1, **args):
    """An sglang.Engine with the model of that name. args go before those for the CPU; they are named in ARGS."""
    cores = sorted(os.sched_getaffinity(0))
    if tp > 1:
        # Without it all ranks' threads are bound to the first core.
        os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(cores[rank % len(cores)]) for rank in range(tp))
    if model == "kimi":
        os.environ["TRITON_INTERPRET"] = "1"
        args = {**KIMI, **args}
    if "lora_paths" in args:
        os.environ["KVONCE_TEST_LORA"] = "1"
        args = {**LORA, **args}
    import sglang
    return sglang.Engine(model_path=models.path(model, engine="sglang"), tp_size=tp, **{**ARGS, **args})


def generate(engine, tokens, new_tokens=8, **more):
    """tokens: one prompt, or a list of them. -> an Answer, or a list of them"""
    sampling = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
    raw = engine.generate(input_ids=tokens, sampling_params=sampling, return_logprob=True, **more)
    return [_answer(one) for one in raw] if isinstance(raw, list) else _answer(raw)


def _answer(raw):
    told = raw["meta_info"]
    return Answer(list(raw["output_ids"]), [entry[0] for entry in told["output_token_logprobs"]], told.get("cached_tokens", 0),
                  told.get("cached_tokens_details") or {})


def flush(engine, seconds=30):
    """Empties the engine's own cache. It refuses while something of a request is under way: asked again until it does."""
    deadline = time.monotonic() + seconds
    while True:
        answer = engine.flush_cache()
        if answer is None or getattr(answer, "success", True):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"the cache is not flushed: {answer}")
        time.sleep(0.05)


def pollute(engine, tokens=2048, each=480, seed="pollute"):
    """Overwrites the slots of the engine's cache with other prompts, then flushes.

    After a flush alone the next prompt gets the slots that still hold its old bytes: a restore that moves nothing would pass."""
    for n in range(-(-tokens // each)):
        generate(engine, prompt(f"{seed} {n}", each), new_tokens=1)
    flush(engine)
