# SPDX-License-Identifier: Apache-2.0
"""The two sides of kvonce.vllm over a real store, with memory of the test's own in place of an engine's."""
import ctypes
import signal
import threading
import time
import unittest

import package_parts as support
import vllm_parts as v

store_module = v.load("store")
PAGE, BLOCKS, BLOCK_BYTES = 64, 32, 512


class Tensor:
    """A layer's cache: BLOCKS blocks of BLOCK_BYTES bytes, at a distance of twice that."""

    shape = (BLOCKS, BLOCK_BYTES)

    def __init__(self):
        self.memory = (ctypes.c_char * (BLOCKS * 2 * BLOCK_BYTES))()

    def stride(self):
        return (2 * BLOCK_BYTES, 1)

    def element_size(self):
        return 1

    def data_ptr(self):
        return ctypes.addressof(self.memory)

    def block(self, number):
        return self.memory[2 * number * BLOCK_BYTES : (2 * number + 1) * BLOCK_BYTES]

    def write(self, number, content):
        self.memory[2 * number * BLOCK_BYTES : (2 * number + 1) * BLOCK_BYTES] = content


class Engine:
    """A scheduler's side and `ranks` workers' sides, stepped as vLLM does."""

    def __init__(self, address, specs, ranks=1, engine_id="engine", **settings):
        self.settings = v.engine.Settings.parse({"store": address, "lookup_ms": 60_000, **settings})
        identity = v.engine.Identity(
            model=v.engine.ModelIdentity("id:m"), dtype="bf16", page_tokens=PAGE, layout="test", namespace=self.settings.namespace
        )
        groups = [v.group(spec, (f"l{2 * at}", f"l{2 * at + 1}")) for at, spec in enumerate(specs)]
        self.stores, self.workers, self.caches = [], [], []
        for rank in range(ranks):
            plan = v.layout.make_plan(groups, v.facts(tp_size=ranks, tp_rank=rank, blocks=BLOCKS))
            caches = {name: Tensor() for group in groups for name in group.layer_names}
            rows = {pool.group: v.layout.layer_rows(pool.layers, caches, BLOCKS) for pool in plan.pools}
            store = store_module.Store(plan, self.settings, identity, engine_id, rank, rows)
            self.stores.append(store)
            self.caches.append(caches)
            connected = lambda store=store: store.link.connected  # noqa: E731
            self.workers.append(v.worker.WorkerSide(self.settings, store.epochs, store.counters, connected=connected))
        self.plan = v.layout.make_plan(groups, v.facts(tp_size=ranks, blocks=BLOCKS))
        self.store = store_module.Store(self.plan, self.settings, identity, engine_id, "scheduler")
        self.stores.append(self.store)
        self.side = v.scheduler.SchedulerSide(
            self.plan, self.settings, self.store.epochs, self.store.release, self.store.counters, ranks, self.store.cause
        )
        self.blocks = v.BlockPool(BLOCKS)
        self.side.bind_block_pool(self.blocks)

    def __enter__(self):
        for store in self.stores:
            assert store.link.wait(support.DEADLINE) and store.epochs.wait(support.DEADLINE)
        return self

    def __exit__(self, *_):
        for store in self.stores:
            store.close()

    def settle(self):
        """Until all processes have registered the weights of this moment."""
        value = self.store.epochs.wait(support.DEADLINE).value
        for store in self.stores[:-1]:
            store.epochs.at(value)
            assert store.epochs.wait(support.DEADLINE)

    def step(self, output):
        """One step: (requests received by all ranks, those that failed on any)."""
        step = self.side.step(output)
        received, failed, done = [], set(), v.messages.Done()
        for worker in self.workers:
            worker.begin(step)
            worker.start_loads(step)
            worker.start_saves(step)
            results = worker.results()
            received += results.received
            failed |= results.failed
            done.merge(worker.take_done())
        if done:
            self.side.done(done)
        return received, failed

    def until_saved(self):
        deadline = time.monotonic() + support.DEADLINE
        while self.side.busy:
            assert time.monotonic() < deadline, "saves do not end"
            self.step(v.output({}))
            time.sleep(0.001)

    def compute(self, request, tables, boundaries=()):
        """Computes the whole request into these blocks and saves it. Each block's content tells rank, layer and page."""
        self.side.track(request)
        for rank, caches in enumerate(self.caches):
            for group, table in enumerate(tables):
                for page, block in enumerate(table):
                    if block:
                        self.fill(caches, group, block, rank, page)
            for group, block, tokens in boundaries:
                self.fill(caches, group, block, rank, tokens // PAGE - 1)
        self.step(v.output({request.request_id: request.num_tokens}, {}, {request.request_id: tables}, {request.request_id: list(boundaries)}))
        self.until_saved()

    def fill(self, caches, group, block, rank, page):
        for layer in (2 * group, 2 * group + 1):
            caches[f"l{layer}"].write(block, self.content(group, layer, rank, page))

    def content(self, group, layer, rank, page):
        kind = next(pool for pool in self.plan.pools if pool.group == group)
        part = rank if kind.shard.count > 1 else 0
        return (f"layer {layer} part {part} page {page} " * BLOCK_BYTES).encode()[:BLOCK_BYTES]

    def matched(self, request):
        deadline = time.monotonic() + support.DEADLINE
        while (answer := self.side.matched(request, 0))[0] is None:
            assert time.monotonic() < deadline, "the lookup does not end"
            self.step(v.output({}))
        return answer

    def restore(self, request, tables):
        """Restores into these blocks; (tokens, whether it failed on any rank)."""
        tokens, _ = self.matched(request)
        self.side.allocated(request, tables, tokens)
        if tokens == 0:
            return 0, False
        received, failed = self.step(v.output({}))
        deadline = time.monotonic() + support.DEADLINE
        while len(received) < len(self.workers):
            assert time.monotonic() < deadline, "the load does not end"
            time.sleep(0.001)
            more, worse = self.step(v.output({}))
            received, failed = received + more, failed | worse
        self.side.received({request.request_id}, failed)
        return tokens, bool(failed)


class Case(unittest.TestCase):
    def setUp(self):
        context = support.own_store()
        self.process, self.address = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)

    def assert_restored(self, engine, tables, pages):
        for rank, caches in enumerate(engine.caches):
            for group, table in enumerate(tables):
                for page, block in enumerate(table[:pages]):
                    for layer in (2 * group, 2 * group + 1):
                        if block:
                            expected = engine.content(group, layer, rank, page)
                            self.assertEqual(caches[f"l{layer}"].block(block), expected, (rank, group, page))


