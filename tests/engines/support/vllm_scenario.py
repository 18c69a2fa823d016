# SPDX-License-Identifier: Apache-2.0
"""The story that is told of each model in vLLM: stored, forgotten by the engine, restored, and shown to matter.

The reference for a restore is the engine's own local prefix hit: it computes the same part of the prompt, so not one bit may differ.
"""
import itertools
import time

from support import check, control
from support import vllm_engine as ve
from support.compare import difference, prompt
from support.store import Store

SECONDS = 60
# On a busy machine nothing may be a miss because it took long.
PATIENT = {"lookup_ms": 20_000, "load_ms": 60_000}
_seeds = itertools.count()


def switch(store, policy="recompute", **extra):
    """kv_transfer_config for this store."""
    return {"kv_connector": "KvonceConnector", "kv_connector_module_path": "kvonce.vllm", "kv_role": "kv_both",
            "kv_load_failure_policy": policy, "kv_connector_extra_config": {"store": store.address, **PATIENT, **extra}}


def scheduler(llm):
    """vLLM's scheduler: it is in this process."""
    return llm.llm_engine.engine_core.engine_core.scheduler


def counters(llm):
    """What the scheduler's side of the connector has counted: {(name, label): number}."""
    return scheduler(llm).connector._store.counters.snapshot()


def counted(llm, name):
    return sum(number for (counter, _label), number in counters(llm).items() if counter == name)


def settle(llm):
    """Steps the engine until it has heard of the end of all saves."""
    deadline = time.monotonic() + SECONDS
    while scheduler(llm).has_requests():
        if time.monotonic() > deadline:
            raise TimeoutError("saves do not end")
        llm.llm_engine.step()


def generate(llm, tokens, **more):
    """As vllm_engine.generate, and all is saved when it returns."""
    answer = ve.generate(llm, tokens, **more)
    settle(llm)
    return answer


def forget(llm, each=900):
    """The engine forgets its cache, and all of its blocks are overwritten: with prompts that were never seen, because one that
    is restored might be restored wrongly and overwrite nothing."""
    config = scheduler(llm).kv_cache_config
    tokens = config.num_blocks * min(group.kv_cache_spec.block_size for group in config.kv_cache_groups)
    groups = len(config.kv_cache_groups)
    if groups > 1:  # each takes blocks for a prompt; some give them back before its end
        tokens = tokens * 2 // groups
    ve.reset(llm)
    for _ in range(-(-tokens // each)):
        generate(llm, prompt(f"overwrites {next(_seeds)}", each), new_tokens=1)
    ve.reset(llm)


def restores_as_its_own_cache(llm, tokens, cold, local, what, **more):
    """Forgets, asks again, and checks that the answer is that of the local cache to the last bit."""
    forget(llm)
    before = counted(llm, "hit_tokens")
    answer = generate(llm, tokens, **more)
    check(answer.tokens == cold.tokens, f"{what}: tokens are those of the cold run", answer.tokens)
    check(answer.cached == local.cached > 0, f"{what}: as many tokens are restored as the engine's own cache has", answer.cached,
          {key: number for key, number in counters(llm).items() if key[0] in ("missed_tokens", "errors", "stores_lost")})
    check(counted(llm, "hit_tokens") - before == answer.cached, f"{what}: they came from the store")
    check(difference(answer, local) == 0.0, f"{what}: log probabilities are those of the engine's own prefix hit, bit for bit")
    return answer


def tell(llm, store, pools, *, length=700):
    """cold, local hit, restored, restored again, objects by shard, and the control.

    pools: {"mla0": 1}: pools by the beginning of their names, and in how many shards each page is kept.
    """
    tokens = prompt("the story", length)
    cold = generate(llm, tokens)
    check(cold.cached == 0, "the first run finds nothing")
    local = generate(llm, tokens)
    restores_as_its_own_cache(llm, tokens, cold, local, "restored")
    check_objects(store, pools)
    restores_as_its_own_cache(llm, tokens, cold, local, "restored again")
    control.moves_nothing(True)
    forget(llm)
    wrong = generate(llm, tokens)
    control.moves_nothing(False)
    check(wrong.cached == local.cached, "control: the engine believes in a restore that moved nothing")
    check(difference(wrong, cold) > 0.1, "control: and it changes the answer", difference(wrong, cold))
    return tokens, cold, local


def tell_of_new_weights(llm, tokens, cold, local):
    """vLLM's word for new weights: what was stored is not found any more, and what is stored from now on is."""
    forget(llm)
    check(llm.reset_prefix_cache(reset_connector=True), "the connector's cache is reset")
    # Until its namespace is there nothing is kept; nothing in the engine waits for that.
    check(scheduler(llm).connector._store.epochs.wait(SECONDS) is not None, "the new weights have a namespace")
    answer = generate(llm, tokens)
    check(answer.cached == 0, "after new weights nothing old is found", answer.cached)
    check(answer.tokens == cold.tokens, "after new weights (the same ones, here) the answer is computed")
    restores_as_its_own_cache(llm, tokens, cold, local, "restored after new weights")


def check_objects(store, pools):
    """Counts objects by pool and shard, as the store tells them."""
    found = {}
    for (pool, shard), number in store.objects().items():
        found.setdefault(pool.rpartition("-")[0], {})[shard] = number
    check(set(found) == set(pools), "these pools have objects, and no others", sorted(found))
    for pool, shards in pools.items():
        check(set(found[pool]) == set(range(shards)), f"pool {pool} is kept in {shards} shards", found[pool])
        check(len(set(found[pool].values())) == 1, f"each shard of pool {pool} has as many objects", found[pool])
    every = {number for pool in pools if not pool.startswith("state") for number in found[pool].values()}
    check(len(every) == 1, "the pools with a block for each page have one object for each", every)


def run(model, pools, tp=1, blocks=24, extra=None, **args):
    """The whole story in one engine."""
    with Store() as store:
        llm = ve.llm(model, tp, num_gpu_blocks_override=blocks, kv_transfer_config=switch(store, **(extra or {})), **args)
        tell_of_new_weights(llm, *tell(llm, store, pools))
