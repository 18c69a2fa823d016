# SPDX-License-Identifier: Apache-2.0
"""Values at the edges of what is allowed, arguments whose own code interferes, and calls that were told a wrong time."""

import ctypes
import sys
import unittest
from unittest import mock

import kvonce
from package_parts import DEADLINE, Case, Setup, own_store, page, pages


class Evil:
    """An integer whose reading runs `code` first."""

    def __init__(self, code, value=0):
        self.code, self.value = code, value

    def __index__(self):
        self.code()
        return self.value


class EvilTensor:
    """A tensor by its attributes, whose data_ptr runs `code` first."""

    dtype, shape = "uint8", (32,)
    device = mock.Mock(type="cpu")

    def __init__(self, code):
        self.code, self.memory = code, bytearray(32)

    def data_ptr(self):
        self.code()
        return 1 << 12

    def element_size(self):
        return 1

    def stride(self):
        return (1,)


class Numbers(Case):
    def assert_bad(self, parts, call, *arguments, **more):
        with self.assertRaises(kvonce.BadArgument) as caught:
            call(*arguments, **more)
        for part in [parts] if isinstance(parts, str) else parts:
            self.assertIn(part, caught.exception.text)

    def test_rows_beyond_64_bits(self):
        with Setup() as kv:
            ok, pool = pages(8), kv.pool
            for rows in (range(2**62, 2**62 + 8 * 2**61, 2**61), range(2**70, 2**70 + 8), range(0, 8 * 2**70, 2**70), [2**63] * 8):
                self.assert_bad(["rows of pool 'kv'", "must be an integer", "9223372036854775807"], kv.rank.put, ok, {pool: rows})
            self.assert_bad("range(0, 36893488147419103232)", kv.rank.put, ok, {pool: range(2**65)})
            table = memoryview(bytearray((2**63).to_bytes(8, sys.byteorder) * 8)).cast("Q")
            self.assert_bad(["entry 0 is 9223372036854775808", "at most"], kv.rank.put, ok, {pool: table})
            self.assertEqual(kv.rank.exists(pool, ok), bytes(8))
            # From end to end of 64 bits: two without a row, and one past the pool's.
            put = kv.rank.put(pages(3), {pool: range(-(2**63), 2**63, 2**63 - 1)}).result(DEADLINE)
            self.assertEqual((put.items, put.reasons(pool)[2]), (1, kvonce.Reason.row_out_of_range))

    def test_a_wrong_kind_is_told_by_the_arguments_name_with_what_it_must_be(self):
        """The most common ones: nothing of them reaches the C++ signature that the binding would print."""
        with Setup() as kv:
            two, rows, lease = pages(2), {kv.pool: range(2)}, bytes(16)
            put, load, lookup = kv.rank.put, kv.rank.load, kv.group.lookup
            for wrong in (None, "abc", 1.5):
                self.assert_bad(f"lease is {wrong!r}: must be a kvonce.Lease", load, wrong, two, rows)
                self.assert_bad(f"pages are a {type(wrong).__name__}: must be bytes", put, wrong, rows)
                self.assert_bad(f"pages are a {type(wrong).__name__}: must be bytes", lookup, wrong)
                self.assert_bad(f"rows is {wrong!r}: must be a dict of kvonce.Pool", put, two, wrong)
                self.assert_bad(f"rows is {wrong!r}: must be a dict of kvonce.Pool", load, lease, two, wrong)
                self.assert_bad(f"first_depth is {wrong!r}: must be an integer, 0 to 4294967295", put, two, rows, first_depth=wrong)
                self.assert_bad(f"layer_begin is {wrong!r}: must be an integer", load, lease, two, rows, layer_begin=wrong)
                self.assert_bad(f"pool is {wrong!r}: must be a kvonce.Pool", kv.rank.exists, wrong, two)
            for wrong in (None, "1", [1], True):
                for call in (put, lookup):
                    given = (two, rows) if call is put else (two,)
                    self.assert_bad(f"timeout is {wrong!r}: must be seconds as a number, 0.001 to 3,600", call, *given, timeout=wrong)
            self.assert_bad("request_id is None: must be a text", lookup, two, None)
            self.assert_bad("level is None: must be a text", put, two, rows, level=None)
            self.assert_bad("progress is 3: must be None or a function", load, lease, two, rows, progress=3)
            self.assert_bad("rows: a key is 'kv': must be a kvonce.Pool", put, two, {"kv": range(2)})
            self.assert_bad("name is None: must be a text", kv.rank.register_pool, None, [])
            for wrong in (None, 3):
                self.assert_bad(f"pool 'kv': components is {wrong!r}: must be a list of", kv.rank.register_pool, "kv", wrong)
            self.assert_bad("pool 'kv': components has 'a': must be a list of", kv.rank.register_pool, "kv", "abc")
            self.assert_bad("pool 'kv': unit is None: must be an integer", kv.rank.register_pool, "kv", [], unit=None)

    def test_a_wrong_kind_in_a_call_that_sets_up_is_told_likewise(self):
        self.assert_bad("engine_id is None: must be a text", kvonce.Runtime, None)
        self.assert_bad("store is None: must be a text", kvonce.Runtime, "e", None)
        self.assert_bad("component 'kv': layers is None: must be a list of arrays", kvonce.Component, "kv", None)
        self.assert_bad("name is 3: must be a text", kvonce.Component, 3, [])
        self.assert_bad("lease is None: must be a kvonce.Lease", kvonce.Lease, None)
        with Setup() as kv:
            self.assert_bad("lease is None: must be a kvonce.Lease, as a lookup gives it", kv.runtime.release, None)
            self.assert_bad("a page hash is a NoneType", kv.namespace.stat, None)
            self.assert_bad("name is None: must be a text", kv.namespace.group, None, [])
            self.assert_bad("group 'g': pools is None: must be a list of kvonce.GroupPool", kv.namespace.group, "g", None)
            for wrong in (None, "kv"):
                self.assert_bad(f"group 'g': pools has {wrong!r}: must be a list of", kv.namespace.group, "g", [wrong])
            self.assert_bad("ranks is None: must be an integer on each of the axes", kv.namespace.group, "g", [], ranks=None)
            for wrong in (None, -1, 70_000, 1.0):
                self.assert_bad(f"tp is {wrong!r}: must be an integer, 0 to 65535", kv.group.rank, tp=wrong)
            self.assert_bad("pool is None: must be a text", kv.group.exists, None, 0, [])
            self.assert_bad("shard is None: must be an integer", kv.group.exists, "kv", None, [])

    def test_none_in_the_place_of_an_object_is_refused(self):
        """Where the binding would take it for one."""
        with Setup() as kv:
            self.assert_bad("rows: a key is None: must be a kvonce.Pool", kv.rank.put, pages(1), {None: [0]})
            self.assert_bad("components has None", kv.rank.register_pool, "kv", [None])
            self.assert_bad("layer 0 is a NoneType: must be an array", kv.rank.register_pool, "kv", [kvonce.Component("kv", [None])])
            self.assert_bad("rows of pool 'kv' is a NoneType: must be an integer array", kv.rank.put, pages(1), {kv.pool: None})
            self.assert_bad("pool is None: must be a kvonce.Pool", kv.put(1).result().verdicts, None)
            self.assert_bad("pool is 'other': must be one that the call had rows of: 'kv'", kv.put(1).result().reasons, "other")
            self.assertFalse(kvonce.Lease(bytes(16)) == None)  # noqa: E711

    def test_a_page_that_is_wrong_is_told_by_its_place(self):
        with Setup() as kv:
            for wrong, text in ((bytes(31), "has 31 bytes"), (None, "is a NoneType"), (memoryview(bytes(64)).cast("H"), "has items of 2 bytes"), (7, "is a int")):
                self.assert_bad([f"pages[1] {text}", "must be 32 bytes, or 64 hex"], kv.group.lookup, [page(0), wrong])
            self.assert_bad("pages[1] is 'ab', a text of 2 bytes: must be 32 bytes", kv.group.lookup, [page(0), "ab"])
            self.assert_bad("parent has 3 bytes", kv.rank.put, pages(1), {kv.pool: [0]}, parent=b"abc")

    def test_numbers_of_a_pool_that_are_out_of_range(self):
        for wrong in (70_000, -1, None, 1.0, "1"):
            self.assert_bad(f"pool 'a': trailing_pages is {wrong!r}: must be an integer, 0 to 65535", kvonce.GroupPool, "a", trailing_pages=wrong)
        self.assert_bad("name is None: must be a text", kvonce.GroupPool, None)
        with Setup() as kv:
            component = kvonce.Component("kv", [memoryview(bytearray(64)).cast("B", (4, 16))])
            for wrong in (1, -1, "0"):
                self.assert_bad(f"pool 'kv': shard is {wrong!r}: must be None, (tp, pp, cp), or a flat index below 1", kv.rank.register_pool, "kv", [component], shard=wrong)

    def test_what_a_read_only_runtime_refuses_is_called_by_its_name(self):
        with own_store() as (_, store):
            kvonce.Runtime("writer", store=store).namespace("n")
            with kvonce.Runtime("reader", store=store, read_only=True) as runtime:
                self.assert_bad("clear: this runtime is read_only", runtime.clear)
                self.assert_bad("remove_pages: this runtime is read_only", runtime.namespace("n").remove, pages(1))
                self.assert_bad("remove_namespace: this runtime is read_only", runtime.namespace("n").clear)

    def test_counters_of_a_report(self):
        with Setup() as kv:
            for value in (-1, 2**64, 1.5, "1"):
                self.assert_bad([f"counter 'a' is {value!r}", "0 to 18446744073709551615"], kv.runtime.report, "x", {"a": value})
            self.assert_bad("the name of a counter is 5: must be a text", kv.runtime.report, "x", {5: 1})
            self.assert_bad(["the name of a counter is '\\ud800'", "surrogates"], kv.runtime.report, "x", {"\ud800": 1})

    def test_texts_that_utf8_cannot_hold(self):
        with Setup() as kv:
            put = kv.put(2).result(DEADLINE)
            self.assert_bad(["pool is '\\ud800'", "surrogates"], put.reasons, "\ud800")
            self.assert_bad(["pages[0] is '\\ud800", "surrogates"], kv.group.exists, "kv", 0, ["\ud800" * 64])
            self.assert_bad("surrogates", kvonce.Runtime, "e", store="embedded", arena_bytes="\ud800")
            self.assert_bad("surrogates", kvonce.Runtime, "e", store="embedded", **{"\ud800": 1})

    def test_times_are_shown_short_and_checked_when_all_is_done(self):
        with Setup() as kv:
            put = kv.put(1)
            self.assertTrue(put.wait(DEADLINE))
            for time in (-1, float("nan"), 1e300):
                for call in (put.wait, put.result, kv.pool.unregister, kv.rank.close, kv.runtime.close):
                    self.assert_bad(f"timeout is {time:g}: must be seconds, 0 to 1,000,000,000", call, time)
            lease = kv.group.lookup(pages(1)).lease
            load = kv.rank.load(lease, pages(1), {kv.pool: [3]})
            self.assertTrue(load.wait(DEADLINE))
            self.assert_bad("timeout is -1", load.wait_layers, 1, -1)

    def test_a_tensor_without_memory_of_its_own(self):
        def sparse():
            raise RuntimeError("a sparse tensor has no storage")

        with Setup() as kv:
            component = kvonce.Component("kv", [EvilTensor(sparse)])
            parts = ["layer 0 is a EvilTensor whose memory cannot be read", "RuntimeError('a sparse tensor has no storage')"]
            self.assert_bad(parts, kv.rank.register_pool, "kv", [component], shard=0)

    def test_pages_as_an_array_of_longer_items(self):
        with Setup() as kv:
            table = memoryview(bytearray(64)).cast("Q")
            self.assert_bad(["items of 8 bytes", "single bytes (uint8) of shape (n, 32)"], kv.group.exists, "kv", 0, table)