class OneEngineAfterAnother(Case):
    def check(self, specs, ranks, stored, boundaries, loaded, shards):
        request = v.Request("first", 300)
        with Engine(self.address, specs, ranks, "first engine") as engine:
            engine.compute(request, stored, boundaries)
            namespace = engine.store.epochs.current().namespace
            kept = sorted((found["pool"].split("-")[0], found["shard"]) for found in namespace.stat(request.block_hashes[3]).objects)
            self.assertEqual(kept, shards)
            self.assertEqual(engine.blocks.held(), set())
        with Engine(self.address, specs, ranks, "second engine") as engine:
            again = v.Request("again", 300)
            self.assertEqual(engine.restore(again, loaded), (256, False))
            self.assert_restored(engine, loaded, 4)
            self.assertEqual(sum(store.counters.total("loaded_tokens") for store in engine.stores), 256 * ranks)

    def test_latent_attention_is_kept_once_for_two_ranks(self):
        self.check([v.mla()], 2, [[1, 2, 3, 4]], (), [[9, 8, 7, 6]], [("mla0", 0)])

    def test_latent_attention_that_two_ranks_stored_is_restored_by_one_and_by_four(self):
        with Engine(self.address, [v.mla()], 2, "two") as engine:
            engine.compute(v.Request("stored", 300), [[1, 2, 3, 4]])
        for ranks in (1, 4):
            with Engine(self.address, [v.mla()], ranks, f"{ranks} ranks") as engine:
                self.assertEqual(engine.restore(v.Request("restored", 300), [[9, 8, 7, 6]]), (256, False))
                self.assert_restored(engine, [[9, 8, 7, 6]], 4)

    def test_heads_are_kept_for_each_rank(self):
        self.check([v.full(num_kv_heads=1)], 2, [[1, 2, 3, 4]], (), [[9, 8, 7, 6]], [("full0", 0), ("full0", 1)])

    def test_windows_and_states(self):
        self.check(
            [v.full(), v.window(100), v.state()],
            1,
            [[1, 2, 3, 4], [0, 0, 13, 14], [0, 0, 0, 0]],
            [(2, 24, 256)],
            [[9, 8, 7, 6], [0, 0, 16, 15], [0, 0, 0, 22]],
            [("full0", 0), ("state2", 0), ("window1", 0)],
        )


