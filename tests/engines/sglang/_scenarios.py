# SPDX-License-Identifier: Apache-2.0
"""What the tests of SGLang's engine share: arguments that name kvonce, and one prompt computed, restored, and restored wrongly."""
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from support import check, control, models
from support import sglang_engine as se
from support.compare import difference, prompt
from support.store import Store

PAGE = 16
PROMPT = 200
REPORT_SECONDS = 1  # so often an engine's processes tell the store what they have counted
# On a machine with more processes than cores a lookup may wait for its turn.
PATIENT = {"lookup_ms": 10_000, "load_ms": 60_000}
PATIENT_HICACHE = {"lookup_ms": 2_500, "load_ms": 5_000, "put_ms": 5_000}  # as long as HiCache may wait


def linker(store, linker="Linker", module="kvonce.sglang", **config):
    """Arguments of an engine with the external linker on this store."""
    return {
        "enable_unified_cache_external_linker": True, "unified_cache_external_linker_backend": "dynamic",
        "unified_cache_external_linker_config": {
            "linker": linker, "linker_module_path": module, "linker_extra_config": {"store": store.address, **PATIENT, **config}}}


def hicache(store, interface_v1=1, layout="page_first", **config):
    """Arguments of an engine with HiCache's host pools and its storage on this store."""
    extra = {"backend_name": "kvonce", "module_path": "kvonce.sglang", "class_name": "HiCacheStorage", "interface_v1": interface_v1,
             "prefetch_threshold": PAGE, "store": store.address, **PATIENT_HICACHE, **config}
    return {
        "enable_hierarchical_cache": True, "hicache_ratio": 2, "hicache_write_policy": "write_through", "hicache_mem_layout": layout,
        "hicache_storage_backend": "dynamic", "hicache_storage_prefetch_policy": "wait_complete",
        "hicache_storage_backend_extra_config": json.dumps(extra)}


def restored_equals_computed(engine, seed="a", length=PROMPT, name="", before_restore=None, ends_at=None):
    """One prompt: computed, taken from the engine's own cache, and restored from the store after its slots were overwritten.

    ends_at: a request of the first so many tokens comes between, so that there is a recurrent state at that length."""
    tokens = prompt(f"{name} {seed}", length)
    cold = se.generate(engine, tokens)
    if ends_at:
        se.flush(engine)  # a node that SGLang splits is not offloaded again for the state that it gets: the tree is built anew
        se.generate(engine, tokens[:ends_at], new_tokens=1)
    local = se.generate(engine, tokens)
    se.flush(engine)
    se.pollute(engine, seed=f"{name} {seed}")
    if before_restore:
        before_restore()
    restored = se.generate(engine, tokens)
    check(cold.cached == 0, f"{name}: the first run computes the whole prompt", cold.cached)
    check(local.cached > 0, f"{name}: the engine's own cache serves the second", local.cached)
    check(restored.cached == local.cached, f"{name}: the store gives back as much as the engine's own cache had", restored.cached, local.cached)
    check(difference(restored, local) == 0.0, f"{name}: log probabilities as with the engine's own cache, to the last bit",
          difference(restored, local))
    check(restored.tokens == cold.tokens, f"{name}: tokens as computed", restored.tokens, cold.tokens)
    print(f"{name}: difference from the run that computed all: {difference(restored, cold):.2e}", flush=True)
    return tokens, local


def control_differs(engine, tokens, right, name="", seed="control", switch=control.moves_nothing):
    """The same restore with a store that says yes and moves nothing must be seen. The last thing to do with a prompt: what the engine
    puts back afterwards is wrong."""
    se.flush(engine)
    se.pollute(engine, seed=f"{name} {seed}")
    switch(True)
    try:
        wrong = se.generate(engine, tokens)
    finally:
        switch(False)
    check(wrong.cached == right.cached, f"{name}: the control takes the same path", wrong.cached)
    apart = spread(wrong, right)
    check(apart > 0.1, f"{name}: a restore that goes wrong is seen in the log probabilities", f"{apart:.3f}")


def spread(a, b):
    """Largest difference of the chosen tokens' log probabilities, place by place."""
    return max(abs(x - y) for x, y in zip(a.logprobs, b.logprobs, strict=True))


def store_at(address):
    """The store of another process of this test, to ask it."""
    store = Store()
    store.address = address
    return store


def apart(function, *arguments):
    """Runs the function in a process of its own and waits for it: an engine that is shut down, or killed, ends all children of the
    process that it is in, the store among them."""
    process = multiprocessing.get_context("spawn").Process(target=_told, args=(function, *arguments))
    process.start()
    process.join()
    check(process.exitcode == 0, f"the process of {function.__name__} ends well", process.exitcode)


def _told(function, *arguments):
    """Tells what went wrong and ends: multiprocessing would wait for the engine's processes first, which nobody has shut down then."""
    try:
        function(*arguments)
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


