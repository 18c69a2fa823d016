# SPDX-License-Identifier: Apache-2.0
"""More requests than the blocks are enough for: some are preempted, computed again or restored, and all answers stay right."""
from support import check, done
from support import vllm_engine as ve
from support.compare import difference, prompt
from support.store import Store
from support.vllm_scenario import counted, forget, generate, scheduler, switch


def counting(llm):
    """Counts preemptions from now on."""
    engine, seen = scheduler(llm), []
    preempt = engine._preempt_request

    def counted_preempt(request, *args, **kwargs):
        seen.append(request.request_id)
        return preempt(request, *args, **kwargs)

    engine._preempt_request = counted_preempt
    return seen


def main():
    with Store() as store:
        llm = ve.llm("llama", dtype="bfloat16", block_size=32, num_gpu_blocks_override=40, kv_transfer_config=switch(store))
        seen = counting(llm)
        prompts = [prompt(f"preempted {n}", 300) for n in range(6)]
        cold = generate(llm, prompts, new_tokens=200)
        check(len(seen) > 0, "requests were preempted in the cold run", len(seen))
        seen.clear()
        forget(llm)
        before = counted(llm, "hit_tokens")
        answers = generate(llm, prompts, new_tokens=200)
        check(len(seen) > 0, "and in the run that restores", len(seen))
        check(counted(llm, "hit_tokens") > before, "pages were restored", counted(llm, "hit_tokens") - before)
        for at, (answer, first) in enumerate(zip(answers, cold, strict=True)):
            check(answer.tokens == first.tokens, f"tokens of request {at} are those of the cold run")
            check(difference(answer, first) == 0.0, f"log probabilities of request {at}, too")
        pool = scheduler(llm).kv_cache_manager.block_pool
        check(pool.get_num_free_blocks() == 39, "no block is held when all is done", pool.get_num_free_blocks())


if __name__ == "__main__":
    main()
    done()
