# SPDX-License-Identifier: Apache-2.0
"""The shared parts against a real store: connections, epochs and layouts of several processes' worth of runtimes."""

import subprocess
import sys
import time
import unittest

try:
    import kvonce
    import package_parts as support
except ImportError as missing:
    raise unittest.SkipTest(f"needs the native library: {missing}") from missing

from kvonce import engine


def identity(**fields):
    fields = {"page_tokens": 64, "layout": "rows", **fields}
    return engine.Identity(model=engine.ModelIdentity("id:m"), dtype="bf16", **fields)


def eventually(condition):
    end = time.monotonic() + support.DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not come about")
        time.sleep(0.005)


class Process:
    """One rank of an engine: its connection, its epochs, four rows."""

    def __init__(self, store, rank=0, ranks=2, **fields):
        self.link = engine.Connection(engine.Settings.parse({"store": store, "connect_timeout": 5}), "launch-1", rank)
        self.place = engine.Place(tp=rank, tp_size=ranks)
        self.layouts = engine.OtherLayouts(identity(**fields))
        self.epochs = engine.Epochs(self.link, identity(**fields), self.build, lambda built: built[1].close())
        self.memory = bytearray(b"%d" % rank * 4096 * 4)

    def build(self, namespace):
        shard = engine.shard_of_entry("kv", self.place, kind="mla")
        self.layouts.announce(self.link.runtime, namespace, {"kv": shard.counts})
        group = namespace.group("main", [kvonce.GroupPool("kv", shards=shard.counts)], ranks=self.place.ranks)
        rank = group.rank(*self.place.index)
        rows = memoryview(self.memory).cast("B", (4, 4096))
        return group, rank, rank.register_pool("kv", [kvonce.Component("kv", [rows])], shard=shard.index)

    def put(self, pages):
        epoch = self.epochs.wait(support.DEADLINE)
        with epoch.hold():
            group, rank, pool = epoch.built
            return rank.put(pages, {pool: range(len(pages))}).result(support.DEADLINE)

    def lookup(self, pages):
        """Restorable pages, or None while there is no store."""
        epoch = self.epochs.wait(support.DEADLINE) if self.link.connected else None
        return None if epoch is None else epoch.built[0].lookup(pages, probe=True).pages

    def close(self):
        self.epochs.close()
        self.link.close()


