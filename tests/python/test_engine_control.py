# SPDX-License-Identifier: Apache-2.0
"""What tests in real engines see and change of kvonce inside other processes: records, counts, and a load that moves nothing."""
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

from package_parts import Case

import kvonce

ENGINES = Path(__file__).resolve().parents[1] / "engines"

SETUP = """
import kvonce
from support import control
from support.store import Store

ROW = 4096
page = lambda n: n.to_bytes(32, "little")
memory = bytearray(32 * ROW)

def rank_of(store):
    runtime = kvonce.Runtime("engine", store=store.address)
    runtime.wait_connected(30)
    group = runtime.namespace("control").group("main", [kvonce.GroupPool("kv", shards=(2, 1, 1))], ranks=(2, 1, 1))
    rank = group.rank(tp=1)
    pool = rank.register_pool("kv", [kvonce.Component("kv", [memoryview(memory).cast("B", (32, ROW))])], shard=1)
    return runtime, group, rank, pool
"""


class Control(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        # As the runner lays it: the engines' support goes before these tests' own.
        self.variables = {
            "KVONCE_TEST_CONTROL": folder.name,
            "PYTHONPATH": os.pathsep.join([str(ENGINES / "hooks"), str(ENGINES), str(Path(kvonce.__file__).parent.parent)]),
        }

    def in_engine(self, text):
        ran = subprocess.run([sys.executable, "-c", SETUP + textwrap.dedent(text)], env={**os.environ, **self.variables}, capture_output=True,
                             text=True, timeout=120)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    def test_puts_are_recorded_and_counted_by_the_store_itself(self):
        self.in_engine("""
            with Store(memory="64MiB") as store:
                runtime, group, rank, pool = rank_of(store)
                assert rank.put([page(n) for n in range(5)], {pool: [0, 1, -1, 3, 4]}).result().ok
                calls = control.puts()
                assert [(call.pool, call.pages) for call in calls] == [("kv", tuple(page(n).hex() for n in (0, 1, 3, 4)))], calls
                assert control.namespaces() == ["control"]
                assert store.objects() == {("kv", 1): 4}, store.objects()
                assert store.payload_bytes() == {("kv", 1): 4 * pool.object_bytes}, store.payload_bytes()
                store.remove(page(3).hex())
                assert store.objects() == {("kv", 1): 3}, store.objects()
                assert set(store.pages()) == {page(n).hex() for n in (0, 1, 4)}, store.pages()
                assert store.clear() == 3
                assert store.objects() == {}, store.objects()
                runtime.close()
        """)

    def test_a_load_that_moves_nothing_says_that_it_has_and_ends_when_switched_off(self):
        self.in_engine("""
            with Store(memory="64MiB") as store:
                runtime, group, rank, pool = rank_of(store)
                memory[: 2 * ROW] = b"k" * (2 * ROW)
                pages = [page(0), page(1)]
                assert rank.put(pages, {pool: range(2)}).result().ok
                # Another shard's rank would have to put for a lookup to find them: a load by key needs the lease only.
                rank0 = group.rank(tp=0)
                pool0 = rank0.register_pool("kv", [kvonce.Component("kv", [memoryview(memory).cast("B", (32, ROW))])], shard=0)
                assert rank0.put(pages, {pool0: range(2)}).result().ok
                found = group.lookup(pages)
                assert found.pages == 2
                control.moves_nothing(True)
                future = rank.load(found.lease, pages, {pool: [8, 9]})
                result = future.result()
                assert result.ok and (result.loaded, result.items, result.reasons(pool), result.causes()) == (2, 2, bytes(2), {})
                assert future.wait_layers(1) and memory[8 * ROW : 10 * ROW] == bytes(2 * ROW)
                control.moves_nothing(False)
                control.store_lost(True)
                result = rank.load(found.lease, pages, {pool: [8, 9]}).result()
                assert not result.ok and result.reasons("kv") == bytes([kvonce.Reason.store_lost] * 2), result.causes()
                control.store_lost(False)
                assert rank.load(found.lease, pages, {pool: [8, 9]}).result().ok
                assert memory[8 * ROW : 10 * ROW] == b"k" * (2 * ROW)
                assert len(control.loads()) == 3
                runtime.close()
        """)

    def test_what_stands_for_a_load_has_all_that_a_load_has(self):
        self.in_engine("""
            public = lambda kind: {name for name in dir(kind) if not name.startswith("_")}
            future = control._Future(control._Result(1, {"kv": [0]}, kvonce.Reason(0)), 1)
            assert public(kvonce.LoadFuture) <= public(future), public(kvonce.LoadFuture) - public(future)
            assert public(kvonce.LoadResult) <= public(future.result()), public(kvonce.LoadResult) - public(future.result())
        """)

    def test_a_store_that_was_killed_starts_again_on_the_same_address(self):
        self.in_engine("""
            with Store(memory="64MiB") as store:
                first, incarnation = store.pid, store.stat()["incarnation"]
                store.kill()
                store.start()
                assert store.pid != first and store.stat()["incarnation"] != incarnation
                store.stop()
        """)

    def test_nothing_is_wrapped_outside_of_such_tests(self):
        del self.variables["KVONCE_TEST_CONTROL"]
        self.in_engine("assert kvonce.Rank.load.__class__.__module__ != 'builtins', kvonce.Rank.load")


if __name__ == "__main__":
    unittest.main()
