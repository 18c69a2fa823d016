# SPDX-License-Identifier: Apache-2.0
"""SGLang's adapters against a real store that stands still, or is killed: no SGLang, no torch."""

import ctypes
import os
import signal
import threading
import time
import types
import unittest

try:
    import kvonce
    import package_parts as support
except ImportError as missing:
    raise unittest.SkipTest(f"needs the native library: {missing}") from missing

import sglang_parts as parts
from kvonce import engine
from kvonce.sglang import core as core_module
from kvonce.sglang import hicache_store

PAGE_BYTES = 4096
SLOTS = 4  # a page
PAGES = 16
LAYERS = 3


def memory(text):
    """One layer: memory that has room for PAGES pages, each with a content of its own."""
    return bytearray(b"".join(f"{text} page {page} ".encode().ljust(PAGE_BYTES, b".") for page in range(PAGES)))


def address(layer):
    return ctypes.addressof(ctypes.c_char.from_buffer(layer))


def eventually(condition):
    end = time.monotonic() + support.DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not come about")
        time.sleep(0.002)


class Case(support.Case):
    def setUp(self):
        held = support.own_store()
        self.process, self.store = held.__enter__()
        self.addCleanup(held.__exit__, None, None, None)

    def settings(self, **settings):
        return engine.Settings.parse({"store": self.store, "connect_timeout": 30, "lookup_ms": 60_000, **settings})

    def epochs(self, settings, link, build, retire):
        identity = engine.Identity(model=engine.ModelIdentity("id:m"), dtype="bf16", page_tokens=SLOTS, layout="rows")
        return engine.Epochs(link, identity, build, retire)

    def freeze(self):
        support.freeze(self.process.pid)
        self.addCleanup(self.thaw)

    def thaw(self):
        try:
            os.kill(self.process.pid, signal.SIGCONT)
        except ProcessLookupError:
            pass

    def kill(self, link):
        self.process.kill()
        self.process.wait(support.DEADLINE)
        eventually(lambda: not link.connected)

    def keys(self, n):
        return [parts.key(page) for page in range(n)]


class LinkerOnStore(Case):
    def setUp(self):
        super().setUp()
        self.memory = [memory(f"layer {n}") for n in range(LAYERS)]
        layers = [(address(layer), PAGE_BYTES, PAGE_BYTES) for layer in self.memory]
        self.view = parts.view(layers=range(LAYERS))
        self.view.rows, self.view.components = PAGES, [("kv", layers)]

    def core(self, **settings):
        settings = self.settings(**settings)
        counters = engine.Counters("engine", "0")
        link = engine.Connection(settings, "engine", 0, counters)
        shards = {"kv": engine.Shard((1, 1, 1), (0, 0, 0))}
        epochs = self.epochs(
            settings, link, lambda ns: core_module.Built(ns, [self.view], shards, engine.Place()), core_module.Built.close
        )
        core = core_module.LinkerCore([self.view], LAYERS, SLOTS, settings, counters, link=link, epochs=epochs)
        self.addCleanup(core.close)
        core.settle(support.DEADLINE)
        self.assertIsNotNone(epochs.current())
        return core

    def kv(self, pages, first=0):
        return [parts.transfer("kv", range(pages), list(range(first * SLOTS, (first + pages) * SLOTS)))]

    def store_pages(self, core, pages):
        self.assertTrue(core.offload(self.kv(pages), None))
        eventually(lambda: core.num_completed_offloads() == 1)
        self.assertTrue(core.pop_completed_offload())

    def rows(self, first, pages):
        return [bytes(layer[first * PAGE_BYTES : (first + pages) * PAGE_BYTES]) for layer in self.memory]

    def test_a_load_that_was_accepted_finishes_though_the_store_was_killed_before_it_began(self):
        core = self.core()
        self.store_pages(core, 4)
        self.assertEqual(core.lookup("r", self.kv(4)), [1, 2, 3, 4])
        self.assertTrue(core.load("r", self.kv(4, 8)))
        self.kill(core.link)
        before = self.rows(8, 4)
        self.assertEqual(core.lookup("other", self.kv(4)), [])
        index = core.start_layer_wise_loading()
        core.layer_done_counter.set_consumer(index)
        core.layer_done_counter.wait_until(LAYERS - 1)
        self.assertTrue(core.finish_layer_wise_loading(index))
        self.assertEqual(self.rows(8, 4), self.rows(0, 4))
        self.assertNotEqual(self.rows(8, 4), before)

    def test_what_was_known_of_a_store_that_is_gone_is_no_hit(self):
        core = self.core()
        self.store_pages(core, 4)
        self.assertEqual(core.lookup("r", self.kv(4)), [1, 2, 3, 4])
        self.kill(core.link)
        self.assertEqual(core.lookup("r", self.kv(4)), [])

    def test_a_load_that_is_cancelled_writes_nothing(self):
        core = self.core()
        self.store_pages(core, 4)
        before = self.rows(8, 4)
        for frozen in (False, True):
            self.assertEqual(core.lookup("r", self.kv(4)), [1, 2, 3, 4])
            self.assertTrue(core.load("r", self.kv(4, 8)))
            if frozen:
                self.freeze()
            self.assertTrue(core.cancel_queued_load("r"))
            self.assertEqual(core.start_layer_wise_loading(), -1)
            self.assertTrue(core._loader.wait_idle(support.DEADLINE))
            self.assertEqual(self.rows(8, 4), before)
        self.assertEqual(core.counters.total("errors"), 0)

    def test_a_store_that_stands_still_costs_two_lookups_and_no_more(self):
        core = self.core(lookup_ms=2000)
        self.store_pages(core, 4)
        core._breaker._limit, core.settings = 2, self.settings(lookup_ms=20)
        self.freeze()
        for n in range(100):
            self.assertEqual(core.lookup(f"r{n}", self.kv(4)), [])
        missed = core.counters.snapshot()
        self.assertEqual(missed["missed_tokens", "slow_lookup"], 2 * 4 * SLOTS)
        self.assertEqual(missed["missed_tokens", "not_answering"], 98 * 4 * SLOTS)
        core.weights_changed()  # neither does an update wait for it
        self.assertEqual(core.lookup("new weights", self.kv(4)), [])
        self.assertTrue(core.offload(self.kv(4), None))
        self.assertEqual((core.num_completed_offloads(), core.pop_completed_offload()), (1, False))
        self.thaw()
        core.settings = self.settings()
        attempts = iter(range(1_000_000))
        eventually(lambda: core.epochs.current() is not None)
        eventually(lambda: core.lookup(f"again {next(attempts)}", self.kv(1)) == [] and core._breaker._late == 0)
        self.store_pages(core, 4)
        self.assertEqual(core.lookup("s", self.kv(4)), [1, 2, 3, 4])