class RealStore(support.Case):
    def start(self, *arguments, **fields):
        process = Process(*arguments, **fields)
        self.addCleanup(process.close)
        return process

    def test_after_new_weights_no_rank_finds_what_the_old_ones_made(self):
        with support.own_store() as (_, store):
            ranks = [self.start(store, rank) for rank in range(2)]
            pages = support.pages(3)
            self.assertTrue(ranks[0].put(pages).ok)
            self.assertEqual([rank.lookup(pages) for rank in ranks], [3, 3])
            for rank in ranks:
                rank.epochs.update()
            self.assertEqual([rank.lookup(pages) for rank in ranks], [0, 0])
            self.assertTrue(ranks[1].put(pages).ok)
            self.assertEqual([rank.lookup(pages) for rank in ranks], [3, 3])
            self.assertEqual(len({rank.epochs.wait(support.DEADLINE).value for rank in ranks}), 1)
            # An engine that starts with the first weights finds theirs.
            self.assertEqual(self.start(store, 0).lookup(pages), 3)

    def test_a_put_of_old_rows_after_the_update_goes_under_the_old_weights(self):
        with support.own_store() as (_, store):
            rank = self.start(store, 0, 1)
            pages = support.pages(2)
            old = rank.epochs.wait(support.DEADLINE)
            ready = kvonce.Event()
            with old.hold():
                _, of_old, pool = old.built
                put = of_old.put(pages, {pool: range(2)}, after=ready)
                rank.epochs.update()
                self.assertEqual(rank.lookup(pages), 0)
                ready.signal()
                self.assertTrue(put.result(support.DEADLINE).ok)
            self.assertEqual(rank.lookup(pages), 0)
            self.assertEqual(self.start(store, 0, 1).lookup(pages), 2)

    def test_the_store_is_told_what_each_rank_counts_while_it_is_connected(self):
        with support.own_store() as (_, store):
            ranks = [self.start(store, rank) for rank in range(2)]
            for number, rank in enumerate(ranks):
                self.assertTrue(rank.link.connected)
                rank.link.counters.lookup(1000 + number, 600, "evicted")
                self.assertTrue(rank.link.connected)  # as in a step; the news goes a second after the last at the latest

            def told():
                clients = ranks[0].link.runtime.clients()
                return sorted((label, report.get("asked_tokens")) for client in clients for label, report in client["reports"].items())

            eventually(lambda: told() == [("rank 0", 1000), ("rank 1", 1001)])
            (report,) = (c["reports"]["rank 1"] for c in ranks[0].link.runtime.clients() if "rank 1" in c["reports"])
            self.assertEqual((report["hit_tokens"], report["missed_tokens:evicted"]), (600, 401))
            ranks[1].link.close()
            eventually(lambda: told() == [("rank 0", 1000)])

    def test_a_thousand_and_more_updates_find_room(self):
        with support.own_store() as (_, store):
            rank = self.start(store, 0, 1)
            pages = support.pages(1)
            for _ in range(1030):
                rank.epochs.update()
                self.assertTrue(rank.put(pages).ok)
            self.assertEqual(rank.lookup(pages), 1)
            self.assertEqual(rank.link.counters.total("errors"), 0)

    def test_a_killed_store_is_misses_and_the_next_one_is_found_with_equal_epochs(self):
        with support.own_store() as (process, store):
            ranks = [self.start(store, rank) for rank in range(2)]
            for rank in ranks:
                rank.epochs.update()
            first = {rank.epochs.wait(support.DEADLINE).value for rank in ranks}
            process.kill()
            process.wait(support.DEADLINE)
            eventually(lambda: not any(rank.link.connected for rank in ranks))
            self.assertEqual([rank.lookup(support.pages(1)) for rank in ranks], [None, None])
            self.assertEqual([rank.link.counters.total("stores_lost") for rank in ranks], [1, 1])
            program = process.args[0]
            again = subprocess.Popen(
                [program, "--socket", store.removeprefix("unix:"), "--memory", "64MiB", "--populate", "no"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self.addCleanup(again.wait, support.DEADLINE)
            self.addCleanup(again.kill)
            for rank in ranks:
                eventually(lambda rank=rank: rank.epochs.wait(support.DEADLINE) is not None)
            second = {rank.epochs.wait(support.DEADLINE).value for rank in ranks}
            self.assertEqual((len(first), len(second)), (1, 1))
            pages = support.pages(2)
            self.assertTrue(ranks[0].put(pages).ok)
            self.assertEqual(ranks[1].lookup(pages), 2)

    def test_another_page_size_is_a_miss_that_is_counted_as_such_and_never_a_conflict(self):
        with support.own_store() as (_, store):
            one = self.start(store, 0, 1)
            pages = support.pages(2)
            self.assertTrue(one.put(pages).ok)
            other = self.start(store, 0, 1, page_tokens=32)
            self.assertEqual(other.lookup(pages), 0)
            self.assertEqual(other.layouts.cause("absent", 0), "other_layout")
            self.assertTrue(other.put(pages).ok)
            self.assertEqual(one.lookup(pages), 2)
            self.assertEqual(one.link.runtime.stats()["conflicts"], 0)

    def test_the_engine_starts_before_its_store(self):
        with support.own_store() as (process, store):
            path = store + "-later"
            with self.assertLogs("kvonce", "WARNING"):
                link = engine.Connection(engine.Settings.parse({"store": path, "connect_timeout": 0.05}), "launch-1", 0)
            self.addCleanup(link.close)
            self.assertFalse(link.connected)
            self.assertIsNone(link.refused)
            later = subprocess.Popen(
                [process.args[0], "--socket", path.removeprefix("unix:"), "--memory", "64MiB", "--populate", "no"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self.addCleanup(later.wait, support.DEADLINE)
            self.addCleanup(later.kill)
            self.assertTrue(link.wait(support.DEADLINE))

    def test_an_option_out_of_range_is_refused_with_the_runtimes_own_words(self):
        with support.own_store() as (_, store):
            settings = engine.Settings.parse({"store": store, "mover_threads": 1000})
            with self.assertRaisesRegex(engine.Refused, "mover_threads"):
                engine.Connection(settings, "launch-1", 0)

    def test_an_engine_process_ends_though_its_store_never_came(self):
        ended = subprocess.run(
            [sys.executable, "-c", "from kvonce import engine\n"
             "engine.Connection(engine.Settings.parse({'store': 'unix:/nowhere/at/all', 'connect_timeout': 0.01}), 'e', 0)"],
            env=support.environment(), timeout=support.DEADLINE, capture_output=True, text=True,
        )
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn("does not answer", ended.stderr)


if __name__ == "__main__":
    unittest.main()
