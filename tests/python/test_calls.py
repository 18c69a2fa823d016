# SPDX-License-Identifier: Apache-2.0
"""Calls, their arguments and their answers, with an embedded store."""

import pickle
import unittest

import kvonce
from package_parts import NAMESPACE, Case, Setup, page, pages


class RoundTrip(Case):
    def test_a_page_comes_back_byte_for_byte(self):
        with Setup() as kv:
            for row in range(8):
                kv.fill(row, f"page {row}")
            before = [kv.bytes_of(row) for row in range(8)]
            put = kv.put(8).result()
            self.assertTrue(put.ok)
            self.assertEqual((put.succeeded, put.items, put.causes()), (8, 8, {}))
            self.assertEqual(put.verdicts(kv.pool), bytes([kvonce.Verdict.stored] * 8))
            self.assertEqual(put.reasons("kv"), bytes(8))

            found = kv.group.lookup(pages(9))
            self.assertEqual((found.pages, found.resident_pages, found.first_missing, found.reason), (8, 8, 8, "absent"))
            self.assertTrue(found.every_stop)
            loaded = kv.rank.load(found.lease, pages(8), {kv.pool: range(16, 24)}, layers_per_group=1).result()
            self.assertTrue(loaded.ok)
            self.assertEqual((loaded.loaded, loaded.items, loaded.reasons(kv.pool)), (8, 8, bytes(8)))
            self.assertEqual([kv.bytes_of(row) for row in range(16, 24)], before)
            kv.runtime.release(found.lease)

    def test_what_is_stored_is_not_stored_again(self):
        with Setup() as kv:
            kv.put(3).result()
            again = kv.put(4).result()
            stored, already = kvonce.Verdict.stored, kvonce.Verdict.already_stored
            self.assertEqual(again.verdicts(kv.pool), bytes([already, already, already, stored]))
            self.assertTrue(again.ok)

    def test_a_miss_is_no_exception(self):
        with Setup() as kv:
            found = kv.group.lookup(pages(5, first=900))
            self.assertEqual((found.pages, found.lease, found.reason, found.first_missing), (0, None, "absent", 0))
            self.assertIsNone(kv.namespace.stat(page(900)))
            self.assertEqual(kv.group.exists("kv", 0, pages(2, first=900)), b"\0\0")
            self.assertEqual(kv.namespace.remove(pages(1, first=900)), 0)
            self.assertIsNone(kv.runtime.find_namespace("nobody has opened this"))

    def test_a_load_without_a_lease_says_why_per_page(self):
        with Setup() as kv:
            kv.put(2).result()
            answer = kv.rank.load(bytes(16), pages(2), {kv.pool: [0, 1]}).result()
            self.assertFalse(answer.ok)
            self.assertEqual(answer.reasons(kv.pool), bytes([kvonce.Reason.lease_unknown] * 2))
            self.assertEqual(answer.causes(), {"lease_unknown": 2})

    def test_what_is_not_stored_is_counted_by_its_cause(self):
        with Setup() as kv:
            put, _ = kv.waiting_put(timeout=0.05)
            answer = put.result()
            self.assertFalse(answer.ok)
            self.assertEqual(answer.causes(), {"unknown: deadline": 4})
            self.assertEqual(answer.verdicts(kv.pool), bytes([kvonce.Verdict.unknown] * 4))
            self.assertEqual(answer.reasons(kv.pool), bytes([kvonce.Reason.deadline] * 4))

    def test_stat_exists_and_removal(self):
        with Setup() as kv:
            kv.put(3).result()
            stat = kv.namespace.stat(page(1))
            self.assertEqual(stat.depth, 1)
            self.assertEqual(stat.objects, [{"pool": "kv", "shard": 0, "bytes": kv.pool.object_bytes, "level": "memory"}])
            self.assertEqual(kv.rank.exists(kv.pool, pages(4)), b"\1\1\1\0")
            self.assertEqual(kv.group.remove_key("kv", 0, page(2)), 1)
            self.assertEqual(kv.group.exists("kv", 0, pages(4)), b"\1\1\0\0")
            self.assertEqual(kv.namespace.remove([page(1)]), 1)
            self.assertEqual(kv.namespace.clear(), 1)
            kv.put(2).result()
            self.assertEqual(kv.runtime.clear(), 2)
            kv.runtime.flush()

    def test_what_is_there_is_told(self):
        with Setup(engine="told") as kv:
            kv.put(2).result()
            stats = kv.runtime.stats()
            self.assertEqual((stats["stored_objects"], stats["objects_now"]), (2, 2))
            self.assertEqual(stats["verdicts"]["stored"], 2)
            self.assertIn("absent", stats["misses"])
            self.assertEqual(kv.rank.moved_bytes, 2 * kv.pool.object_bytes)
            self.assertEqual((kv.pool.name, kv.pool.rows, kv.pool.layers), ("kv", 64, 2))
            self.assertEqual(kv.namespace.pools(), [{"name": "kv", "shards": (1, 1, 1), "object_bytes": kv.pool.object_bytes}])
            self.assertTrue(kv.runtime.connected)
            self.assertTrue(kv.runtime.wait_connected(0))
            self.assertNotEqual(kv.runtime.incarnation, 0)
            self.assertEqual(kv.runtime.clients(), [])
            self.assertFalse(kv.runtime.store_start["warm"])
            self.assertEqual((kv.runtime.engine_id, kv.namespace.text), ("told", NAMESPACE))

    def test_a_namespace_that_was_closed_means_nothing_and_can_be_opened_again(self):
        with Setup() as kv:
            kv.put(2).result()
            other = kv.runtime.namespace("another")
            other.close()
            other.close()
            with self.assertRaises(kvonce.Error) as caught:
                other.pools()
            self.assertEqual(caught.exception.reason, "unknown_namespace")
            self.assertEqual(kv.runtime.find_namespace("another").pools(), [])
            self.assertEqual(kv.rank.exists(kv.pool, pages(2)), b"\1\1")

    def test_reports_out_of_bounds_are_refused(self):
        with Setup() as kv:
            kv.runtime.report("rank 0", {"asked_tokens": 2**64 - 1})  # an embedded store keeps none
            for label, counters in (("x" * 256, {"a": 1}), ("a", {"": 1}), ("a", {"n" * 65: 1}), ("\n", {"a": 1})):
                with self.assertRaises(kvonce.BadArgument):
                    kv.runtime.report(label, counters)
            with self.assertRaises(kvonce.Error) as caught:
                kv.runtime.report("a", {str(n): n for n in range(65)})
            self.assertEqual(caught.exception.reason, "too_many")

    def test_trailing_and_optional_pools(self):
        with Setup() as kv:
            pools = [kvonce.GroupPool("every", (1, 1, 1)), kvonce.GroupPool("state", (1, 1, 1), trailing_pages=1)]
            pools.append(kvonce.GroupPool("draft", (1, 1, 1), optional=True))
            group = kv.namespace.group("hybrid", pools)
            rank = group.rank()
            views = {name: memoryview(bytearray(8 * 64)).cast("B", (8, 64)) for name in ("every", "state", "draft")}
            made = {name: rank.register_pool(name, [kvonce.Component(name, [view])], shard=0) for name, view in views.items()}
            # A state after the third page only, and no draft at all.
            put = rank.put(pages(4), {made["every"]: range(4), made["state"]: [-1, -1, 2, -1]}).result()
            self.assertEqual((put.items, put.succeeded), (5, 5))
            self.assertEqual(put.verdicts("state"), bytes([0, 0, kvonce.Verdict.stored, 0]))
            found = group.lookup(pages(4))
            self.assertEqual((found.pages, found.resident_pages, found.every_stop), (3, 4, False))
            self.assertEqual((found.stops, found.leased_stops), ([3], [3]))
            self.assertEqual((found.reason, found.missing_pool, found.optional_missing), ("group_incomplete", "state", ["draft"]))

    def test_a_lease_can_go_to_another_process(self):
        with Setup() as kv:
            kv.put(2).result()
            lease = kv.group.lookup(pages(2)).lease
            self.assertEqual(len(bytes(lease)), 16)
            for copy in (kvonce.Lease(bytes(lease)), pickle.loads(pickle.dumps(lease))):
                self.assertEqual(copy, lease)
                self.assertEqual(hash(copy), hash(lease))
            self.assertNotEqual(lease, kv.group.lookup(pages(2)).lease)
            kv.runtime.narrow(lease, 1)
            answer = kv.rank.load(bytes(lease), pages(2), {kv.pool: [0, 1]}).result()
            self.assertEqual(answer.reasons(kv.pool)[0], 0)
            kv.runtime.release(lease)
            kv.runtime.release(lease)

    def test_lookups_of_one_request_get_one_answer(self):
        with Setup() as kv:
            kv.put(2).result()
            first = kv.group.lookup(pages(4), request_id="r")
            kv.put(4).result()
            self.assertEqual(kv.group.lookup(pages(4), request_id="r").pages, first.pages)
            self.assertEqual(kv.group.lookup(pages(4), probe=True).pages, 4)
            self.assertIsNone(kv.group.lookup(pages(4), probe=True).lease)


    def test_calls_take_a_time(self):
        with Setup() as kv:
            namespace, runtime = kv.namespace, kv.runtime
            for call, *arguments in (
                (runtime.namespace, "model"), (runtime.find_namespace, "model"), (runtime.epoch, "e"), (runtime.stats,),
                (runtime.clients,), (runtime.clear,), (runtime.release, bytes(16)), (runtime.narrow, bytes(16), 0),
                (namespace.group, "g", [kvonce.GroupPool("p")]), (namespace.remove, pages(1)), (namespace.clear,),
                (kv.group.remove_key, kv.pool.name, 0, bytes(32)), (kv.rank.register_pool, kv.pool.name, []),
                (namespace.close,),
            ):  # fmt: skip
                with self.subTest(call), self.assertRaises(kvonce.BadArgument) as caught:
                    call(*arguments, timeout=-1)
                self.assertIn("timeout is -1", caught.exception.text)
            self.assertEqual(runtime.clear(timeout=60), 0)


