# SPDX-License-Identifier: Apache-2.0
# Time limit: 480 s
"""The OpenAI server with trained weights, by switches alone: what one server stored, a second one restores."""
import json
import os
import sys
import time

from support import check, done, models
from support.server import HttpServer
from support.store import Store
from support.vllm_scenario import switch

START_SECONDS = 240
TEXT = " ".join(
    f"Fact {n}: the {thing} of {place} is known for its {colour} colour." for n, (thing, place, colour) in enumerate(
        (thing, place, colour) for thing in ("river", "tower", "garden") for place in ("Lyon", "Kyoto", "Quito", "Oslo")
        for colour in ("green", "amber"))) + " The capital of France is"


class Server(HttpServer):
    def __init__(self, store):
        # Front end, scheduler and worker in processes of their own, as everywhere.
        super().__init__(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", models.path("smollm2", engine="vllm"), "--served-model-name", "small",
             "--enforce-eager", "--max-model-len", "1024", "--kv-transfer-config", json.dumps(switch(store))],
            START_SECONDS, environment={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"})

    def complete(self):
        """-> (text, log probabilities)"""
        asked = {"model": "small", "prompt": TEXT, "max_tokens": 8, "temperature": 0, "logprobs": 1}
        choice = json.loads(self.ask("/v1/completions", asked))["choices"][0]
        return choice["text"], choice["logprobs"]["token_logprobs"]

    def metric(self, name):
        """Sum of a counter over its labels."""
        lines = [line for line in self.ask("/metrics").splitlines() if line.startswith(name) and not line.startswith("#")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def main():
    with Store() as store:
        with Server(store) as server:
            first = server.complete()
            check("Paris" in first[0], "the model knows the capital", first[0])
            local = server.complete()
            stored = lambda: store.stat()["objects"]  # noqa: E731
            deadline = time.monotonic() + 60
            while server.metric("vllm:kvonce_stored_pages_total") == 0 and time.monotonic() < deadline:
                server.complete()
            check(stored() > 0, "pages are stored", stored())
            check(server.metric("vllm:external_prefix_cache_hits_total") == 0, "nothing was there before")
        with Server(store) as server:
            restored = server.complete()
            hits = server.metric("vllm:external_prefix_cache_hits_total")
            check(hits > 0, "the second server restores", hits)
            check(server.metric("vllm:kvonce_hit_tokens_total") == hits, "kvonce's own counter says the same")
            check(restored[0] == first[0], "with the same text", restored[0])
            check(restored[1] == local[1], "and the log probabilities of a local prefix hit, to the last digit", restored[1])


if __name__ == "__main__":
    main()
    done()
