# SPDX-License-Identifier: Apache-2.0
"""A store of one test's own: a kvonced on a private socket.

    with Store(memory="256MiB") as store:
        ... store.address ...          "unix:PATH", ready
        store.kill(); store.start()    kill -9, and again on the same address
        store.objects()                {(pool, shard): objects}, counted by the store
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support import control

_SECONDS = 30


def _package():
    """Where kvonce and its programs are, without importing it."""
    import importlib.util
    return Path(importlib.util.find_spec("kvonce").submodule_search_locations[0])


class Store:
    def __init__(self, memory="256MiB", arena_file=None, args=()):
        """memory: of the store; arena_file: keeps its pages over restarts; args: more of kvonced's flags."""
        self._folder = tempfile.TemporaryDirectory(prefix="store-")
        self.address = f"unix:{self._folder.name}/s"
        self._command = [_package() / "kvonced", "--socket", f"{self._folder.name}/s", "--memory", memory, *args]
        if arena_file:
            self._command += ["--arena-file", arena_file]
        self._log = Path(self._folder.name, "log")
        self._process = None

    @property
    def pid(self):
        return self._process.pid

    def start(self, memory=None):
        """Returns when it is ready. memory: from now on so much. RuntimeError with its log when it does not come."""
        if memory:
            self._command[self._command.index("--memory") + 1] = memory
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        # It says one line when it is ready, and ends its output when it is not going to be.
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"kvonced did not start: {self._log.read_text()}")
        return self

    def kill(self):
        """kill -9, as a machine out of memory would."""
        self._process.kill()
        self._process.wait(_SECONDS)

    def stop(self):
        """In order; the snapshot is written where there is an arena file."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_SECONDS)

    def pause(self):
        """It is there, and does not answer."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self):
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if self._process and self._process.poll() is None:
            self.kill()
        print(f"kvonced: {self._log.read_text()}" if self._log.stat().st_size else "kvonced said nothing", flush=True)
        self._folder.cleanup()

    def _ask(self, *words):
        asked = subprocess.run([_package() / "kvonce", *words, "--store", self.address, "--json"], capture_output=True, text=True, timeout=_SECONDS)
        if asked.returncode not in (0, 1):
            raise RuntimeError(f"kvonce {words}: {asked.stderr}")
        return json.loads(asked.stdout) if asked.stdout.strip() else {}

    def stat(self):
        """What `kvonce stat --json` tells."""
        return self._ask("stat")

    def clear(self):
        """Removes everything. -> number of objects removed"""
        return self._ask("clear", "--yes")["removed_objects"]

    def settle(self):
        """Waits until all that was announced is stored or given up."""
        deadline = time.monotonic() + _SECONDS
        while self.stat()["claims"] > 0:
            if time.monotonic() > deadline:
                raise TimeoutError("pages are still being written")
            time.sleep(0.05)

    def objects(self, namespace=None):
        """{(pool, flat shard): number of objects} of all pages that any rank was asked to put, as the store has them now; of one
        namespace, or of all."""
        return _count(self._details(namespace), lambda found: 1)

    def payload_bytes(self, namespace=None):
        """The same, with the bytes of the objects added up."""
        return _count(self._details(namespace), lambda found: found["bytes"])

    def pages(self, namespace=None):
        """{page (64 hexadecimal digits): [(pool, shard)]} of what it has now."""
        return {page: sorted((one["pool"], one["shard"]) for one in found) for page, found in self._details(namespace).items()}

    def remove(self, page, namespace=None):
        """Removes a page with all its objects."""
        for text in [namespace] if namespace is not None else control.namespaces():
            self._ask("rm", page, "--namespace", text)

    def _details(self, namespace):
        self.settle()
        question = {"store": self.address, "namespaces": [namespace] if namespace is not None else control.namespaces(),
                    "pages": sorted({page for call in control.puts() for page in call.pages})}
        # By a process of its own: what the engine's processes have of kvonce stays as it is.
        answer = subprocess.run([sys.executable, __file__], input=json.dumps(question), capture_output=True, text=True, timeout=2 * _SECONDS,
                                env={name: value for name, value in os.environ.items() if name != "KVONCE_TEST_CONTROL"})
        if answer.returncode != 0:
            raise RuntimeError(answer.stderr)
        return json.loads(answer.stdout)


def _count(details, worth):
    counts = {}
    for found in details.values():
        for one in found:
            key = one["pool"], one["shard"]
            counts[key] = counts.get(key, 0) + worth(one)
    return dict(sorted(counts.items()))


def _answer_details():
    import kvonce
    question = json.load(sys.stdin)
    details = {}
    with kvonce.Runtime("test-details", store=question["store"]) as runtime:
        for text in question["namespaces"]:
            namespace = runtime.find_namespace(text)
            for page in question["pages"] if namespace else ():
                stat = namespace.stat(page)
                # A page whose objects were removed may still have its place in a prefix.
                if stat is not None and stat.objects:
                    details.setdefault(page, []).extend(stat.objects)
    json.dump(details, sys.stdout)


if __name__ == "__main__":
    _answer_details()
