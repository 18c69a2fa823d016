# SPDX-License-Identifier: Apache-2.0
# Time limit: 480 s
"""An engine of two ranks is killed -9 while it loads: the store keeps nothing of its leases and claims, and the next engine restores."""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from support import check, control, done
from support import vllm_engine as ve
from support.compare import Answer, difference, prompt
from support.store import Store
from support.vllm_scenario import SECONDS, forget, generate, switch


def engine(address):
    """In a process of its own: stores, tells its answer, and hangs in a load."""
    store = type("Store", (), {"address": address})
    llm = ve.llm("llama", 2, dtype="bfloat16", num_gpu_blocks_override=24, kv_transfer_config=switch(store))
    tokens = prompt("killed", 700)
    answer = generate(llm, tokens)
    Path("answer").write_text(json.dumps([answer.tokens, answer.logprobs]))
    forget(llm)
    control.hold_loads(True)
    generate(llm, tokens)


def until(condition, what, seconds=SECONDS):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


def main():
    with Store() as store:
        first = subprocess.Popen([sys.executable, __file__, store.address], start_new_session=True)
        until(lambda: len(control.loads()) >= 2 or first.poll() is not None, "the first engine does not load", 3 * SECONDS)
        told = store.stat()
        check(told["leases"] > 0, "the engine holds a lease while it loads", told["leases"])
        os.killpg(first.pid, signal.SIGKILL)
        first.wait(SECONDS)
        # Its ranks are in the same group of processes; the store sees the end of each.
        until(lambda: not store.stat()["clients"], "the store still has clients")
        until(lambda: store.stat()["leases"] == 0 and store.stat()["claims"] == 0, "leases or claims of a dead engine stay")
        control.hold_loads(False)
        tokens, logprobs = json.loads(Path("answer").read_text())
        cold = Answer(tokens, logprobs)
        llm = ve.llm("llama", 2, dtype="bfloat16", num_gpu_blocks_override=24, kv_transfer_config=switch(store))
        answer = generate(llm, prompt("killed", 700))
        check(answer.cached == 640, "the next engine restores what the dead one stored", answer.cached)
        check(difference(answer, cold) == 0.0, "with the answer of the dead one, bit for bit")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        engine(sys.argv[1])
    else:
        main()
        done()