class HostPagesOnStore(Case):
    def setUp(self):
        super().setUp()
        self.memory = memory("host")
        self.pool = types.SimpleNamespace(
            page_slots=SLOTS, unit=SLOTS, rows=PAGES, staged=False, ranges=[(address(self.memory), PAGE_BYTES, PAGE_BYTES)],
            pool=types.SimpleNamespace(head_num=1),
        )

    def open(self, **settings):
        settings = self.settings(**settings)
        counters = engine.Counters("engine", "0")
        link = engine.Connection(settings, "engine", 0, counters)
        store = hicache_store.HostStore({"kv": self.pool}, engine.Place(), settings, counters, link, is_mla=True, facts=None)
        store.epochs = self.epochs(settings, link, store.build, store.retire)
        self.addCleanup(store.close)
        store.settle(support.DEADLINE)
        self.assertIsNotNone(store.epochs.current())
        return store

    def slots(self, pages, first=0):
        return list(range(first * SLOTS, (first + pages) * SLOTS))

    def test_pages_come_back(self):
        store = self.open()
        self.assertEqual(store.put("kv", self.keys(4), self.slots(4), ()), [True] * 4)
        self.assertEqual(store.leading_kv(self.keys(6)), 4)
        self.assertEqual(store.get("kv", self.keys(4), self.slots(4, 8)), [True] * 4)
        self.assertEqual(self.memory[8 * PAGE_BYTES : 12 * PAGE_BYTES], self.memory[: 4 * PAGE_BYTES])

    def test_a_store_that_stands_still_is_waited_for_once(self):
        store = self.open(put_ms=300)
        self.freeze()
        for _ in range(50):
            self.assertEqual(store.put("kv", self.keys(2), self.slots(2), ()), [False] * 2)
            self.assertEqual(store.leading_kv(self.keys(2)), 0)
            self.assertEqual(store.get("kv", self.keys(2), self.slots(2)), [False] * 2)
        self.assertEqual(store.counters.snapshot()["skipped_pages", "not_answering"], 49 * 2)
        store.weights_changed(1)  # gives leases back and opens an epoch: without waiting
        self.assertEqual(store.put("kv", self.keys(2), self.slots(2), ()), [False] * 2)
        self.thaw()
        eventually(lambda: store.put("kv", self.keys(2), self.slots(2), ()) == [True] * 2)

    def test_who_waits_for_a_store_that_stands_still_returns_when_sglang_stops_its_threads(self):
        store = self.open(put_ms=3_600_000, lookup_ms=60_000)
        for call, answer in ((lambda: store.put("kv", self.keys(2), self.slots(2), ()), [False] * 2), (lambda: store.leading_kv(self.keys(2)), 0)):
            self.freeze()
            out = []
            caller = threading.Thread(target=lambda call=call, out=out: out.append(call()), daemon=True)
            caller.start()
            eventually(lambda: store._waiting)
            store.stopping(True)
            caller.join(support.DEADLINE)
            self.assertEqual(out, [answer])
            store.stopping(False)
            self.thaw()


if __name__ == "__main__":
    unittest.main()
