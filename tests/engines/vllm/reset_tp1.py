# SPDX-License-Identifier: Apache-2.0
"""vLLM's reset of its cache with running requests: vLLM refuses it while blocks are read or written for the store, and does it when
it is asked again afterwards. Refused or not, all answers stay right, and nothing old is found under new weights."""
import time

from support import check, control, done
from support import vllm_engine as ve
from support.compare import difference, prompt
from support.store import Store
from support.vllm_scenario import SECONDS, counted, counters, forget, generate, restores_as_its_own_cache, scheduler, settle, switch

TOKENS = prompt("reset", 700)
NEW = 24


class Running:
    """A request that the test steps."""

    def __init__(self, llm, name):
        from vllm import SamplingParams
        self._engine, self.answer = llm.llm_engine, None
        sampling = SamplingParams(max_tokens=NEW, temperature=0, logprobs=0, ignore_eos=True, detokenize=False)
        self._engine.add_request(name, {"prompt_token_ids": list(TOKENS)}, sampling)

    def step_until(self, condition, what):
        deadline = time.monotonic() + SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(what)
            for out in self._engine.step():
                if out.finished:
                    self.answer = ve._answer(out)

    def finish(self):
        self.step_until(lambda: self.answer is not None, "the request does not end")
        return self.answer


def reset(llm):
    """-> whether vLLM does it; False: it raises"""
    try:
        return llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    except RuntimeError as error:
        check("Failed to reset KV cache" in str(error), "it is vLLM's own refusal", error)
        return False


def new_epoch(llm):
    check(scheduler(llm).connector._store.epochs.wait(SECONDS) is not None, "the new weights have a namespace")


def as_before(llm, cold, what):
    """After a reset that was done: nothing old is found, and what is computed now is stored."""
    new_epoch(llm)
    answer = generate(llm, TOKENS, new_tokens=NEW)
    check(answer.cached == 0 and difference(answer, cold) == 0.0, f"{what}: nothing old is found, and the answer is computed", answer.cached)
    local = generate(llm, TOKENS, new_tokens=NEW)
    restores_as_its_own_cache(llm, TOKENS, cold, local, what, new_tokens=NEW)


def while_saving(llm, side, cold):
    check(reset(llm), "nothing runs: the reset is done")
    new_epoch(llm)
    control.hold_puts(True)
    one = Running(llm, "saving")
    one.step_until(lambda: side._jobs, "nothing is saved")
    refused = not reset(llm)
    control.hold_puts(False)
    check(refused, "while blocks are read for the store vLLM refuses")
    answer = one.finish()
    check(answer.tokens == cold.tokens, "the request was preempted, and its answer is right")
    settle(llm)
    check(reset(llm), "asked again after the saves have ended, the reset is done")
    as_before(llm, cold, "after saves")


def while_loading(llm, side, cold):
    forget(llm)
    control.hold_loads(True)
    one = Running(llm, "loading")
    one.step_until(lambda: control.loads() and side._loading, "nothing is loaded")
    refused = not reset(llm)
    control.hold_loads(False)
    check(refused, "while blocks are written vLLM refuses")
    before = counted(llm, "epochs")
    answer = one.finish()
    check(answer.tokens == cold.tokens and answer.cached > 0, "the load goes on, and the answer is right", answer.cached)
    settle(llm)
    check(counted(llm, "epochs") == before, "a reset that vLLM refuses does not reach the connector")
    check(reset(llm), "asked again after the load, the reset is done")
    as_before(llm, cold, "after loads")


def while_computing(llm, side, cold):
    """Running requests, and nothing of theirs under way to the store."""
    one = Running(llm, "computing")
    one.step_until(lambda: scheduler(llm).running, "the request does not run")
    one.step_until(lambda: not side._jobs, "saves do not end")
    check(one.answer is None, "the request still runs")
    check(reset(llm), "nothing is under way to the store: the reset is done")
    answer = one.finish()
    check(answer.tokens == cold.tokens, "the request is computed anew, and its answer is right")
    settle(llm)
    forget(llm)
    check(generate(llm, TOKENS, new_tokens=NEW).cached > 0, "and what it computed anew is stored")


def main():
    with Store() as store:
        llm = ve.llm("llama", num_gpu_blocks_override=24, kv_transfer_config=switch(store))
        side = scheduler(llm).connector._scheduler
        cold = generate(llm, TOKENS, new_tokens=NEW)
        while_saving(llm, side, cold)
        while_loading(llm, side, cold)
        while_computing(llm, side, cold)
        check(counted(llm, "errors") == 0, "nothing failed", counters(llm))
        pool = scheduler(llm).kv_cache_manager.block_pool
        check(pool.get_num_free_blocks() == 23, "no block is held when all is done", pool.get_num_free_blocks())


if __name__ == "__main__":
    main()
    done()
