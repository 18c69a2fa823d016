# SPDX-License-Identifier: Apache-2.0
"""Llama, one KV head on two ranks: both hold the same, and it is kept once."""
from support import done
from support.vllm_scenario import run

if __name__ == "__main__":
    run("llama_mqa", {"full0": 1}, tp=2)
    done()
