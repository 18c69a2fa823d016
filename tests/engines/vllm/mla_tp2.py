# SPDX-License-Identifier: Apache-2.0
"""Latent attention on two ranks: both hold the same, and it is kept once.

In 32 bits: the two ways in which MLA is computed (a prompt in one part, or in two) differ too much in 16 for equal tokens.
"""
from support import done
from support import vllm_engine as ve
from support.vllm_scenario import run

if __name__ == "__main__":
    run("mla", {"mla0": 1}, tp=2, blocks=128, dtype="float32", **ve.PREFIX_SCHEDULER)
    done()