class Interference(Case):
    """What arguments' own code does to the containers they lie in ends in an exception, or is not seen."""

    def test_a_list_of_rows_that_is_cleared_while_it_is_read(self):
        with Setup() as kv:
            rows = [0] * 8
            rows[2] = Evil(rows.clear)
            with self.assertRaisesRegex(kvonce.BadArgument, "rows of pool 'kv' became shorter"):
                kv.rank.put(pages(8), {kv.pool: rows})

    def test_a_list_of_pages_that_is_cleared_while_it_is_read(self):
        with Setup() as kv:
            items = pages(8)
            items[1] = EvilTensor(items.clear)
            with self.assertRaises(kvonce.BadArgument):
                # The tensor's pointer leads nowhere: it is not a hash either.
                items[1].shape = (31,)
                kv.group.exists("kv", 0, items)
            items = [*pages(2), EvilHash(), page(3)]
            items[2].code = items.clear
            with self.assertRaisesRegex(kvonce.BadArgument, "pages became shorter"):
                kv.group.exists("kv", 0, items)

    def test_a_dict_that_is_cleared_while_it_is_read(self):
        with Setup() as kv:
            rows = {}
            rows[kv.pool] = [Evil(lambda: (rows.clear(), rows.update({n: n for n in range(1000)})), n) for n in range(4)]
            self.assertTrue(kv.rank.put(pages(4), rows).result(DEADLINE).ok)
            counters = {f"n{n}": 1 for n in range(40)}
            counters["n1"] = Evil(counters.clear, 7)
            kv.runtime.report("x", counters)

    def test_layers_that_are_dropped_while_they_are_read(self):
        with Setup() as kv:
            component = kvonce.Component("kv", [])
            tensors = [EvilTensor(component.layers.clear) for _ in range(3)]
            component.layers.extend(tensors)
            del tensors
            with self.assertRaises(kvonce.BadArgument):  # rows of other bytes than those of the setup's pool
                kv.rank.register_pool("kv", [component], shard=0)

    def test_axes_that_are_cleared_while_they_are_read(self):
        with Setup() as kv:
            for at in range(2):
                axes = [0, 0, 0]
                calls = [
                    lambda axes=axes: kv.namespace.group("g", [kvonce.GroupPool("kv")], ranks=axes),
                    lambda axes=axes: kvonce.GroupPool("kv", shards=axes),
                    lambda axes=axes: kv.rank.register_pool("kv", [], shard=axes),
                ]
                for call in calls:
                    axes[:] = [0, 0, 0]
                    axes[at] = Evil(axes.clear)
                    with self.assertRaisesRegex(kvonce.BadArgument, "became shorter"):
                        call()

    def test_an_interrupt_out_of_an_argument_is_not_swallowed(self):
        def interrupt():
            raise KeyboardInterrupt

        with Setup() as kv, self.assertRaises(KeyboardInterrupt):
            kv.rank.put(pages(1), {kv.pool: [Evil(interrupt)]})


