# SPDX-License-Identifier: Apache-2.0
"""SGLang's HTTP server with a small model, in processes of its own, and what tests ask it."""
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from support import models
from support import sglang_engine as se
from support.compare import Answer, prompt

START_SECONDS = 200
KEY = "of-the-test"  # for what only an administrator may ask


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
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        asked = urllib.request.Request(f"{self._at}{path}", body, headers, method=method)
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return answer.read().decode()

    def generate(self, tokens, new_tokens=8):
        sampling = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
        answer = json.loads(self.ask("/generate", {"input_ids": tokens, "sampling_params": sampling, "return_logprob": True}))
        told = answer["meta_info"]
        return Answer(answer["output_ids"], [entry[0] for entry in told["output_token_logprobs"]], told["cached_tokens"],
                      told.get("cached_tokens_details") or {})

    def ask_until_idle(self, path, data=None, method="POST"):
        """Refused while something of a request is under way; that is so a moment after an answer."""
        deadline = time.monotonic() + 30
        while True:
            try:
                return self.ask(path, data, method)
            except urllib.error.HTTPError as refused:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{method} {path}: {refused.read().decode()}") from refused
                time.sleep(0.1)

    def flush(self):
        self.ask_until_idle("/flush_cache")

    def forget(self, seed="others"):
        """Its cache is empty, and the slots hold other prompts."""
        self.flush()
        for n in range(5):
            self.generate(prompt(f"{seed} {n}", 480), new_tokens=1)
        self.flush()
