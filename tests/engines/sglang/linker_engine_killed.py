# SPDX-License-Identifier: Apache-2.0
# Time limit: 480 s
"""An engine of two ranks is killed -9 while it stores and restores: what it held in the store is let go, and the next engine restores."""
import json
import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path

from _scenarios import PAGE, apart, linker
from support import check, done
from support import sglang_engine as se
from support.compare import prompt
from support.store import Store

SECONDS = 120


class _Address:
    def __init__(self, address):
        self.address = address


def doomed(address, answer_file):
    """Stores a prompt, says so, and goes on storing and restoring until it is killed."""
    engine = se.engine("mla", tp=2, page_size=PAGE, **linker(_Address(address)))
    tokens = prompt("killed", 200)
    answer = se.generate(engine, tokens)
    se.flush(engine)
    Path(answer_file + ".part").write_text(json.dumps([answer.tokens, answer.logprobs]))
    os.replace(answer_file + ".part", answer_file)
    n = 0
    while True:
        se.generate(engine, prompt(f"more {n}", 200), new_tokens=2)
        se.flush(engine)
        se.generate(engine, prompt(f"more {n}", 200), new_tokens=2)
        n += 1


def next_engine(address, answer_file):
    tokens, logprobs = json.loads(Path(answer_file).read_text())
    engine = se.engine("mla", tp=2, page_size=PAGE, **linker(_Address(address)))
    restored = se.generate(engine, prompt("killed", 200))
    check(restored.cached >= 192, "the next engine restores what the killed one has stored", restored.cached)
    check(restored.tokens == tokens, "with the same tokens", restored.tokens)
    engine.shutdown()


def descendants(pid):
    """This process and all that came of it."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def main():
    with Store() as store, tempfile.TemporaryDirectory() as folder:
        answer_file = f"{folder}/answer.json"
        process = multiprocessing.get_context("spawn").Process(target=doomed, args=(store.address, answer_file))
        process.start()
        deadline = time.monotonic() + SECONDS
        while not Path(answer_file).exists():
            check_alive = process.is_alive() and time.monotonic() < deadline
            if not check_alive:
                check(False, "the engine that is to be killed comes up")
            time.sleep(0.1)
        victims = descendants(process.pid)
        for victim in victims:
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.join(30)
        check(len(victims) > 2, "an engine of several processes was killed", len(victims))
        deadline = time.monotonic() + 60
        while True:
            stat = store.stat()
            if not (stat["leases"] or stat["claims"]):
                break
            if time.monotonic() > deadline:
                check(False, "its leases and claims are let go", stat)
            time.sleep(0.2)
        check(True, "its leases and claims are let go")
        apart(next_engine, store.address, answer_file)
    done()


if __name__ == "__main__":
    main()
