# SPDX-License-Identifier: Apache-2.0
"""SGLang's HTTP server with a small model, in processes of its own, and what tests ask it."""
import json
import sys
import time
import urllib.error

from support import models
from support import sglang_engine as se
from support.compare import Answer, prompt
from support.server import HttpServer

START_SECONDS = 200
KEY = "of-the-test"  # for what only an administrator may ask


def switches(arguments):
    """An engine's arguments as the command line has them."""
    words = []
    for name, value in arguments.items():
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(json.dumps(value) if isinstance(value, dict) else str(value))
    return words


class Server(HttpServer):
    def __init__(self, **arguments):
        super().__init__(
            [sys.executable, "-m", "sglang.launch_server", "--model-path", models.path("llama", engine="sglang"),
             *switches({**se.ARGS, **arguments})], START_SECONDS, headers={"Authorization": f"Bearer {KEY}"})

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
