# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share. Only the standard library is needed; numpy and torch are used where they are."""

import contextlib
import glob
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

import kvonce

# Long enough for a slow and busy machine; nothing is expected to take it.
DEADLINE = 120.0
ROW_BYTES = 4096
NAMESPACE = "tests of the Python package"


def optional(name):
    """The module, or None where it is not installed."""
    try:
        return __import__(name)
    except ImportError:
        return None


def page(number):
    return number.to_bytes(32, "little")


def pages(count, first=0):
    return [page(first + i) for i in range(count)]


def rows_of(count, row_bytes=ROW_BYTES):
    """Memory of one layer and a two-dimensional view of it."""
    memory = bytearray(count * row_bytes)
    return memory, memoryview(memory).cast("B", (count, row_bytes))


class Setup:
    """A runtime with one group, one rank and one pool of `layers` layers."""

    def __init__(self, store="embedded", rows=64, layers=2, engine="engine", unit=1, **options):
        if store == "embedded":
            options.setdefault("arena_bytes", "64MiB")
        self.runtime = kvonce.Runtime(engine, store=store, **options)
        self.namespace = self.runtime.namespace(NAMESPACE)
        self.group = self.namespace.group("main", [kvonce.GroupPool("kv", shards=(1, 1, 1))])
        self.rank = self.group.rank()
        self.memory, views = zip(*(rows_of(rows) for _ in range(layers)))
        self.pool = self.rank.register_pool("kv", [kvonce.Component("kv", views)], shard=0, unit=unit)

    def fill(self, row, text):
        for layer, memory in enumerate(self.memory):
            memory[row * ROW_BYTES : (row + 1) * ROW_BYTES] = (f"{text} {layer} ".encode() * ROW_BYTES)[:ROW_BYTES]

    def bytes_of(self, row):
        return [bytes(memory[row * ROW_BYTES : (row + 1) * ROW_BYTES]) for memory in self.memory]

    def put(self, count, first=0, **options):
        return self.rank.put(pages(count, first), {self.pool: range(count)}, **options)

    def waiting_put(self, **options):
        """A put that waits for an event, and the event."""
        event = kvonce.Event()
        return self.put(4, after=event, **options), event

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.runtime.close()


@contextlib.contextmanager
def own_store(memory="64MiB"):
    """A kvonced of its own: (process, "unix:PATH")."""
    with tempfile.TemporaryDirectory(prefix="kvonce-test-") as folder:
        program = os.environ.get("KVONCE_KVONCED") or os.path.join(os.path.dirname(kvonce.__file__), "kvonced")
        path = os.path.join(folder, "store.sock")
        read_end, write_end = os.pipe()
        command = [program, "--socket", path, "--memory", memory, "--populate", "no", "--ready-fd", str(write_end)]
        with open(os.path.join(folder, "log"), "wb") as log:
            process = subprocess.Popen(command, pass_fds=[write_end], stdout=log, stderr=log)
        os.close(write_end)
        try:
            with os.fdopen(read_end, "rb") as ready:
                line = ready.readline()
            if not line.startswith(b"ready"):
                with open(os.path.join(folder, "log"), encoding="utf-8", errors="replace") as log:
                    raise RuntimeError(f"kvonced is not ready: {log.read()}")
            yield process, "unix:" + path
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(DEADLINE)


def freeze(pid):
    """Stops the process; back when each of its threads has stopped."""
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until:
        states = []
        for path in glob.glob(f"/proc/{pid}/task/*/stat"):
            with open(path, encoding="utf-8", errors="replace") as file:
                states.append(file.read().rpartition(")")[2].split()[0])
        if set(states) == {"T"}:
            return
        time.sleep(0.001)
    raise TimeoutError(f"process {pid} does not stop")


def script(text):
    """A Python program for another process: this file's folder is on its path."""
    return [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(text)]


def environment(**more):
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **more}


class Case(unittest.TestCase):
    maxDiff = 2000

    def run_script(self, text, *arguments, **more):
        """Runs the program to its end; its output. Fails when it fails, or does not end."""
        ended = subprocess.run(script(text) + list(arguments), env=environment(**more), timeout=DEADLINE, capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        # A store that is lost is told once.
        self.assertEqual([line for line in ended.stderr.splitlines() if "[kvonce] [warning]" not in line], [])
        return ended.stdout
