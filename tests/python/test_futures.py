# SPDX-License-Identifier: Apache-2.0
"""Results that come later: waits without the interpreter's lock, callbacks, asyncio, close with calls in flight."""

import asyncio
import gc
import threading
import unittest
import weakref

import kvonce
from package_parts import DEADLINE, Case, Setup, freeze, own_store, page, pages


class Waits(Case):
    def test_a_result_that_is_not_there_in_time(self):
        with Setup() as kv:
            put, event = kv.waiting_put()
            self.assertFalse(put.done())
            self.assertFalse(put.wait(0.001))
            with self.assertRaises(kvonce.Deadline) as caught:
                put.result(0.001)
            self.assertIsInstance(caught.exception, TimeoutError)
            event.signal()
            self.assertTrue(put.result(DEADLINE).ok)
            self.assertTrue(put.done() and put.wait(0))
            self.assertTrue(event.ready())

    def test_other_threads_run_while_one_waits(self):
        """Without the lock given up, nobody could ever signal what the main thread waits for."""
        for wait in (lambda put, kv: put.result(DEADLINE), lambda put, kv: kv.runtime.flush(DEADLINE), lambda put, kv: kv.pool.unregister(DEADLINE)):
            with Setup() as kv:
                put, event = kv.waiting_put()
                ticks = []

                def tick():
                    for i in range(1000):
                        ticks.append(i)
                    event.signal()

                thread = threading.Thread(target=tick)
                thread.start()
                wait(put, kv)
                thread.join(DEADLINE)
                self.assertEqual(len(ticks), 1000)
                self.assertTrue(put.result(DEADLINE).ok)

    def test_other_threads_run_while_a_store_does_not_answer(self):
        """The thread that lets the store go on runs only while the calls wait."""
        import signal

        with own_store() as (store, path), Setup(path) as kv:
            calls = [lambda: kv.runtime.namespace("a"), lambda: kv.group.lookup(pages(1), timeout=DEADLINE), lambda: kv.runtime.stats()]
            calls += [lambda: kv.runtime.flush(DEADLINE), lambda: kv.runtime.clients(), lambda: kv.runtime.release(bytes(16))]
            for call in calls:
                freeze(store.pid)
                thread = threading.Thread(target=lambda: store.send_signal(signal.SIGCONT))
                thread.start()
                try:
                    call()
                except kvonce.Error as error:
                    self.assertEqual(error.reason, "lease_unknown")
                thread.join(DEADLINE)

    def test_what_they_are_is_shown(self):
        with Setup() as kv:
            put, event = kv.waiting_put()
            self.assertEqual(repr(put), "<kvonce.PutFuture: not done>")
            event.signal()
            self.assertEqual(repr(put.result()), "<kvonce.PutResult: 4 of 4 stored>")
            self.assertEqual(repr(put), "<kvonce.PutFuture: done, 4 of 4 stored>")
            rejected = kv.rank.put(pages(2, 10), {kv.pool: [0, 1000]}).result()
            self.assertRegex(repr(rejected), r"^<kvonce.PutResult: 1 of 2 stored; [a-z]+: row_out_of_range 1>$")
            found = kv.group.lookup_async(pages(5))
            found.wait()
            self.assertEqual(repr(found), "<kvonce.LookupFuture: done, 4 pages, then absent, leased>")
            self.assertEqual(repr(found.result()), "<kvonce.Lookup of 4 pages, then absent, leased>")
            load = kv.rank.load(found.result().lease, pages(4), {kv.pool: [8, 9, 10, 1000]})
            self.assertEqual(repr(load.result()), "<kvonce.LoadResult: 3 of 4 loaded; row_out_of_range 1>")
            self.assertEqual(repr(load), "<kvonce.LoadFuture: done, 3 of 4 loaded; row_out_of_range 1>")
            later = kvonce.Event()
            load = kv.rank.load(found.result().lease, pages(4), {kv.pool: range(8, 12)}, after=later)
            self.assertEqual(repr(load), "<kvonce.LoadFuture: not done, layers below 0 are in place>")
            later.signal()
            self.assertTrue(load.result().ok)

    def test_layers_arrive_in_order(self):
        with Setup(layers=4) as kv:
            for row in range(4):
                kv.fill(row, str(row))
            kv.put(4).result(DEADLINE)
            found = kv.group.lookup(pages(4))
            told, over = [], threading.Event()
            load = kv.rank.load(found.lease, pages(4), {kv.pool: range(8, 12)}, layers_per_group=1, progress=told.append)
            for layer in range(1, 5):
                self.assertTrue(load.wait_layers(layer, DEADLINE))
                self.assertGreaterEqual(load.layers_done, layer)
            self.assertTrue(load.result(DEADLINE).ok)
            load.add_done_callback(lambda _: over.set())
            self.assertTrue(over.wait(DEADLINE))
            self.assertEqual(told, sorted(told))
            self.assertEqual(told[-1], 4)

    def test_some_layers_only(self):
        with Setup(layers=3) as kv:
            kv.fill(0, "stored")
            kv.put(1).result(DEADLINE)
            found = kv.group.lookup(pages(1))
            before = kv.bytes_of(5)
            kv.rank.load(found.lease, pages(1), {kv.pool: [5]}, layer_begin=1, layer_end=2).result(DEADLINE)
            self.assertEqual(kv.bytes_of(5), [before[0], kv.bytes_of(0)[1], before[2]])

    def test_a_canceled_put(self):
        with Setup() as kv:
            put, event = kv.waiting_put()
            put.cancel()
            self.assertEqual(put.result(DEADLINE).causes(), {"unknown: canceled": 4})

    def test_a_lookup_in_the_background(self):
        with Setup() as kv:
            kv.put(3).result(DEADLINE)
            self.assertEqual(kv.group.lookup_async(pages(3)).result(DEADLINE).pages, 3)

    def test_a_function_that_is_asked_until_it_is_ready(self):
        with Setup() as kv:
            asked = []

            def ready():
                asked.append(threading.get_ident())
                return len(asked) == 5

            self.assertTrue(kv.put(2, after=ready).result(DEADLINE).ok)
            self.assertEqual(len(asked), 5)


