# SPDX-License-Identifier: Apache-2.0
"""python -m kvonce.selftest: one process puts pages, another one gets them, through a store that store="auto" starts.

Everything happens in a folder of its own, beside whatever store this user runs. Exit status 0: every byte came back, 1: it
did not, told in one sentence, 2: usage.
"""

import argparse
import contextlib
import math
import os
import random
import subprocess
import sys
import tempfile
import time

import kvonce

LAYERS = 4
ROW_BYTES = 16 * 1024
NAMESPACE = "kvonce selftest, bytes made from the page's number"
TOLD = 3  # exit status of a part that has said itself what is wrong
TIMEOUT_MAX = 86_400.0


def page_hash(page: int) -> bytes:
    return page.to_bytes(32, "little")


def row(page: int, layer: int) -> bytes:
    return random.Random(page * LAYERS + layer).randbytes(ROW_BYTES)


def open_rank(options):
    """A runtime and its one rank with a pool of options.pages rows, and the pool's memory."""
    runtime = kvonce.Runtime("selftest", store=options.store, auto_bytes="64MiB", auto_idle=10.0)
    group = runtime.namespace(NAMESPACE).group("main", [kvonce.GroupPool("kv", shards=(1, 1, 1))])
    layers = [bytearray(options.pages * ROW_BYTES) for _ in range(LAYERS)]
    views = [memoryview(layer).cast("B", (options.pages, ROW_BYTES)) for layer in layers]
    rank = group.rank()
    pool = rank.register_pool("kv", [kvonce.Component("kv", views)], shard=0)
    return runtime, group, rank, pool, layers


def put(options) -> None:
    runtime, _, rank, pool, layers = open_rank(options)
    with runtime:
        for layer, memory in enumerate(layers):
            for page in range(options.pages):
                memory[page * ROW_BYTES : (page + 1) * ROW_BYTES] = row(page, layer)
        hashes = [page_hash(page) for page in range(options.pages)]
        result = rank.put(hashes, {pool: range(options.pages)}).result()
        if not result.ok:
            raise SystemExit(f"not stored: {result.causes()}")


def verify(page: int, at: int, layers) -> None:
    for layer, memory in enumerate(layers):
        if memory[at * ROW_BYTES : (at + 1) * ROW_BYTES] != row(page, layer):
            raise SystemExit(f"page {page}, layer {layer}: other bytes came back")


def get(options) -> None:
    runtime, group, rank, pool, layers = open_rank(options)
    with runtime:
        hashes = [page_hash(page) for page in range(options.pages)]
        found = group.lookup(hashes)
        if found.pages != options.pages:
            raise SystemExit(f"{found.pages} of {options.pages} pages were found: {found.reason}")
        backwards = range(options.pages - 1, -1, -1)
        result = rank.load(found.lease, hashes, {pool: backwards}).result()
        if not result.ok:
            raise SystemExit(f"not loaded: {result.causes()}")
        verify(0, options.pages - 1, layers)
        print(f"first verified page after {time.monotonic() - options.since:.3f} s")
        for page in range(1, options.pages):
            verify(page, backwards[page], layers)
        print(f"{options.pages} pages of {LAYERS * ROW_BYTES} bytes put by one process and got by another: every byte is right")
        runtime.release(found.lease)


def stop_store(environment) -> None:
    """It would end by itself soon; stopped, it takes its files along."""
    program = os.path.join(os.path.dirname(kvonce.__file__), "kvonce")
    if not os.path.exists(program):
        return
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run([program, "stop"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30)


def run_parts(options, environment) -> str:
    """What is wrong, where the part has not said so itself; empty: nothing."""
    since = time.monotonic()
    for part in ("put", "get"):
        command = [sys.executable, "-m", "kvonce.selftest", "--part", part, "--since", repr(since)]
        command += ["--pages", str(options.pages), "--store", options.store]
        try:
            status = subprocess.run(command, env=environment, timeout=options.timeout).returncode
        except subprocess.TimeoutExpired:
            return f"the process that should {part} has not ended within {options.timeout:g} s"
        except OSError as error:
            return f"the process that should {part} cannot be started: {error}"
        if status == TOLD:
            raise SystemExit(1)
        if status != 0:
            how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
            return f"the process that should {part} {how}"
    return ""


def run(options) -> int:
    print(f"kvonce {kvonce.version()}", flush=True)
    try:
        held = tempfile.TemporaryDirectory(prefix="kvonce-selftest-", ignore_cleanup_errors=True)
    except OSError as error:
        print(f"no folder can be made for the test: {error}: set TMPDIR", file=sys.stderr)
        return 1
    with held as folder:
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder}
        try:
            wrong = run_parts(options, environment)
        finally:
            if options.store == "auto":
                stop_store(environment)
    if wrong:
        print(wrong, file=sys.stderr)
    return 1 if wrong else 0


def run_part(options) -> int:
    try:
        {"put": put, "get": get}[options.part](options)
        return 0
    except SystemExit as ended:
        text = str(ended)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if options.store == "auto":  # the folder is ours, made where TMPDIR says
            text = text.replace("XDG_RUNTIME_DIR", "TMPDIR")
    print(f"{options.part}: {text}", file=sys.stderr)
    return TOLD


def seconds(text: str) -> float:
    number = float(text)
    if not math.isfinite(number) or not 0 < number <= TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"{text}: must be more than 0 and at most {TIMEOUT_MAX:g}")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kvonce.selftest", description=__doc__.partition(": ")[2])
    parser.add_argument("--pages", type=int, default=64, help="pages of 64 KiB, 1 to 512 (default 64)")
    parser.add_argument("--store", default="auto", help="auto (default): one that is started for this; or unix:PATH of a store that runs, which then keeps the pages until it needs their room")
    parser.add_argument("--timeout", type=seconds, default=60.0, help="seconds for each of the two processes (default 60)")
    parser.add_argument("--part", choices=("put", "get"), help=argparse.SUPPRESS)
    parser.add_argument("--since", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not 1 <= options.pages <= 512:
        parser.error(f"--pages is {options.pages}: must be 1 to 512")
    return run(options) if options.part is None else run_part(options)


if __name__ == "__main__":
    sys.exit(main())
