# SPDX-License-Identifier: Apache-2.0
"""Llama, two KV heads, one rank."""
from support import done
from support.vllm_scenario import run

if __name__ == "__main__":
    run("llama", {"full0": 1})
    done()
