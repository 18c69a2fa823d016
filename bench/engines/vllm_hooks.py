# SPDX-License-Identifier: Apache-2.0
"""Time inside kvonce's hooks per step of vLLM, in steps that load and save nothing.

    tools/engines/run vllm bench/engines/vllm_hooks.py [--requests 8] [--tokens 96] [--repeat 5] [--json]

One engine process (scheduler and rank in it) decodes a batch; every hook of the connector is timed, and every step. The model is tiny, so a
step is short: with a real one the share is smaller. Prints the medians over the repetitions.
"""
import argparse
import statistics
import time

from support import vllm_engine as ve
from support.compare import prompt
from support.shares import tell
from support.store import Store
from support.vllm_scenario import scheduler, settle, switch

HOOKS = (
    "on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta", "update_connector_output",
    "request_finished_all_groups", "take_events", "has_pending_push_work", "has_pending_block_frees", "handle_preemptions",
    "bind_connector_metadata", "clear_connector_metadata", "start_load_kv", "wait_for_layer_load", "save_kv_layer", "wait_for_save",
    "get_transfer_results", "get_block_ids_with_load_errors", "get_kv_connector_stats", "get_kv_connector_kv_cache_events",
    "build_connector_worker_meta", "finish_forward")


class Clock:
    """Seconds in hooks since the last step began, and whether the step moved anything."""

    def __init__(self, connectors):
        self.seconds, self.calls, self.moved = 0.0, 0, False
        for connector in connectors:
            for name in HOOKS:
                self._wrap(connector, name)

    def _wrap(self, connector, name):
        call = getattr(connector, name)

        def timed(*args, **kwargs):
            began = time.perf_counter()
            try:
                answer = call(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began
                self.calls += 1
            if name == "build_connector_meta":
                self.moved |= bool(answer.step.loads or answer.step.saves)
            return answer

        setattr(connector, name, timed)


def measure(llm, clock, requests, tokens, seed):
    """-> (median step, median seconds in hooks, calls) of the decode steps that moved nothing."""
    core = llm.llm_engine
    steps = []
    step = core.step

    def timed_step(*args, **kwargs):
        clock.seconds, clock.calls, clock.moved = 0.0, 0, False
        began = time.perf_counter()
        answer = step(*args, **kwargs)
        steps.append((time.perf_counter() - began, clock.seconds, clock.calls, clock.moved))
        return answer

    core.step = timed_step
    try:
        ve.generate(llm, [prompt(f"hooks {seed} {n}", 100) for n in range(requests)], new_tokens=tokens)
    finally:
        core.step = step
    settle(llm)
    idle = [one for one in steps[2:-2] if not one[3]]
    return tuple(statistics.median(one[at] for one in idle) for at in range(3)) + (len(idle),)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=8, help="requests that decode together")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of each")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    with Store() as store:
        llm = ve.llm("llama", kv_transfer_config=switch(store))
        clock = Clock([scheduler(llm).connector, get_kv_transfer_group()])
        runs = [measure(llm, clock, arguments.requests, arguments.tokens, n) for n in range(arguments.repeat)]
    tell(runs, arguments.json, requests=arguments.requests)


if __name__ == "__main__":
    main()