class Trouble(Case):
    def test_new_weights_find_nothing_old(self):
        with Engine(self.address, [v.full()]) as engine:
            engine.compute(v.Request("r", 300), [[1, 2, 3, 4]])
            self.assertEqual(engine.matched(v.Request("before", 300)), (256, True))
            engine.side.reset()
            engine.settle()
            self.assertEqual(engine.matched(v.Request("after", 300)), (0, False))
            engine.compute(v.Request("s", 300), [[5, 6, 7, 8]])
            self.assertEqual(engine.restore(v.Request("again", 300), [[9, 10, 11, 12]]), (256, False))
            self.assert_restored(engine, [[9, 10, 11, 12]], 4)
            self.assertEqual(len(engine.stores[0].epochs.current().built.pools), 1)

    def test_another_layout_is_a_miss_and_counted_as_one(self):
        with Engine(self.address, [v.full()]) as engine:
            engine.compute(v.Request("r", 300), [[1, 2, 3, 4]])
        with Engine(self.address, [v.full(head_size=64)], engine_id="other") as engine:
            self.assertEqual(engine.matched(v.Request("r", 300)), (0, False))
            self.assertEqual(engine.store.counters.snapshot()["missed_tokens", "other_layout"], 256)

    def test_a_store_that_is_killed_is_misses_and_no_block_is_kept(self):
        with Engine(self.address, [v.full()], load_ms=60_000) as engine:
            engine.compute(v.Request("r", 300), [[1, 2, 3, 4]])
            found = v.Request("found", 300)
            tokens, _ = engine.matched(found)
            self.process.kill()
            self.process.wait(support.DEADLINE)
            deadline = time.monotonic() + support.DEADLINE
            while any(store.link.connected for store in engine.stores):
                self.assertLess(time.monotonic(), deadline)
            engine.side.allocated(found, [[5, 6, 7, 8]], tokens)
            received, failed = engine.step(v.output({}))
            self.assertEqual((received, failed), (["found"], {"found"}))
            engine.side.received(received, failed)
            self.assertEqual(engine.matched(v.Request("next", 300)), (0, False))
            engine.compute(v.Request("computed", 300), [[1, 2, 3, 4]])
            self.assertFalse(engine.side.busy)
            self.assertEqual(engine.blocks.held(), set())

    def test_a_store_that_hangs_holds_the_engine_up_in_no_hook(self):
        with Engine(self.address, [v.full()], lookup_ms=50) as engine:
            engine.compute(v.Request("r", 300), [[1, 2, 3, 4]])
            found = v.Request("found", 300)
            self.assertEqual(engine.matched(found), (256, True))
            self.process.send_signal(signal.SIGSTOP)
            hooks = threading.Thread(target=self.hooks, args=(engine, found), daemon=True)
            hooks.start()
            hooks.join(support.DEADLINE)
            held_up = hooks.is_alive()
            waits = engine.side.busy
            self.process.send_signal(signal.SIGCONT)
            hooks.join(support.DEADLINE)
            self.assertFalse(held_up)
            self.assertTrue(waits)
            engine.until_saved()
            self.assertEqual(engine.blocks.held(), set())
            engine.settle()
            engine.compute(v.Request("under new weights", 300), [[1, 2, 3, 4]])
            self.assertEqual(engine.restore(v.Request("restored", 300), [[5, 6, 7, 8]]), (256, False))

    def hooks(self, engine, found):
        """While the store hangs: gives a lease back, asks until that is a miss, computes and saves, hears of new weights."""
        engine.side.finished(found)
        self.assertEqual(engine.matched(v.Request("asks", 300)), (0, False))
        request = v.Request("computed", 320)
        request.block_hashes = [v.page_hash(100 + n) for n in range(5)]
        engine.side.track(request)
        engine.step(v.output({"computed": 320}, {}, {"computed": ([5, 6, 7, 8, 9],)}))
        engine.step(v.output({}))
        engine.side.reset()  # new weights: the store has to be asked for their epoch, and to register it
        for number in range(20):
            request = v.Request(f"after new weights {number}", 300)
            self.assertEqual(engine.matched(request), (0, False))
            engine.step(v.output({request.request_id: 300}, {}, {request.request_id: ([11, 12, 13, 14],)}))
            engine.side.finished(request)

    def test_a_lease_is_given_back_and_nobody_waits_for_it(self):
        with Engine(self.address, [v.full()]) as engine:
            engine.compute(v.Request("r", 300), [[1, 2, 3, 4]])
            found = v.Request("found", 300)
            engine.matched(found)
            runtime = engine.store.link.runtime
            self.assertEqual(runtime.stats()["leases_now"], 1)
            hung, release = threading.Event(), runtime.release
            self.addCleanup(hung.set)

            class Hanging:
                """The runtime while the store hangs: nothing is given back."""

                def __getattr__(self, name):
                    return getattr(runtime, name)

                def release(self, lease):
                    hung.wait(support.DEADLINE)
                    release(lease)

            engine.store.link._runtime = Hanging()
            engine.side.finished(found)  # returns
            self.assertEqual(runtime.stats()["leases_now"], 1)
            hung.set()
            deadline = time.monotonic() + support.DEADLINE
            while runtime.stats()["leases_now"]:
                self.assertLess(time.monotonic(), deadline)
            engine.store.link._runtime = runtime

    def test_a_reader_stores_nothing(self):
        with Engine(self.address, [v.full()], role="read") as engine:
            engine.compute(v.Request("r", 300), [[1, 2, 3, 4]])
            self.assertEqual(engine.matched(v.Request("s", 300)), (0, False))


if __name__ == "__main__":
    unittest.main()