class BadInput(Case):
    def assert_bad(self, part, call, *arguments, **more):
        with self.assertRaises(kvonce.BadArgument) as caught:
            call(*arguments, **more)
        self.assertIn(part, caught.exception.text)
        self.assertIn(caught.exception.reason, kvonce.REASONS)
        self.assertIsInstance(caught.exception, ValueError)
        return caught.exception

    def test_an_unknown_option_is_refused_with_the_nearest_name(self):
        self.assert_bad("'arena_bytes'", kvonce.Runtime, "e", store="embedded", arena_byte=1)
        self.assert_bad("'lease_time'", kvonce.Runtime, "e", lease_tme=1)
        self.assert_bad("the nearest is 'store'", kvonce.Runtime, "e", stor="auto")
        self.assert_bad("the nearest is 'engine_id'", kvonce.Runtime, "e", engine="x")
        self.assert_bad(r"lists them", kvonce.Runtime, "e", memory=1)

    def test_options_of_another_kind_or_range(self):
        def start(**options):
            return kvonce.Runtime("e", store="embedded", **options)

        self.assert_bad("arena_bytes is 1", start, arena_bytes=1)
        self.assert_bad("arena_bytes is '1XB'", start, arena_bytes="1XB")
        self.assert_bad("seconds", start, lease_time="1s")
        self.assert_bad("lease_time is 7200000 ms", start, lease_time=7200)
        self.assert_bad("True or False", start, checksums=1)
        self.assert_bad("whole number", start, partitions=True)
        self.assert_bad("whole number", start, partitions=-1)
        self.assert_bad(f"partitions is {2**33}: must be a whole number, 1 to 64", start, partitions=2**33)
        self.assert_bad(f"arena_bytes is {2**70}: must be 1 MiB to 64 TiB", start, arena_bytes=2**70)
        self.assert_bad("numa_node is 4294967296: must be a node's number", start, numa_node=2**32)
        self.assert_bad("lease_time is 1000000000000.0: must be seconds, 10 ms to 1 h", start, lease_time=1e12)
        self.assert_bad("a text", start, policy=3)
        self.assert_bad("engine_id", kvonce.Runtime, "", store="embedded")
        self.assert_bad("store is 'nowhere'", kvonce.Runtime, "e", store="nowhere")

    def test_every_option_of_the_config_is_known(self):
        options = {
            "connect_timeout": 1.0, "read_only": False, "serve": "", "serve_group": "", "max_clients": 8, "engine_grace": 0.5,
            "arena_file": "", "numa_node": -1, "auto_bytes": "1MiB", "auto_idle": 1, "kvonced_path": "", "arena_bytes": "16MiB",
            "capacity_bytes": "8MiB", "index_pages": 4096, "populate": False, "huge_pages": True, "partitions": 1,
            "ghost_entries": 10, "policy": "lru", "checksums": True, "window_bytes": "1MiB", "grant_base": 1.0,
            "least_rate": "1MiB", "verify_sample": 1, "verify_window": 1.0, "conflict_limit": 3, "demote": True,
            "lease_time": 1.5, "leased_bytes": 0, "leased_stops": 4, "scheduler_threads": 1, "mover_threads": 1,
            "copy_kernel": "auto", "inline_copy_bytes": 0, "caller_runs": True,
        }  # fmt: skip
        kvonce.Runtime("e", store="embedded", **options).close()

    def test_page_hashes(self):
        with Setup() as kv:
            self.assert_bad("31 bytes", kv.group.lookup, bytes(31))
            self.assert_bad("64 hexadecimal digits", kv.group.lookup, ["zz"])
            self.assert_bad("32 bytes", kv.group.lookup, [b"short"])
            self.assert_bad("must be bytes", kv.group.lookup, "ab" * 32)
            self.assert_bad("a int", kv.group.lookup, 7)
            self.assert_bad("a page hash is a int", kv.namespace.stat, 7)

    def test_row_indices(self):
        with Setup(unit=4) as kv:
            two = pages(2)
            self.assert_bad("must be 8", kv.rank.put, two, {kv.pool: range(2)})
            self.assert_bad("multiple of the pool's unit", kv.rank.put, two, {kv.pool: range(1, 9)})
            self.assert_bad("entry 0 is 0.5", kv.rank.put, two, {kv.pool: [0.5] * 8})
            self.assert_bad("must be an integer array", kv.rank.put, two, {kv.pool: object()})
            self.assert_bad("kvonce.Pool", kv.rank.put, two, {"kv": range(8)})
            self.assert_bad("0 items", kv.rank.put, two, {kv.pool: [-1] * 8})

    def test_a_row_outside_the_pool_fails_that_page_only(self):
        with Setup() as kv:
            put = kv.rank.put(pages(2), {kv.pool: [0, 1000]}).result()
            self.assertEqual(put.verdicts(kv.pool)[0], kvonce.Verdict.stored)
            self.assertEqual(put.reasons(kv.pool)[1], kvonce.Reason.row_out_of_range)

    def test_groups_ranks_and_shards(self):
        with Setup() as kv:
            self.assert_bad("must be at most", kv.namespace.group, "g", [kvonce.GroupPool("a", (4, 1, 1))], ranks=(2, 1, 1))
            two = kv.namespace.group("two", [kvonce.GroupPool("a"), kvonce.GroupPool("b", (1, 1, 1))], ranks=(2, 1, 1))
            self.assert_bad("is no rank", two.rank, tp=2)
            rank = two.rank(tp=1)
            component = [kvonce.Component("c", [memoryview(bytearray(64)).cast("B", (4, 16))])]
            self.assert_bad("flat index below 2", rank.register_pool, "a", component, shard=2)
            self.assert_bad("must be below 2", rank.register_pool, "a", component, shard=(2, 0, 0))
            self.assert_bad("each of the axes", rank.register_pool, "a", component, shard=(2, 0))
            self.assert_bad("is not in group 'two', which has 'a', 'b'", rank.register_pool, "c", component)
            self.assertEqual(rank.register_pool("a", component).rows, 4)

    def test_times(self):
        with Setup() as kv:
            self.assert_bad("1 ms to 1 h", kv.put, 1, timeout=0)
            self.assert_bad("seconds, 0.001 to 3,600", kv.put, 1, timeout=-1)
            self.assert_bad("seconds, 0.001 to 3,600", kv.put, 1, timeout=float("nan"))
            self.assert_bad("'memory'", kv.put, 1, level="paper")
            self.assert_bad("after", kv.put, 1, after=3)

    def test_after_a_close(self):
        kv = Setup()
        put = kv.put(1)
        put.result()
        kv.runtime.close()
        kv.runtime.close()
        calls = [
            lambda: kv.runtime.namespace("x"), lambda: kv.group.lookup(pages(1)), lambda: kv.put(1), lambda: kv.runtime.stats(),
            lambda: kv.namespace.stat(page(0)), lambda: kv.rank.exists(kv.pool, pages(1)), lambda: kv.runtime.flush(),
            lambda: kv.group.rank(), lambda: kv.runtime.release(bytes(16)), lambda: kv.runtime.connected,
        ]  # fmt: skip
        for call in calls:
            with self.assertRaises(kvonce.Closed) as caught:
                call()
            self.assertEqual(caught.exception.reason, "closed")
        self.assertTrue(put.result().ok)
        self.assertTrue(kv.runtime.closed)

    def test_a_closed_rank_and_pool(self):
        with Setup() as kv:
            kv.pool.unregister()
            kv.pool.unregister()
            with self.assertRaises(kvonce.Closed):
                kv.put(1)
            kv.rank.close()
            kv.rank.close()
            with self.assertRaises(kvonce.Closed):
                kv.rank.moved_bytes  # noqa: B018

    def test_the_exceptions_are_what_other_code_catches(self):
        error = kvonce.Error("busy", "not now")
        self.assertEqual((error.reason, error.text, str(error)), ("busy", "not now", "not now [busy]"))
        for kind, base in [(kvonce.StoreLost, ConnectionError), (kvonce.Deadline, TimeoutError), (kvonce.Closed, RuntimeError)]:
            self.assertTrue(issubclass(kind, base) and issubclass(kind, kvonce.Error))
            self.assertEqual(str(kind("closed", "text")), "text [closed]")
            self.assertEqual(pickle.loads(pickle.dumps(kind("closed", "text"))).text, "text")
        self.assertEqual(kvonce.REASONS[kvonce.Reason.store_lost], "store_lost")
        self.assertEqual(kvonce.Verdict.stored, 1)


if __name__ == "__main__":
    unittest.main()
