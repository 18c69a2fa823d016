# SPDX-License-Identifier: Apache-2.0
"""Sliding windows beside full attention."""
from support import done
from support.vllm_scenario import run

if __name__ == "__main__":
    run("gemma3", {"window0": 1, "window1": 1, "window2": 1, "full3": 1}, blocks=48, dtype="bfloat16")
    done()
