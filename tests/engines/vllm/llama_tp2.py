# SPDX-License-Identifier: Apache-2.0
"""Llama, two KV heads on two ranks: a shard for each."""
from support import done
from support.vllm_scenario import run

if __name__ == "__main__":
    run("llama", {"full0": 2}, tp=2)
    done()
