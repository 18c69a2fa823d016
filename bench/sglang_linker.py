#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the SGLang linker costs the scheduler and the interpreter, without SGLang.

    PYTHONPATH=$(tools/python-dev) python3 bench/sglang_linker.py [--pages 1024] [--layers 61] [--repeat 5] [--store embedded] [--json]

lookup: pages of latent attention and one recurrent state, as many ranks' shards as --ranks; one new request each, and the same again.
restore: the time that Python takes to hand a restore over to kvonce (all layers, in layer groups), with the calls of kvonce left out.
idle: num_completed_offloads with nothing to do, as each scheduler step calls it.
"""

import argparse
import ctypes
import hashlib
import json
import statistics
import time
import types

from kvonce.engine import Connection, Counters, Epochs, Identity, ModelIdentity, Place, Settings, shard_of_entry
from kvonce.sglang.core import Built, LinkerCore
from kvonce.sglang.loads import LoadJob, Loader
from kvonce.sglang.transfers import PoolView, resolve

PAGE_TOKENS = 64
ROW_BYTES = 64


def view(name, layers, unit, kind, rows, **more):
    memory = (ctypes.c_char * (rows * ROW_BYTES * len(layers)))()
    base = ctypes.addressof(memory)
    places = [(base + i * rows * ROW_BYTES, ROW_BYTES, ROW_BYTES) for i in range(len(layers))]
    return PoolView(name, more.pop("source", name), unit, rows, tuple(layers), [("page", places)], kind, keep=memory, **more)


def transfer(name, keys, slots=None):
    return types.SimpleNamespace(name=name, keys=list(keys), device_indices=slots, hit_policy="all_pages")


class Bench:
    def __init__(self, pages, layers, ranks, store):
        self.pages = pages
        self.settings = Settings.parse({"store": store, "lookup_ms": 10_000, "arena_bytes": 512 << 20, "auto_bytes": 512 << 20})
        self.counters = Counters("bench", "0")
        self.link = Connection(self.settings, "bench", 0, self.counters)
        self.keys = [hashlib.sha256(b"%d" % n).hexdigest() for n in range(pages)]
        self.views = [
            view("kv", range(layers), PAGE_TOKENS, "mla", pages),
            view("mamba", range(3), 1, "state", 16, trailing_pages=1),
        ]
        identity = Identity(model=ModelIdentity("id:bench"), dtype="bf16", page_tokens=PAGE_TOKENS, layout="bench")
        self.slots = list(range(pages * PAGE_TOKENS))
        namespace = self.link.runtime.namespace(identity.text())
        self.built = [self.build(namespace, Place(tp=r, tp_size=ranks)) for r in range(ranks)]
        epochs = Epochs(self.link, identity, build=lambda _: self.built[0])
        self.core = LinkerCore(
            self.views, layers, PAGE_TOKENS, self.settings, self.counters, link=self.link, epochs=epochs)
        self.core.settle(60)
        state = [-1] * (pages - 1) + [3]
        for built in self.built:
            put = built.rank.put(bytes.fromhex("".join(self.keys)), {built.pools["kv"]: self.slots, built.pools["mamba"]: state})
            assert put.result().ok, put.result().causes()

    def build(self, namespace, place):
        shards = {v.text: shard_of_entry(v.text, place, kind=v.kind) for v in self.views}
        return Built(namespace, self.views, shards, place)

    def lookup(self, n):
        asked = [transfer("kv", self.keys), transfer("mamba", self.keys[-1:])]
        began = time.perf_counter()
        stops = self.core.lookup(f"request {n}", asked)
        first = time.perf_counter() - began
        assert stops == [self.pages], stops
        again = [transfer("kv", self.keys), transfer("mamba", self.keys[-1:])]
        began = time.perf_counter()
        assert self.core.lookup(f"request {n}", again) == stops
        return first, time.perf_counter() - began

    def restore(self, n):
        class Done:
            ok = True

            def wait(self, timeout=None):
                return True

            def result(self, timeout=None):
                return self

            def done(self):
                return True

        calls = []
        counter = self.core.layer_done_counter
        loader = Loader(
            counter, load_seconds=10.0, page_tokens=PAGE_TOKENS, issue=lambda *call: calls.append(call) or Done(), gate=self.core.make_gate,
            renew=lambda *_: None, release=lambda *_: None, counters=self.counters)
        self.core.lookup(f"restore {n}", [transfer("kv", self.keys), transfer("mamba", self.keys[-1:])])
        answer = self.core._book.take(f"restore {n}")
        asked = [transfer("kv", self.keys, self.slots), transfer("mamba", self.keys[-1:], [3])]
        index = counter.update_producer()
        epoch = self.core.epochs.current()
        loader._waiting.add(index)
        began = time.perf_counter()
        job = LoadJob("r", resolve(self.views, asked, partial=True), answer)
        loader.accept(job)
        loader._batch(index, [job], epoch)
        took = time.perf_counter() - began
        assert counter.finish(index) and calls
        loader.close()
        return took

    def idle(self):
        began = time.perf_counter()
        for _ in range(10_000):
            self.core.num_completed_offloads()
        return (time.perf_counter() - began) / 10_000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=61)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--store", default="embedded", help="embedded, auto or unix:PATH")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    bench = Bench(arguments.pages, arguments.layers, arguments.ranks, arguments.store)
    bench.lookup(-1)
    bench.restore(-1)
    lookups = [bench.lookup(n) for n in range(arguments.repeat)]
    figures = {
        "lookup_us": statistics.median(first for first, _ in lookups) * 1e6,
        "lookup_repeated_us": statistics.median(again for _, again in lookups) * 1e6,
        "restore_python_us": statistics.median(bench.restore(n) for n in range(arguments.repeat)) * 1e6,
        "idle_step_us": statistics.median(bench.idle() for _ in range(arguments.repeat)) * 1e6,
    }
    figures = {name: round(value, 1) for name, value in figures.items()}
    shape = {"pages": arguments.pages, "layers": arguments.layers, "ranks": arguments.ranks, "repeat": arguments.repeat}
    if arguments.json:
        print(json.dumps({**shape, **figures}))
    else:
        print(", ".join(f"{name} {value}" for name, value in {**shape, **figures}.items()))
    bench.core.close()


if __name__ == "__main__":
    main()
