# SPDX-License-Identifier: Apache-2.0
"""What the HiCache backend does with a store, with page groups and ranks in memory: no SGLang, no torch, no native library."""

import enum
import sys
import threading
import types
import unittest
from unittest import mock

import sglang_parts as parts

engine = parts.engine
store_module = parts.load("hicache_store")
key = parts.key


class Verdict(enum.IntEnum):
    none = 0
    stored = 1
    joined = 2
    already_stored = 3
    rejected = 4


class Pool:
    """A registered pool; `page_slots`, `unit`, `staged` as a HostPool's."""

    object_bytes = 64
    staged = False
    pool = types.SimpleNamespace(head_num=1)

    def __init__(self, name, page_slots=4):
        self.name, self.page_slots, self.unit = name, page_slots, page_slots


class MemoryGroup:
    """A page group over sets of (pool, shard, page)."""

    def __init__(self, have, lease="lease"):
        self.have, self.lease, self.asked, self.probes, self.timeouts = have, lease, 0, 0, []
        self.answers, self.probed = True, parts.Future(done=False)

    def exists(self, pool, shard, pages):
        return bytes(int((pool, shard, pages[i : i + 32]) in self.have) for i in range(0, len(pages), 32))

    def lookup_async(self, pages, request_id="", probe=False, lease_time=0.0, timeout=5.0):
        if probe:
            self.probes += 1
            return self.probed
        self.timeouts.append(timeout)
        return parts.Future(self.found(pages)) if self.answers else self.late()

    def late(self):
        self.asked += 1
        future = parts.Future(done=False)
        future.fail(Slow())
        return future

    def found(self, pages):
        self.asked += 1
        there = self.exists("kv", 0, pages)
        n = there.find(0) if 0 in there else len(there)
        return types.SimpleNamespace(resident_pages=n, lease=self.lease if n else None, lease_left=20.0, reason=None if n else "absent")


class Slow(Exception):
    reason = "deadline"


class Waited(parts.Future):
    """A future that the test settles; `begun`: somebody waits for it."""

    def __init__(self, result):
        super().__init__(result, done=False)
        self.begun = threading.Event()

    def add_done_callback(self, callback):
        super().add_done_callback(callback)
        self.begun.set()

    def cancel(self):
        self.cancelled = True
        self.settle(self._result)


class MemoryRank:
    def __init__(self, verdicts=(), reasons=()):
        self.verdicts, self.reasons, self.put_calls, self.load_calls = bytes(verdicts), bytes(reasons), [], []
        self.timeouts, self.causes, self.held, self.closed = [], {}, None, False

    def put(self, pages, rows, parent=None, first_depth=0, timeout=30.0):
        self.put_calls.append((pages, rows, parent, first_depth))
        self.timeouts.append(timeout)
        result = types.SimpleNamespace(causes=lambda: self.causes, verdicts=lambda pool: self.verdicts)
        if self.held is not None:
            self.held = Waited(result)
            self.holding.release()
            return self.held
        return parts.Future(result)

    def hold(self):
        """The next put is settled by the test."""
        self.held, self.holding = True, threading.Semaphore(0)

    def close(self):
        self.closed = True

    def load(self, lease, pages, rows, timeout=30.0):
        self.load_calls.append((lease, pages, rows))
        self.timeouts.append(timeout)
        return parts.Future(types.SimpleNamespace(causes=dict, reasons=lambda pool: self.reasons))


class Epoch(parts.Epoch):
    def hold(self):
        return _Held()


class _Held:
    def __enter__(self):
        return True

    def __exit__(self, *_):
        return False


def transfer(name, pages, policy, **more):
    return types.SimpleNamespace(name=name, keys=[key(p) for p in pages], hit_policy=policy, **more)


