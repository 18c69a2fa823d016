# SPDX-License-Identifier: Apache-2.0
# Time limit: 300 s
"""A pause for new weights, as trainers do it, with the scheduler in a process of its own: vLLM waits for the saves that run, empties its
cache and tells the connector; requests that were kept go on, and nothing of before is found."""
import asyncio
import itertools
import os
import time

from support import check, control, done, models
from support import vllm_engine as ve
from support.compare import prompt
from support.store import Store
from support.vllm_scenario import SECONDS, switch

TOKENS = prompt("paused", 700)
NEW = 24
_names = itertools.count()


async def generate(engine, tokens, new_tokens=NEW):
    from vllm import SamplingParams
    sampling = SamplingParams(max_tokens=new_tokens, temperature=0, logprobs=0, ignore_eos=True, detokenize=False)
    last = None
    async for out in engine.generate({"prompt_token_ids": list(tokens)}, sampling, f"request {next(_names)}"):
        last = out
    return ve._answer(last)


async def until(condition, what):
    """condition: tells, or is awaited for it."""
    deadline = time.monotonic() + SECONDS
    while True:
        now = condition()
        if await now if asyncio.iscoroutine(now) else now:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        await asyncio.sleep(0.02)


async def begun(engine, hold, calls, what):
    """A request whose rows are held: none of them is read or written. -> its task"""
    hold(True)
    before = len(calls())
    task = asyncio.create_task(generate(engine, TOKENS))
    await until(lambda: len(calls()) > before or task.done(), what)
    check(len(calls()) > before, what)
    return task


async def forget(engine):
    """The engine's own cache is emptied, and all of its blocks are overwritten."""
    await until(engine.reset_prefix_cache, "the cache is not emptied")
    for _ in range(4):
        await generate(engine, prompt(f"overwrites {next(_names)}", 900), 1)
    await until(engine.reset_prefix_cache, "the cache is not emptied")


async def kept(engine, cold, what):
    """What is computed now is stored and comes back; not before the new weights have their namespace."""

    async def back():
        await generate(engine, TOKENS)
        await forget(engine)
        answer = await generate(engine, TOKENS)
        check(answer.tokens == cold.tokens, f"{what}: the answer is right", answer.cached)
        return answer.cached > 0

    await until(back, f"{what}: nothing is restored")


async def paused(engine, mode, hold, what):
    """The pause, while rows are held; they are let go once the engine has begun to pause."""
    pause = asyncio.create_task(engine.pause_generation(mode=mode, clear_cache=True))
    await until(engine.is_paused, "the engine is not paused")
    check(not pause.done(), f"{mode}: the pause waits for {what}")
    hold(False)
    await asyncio.wait_for(pause, SECONDS)
    await engine.resume_generation()


async def while_saving(engine, mode, cold):
    task = await begun(engine, control.hold_puts, control.puts, f"{mode}: blocks are read for the store")
    before = len(control.namespaces())
    await paused(engine, mode, control.hold_puts, "the saves")
    answer = await asyncio.wait_for(task, SECONDS)
    # It may have ended before the pause began.
    check(answer.tokens == cold.tokens[:len(answer.tokens)], f"{mode}: the answer is right", answer.tokens)
    again = await (anew(engine) if mode == "abort" else generate(engine, TOKENS))
    check(again.tokens == cold.tokens, f"{mode}: and the next one")
    await until(lambda: len(control.namespaces()) > before, f"{mode}: the new weights have no namespace")


async def anew(engine):
    answer = await generate(engine, TOKENS)
    check(answer.cached == 0, "abort: nothing of before is found", answer.cached)
    return answer


async def while_loading(engine, cold):
    """vLLM keeps the blocks of a request that is being restored; so it does not empty its cache then."""
    await forget(engine)
    task = await begun(engine, control.hold_loads, control.loads, "keep: blocks are written by the store")
    refused = ""
    try:
        await asyncio.wait_for(engine.pause_generation(mode="keep", clear_cache=True), SECONDS)
    except Exception as error:
        refused = str(error)
    control.hold_loads(False)
    check("Failed to reset KV cache" in refused, "keep: while a request is restored vLLM refuses", refused)
    await engine.resume_generation()
    answer = await asyncio.wait_for(task, SECONDS)
    check(answer.tokens == cold.tokens and answer.cached > 0, "its answer is right all the same", answer.cached)

    await forget(engine)
    task = await begun(engine, control.hold_loads, control.loads, "abort: blocks are written by the store")
    await paused(engine, "abort", control.hold_loads, "the load")
    ended = await asyncio.wait_for(task, SECONDS)
    check(ended.details["finish_reason"] == "abort", "abort: the request is ended", ended.details)
    check((await anew(engine)).tokens == cold.tokens, "abort: the answer is right")


async def story(store):
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(
        model=models.path("llama", engine="vllm"), num_gpu_blocks_override=24, kv_transfer_config=switch(store), **ve.ARGS))
    try:
        cold = await generate(engine, TOKENS)
        for mode in ("keep", "abort"):
            await engine.reset_prefix_cache(reset_connector=True)  # so that the prompt is stored again
            await while_saving(engine, mode, cold)
            await kept(engine, cold, f"after {mode}")
        await while_loading(engine, cold)
    finally:
        engine.shutdown()


def main():
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    with Store() as store:
        asyncio.run(story(store))


if __name__ == "__main__":
    main()
    done()
