# SPDX-License-Identifier: Apache-2.0
"""Time inside the linker's hooks per step of SGLang's scheduler, in decode steps that load and save nothing.

    tools/engines/run sglang bench/engines/sglang_hooks.py [--requests 4] [--tokens 96] [--repeat 5] [--tp 1] [--json]

The scheduler of rank 0 times every call of the linker, and every turn of its loop that decodes. The model is tiny, so a step is short: with a
real one the share is smaller. Prints the medians over the repetitions.
"""
import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from kvonce.sglang.linker import Linker

HOOKS = (
    "lookup", "load", "start_layer_wise_loading", "finish_layer_wise_loading", "cancel_queued_load", "offload", "num_completed_offloads",
    "pop_completed_offload", "num_completed_loads", "pop_completed_load")
MOVES = {"lookup", "load", "offload", "pop_completed_offload", "pop_completed_load"}
FILE = "KVONCE_BENCH_STEPS"


class Turns:
    """In a scheduler's process: what each turn of its loop took, in all and inside the hooks. Written to $KVONCE_BENCH_STEPS by reset()."""

    def __init__(self):
        from sglang.srt.managers.scheduler import Scheduler
        self.done, self.began = [], None
        self.seconds, self.calls, self.moved, self.decoded = 0.0, 0, False, False
        ingest, run = Scheduler.ingest_requests, Scheduler.run_batch

        def timed_ingest(scheduler, *args, **kwargs):
            now = time.perf_counter()
            if self.decoded and not self.moved:
                self.done.append((now - self.began, self.seconds, self.calls))
            self.seconds, self.calls, self.moved, self.decoded = 0.0, 0, False, False
            self.began = now
            return ingest(scheduler, *args, **kwargs)

        def seen_run(scheduler, batch, *args, **kwargs):
            self.decoded = batch.forward_mode.is_decode()
            return run(scheduler, batch, *args, **kwargs)

        Scheduler.ingest_requests, Scheduler.run_batch = timed_ingest, seen_run

    def write(self):
        done, self.done = self.done, []
        path = Path(os.environ[FILE])
        path.with_suffix(".new").write_text(json.dumps(done))
        path.with_suffix(".new").rename(path)


class TimedLinker(Linker):
    turns = None  # of the process, on rank 0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        import torch.distributed
        if torch.distributed.is_initialized() and torch.distributed.get_rank() != 0:
            return
        TimedLinker.turns = TimedLinker.turns or Turns()
        for name in HOOKS:
            setattr(self, name, self._timed(name, getattr(self, name)))

    def _timed(self, name, call):
        turns = self.turns

        def timed(*args, **kwargs):
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                turns.seconds += time.perf_counter() - began
                turns.calls += 1
                turns.moved |= name in MOVES

        return timed

    def reset(self):
        if self.turns is not None:
            self.turns.write()
        super().reset()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=4, help="requests that decode together")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of each")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    from support import sglang_engine as se
    from support.compare import prompt
    from support.shares import tell
    from support.store import Store

    with tempfile.TemporaryDirectory() as folder, Store() as store:
        steps = Path(os.environ.setdefault(FILE, f"{folder}/steps.json"))
        engine = se.engine(
            "llama", tp=arguments.tp, page_size=16, enable_unified_cache_external_linker=True, unified_cache_external_linker_backend="dynamic",
            unified_cache_external_linker_config={
                "linker": "TimedLinker", "linker_module_path": "sglang_hooks", "linker_extra_config": {"store": store.address}})
        runs = []
        for n in range(arguments.repeat + 1):
            se.generate(engine, [prompt(f"hooks {n} {k}", 100) for k in range(arguments.requests)], new_tokens=arguments.tokens)
            se.flush(engine)
            turns = json.loads(steps.read_text())
            if n:  # the first has what is done once
                runs.append([statistics.median(turn[at] for turn in turns) for at in range(3)] + [len(turns)])
        engine.shutdown()
    tell(runs, arguments.json, requests=arguments.requests, tp=arguments.tp)


if __name__ == "__main__":
    main()
