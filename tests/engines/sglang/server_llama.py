# SPDX-License-Identifier: Apache-2.0
# Time limit: 300 s
"""SGLang's HTTP server, by switches alone: a prompt that it computed and then forgot comes back from the store."""
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from _scenarios import PAGE, Hits, linker
from support import check, done, models
from support import sglang_engine as se
from support.compare import prompt
from support.store import Store

START_SECONDS = 200


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def switches(arguments):
    """An engine's arguments as the command line has them."""
    words = []
    for name, value in arguments.items():
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(json.dumps(value) if isinstance(value, dict) else str(value))
    return words


class Server:
    def __init__(self, **arguments):
        self._at = f"http://127.0.0.1:{(port := free_port())}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sglang.launch_server", "--model-path", models.path("llama", engine="sglang"), "--host", "127.0.0.1",
             "--port", str(port), *switches({**se.ARGS, **arguments})], start_new_session=True)

    def __enter__(self):
        deadline = time.monotonic() + START_SECONDS
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with status {self._process.returncode}")
            try:
                self.ask("/health")
                return self
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)

    def ask(self, path, data=None, method=None):
        body = json.dumps(data).encode() if data is not None else None
        asked = urllib.request.Request(f"{self._at}{path}", body, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return answer.read().decode()

    def generate(self, tokens, new_tokens=8):
        """-> (tokens, log probabilities, tokens of the prompt that were not computed)"""
        sampling = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
        answer = json.loads(self.ask("/generate", {"input_ids": tokens, "sampling_params": sampling, "return_logprob": True}))
        told = answer["meta_info"]
        return answer["output_ids"], [entry[0] for entry in told["output_token_logprobs"]], told["cached_tokens"]

    def flush(self):
        """Refused while something of a request is under way."""
        deadline = time.monotonic() + 30
        while True:
            try:
                return self.ask("/flush_cache", method="POST")
            except urllib.error.HTTPError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def forget(self):
        """Its cache is empty, and the slots hold other prompts."""
        self.flush()
        for n in range(5):
            self.generate(prompt(f"others {n}", 480), new_tokens=1)
        self.flush()


def main():
    tokens = prompt("over HTTP", 200)
    with Store() as store, Server(page_size=PAGE, **linker(store)) as server:
        hits = Hits(store, "over HTTP")
        cold = server.generate(tokens)
        check(cold[2] == 0, "the first request is computed", cold)
        local = server.generate(tokens)
        server.forget()
        hits.begin()
        restored = server.generate(tokens)
        check(restored[2] == local[2] > 0, "as much is restored as the server's own cache had", restored[2], local[2])
        hits.end(restored[2], ranks=1)
        check(restored[0] == cold[0], "with the tokens that were computed", restored[0])
        check(restored[1] == local[1], "and the log probabilities of a local prefix hit, to the last bit", restored[1])
    done()


if __name__ == "__main__":
    main()
