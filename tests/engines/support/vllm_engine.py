# SPDX-License-Identifier: Apache-2.0
"""vLLM on the CPU: its arguments, and what tests do with it."""
from support import models
from support.compare import Answer, prompt

ARGS = {
    "skip_tokenizer_init": True, "enforce_eager": True,
    # Without AMX matrices of 16 bits take the CPU thirty times as long.
    # A test that compares a restore with a run that computed all of the prompt asks for them all the same: in 32 bits the last
    # digits depend on how many rows are multiplied at once.
    "dtype": "float32", "max_model_len": 1024, "seed": 1,
    "disable_log_stats": True,
    # The compiled rotary embedding of the CPU build computes MLA wrongly; the one in plain torch is right.
    "compilation_config": {"custom_ops": ["none"]}}

# For MLA, where the CPU platform has no prefix caching: a reference that splits the prompt as a restore does.
PREFIX_SCHEDULER = {"scheduler_cls": "prefix_scheduler.PrefixScheduler"}


def llm(model, tp=1, **args):
    """A vllm.LLM with the model of that name. args go before those for the CPU; they are named in ARGS."""
    from vllm import LLM
    if model == "smollm2":
        args = {"skip_tokenizer_init": False, **args}
    return LLM(model=models.path(model, engine="vllm"), tensor_parallel_size=tp, **{**ARGS, **args})


def generate(llm, tokens, new_tokens=8, lora_request=None, **more):
    """tokens: one prompt, or a list of them; lora_request: vLLM's, for all of them. -> an Answer, or a list of them"""
    from vllm import SamplingParams
    many = isinstance(tokens[0], (list, tuple))
    sampling = SamplingParams(max_tokens=new_tokens, temperature=0, logprobs=0, ignore_eos=True, detokenize=False, **more)
    raw = llm.generate([{"prompt_token_ids": list(one)} for one in (tokens if many else [tokens])], sampling, use_tqdm=False,
                       lora_request=lora_request)
    answers = [_answer(one) for one in raw]
    return answers if many else answers[0]


def _answer(raw):
    out = raw.outputs[0]
    logprobs = [entry[token].logprob for entry, token in zip(out.logprobs or (), out.token_ids)]
    return Answer(list(out.token_ids), logprobs, raw.num_cached_tokens or 0, {"finish_reason": out.finish_reason})


def reset(llm):
    """Empties the engine's own cache, and not the store."""
    if not llm.reset_prefix_cache():
        raise RuntimeError("vLLM did not reset its prefix cache: blocks are in use")


def pollute(llm, prompts=6, each=900, seed="pollute"):
    """Overwrites blocks of the engine's cache with other prompts, then resets it.

    Give the engine few blocks (num_gpu_blocks_override), or this does not reach those of the test's prompt."""
    for n in range(prompts):
        generate(llm, prompt(f"{seed} {n}", each), new_tokens=1)
    reset(llm)
