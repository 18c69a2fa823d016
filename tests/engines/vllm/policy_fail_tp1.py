# SPDX-License-Identifier: Apache-2.0
"""kv_load_failure_policy "fail": said once at the start; a failed load ends its request, and only that one."""
import logging

from support import check, control, done
from support import vllm_engine as ve
from support.compare import prompt
from support.store import Store
from support.vllm_scenario import forget, generate, settle, switch


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def main():
    lines = Lines()
    logging.getLogger("kvonce.vllm.connector").addHandler(lines)
    with Store() as store:
        llm = ve.llm("llama", num_gpu_blocks_override=24, kv_transfer_config=switch(store, policy="fail"))
        warnings = [line for line in lines.lines if "kv_load_failure_policy" in line and "recompute" in line]
        check(len(warnings) == 1, "one warning names the setting that is better", warnings)
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


if __name__ == "__main__":
    main()
    done()
