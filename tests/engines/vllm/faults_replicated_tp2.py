# SPDX-License-Identifier: Apache-2.0
"""A split pool that a setting calls replicated: samples find the ranks' bytes different, and every rank gets objects of its own."""
from support import check, done
from support import vllm_engine as ve
from support.compare import prompt
from support.store import Store
from support.vllm_scenario import forget, generate, scheduler, switch


def main():
    with Store() as store:
        extra = {"shard.full0": "replicated"}
        llm = ve.llm("llama", 2, num_gpu_blocks_override=24, kv_transfer_config=switch(store, **extra))
        (pool,) = scheduler(llm).connector._plan.pools
        check(pool.shard.counts == (1, 1, 1), "the setting is taken", pool.shard.counts)
        prompts = [prompt(f"not the same {n}", 700) for n in range(3)]
        cold = [generate(llm, one) for one in prompts]
        for turn in ("first", "second"):
            forget(llm)
            for one, answer in zip(prompts, cold, strict=True):
                found = generate(llm, one)
                check(found.tokens == answer.tokens, f"{turn} turn: tokens are those of the cold run", found.cached)
        told = store.stat()["since_start"]
        check(told["conflicts"] > 0, "samples found the bytes different", told["conflicts"])
        check(told["demotions"] == 1, "the pool is per rank from then on", told["demotions"])
        check(found.cached > 0, "and it restores", found.cached)
        kept = {key: number for key, number in store.objects().items() if number}
        check({shard for _pool, shard in kept} == {0, 1}, "what is kept now is kept for each rank", kept)


if __name__ == "__main__":
    main()
    done()