class EvilHash(EvilTensor):
    """A hash of 32 bytes in memory that is really there."""

    def __init__(self):
        super().__init__(lambda: None)
        self.buffer = (ctypes.c_char * 32).from_buffer(self.memory)
        self.address = ctypes.addressof(self.buffer)

    def data_ptr(self):
        self.code()
        return self.address


class Ends(Case):
    def test_a_close_that_is_refused_closes_nothing(self):
        kv = Setup()
        for time in (-1, float("nan")):
            with self.assertRaises(kvonce.BadArgument):
                kv.runtime.close(time)
        self.assertFalse(kv.runtime.closed)
        self.assertTrue(kv.put(1).result(DEADLINE).ok)
        other = kv.runtime.namespace("another")
        kv.runtime.close()
        for _ in range(2):
            with self.assertRaises(kvonce.Closed):
                other.close()

    def test_a_pool_whose_rows_are_lent_tells_the_whole_time(self):
        with Setup() as kv:
            put, event = kv.waiting_put()
            with self.assertRaisesRegex(kvonce.Deadline, r"pool 'kv': rows are still lent after 0\.06 s"):
                kv.pool.unregister(0.06)
            event.signal()
            put.wait(DEADLINE)

    def test_an_after_that_raises_is_told_once_and_ends_the_call(self):
        def wrong():
            raise ValueError("not so")

        with Setup() as kv, mock.patch.object(sys, "unraisablehook") as told:
            put = kv.put(4, after=wrong, timeout=3600)
            self.assertEqual(put.result(DEADLINE).causes(), {"unknown: canceled": 4})
            self.assertEqual(told.call_count, 1)
            self.assertTrue(kv.put(4).result(DEADLINE).ok)
            lease = kv.group.lookup(pages(4)).lease
            load = kv.rank.load(lease, pages(4), {kv.pool: range(8, 12)}, after=wrong, timeout=3600)
            self.assertEqual(load.result(DEADLINE).causes(), {"canceled": 4})
            self.assertEqual(told.call_count, 2)


if __name__ == "__main__":
    unittest.main()
