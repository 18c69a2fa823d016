# SPDX-License-Identifier: Apache-2.0
"""Gated delta net and attention: state from the boundaries of prefixes."""
from support import done
from support.vllm_scenario import run

if __name__ == "__main__":
    run("qwen3_5", {"state0": 1, "state1": 1, "state2": 1, "full3": 1}, blocks=32, dtype="bfloat16")
    done()