class Hits:
    """What kvonce itself counts of one restore, by the reports that the store has of the engine: how much was found, and that nothing failed.

    begin() before it, end(tokens, ranks) after it: each of the ranks must have found and loaded so many."""

    def __init__(self, store, name):
        self._store, self._name, self._before = store, name, {}

    def begin(self):
        """Waits for all stores, too."""
        self._store.settle()
        time.sleep(2 * REPORT_SECONDS)
        self._before = self._counted()

    def end(self, tokens, ranks):
        deadline = time.monotonic() + 30
        while (counted := [self._more("hit_tokens"), self._more("loaded_tokens")]) != [tokens * ranks] * 2 and time.monotonic() < deadline:
            time.sleep(0.2)
        check(counted == [tokens * ranks] * 2 and tokens > 0, f"{self._name}: kvonce counts what every rank found and loaded", counted)
        wrong = {name: number for name, number in self._counted().items() if name in ("failed_load_tokens", "errors", "stores_lost") and number}
        check(not wrong and self._store.stat()["since_start"]["conflicts"] == 0, f"{self._name}: nothing failed, and nothing differed", wrong)

    def _more(self, name):
        return self._counted().get(name, 0) - self._before.get(name, 0)

    def _counted(self):
        sums = {}
        for client in self._store.stat()["clients"]:
            for counters in client["reports"].values():
                for name, number in counters.items():
                    sums[name] = sums.get(name, 0) + number
        return sums


def objects_once(store, pool, name=""):
    """Every page that was put has one object in this pool, whatever the number of ranks."""
    counts = store.objects()
    pages = {page for call in control.puts() if call.pool == pool for page in call.pages}
    check(counts.get((pool, 0)) == len(pages) and (pool, 1) not in counts, f"{name}: one object a page in pool {pool}", counts, len(pages))
    return len(pages)


def objects_per_rank(store, pool, ranks, name=""):
    """Every page that was put has one object a rank in this pool."""
    counts = store.objects()
    pages = {page for call in control.puts() if call.pool == pool for page in call.pages}
    check([counts.get((pool, rank)) for rank in range(ranks)] == [len(pages)] * ranks, f"{name}: one object a page and rank in pool {pool}",
          counts, len(pages))
    return len(pages)


def other_weights(model):
    """A folder with a model of the same shape and other weights."""
    import torch
    from safetensors.torch import load_file, save_file
    source = Path(models.path(model, engine="sglang"))
    folder = Path(tempfile.mkdtemp(prefix="weights-"))
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder)
    draw = torch.Generator().manual_seed(77)
    for file in source.glob("*.safetensors"):
        tensors = load_file(file)
        changed = {
            name: one if "norm" in name else torch.randn(one.shape, generator=draw).to(one.dtype) * one.float().std().to(one.dtype)
            for name, one in tensors.items()}
        save_file(changed, folder / file.name, metadata={"format": "pt"})
    return str(folder)


def update(engine, folder, flush=True):
    """Replaces the weights, with or without a flush after it."""
    from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput
    request = UpdateWeightFromDiskReqInput(model_path=folder, flush_cache=flush)
    answer = engine.loop.run_until_complete(engine.tokenizer_manager.update_weights_from_disk(request, None))
    check(answer[0] if isinstance(answer, tuple) else getattr(answer, "success", True), "the weights are replaced", answer)


def kept_again(engine, tokens, name, before_restore=None):
    """What the engine computes now is stored, and restored after a flush."""
    se.generate(engine, tokens)
    local = se.generate(engine, tokens)
    se.flush(engine)
    se.pollute(engine, seed=name)
    if before_restore:
        before_restore()
    restored = se.generate(engine, tokens)
    check(restored.cached == local.cached, f"{name}: pages are restored after a flush", restored.cached, local.cached)
    check(difference(restored, local) == 0.0, f"{name}: log probabilities to the last bit", difference(restored, local))


def new_weights(engine, before_restore=None):
    """Nothing that the old weights made is served to the new ones, and the new ones' pages are kept in their turn."""
    tokens, folder = prompt("Llama weights", 200), other_weights("llama")
    old = se.generate(engine, tokens)
    se.flush(engine)
    if before_restore:
        before_restore()
    update(engine, folder)
    new = se.generate(engine, tokens)
    check(new.cached == 0, "new weights: nothing of the old ones is restored", new.cached)
    check(new.tokens != old.tokens or difference(new, old) > 0.1, "new weights answer otherwise", difference(new, old))
    kept_again(engine, tokens, "new weights", before_restore)

    # As a trainer does: a flush, then updates without one.
    other = prompt("Llama weights, other", 200)
    update(engine, folder, flush=False)
    se.generate(engine, other)
    se.flush(engine)
    check(se.generate(engine, other).cached == 0, "updated without a flush: nothing is kept while old pages may be there")
    se.flush(engine)
    update(engine, folder, flush=False)
    check(se.generate(engine, tokens).cached == 0, "flushed, then updated: nothing of before is restored")
    kept_again(engine, tokens, "flushed, then updated", before_restore)

    # Weights that a trainer writes itself: no call but these two.
    se.flush(engine)
    engine.begin_weight_update()
    engine.end_weight_update()
    check(se.generate(engine, tokens).cached == 0, "weights that were written into: nothing of before is restored")
    kept_again(engine, tokens, "weights that were written into", before_restore)
