# SPDX-License-Identifier: Apache-2.0
# Time limit: 480 s
"""Llama on two ranks with a store that dies, fails and is too small: the engine lives, and all answers are right."""
import threading
import time

from support import check, control, done
from support import vllm_engine as ve
from support.compare import difference, prompt
from support.store import Store
from support.vllm_scenario import SECONDS, counted, counters, forget, generate, restores_as_its_own_cache, scheduler, switch


def until(condition, what):
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


def connected(llm):
    return scheduler(llm).connector._store.link.connected


def again(llm, store, **how):
    """The store comes back empty, and the engine finds it."""
    store.start(**how)
    until(lambda: connected(llm), "the engine does not find the store again")


def stored(llm, tokens, cold):
    """Both ranks must have found the store again as well: pages are offered until all have stored them."""

    def kept():
        forget(llm)
        generate(llm, tokens)  # computed, and stored
        forget(llm)
        return generate(llm, tokens).cached > 0

    until(kept, "nothing is stored any more")


def right(llm, tokens, cold, what):
    answer = generate(llm, tokens)
    check(answer.tokens == cold.tokens and answer.details["finish_reason"] == "length", f"{what}: the answer is right", answer)
    return answer


def killed_between(llm, store, tokens, cold):
    store.kill()
    forget(llm)
    check(right(llm, tokens, cold, "store killed before the restore").cached == 0, "nothing was restored from a dead store")


def killed_within(llm, store, tokens, cold):
    forget(llm)
    before = len(control.loads())
    control.hold_loads(True)

    def kill():
        until(lambda: len(control.loads()) >= before + 2, "the ranks do not load")  # one pool on each of two ranks
        store.kill()
        control.hold_loads(False)

    killer = threading.Thread(target=kill)
    killer.start()
    right(llm, tokens, cold, "store killed within the restore")
    killer.join()
    check(len(control.loads()) == before + 2, "both ranks were loading")
    forget(llm)
    right(llm, tokens, cold, "without a store")


def load_fails(llm, tokens, cold):
    forget(llm)
    before = counted(llm, "hit_tokens")
    control.store_lost(True)
    answer = right(llm, tokens, cold, "load fails on both ranks")
    control.store_lost(False)
    check(counted(llm, "hit_tokens") > before, "the pages were there, and then were not")
    check(difference(answer, cold) == 0.0, "what is recomputed is the cold run bit for bit")


def load_fails_on_one_rank(llm, tokens, cold):
    forget(llm)
    pids = sorted({call.pid for call in control.loads()})
    check(len(pids) == 2, "two ranks have loaded", pids)
    before = len(control.loads())
    control.store_lost(True, pids[1])
    answer = right(llm, tokens, cold, "load fails on one rank of two")
    control.store_lost(False, pids[1])
    check({call.pid for call in control.loads()[before:]} <= set(pids) and len(control.loads()) == before + 2, "both ranks were asked")
    check(difference(answer, cold) == 0.0, "both compute what one could not load, bit for bit")


def too_small(llm, store, tokens, cold):
    """A store that holds a fraction of what is offered."""
    prompts = [prompt(f"too much {n}", 800) for n in range(12)]
    first = [generate(llm, one) for one in prompts]
    told = store.stat()
    check(told["since_start"]["evicted_objects"] > 0, "the store had to evict", told["since_start"])
    forget(llm)
    for one, answer in zip(prompts, first, strict=True):
        right(llm, one, answer, "store too small")
    right(llm, tokens, cold, "store too small")


def main():
    with Store() as store:
        llm = ve.llm("llama", 2, num_gpu_blocks_override=24, kv_transfer_config=switch(store))
        tokens = prompt("faults", 700)
        cold = generate(llm, tokens)
        local = generate(llm, tokens)
        restores_as_its_own_cache(llm, tokens, cold, local, "before the faults")
        load_fails(llm, tokens, cold)
        restores_as_its_own_cache(llm, tokens, cold, local, "after a failed load")
        load_fails_on_one_rank(llm, tokens, cold)
        restores_as_its_own_cache(llm, tokens, cold, local, "after a load that failed on one rank")
        killed_between(llm, store, tokens, cold)
        again(llm, store)
        stored(llm, tokens, cold)
        restores_as_its_own_cache(llm, tokens, cold, local, "with a new store")
        killed_within(llm, store, tokens, cold)
        again(llm, store, memory="4MiB")
        too_small(llm, store, tokens, cold)
        check(counters(llm).get(("stores_lost", ""), 0) == 2, "each loss is counted")


if __name__ == "__main__":
    main()
    done()