class HostStoreTest(unittest.TestCase):
    def setUp(self):
        had = getattr(sys.modules["kvonce"], "Verdict", None)
        if had is None:
            sys.modules["kvonce"].Verdict = Verdict
            self.addCleanup(delattr, sys.modules["kvonce"], "Verdict")
        self.have = set()

    def store(self, shards=1, rank=None, pools=("kv", "mamba"), **settings):
        self.rank = rank or MemoryRank()
        self.group = MemoryGroup(self.have)
        known = {name: Pool(name, 4 if name == "kv" else 1) for name in pools}
        of = {name: engine.Shard((shards if name != "kv" else 1, 1, 1), (0, 0, 0)) for name in pools}
        built = store_module._Built(self.group, self.group, self.rank, known, of, 0, {name: name for name in pools})
        self.epoch = Epoch(types.SimpleNamespace(now=lambda version: built))
        self.link = parts.Link()
        store = store_module.HostStore(
            known, engine.Place(), engine.Settings.parse(settings), engine.Counters("e", "0"), self.link, is_mla=True, facts=None)
        store.epochs = parts.Epochs(self.epoch)
        return store

    def put_there(self, pool, pages, shards=(0,)):
        self.have |= {(pool, shard, bytes.fromhex(key(p))) for shard in shards for p in pages}

    def keys(self, n):
        return [key(p) for p in range(n)]

    def test_a_prefix_ends_where_every_rank_has_its_state(self):
        store = self.store(shards=2)
        self.put_there("kv", range(6))
        self.put_there("mamba", [1, 3, 5], shards=[0])
        self.put_there("mamba", [1, 5], shards=[1])
        self.assertEqual(store.stops(self.keys(6), [transfer("mamba", [5], "trailing_pages")]), ([2, 6], {"mamba": 6}))
        self.put_there("kv", [])
        self.have.discard(("mamba", 1, bytes.fromhex(key(5))))
        self.assertEqual(store.stops(self.keys(6), [transfer("mamba", [5], "trailing_pages")]), ([2], {"mamba": 2}))

    def test_a_pool_of_which_every_page_is_needed_limits_the_prefix(self):
        store = self.store()
        self.put_there("kv", range(6))
        self.put_there("mamba", range(4))
        self.assertEqual(store.stops(self.keys(6), [transfer("mamba", range(6), "all_pages")]), ([1, 2, 3, 4], {"mamba": 4}))
        self.assertEqual(store.stops(self.keys(6), [transfer("mamba", range(6), "a policy of tomorrow")])[0], [1, 2, 3, 4])

    def test_groups_of_blocks_limit_nothing(self):
        store = self.store()
        self.put_there("kv", range(6))
        self.put_there("mamba", [1, 3])
        blocks = transfer("mamba", [1, 3, 5], "block_groups", block_pages=2, group_pages=1)
        self.assertEqual(store.stops(self.keys(6), [blocks]), (list(range(1, 7)), {"mamba": 4}))

    def test_a_pool_that_is_not_registered_cannot_be_restored(self):
        store = self.store()
        self.put_there("kv", range(6))
        self.assertEqual(store.stops(self.keys(6), [transfer("swa", [5], "trailing_pages")]), ([], {"swa": 0}))

    def test_a_page_is_stored_whoever_stored_it(self):
        store = self.store(rank=MemoryRank(verdicts=[1, 2, 3, 4, 0]))
        self.assertEqual(store.put("kv", self.keys(5), list(range(20)), [key(90), key(91)]), [True, True, True, False, False])
        pages, _, parent, depth = self.rank.put_calls[0]
        self.assertEqual((len(pages), parent, depth), (160, bytes.fromhex(key(91)), 2))

    def test_what_does_not_fit_is_not_put(self):
        store = self.store()
        self.assertEqual(store.put("kv", self.keys(2), list(range(7)), []), [False, False])
        self.assertEqual(store.put("swa", self.keys(2), list(range(8)), []), [False, False])
        self.assertEqual(self.rank.put_calls, [])

    def test_a_page_is_loaded_under_the_lease_of_its_lookup(self):
        store = self.store(rank=MemoryRank(reasons=[0, 18]))
        self.put_there("kv", range(6))
        store.stops(self.keys(6), [])
        self.assertEqual(store.get("kv", self.keys(6)[2:4], list(range(8))), [True, False])
        self.assertEqual((self.group.asked, self.rank.load_calls[0][0]), (1, "lease"))

    def test_without_a_lookup_a_lease_is_asked_for_and_without_a_page_nothing_is_loaded(self):
        store = self.store(rank=MemoryRank(reasons=[0]))
        self.assertEqual(store.get("kv", self.keys(1), list(range(4))), [False])
        self.put_there("kv", [0])
        self.assertEqual(store.get("kv", self.keys(1), list(range(4))), [True])
        self.assertEqual(len(self.rank.load_calls), 1)

    def test_roles_leave_out_what_they_say(self):
        self.put_there("kv", range(2))
        self.assertEqual(self.store(role="write").stops(self.keys(2), []), ([], {}))
        self.assertEqual(self.store(role="read").put("kv", self.keys(1), list(range(4)), []), [False])
        self.assertEqual(self.store(min_tokens=12).leading_kv(self.keys(2)), 0)
        self.assertEqual(self.store(min_tokens=8, pools=("kv",)).leading_kv(self.keys(2)), 2)

    def test_nothing_is_kept_or_found_until_new_weights_are_flushed_in(self):
        store = self.store(pools=("kv",), rank=MemoryRank(verdicts=[1]))
        self.put_there("kv", range(2))
        with mock.patch.object(store_module.updates, "mixed", lambda: True):
            self.assertEqual(store.leading_kv(self.keys(2)), 0)
            store.weights_changed(1)
            self.assertEqual(store.leading_kv(self.keys(2)), 0)
            self.assertEqual(store.put("kv", self.keys(1), list(range(4)), []), [False])
            self.assertEqual(store.counters.snapshot()["skipped_pages", "stale_pages"], 1)
        self.assertEqual(store.put("kv", self.keys(1), list(range(4)), []), [True])
        store.weights_changed(1)  # was told already
        self.assertEqual((store.epochs.updates, store.leading_kv(self.keys(2))), (1, 2))

    def test_a_put_never_goes_under_weights_that_are_newer_than_its_pages(self):
        for told in (False, True):
            store = self.store(pools=("kv",), rank=MemoryRank(verdicts=[1]))
            mixed = []

            def current(store=store, told=told, mixed=mixed):  # an update comes between the call and its epoch: whole, or its beginning
                store.weights_changed(1) if told else mixed.append(1)
                return self.epoch

            store.epochs.current = current
            store.epochs.wait = lambda seconds, current=current: current()
            with mock.patch.object(store_module.updates, "mixed", lambda mixed=mixed: bool(mixed)):
                self.assertEqual(store.put("kv", self.keys(1), list(range(4)), []), [False])
            self.assertEqual(self.rank.put_calls, [])

    def test_a_put_waits_for_the_name_of_new_weights_and_a_lookup_does_not(self):
        store = self.store(pools=("kv",), rank=MemoryRank(verdicts=[1]))
        self.put_there("kv", range(2))
        store.epochs.current = lambda: None  # being asked for
        self.assertEqual(store.leading_kv(self.keys(2)), 0)
        self.assertEqual(store.put("kv", self.keys(1), list(range(4)), []), [True])
        store.link.connected = False
        self.assertEqual(store.put("kv", self.keys(1), list(range(4)), []), [False])

    def test_a_store_that_does_not_answer_is_waited_for_once(self):
        store = self.store(pools=("kv",), rank=MemoryRank(verdicts=[1] * 2, reasons=[0] * 2), lookup_ms=40)
        self.put_there("kv", range(2))
        self.group.answers = False
        for _ in range(5):
            self.assertEqual(store.leading_kv(self.keys(2)), 0)
            self.assertEqual(store.put("kv", self.keys(1), list(range(4)), []), [False])
            self.assertEqual(store.get("kv", self.keys(1), list(range(4))), [False])
        self.assertEqual((self.group.asked, self.group.probes, self.group.timeouts), (1, 1, [0.04]))
        self.assertEqual((self.rank.put_calls, self.rank.load_calls), ([], []))
        self.assertEqual(store.counters.snapshot()["skipped_pages", "not_answering"], 5)
        self.group.answers = True
        self.group.probed.settle("an answer")
        self.assertEqual(store.leading_kv(self.keys(2)), 2)

    def test_after_a_put_that_was_late_nothing_waits(self):
        store = self.store(pools=("kv",), rank=MemoryRank(verdicts=[6]), put_ms=700)
        self.rank.causes = {"failed: deadline": 1}
        for _ in range(5):
            self.assertEqual(store.put("kv", self.keys(1), list(range(4)), []), [False])
        self.assertEqual(len(self.rank.timeouts), 1)
        self.assertLessEqual(self.rank.timeouts[0], 0.7)

    def test_who_waits_returns_when_sglang_stops_its_threads(self):
        store = self.store(pools=("kv",), rank=MemoryRank(verdicts=[6], reasons=[0]))
        self.put_there("kv", range(1))
        self.rank.hold()
        out = []
        putting = threading.Thread(target=lambda: out.append(store.put("kv", self.keys(1), list(range(4)), [])), daemon=True)
        putting.start()
        self.assertTrue(self.rank.holding.acquire(timeout=30) and self.rank.held.begun.wait(30))
        store.stopping(True)
        putting.join(30)
        self.assertEqual((out, self.rank.held.cancelled), ([[False]], True))
        self.assertEqual((store.leading_kv(self.keys(1)), store.get("kv", self.keys(1), list(range(4)))), (0, [False]))
        self.assertEqual(store.counters.snapshot()["missed_tokens", "cancelled"], 4)
        store.stopping(False)
        self.assertEqual(store.leading_kv(self.keys(1)), 1)

    def test_a_pool_that_comes_later_is_registered_by_a_thread(self):
        store = self.store()
        go, made = threading.Event(), []

        def make(namespace, version):
            if version:
                self.assertTrue(go.wait(30))
            built = types.SimpleNamespace(version=version, rank=MemoryRank())
            made.append(built)
            return built

        store.make = make
        holder = store.build("namespace")
        store.pools_changed()
        self.assertIs(holder.now(store._version), made[0])
        go.set()
        while holder.now(store._version) is made[0]:
            threading.Event().wait(0.001)
        self.assertIs(holder.now(store._version), made[1])
        holder.close()
        self.assertEqual([built.rank.closed for built in made], [True, True])

    def test_leases_are_replaced_and_given_back(self):
        store = self.store()
        self.put_there("kv", range(2))
        self.group.lease = "first"
        store.stops(self.keys(2), [])
        self.group.lease = "second"
        store.stops(self.keys(2), [])
        self.assertTrue(self.link.wait_released(["first"]))
        store.close()
        self.assertTrue(self.link.wait_released(["first", "second"]))


if __name__ == "__main__":
    unittest.main()