class Callbacks(Case):
    def test_are_called_with_the_future_before_and_after_the_end(self):
        with Setup() as kv:
            put, event = kv.waiting_put()
            calls, over = [], threading.Event()
            put.add_done_callback(calls.append)
            put.add_done_callback(lambda future: calls.append(future.result(0).ok))
            event.signal()
            put.result(DEADLINE)
            put.add_done_callback(lambda future: over.set())
            self.assertTrue(over.wait(DEADLINE))
            self.assertEqual(calls, [put, True])

    def test_may_call_and_wait(self):
        with Setup() as kv:
            found, over = [], threading.Event()

            def then(future):
                found.append(kv.group.lookup(pages(2)).pages)
                found.append(kv.put(4).result(DEADLINE).succeeded)
                over.set()

            kv.put(2).add_done_callback(then)
            self.assertTrue(over.wait(DEADLINE))
            self.assertEqual(found, [2, 4])

    def test_one_that_raises_stops_nobody(self):
        import sys

        raised, over = [], threading.Event()
        hook, sys.unraisablehook = sys.unraisablehook, lambda report: raised.append(report.exc_type)
        try:
            with Setup() as kv:
                put = kv.put(1)
                put.add_done_callback(lambda future: 1 / 0)
                put.add_done_callback(lambda future: over.set())
                self.assertTrue(over.wait(DEADLINE))
                self.assertTrue(kv.put(2).result(DEADLINE).ok)
        finally:
            sys.unraisablehook = hook
        self.assertEqual(raised, [ZeroDivisionError])

    def test_a_future_that_nobody_keeps_is_let_go(self):
        with Setup() as kv:
            over = threading.Event()

            class Call:
                def __call__(self, future):
                    over.set()

            call = Call()
            gone = weakref.ref(call)
            kv.put(1).add_done_callback(call)
            self.assertTrue(over.wait(DEADLINE))
            del call
            last = threading.Event()
            kv.put(1).add_done_callback(lambda future: last.set())
            self.assertTrue(last.wait(DEADLINE))
            gc.collect()
            self.assertIsNone(gone())


