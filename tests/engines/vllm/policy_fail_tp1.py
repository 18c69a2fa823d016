# SPDX-License-Identifier: Apache-2.0
"""The store by default ("auto": the engine starts it), and kv_load_failure_policy by default ("fail"): said once at the start; a failed load
ends its request, and only that one. And what a connector does that cannot serve its set-up."""
import copy
import logging

from support import check, control, done
from support import vllm_engine as ve
from support.compare import prompt
from support.vllm_scenario import forget, generate, scheduler, settle, switch


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


class Auto:
    address = "auto"


def main():
    lines = Lines()
    logging.getLogger("kvonce.vllm.connector").addHandler(lines)
    config = switch(Auto, auto_bytes="64MiB")
    del config["kv_load_failure_policy"]
    llm = ve.llm("llama", num_gpu_blocks_override=24, kv_transfer_config=config)
    warnings = [line for line in lines.lines if "kv_load_failure_policy" in line and "recompute" in line]
    check(len(warnings) == 1, "one warning names the setting that is better", warnings)
    check(scheduler(llm).connector._store.link.connected, "a store was started and found")
    tokens = prompt("policy", 700)
    cold = generate(llm, tokens)
    forget(llm)
    control.store_lost(True)
    failed = ve.generate(llm, tokens)
    settle(llm)
    control.store_lost(False)
    check(failed.details["finish_reason"] == "error", "the request ends with an error", failed)
    answer = generate(llm, tokens)
    check(answer.cached == 640 and answer.tokens == cold.tokens, "the next one is restored", answer.cached)
    goes_on_without(llm, lines, tokens)


def goes_on_without(llm, lines, tokens):
    """A setting that is unknown, a hash that is random: one sentence each, and a connector that does nothing."""
    from kvonce.vllm import KvonceConnector
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

    engine = scheduler(llm)
    typo, random_hash = copy.copy(engine.vllm_config), copy.copy(engine.vllm_config)
    typo.kv_transfer_config = copy.copy(typo.kv_transfer_config)
    typo.kv_transfer_config.kv_connector_extra_config = {"stoer": "auto"}
    random_hash.cache_config = copy.copy(random_hash.cache_config)
    random_hash.cache_config.prefix_caching_hash_algo = "xxhash"
    for config, says in ((typo, "did you mean store?"), (random_hash, "xxhash")):
        lines.lines.clear()
        connector = KvonceConnector(config, KVConnectorRole.SCHEDULER, engine.kv_cache_config)
        check(len(lines.lines) == 1 and says in lines.lines[0] and "without kvonce" in lines.lines[0], "it says why", lines.lines)
        engine.connector, real = connector, engine.connector
        try:
            answer = generate(llm, tokens[:650] + prompt("something new", 50))
        finally:
            engine.connector = real
        check(len(answer.tokens) == 8, "the engine runs without it")


if __name__ == "__main__":
    main()
    done()
