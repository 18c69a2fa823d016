# SPDX-License-Identifier: Apache-2.0
"""Latent attention, one rank."""
from support import done
from support import vllm_engine as ve
from support.vllm_scenario import run

if __name__ == "__main__":
    run("mla", {"mla0": 1}, blocks=128, **ve.PREFIX_SCHEDULER)
    done()
