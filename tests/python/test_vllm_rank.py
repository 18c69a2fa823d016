# SPDX-License-Identifier: Apache-2.0
"""A rank's side, and both sides while the store stands still."""
import threading
import types
import unittest

import vllm_parts as v


class StandingStore(unittest.TestCase):
    """Registering with the store takes as long as the test wants: the threads of the engine go on."""

    def setUp(self):
        self.goes_on = threading.Event()
        self.addCleanup(self.goes_on.set)
        self.asked = threading.Event()
        self.plan = v.plan(v.full())
        (self.pool,) = self.plan.pools
        self.rank, self.group = v.Rank(), v.Group()
        # Threads of its own, as in an engine.
        self.runtime, self.epochs = v.epochs(self.build, spawn=v.engine_parts.load("kvonce.engine.epochs")._on_a_thread)
        self.addCleanup(self.epochs.close)

    def build(self, namespace):
        self.asked.set()
        self.goes_on.wait(60)
        return types.SimpleNamespace(group=self.group, rank=self.rank, pools={self.pool.key: "the pool"})

    def in_a_thread(self, steps):
        """Whether they are done although the store stands still."""
        failures = []

        def run():
            try:
                steps()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(60)
        done = not thread.is_alive()
        self.assertTrue(self.asked.wait(60))
        self.assertFalse(self.goes_on.is_set())
        self.goes_on.set()
        thread.join(60)
        self.assertEqual(failures, [])
        self.assertTrue(done, "a thread of the engine waited for the store")

    def test_the_scheduler_goes_on(self):
        counters = v.engine.Counters("engine", "scheduler")
        side = v.scheduler.SchedulerSide(
            self.plan, v.engine.Settings(), self.epochs, lambda lease: None, counters, 1, connected=lambda: True
        )

        def steps():
            for number in range(50):
                request = v.Request(f"r{number}", 200)
                self.assertEqual(side.matched(request, 0), (0, False))
                step = side.step(v.output({request.request_id: 128}, {}, {request.request_id: ([1, 2],)}))
                self.assertEqual((step.saves, step.epoch), ([], None))
                side.finished(request)
                if number % 10 == 0:
                    side.reset()

        self.in_a_thread(steps)
        self.assertEqual(counters.snapshot()["missed_tokens", "no_epoch"], 50 * 192)

    def test_a_rank_goes_on(self):
        side = v.worker.WorkerSide(v.engine.Settings(), self.epochs, v.engine.Counters("engine", 0))

        def steps():
            for number in range(50):
                save = v.messages.Save(number, f"r{number}", 0, None, v.page_hash(1), {self.pool.key: [3]})
                step = v.messages.Step(epoch="", saves=[save])
                side.begin(step)
                side.start_loads(step)
                side.start_saves(step)
                self.assertEqual(side.results(), v.messages.Results())

        self.in_a_thread(steps)
        self.assertIsNotNone(self.epochs.wait(60))
        side.results()
        self.assertEqual(len(self.rank.puts), 50)


