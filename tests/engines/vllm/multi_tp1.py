# SPDX-License-Identifier: Apache-2.0
"""As one of two connectors of vLLM's MultiConnector, with statistics, Prometheus and KV events on."""
from support import check, done
from support import vllm_engine as ve
from support.compare import difference, prompt
from support.store import Store
from support.vllm_scenario import forget, generate, scheduler, switch


class Recorder:
    """Stands for the publisher of KV events; the null publisher is the engine's own."""

    def __init__(self):
        self.events = []

    def publish(self, batch):
        self.events += batch.events

    def shutdown(self):
        pass


def both(store):
    mine = switch(store)
    other = switch(store, namespace="another deployment")
    return {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"connectors": [mine, other]}}


def main():
    from vllm.config import KVEventsConfig

    with Store() as store:
        events = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        llm = ve.llm("llama", dtype="bfloat16", num_gpu_blocks_override=24, disable_log_stats=False, kv_events_config=events, kv_transfer_config=both(store))
        recorder = scheduler(llm).kv_event_publisher = Recorder()
        tokens = prompt("two connectors", 700)
        cold = generate(llm, tokens)
        stored = [event for event in recorder.events if type(event).__name__ == "BlockStored" and event.medium == "CPU"]
        pages = [page for event in stored for page in event.block_hashes]
        check(len(pages) == 2 * 5 and len(set(pages)) == 5, "each connector tells of five stored pages", len(pages))
        check([token for event in stored[:1] for token in event.token_ids] == tokens[:640], "with their tokens")
        forget(llm)
        answer = generate(llm, tokens)
        check(answer.cached == 640, "the first of the two restores", answer.cached)
        check(difference(answer, cold) == 0.0, "bit for bit")
        first, second = scheduler(llm).connector.sub_connectors
        hits = [sum(n for (name, _), n in one._store.counters.snapshot().items() if name == "hit_tokens") for one in (first, second)]
        check(hits == [640, 640], "both found it, each in a namespace of its own", hits)
        check(store.stat()["leases"] == 0, "and the one that was not chosen has given its lease back", store.stat()["leases"])
        found = {metric.name: metric for metric in llm.get_metrics()}
        names = [name for name in found if name.startswith("vllm:kvonce_")]
        check("vllm:kvonce_hit_tokens" in names, "vLLM's metrics have kvonce's", names)
        recorder.events.clear()
        check(llm.reset_prefix_cache(reset_connector=True), "the connectors are reset")
        generate(llm, prompt("after", 40))
        check("AllBlocksCleared" in {type(event).__name__ for event in recorder.events}, "new weights are told as an event")


if __name__ == "__main__":
    main()
    done()
