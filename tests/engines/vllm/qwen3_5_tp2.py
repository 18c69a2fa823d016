# SPDX-License-Identifier: Apache-2.0
"""Gated delta net and attention on two ranks: state and heads in a shard for each."""
from support import done
from support.vllm_scenario import run

if __name__ == "__main__":
    run("qwen3_5", {"state0": 2, "state1": 2, "state2": 2, "full3": 2}, blocks=32, tp=2, dtype="bfloat16")
    done()