class Worker(unittest.TestCase):
    def setUp(self):
        self.plan = v.plan(v.full())
        (self.pool,) = self.plan.pools
        self.ranks = []
        self.runtime, self.epochs = v.epochs(self.build, retire=lambda built: built.rank.close())
        self.counters = v.engine.Counters("engine", 0)
        self.now = 100.0
        self.side = v.worker.WorkerSide(
            v.engine.Settings(), self.epochs, self.counters, connected=lambda: self.runtime.connected, clock=lambda: self.now
        )

    def build(self, namespace):
        self.ranks.append(v.Rank())
        return types.SimpleNamespace(rank=self.ranks[-1], pools={self.pool.key: "the pool"})

    def load(self, name="r", updates=0, rows=(3, 4)):
        return v.messages.Load(name, updates, "", "lease", v.page_hash(1) * len(rows), {self.pool.key: list(rows)}, 128)

    def save(self, job=1, name="r", rows=(3, 4)):
        return v.messages.Save(job, name, 2, v.page_hash(9), v.page_hash(1) * len(rows), {self.pool.key: list(rows)})

    def run_step(self, **step):
        step = v.messages.Step(epoch=step.pop("epoch", ""), **step)
        self.side.begin(step)
        self.side.start_loads(step)
        self.side.start_saves(step)

    def test_a_load_is_told_when_its_copy_has_ended(self):
        self.run_step(loads=[self.load()])
        self.assertEqual(self.side.results(), v.messages.Results())
        lease, pages, rows, future = self.ranks[0].loads[0]
        self.assertEqual((lease, rows), ("lease", {"the pool": [3, 4]}))
        future.settle(v.result())
        self.assertEqual(self.side.results(), v.messages.Results(received={"r"}))
        self.assertEqual(self.counters.total("loaded_tokens"), 128)

    def test_a_load_that_failed_is_told_as_failed_and_as_received(self):
        self.run_step(loads=[self.load()])
        self.ranks[0].loads[0][-1].settle(v.result(False, {"evicted": 2}))
        self.assertEqual(self.side.results(), v.messages.Results(received={"r"}, failed={"r"}))
        self.assertEqual(self.counters.snapshot()["failed_load_tokens", "evicted"], 128)

    def test_a_load_that_cannot_start_has_failed(self):
        self.runtime.lost = True
        self.run_step(loads=[self.load("lost")])
        self.assertEqual(self.side.results().failed, {"lost"})
        self.runtime.lost = False
        self.run_step(loads=[self.load("stale", updates=0), self.load("nothing", 1, rows=(-1,))], updates=1)
        self.assertEqual(self.side.results().failed, {"stale", "nothing"})

    def test_a_load_that_ends_after_new_weights_has_failed(self):
        self.run_step(loads=[self.load()])
        self.run_step(updates=1, epoch="new")
        self.ranks[0].loads[0][-1].settle(v.result())
        self.assertEqual(self.side.results(), v.messages.Results(received={"r"}, failed={"r"}))

    def test_a_save_goes_under_the_epoch_of_its_step(self):
        self.run_step(saves=[self.save()])
        self.run_step(updates=1, epoch="new", saves=[self.save(2)])
        self.assertEqual([len(rank.puts) for rank in self.ranks], [1, 1])
        self.assertFalse(self.ranks[0].closed)
        pages, rows, parent, depth, _ = self.ranks[0].puts[0]
        self.assertEqual((rows, parent, depth), ({"the pool": [3, 4]}, v.page_hash(9), 2))

    def test_a_finished_request_is_let_go_when_its_last_save_has_ended(self):
        self.run_step(saves=[self.save(1), self.save(2)])
        self.run_step(held=["r", "idle"])
        self.assertEqual(self.side.results().sent, {"idle"})
        self.ranks[0].puts[0][-1].settle(v.result())
        self.assertEqual(self.side.results().sent, set())
        self.ranks[0].puts[1][-1].settle(v.result(False, {"no_space": 1}))
        self.assertEqual(self.side.results().sent, {"r"})
        self.assertEqual(self.side.take_done().jobs, {1: (1, 1), 2: (1, 0)})
        self.assertEqual(self.counters.snapshot()["not_stored_pages", "no_space"], 1)

    def test_a_save_that_cannot_start_is_answered_all_the_same(self):
        self.runtime.lost = True
        self.run_step(saves=[self.save(5)])
        self.assertEqual(self.side.take_done().jobs, {5: (1, 0)})

    def test_a_rank_that_takes_no_part_says_so_and_answers_everything(self):
        side = self.side = v.worker.WorkerSide(v.engine.Settings(), None, self.counters, "kvonce: not here.")
        self.run_step(loads=[self.load()], saves=[self.save(5)])
        self.assertEqual(side.results().failed, {"r"})
        done = side.take_done()
        self.assertEqual((done.jobs, done.refused), ({5: (1, 0)}, "kvonce: not here."))
        self.assertFalse(side.take_done())

    def settle_later(self):
        """From now on an epoch is registered when the test says so: -> what does it."""
        waiting = []
        self.epochs._spawn = waiting.append
        return lambda: [settle() for settle in [waiting.pop() for _ in list(waiting)]]

    def test_what_comes_before_the_store_has_registered_the_epoch_waits_for_it(self):
        settle = self.settle_later()
        self.run_step(loads=[self.load()], saves=[self.save(5)], held=["r"])
        self.assertEqual(self.side.results(), v.messages.Results())
        self.assertFalse(self.side.take_done())
        self.assertEqual(self.ranks, [])
        settle()
        self.assertEqual(self.side.results(), v.messages.Results())
        (rank,) = self.ranks
        rank.loads[0][-1].settle(v.result())
        rank.puts[0][-1].settle(v.result())
        self.assertEqual(self.side.results(), v.messages.Results(sent={"r"}, received={"r"}))
        self.assertEqual(self.side.take_done().jobs, {5: (1, 1)})

    def test_what_waits_is_given_up_with_the_store_with_the_epoch_and_with_time(self):
        def lost():
            self.runtime.lost = True

        def newer():
            self.run_step(updates=1, epoch="new", saves=[self.save(6)])

        def late():
            self.now += self.side.settings.put_ms / 1000 + 1

        for happens, cause in ((lost, "no_store"), (newer, "stale_epoch"), (late, "no_epoch")):
            with self.subTest(cause):
                self.setUp()
                self.settle_later()
                self.run_step(loads=[self.load()], saves=[self.save(5)])
                happens()
                self.assertEqual(self.side.results().failed, {"r"})
                self.assertEqual(self.side.take_done().jobs[5], (1, 0))
                self.assertEqual(self.counters.snapshot()["not_stored_pages", cause], 2)
                self.assertEqual(self.counters.snapshot()["failed_load_tokens", cause], 128)

    def test_answers_of_ranks_add_up(self):
        one, other = v.messages.Done({1: (1, 1), 2: (1, 1)}), v.messages.Done({1: (1, 0)}, "why")
        merged = one.merge(other)
        self.assertEqual((merged.jobs, merged.refused), ({1: (2, 1), 2: (1, 1)}, "why"))


if __name__ == "__main__":
    unittest.main()