class Asyncio(Case):
    def run_loop(self, work):
        return asyncio.run(asyncio.wait_for(work, DEADLINE))

    def test_await(self):
        async def work(kv):
            put = await kv.put(4)
            found = await kv.group.lookup_async(pages(4))
            load = await kv.rank.load(found.lease, pages(4), {kv.pool: range(8, 12)})
            return put.succeeded, found.pages, load.loaded

        with Setup() as kv:
            self.assertEqual(self.run_loop(work(kv)), (4, 4, 4))

    def test_the_loop_runs_while_a_result_is_awaited(self):
        async def work(kv):
            put, event = kv.waiting_put()

            async def signal():
                for _ in range(10):
                    await asyncio.sleep(0)
                event.signal()

            async def result():
                return await put

            answer, _ = await asyncio.gather(result(), signal())
            return answer.ok

        with Setup() as kv:
            self.assertTrue(self.run_loop(work(kv)))

    def test_many_at_once(self):
        async def one(kv, first):
            return (await kv.rank.put(pages(2, first), {kv.pool: [0, 1]})).succeeded

        async def work(kv):
            return await asyncio.gather(*(one(kv, 10 * i) for i in range(100)))

        with Setup() as kv:
            self.assertEqual(self.run_loop(work(kv)), [2] * 100)

    def test_a_task_that_is_canceled_cancels_the_call(self):
        async def work(kv):
            put, event = kv.waiting_put(timeout=3600)

            async def result():
                return await put

            task = asyncio.ensure_future(result())
            await asyncio.sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
            return put

        with Setup() as kv:
            put = self.run_loop(work(kv))
            self.assertEqual(put.result(DEADLINE).causes(), {"unknown: canceled": 4})

    def test_an_error_is_raised_where_it_is_awaited(self):
        async def work(kv):
            return await kv.group.lookup_async(pages(1), timeout=0.05)

        with own_store() as (store, path), Setup(path) as kv:
            freeze(store.pid)
            with self.assertRaises(kvonce.Deadline):
                self.run_loop(work(kv))

    def test_a_result_after_the_loop_has_ended(self):
        async def work(kv):
            put, event = kv.waiting_put()

            async def result():
                return await put

            task = asyncio.ensure_future(result())
            await asyncio.sleep(0)
            return put, event, task

        with Setup() as kv:
            loop = asyncio.new_event_loop()
            put, event, task = loop.run_until_complete(work(kv))
            task._log_destroy_pending = False
            loop.close()
            event.signal()
            put.result(DEADLINE)


class Close(Case):
    def test_calls_in_flight_end_with_a_reason(self):
        kv = Setup()
        put, event = kv.waiting_put(timeout=3600)
        results = []
        threads = [threading.Thread(target=lambda: results.append(put.result(DEADLINE).causes())) for _ in range(4)]
        for thread in threads:
            thread.start()
        kv.runtime.close()
        for thread in threads:
            thread.join(DEADLINE)
        self.assertEqual(results, [{"unknown: closed": 4}] * 4)

    def test_threads_in_the_middle_of_calls(self):
        kv = Setup()
        begun = threading.Barrier(5)
        ended = []

        def work(call):
            begun.wait()
            try:
                while True:
                    call()
            except kvonce.Closed:
                ended.append(call)

        def put_some():
            if not kv.put(4).result(DEADLINE).ok:
                kv.runtime.connected  # noqa: B018

        calls = [put_some, lambda: kv.group.lookup(pages(4)), lambda: kv.runtime.namespace("n"), lambda: kv.group.exists("kv", 0, [page(0)])]
        threads = [threading.Thread(target=work, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        begun.wait()
        kv.runtime.close()
        for thread in threads:
            thread.join(DEADLINE)
        self.assertEqual(len(ended), 4)

    def test_a_runtime_that_is_dropped_with_calls_in_flight(self):
        kv = Setup()
        put, event = kv.waiting_put(timeout=3600)
        del kv
        gc.collect()
        put.cancel()
        self.assertFalse(put.result(DEADLINE).ok)


class Lost(Case):
    def test_a_store_that_is_gone_is_an_error_with_its_reason_and_nothing_worse(self):
        with own_store() as (store, path), Setup(path) as kv:
            self.assertTrue(kv.put(2).result(DEADLINE).ok)
            put, event = kv.waiting_put(timeout=3600)
            store.kill()
            self.assertEqual(set(put.result(DEADLINE).causes()), {"unknown: store_lost"})
            with self.assertRaises(kvonce.StoreLost) as caught:
                kv.group.lookup(pages(2))
            self.assertIsInstance(caught.exception, ConnectionError)
            self.assertFalse(kv.runtime.connected)
            self.assertEqual(kv.runtime.incarnation, 0)
            self.assertFalse(kv.runtime.wait_connected(0.01))

    def test_nobody_there(self):
        with self.assertRaises(kvonce.StoreLost):
            kvonce.Runtime("e", store="unix:/nowhere/at/all.sock")


if __name__ == "__main__":
    unittest.main()
