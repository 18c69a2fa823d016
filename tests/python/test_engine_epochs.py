# SPDX-License-Identifier: Apache-2.0
import threading
import time
import unittest

import engine_parts

engine = engine_parts.load()
MemoryRuntime, MemoryStore, Link = engine_parts.MemoryRuntime, engine_parts.MemoryStore, engine_parts.Link


class Retired:
    """Takes down on another thread; tests wait for it."""

    def __init__(self):
        self.built = []
        self._event = threading.Condition()

    def __call__(self, built):
        with self._event:
            self.built.append(built)
            self._event.notify_all()

    def wait_for(self, built):
        with self._event:
            return self._event.wait_for(lambda: built in self.built, timeout=30)


class Case(unittest.TestCase):
    def setUp(self):
        self.store = MemoryStore()
        self.identity = engine.Identity(model=engine.ModelIdentity("id:m"), dtype="bf16", page_tokens=64, layout="l")

    def process(self, **options):
        """One engine process: (its runtime, its epochs)."""
        runtime = MemoryRuntime(self.store)
        options.setdefault("build", lambda namespace: "built for " + namespace.text)
        return runtime, engine.Epochs(Link(runtime), options.pop("identity", self.identity), **options)


class OneProcess(Case):
    def test_the_first_epoch_is_the_weights_themselves(self):
        runtime, epochs = self.process()
        epoch = epochs.wait(30)
        self.assertEqual(epoch.namespace.text, self.identity.text())
        self.assertEqual(epoch.built, "built for " + self.identity.text())
        self.assertIs(epochs.wait(30), epoch)
        self.assertEqual(len(runtime.opened), 1)
        self.assertEqual(self.store.epochs, {})

    def test_nothing_old_is_served_after_an_update(self):
        _, epochs = self.process()
        seen = set()
        for n in range(4):
            epoch = epochs.wait(30)
            self.assertTrue(epoch.live)
            seen.add(epoch.namespace.text)
            epochs.update("weights")
            self.assertFalse(epoch.live, n)
        self.assertEqual(len(seen), 4)
        self.assertEqual(epochs.number, 4)

    def test_a_random_epoch_is_128_bits_from_the_store_and_no_counter(self):
        _, epochs = self.process()
        epochs.update()
        value = epochs.wait(30).value
        self.assertEqual([value], ["random:" + v.hex() for v in self.store.epochs.values()])
        self.store.restart()
        _, again = self.process()  # the same engine once more, the same first update: other weights
        again.update()
        self.assertNotEqual(again.wait(30).value, value)

    def test_the_digest_of_new_weights_is_shared_between_engines(self):
        _, a = self.process()
        _, b = self.process()
        a.update(digest="sha256:1")
        b.update()
        b.update(digest="sha256:1")
        self.assertEqual(a.wait(30).namespace.text, b.wait(30).namespace.text)
        self.assertIn("sha256:1", a.wait(30).namespace.text)

    def test_a_reset_is_an_update_unless_it_is_kept_or_was_announced(self):
        _, epochs = self.process()
        first = epochs.wait(30)
        self.assertTrue(epochs.reset())
        self.assertFalse(first.live)
        epochs.update(digest="sha256:2", covers_next_reset=True)
        updated = epochs.wait(30)
        self.assertFalse(epochs.reset())
        self.assertIs(epochs.wait(30), updated)
        self.assertTrue(epochs.reset())
        self.assertIsNot(epochs.wait(30), updated)

        _, keeping = self.process(on_reset="keep")
        first = keeping.wait(30)
        self.assertFalse(keeping.reset())
        self.assertIs(keeping.wait(30), first)
        keeping.update()
        self.assertIsNot(keeping.wait(30), first)

    def test_updates_that_came_before_are_not_forgotten(self):
        _, epochs = self.process(number=2)
        self.assertNotEqual(epochs.wait(30).value, "")
        _, early = self.process()
        for _ in range(2):
            early.update()
        self.assertEqual(early.wait(30).value, epochs.wait(30).value)  # the second update of one engine

    def test_updates_are_counted_by_what_opened_them(self):
        counters = engine.Counters()
        _, epochs = self.process(counters=counters)
        epochs.reset()
        epochs.update("lora")
        self.assertEqual(counters.snapshot(), {("epochs", "reset"): 1, ("epochs", "lora"): 1})


class Holding(Case):
    def test_rows_go_under_the_epoch_of_the_moment_they_were_accepted(self):
        retired = Retired()
        _, epochs = self.process(retire=retired)
        epoch = epochs.wait(30)
        with epoch.hold() as held:
            self.assertTrue(held)
            epochs.update()
            newer = epochs.wait(30)
            self.assertNotEqual(newer.namespace.text, epoch.namespace.text)
            self.assertEqual(epoch.built, "built for " + self.identity.text())
            self.assertEqual(retired.built, [])
            with epoch.hold() as again:  # a further part of the same work
                self.assertTrue(again)
            self.assertEqual(retired.built, [])
        self.assertTrue(retired.wait_for(epoch.built))
        with epoch.hold() as held:
            self.assertFalse(held)
        runtime = epochs._link.runtime
        for thread in list(epochs._takedowns):
            thread.join(30)
        self.assertEqual(runtime.closed_namespaces, [epoch.namespace.text])  # its place in the store may be another's
        self.assertTrue(newer.live)
        epochs.close()
        self.assertEqual(sorted(retired.built), sorted([epoch.built, newer.built]))

    def test_one_release_too_many_is_an_error(self):
        _, epochs = self.process()
        epoch = epochs.wait(30)
        self.assertTrue(epoch.acquire())
        epoch.release()
        with self.assertRaises(RuntimeError):
            epoch.release()

    def test_a_take_down_that_fails_is_not_the_engines_trouble(self):
        def fail(built):
            raise RuntimeError("rows are lent")

        _, epochs = self.process(retire=fail)
        epochs.wait(30)
        with self.assertLogs("kvonce", "WARNING") as logs:
            epochs.close()
        self.assertIn("rows are lent", logs.output[0])
        self.assertIsNone(epochs.current())


class Waiting(Case):
    """Nothing but `wait` waits for the store."""

    def setUp(self):
        super().setUp()
        self.go, self.begun = threading.Event(), threading.Semaphore(0)

    def held(self):
        """A process whose registration stands still until `go`."""

        def build(namespace):
            self.begun.release()
            self.assertTrue(self.go.wait(30))
            return namespace.text

        self.retired = Retired()
        runtime, epochs = self.process(build=build, retire=self.retired)
        self.addCleanup(epochs.close)
        self.addCleanup(self.go.set)
        return runtime, epochs

    def test_a_store_that_stands_still_holds_nobody_up(self):
        runtime, epochs = self.held()
        for _ in range(1000):
            self.assertIsNone(epochs.current())
        self.assertTrue(self.begun.acquire(timeout=30))
        self.assertIsNone(epochs.wait(0.001))
        epochs.update()  # neither does an update wait for it, nor what is told
        self.assertIsNone(epochs.at("told"))
        self.assertEqual(len(runtime.opened), 1)
        self.go.set()
        self.assertEqual(epochs.wait(30).value, "told")

    def test_rows_are_given_back_while_the_store_stands_still(self):
        _, epochs = self.held()
        self.go.set()
        epoch = epochs.wait(30)
        self.assertTrue(epoch.acquire())
        self.go.clear()
        epochs.update()
        self.assertIsNone(epochs.current())
        self.assertTrue(self.begun.acquire(timeout=30) and self.begun.acquire(timeout=30))
        epoch.release()  # as a future's callback does
        self.assertTrue(self.retired.wait_for(epoch.built))
        self.assertIsNone(epochs.current())

    def test_what_was_built_too_late_is_taken_down_and_never_answered(self):
        _, epochs = self.held()
        self.assertIsNone(epochs.current())
        self.assertTrue(self.begun.acquire(timeout=30))
        epochs.update()
        self.go.set()
        epoch = epochs.wait(30)
        self.assertNotEqual(epoch.value, "")
        self.assertTrue(self.retired.wait_for(self.identity.text()))
        self.assertIs(epochs.current(), epoch)

    def test_close_takes_down_what_is_being_built(self):
        _, epochs = self.held()
        self.assertIsNone(epochs.current())
        self.assertTrue(self.begun.acquire(timeout=30))
        closing = threading.Thread(target=epochs.close, args=(30,), daemon=True)
        closing.start()
        self.go.set()
        closing.join(30)
        self.assertEqual(self.retired.built, [self.identity.text()])
        self.assertIsNone(epochs.current())


class SeveralProcesses(Case):
    def test_all_ranks_get_the_same_epoch_for_the_same_update(self):
        ranks = [self.process()[1] for _ in range(4)]
        for n in range(3):
            texts = {epochs.wait(30).namespace.text for epochs in ranks}
            self.assertEqual(len(texts), 1, n)
            for epochs in ranks:
                epochs.update()

    def test_two_models_of_one_engine_do_not_share_an_epoch(self):
        _, a = self.process()
        _, b = self.process(identity=engine.Identity(model=engine.ModelIdentity("id:n"), dtype="bf16", page_tokens=64, layout="l"))
        a.update()
        b.update()
        self.assertNotEqual(a.wait(30).value, b.wait(30).value)

    def test_a_worker_follows_what_the_scheduler_tells(self):
        _, scheduler = self.process()
        retired = Retired()
        _, worker = self.process(retire=retired)
        self.assertIsNone(worker.at(None))
        self.assertIsNone(worker.at(scheduler.wait(30).value))  # not registered yet
        first = worker.wait(30)
        self.assertEqual(first.namespace.text, self.identity.text())
        self.assertIs(worker.at(""), first)
        scheduler.update()
        self.assertIs(worker.wait(30), first)  # not told yet
        worker.at(scheduler.wait(30).value)
        second = worker.wait(30)
        self.assertEqual(second.namespace.text, scheduler.wait(30).namespace.text)
        self.assertFalse(first.live)
        self.assertIs(worker.wait(30), second)
        self.assertTrue(retired.wait_for(first.built))


class LostStore(Case):
    def test_no_store_is_no_epoch_and_the_same_one_when_it_is_back(self):
        runtime, epochs = self.process()
        epoch = epochs.wait(30)
        runtime.lost = True
        self.assertIsNone(epochs.current())
        runtime.lost = False
        self.assertIs(epochs.wait(30), epoch)

    def test_ranks_agree_again_after_another_life_of_the_store(self):
        ranks = [self.process() for _ in range(2)]
        for _, epochs in ranks:
            epochs.update()
        before = {epochs.wait(30).value for _, epochs in ranks}
        self.store.restart()
        ranks.append(self.process())
        ranks[2][1].update()
        after = {epochs.wait(30).value for _, epochs in ranks}
        self.assertEqual((len(before), len(after)), (1, 1))
        self.assertNotEqual(before, after)

    def test_another_life_of_the_store_builds_nothing_anew_for_weights_that_have_a_name(self):
        runtime, epochs = self.process()
        epoch = epochs.wait(30)
        self.store.restart()
        self.assertIs(epochs.wait(30), epoch)
        epochs.update(digest="sha256:1")
        epoch = epochs.wait(30)
        self.store.restart()
        self.assertIs(epochs.wait(30), epoch)
        self.assertEqual(len(runtime.opened), 2)

    def test_the_life_of_the_store_behind_the_epoch(self):
        runtime, epochs = self.process()
        self.assertEqual(epochs.life, 0)
        epochs.wait(30)
        self.assertEqual(epochs.life, self.store.incarnation)
        runtime.lost = True
        self.assertEqual(epochs.life, 0)
        runtime.lost = False
        self.store.restart()
        self.assertEqual(epochs.life, 0)  # nothing asked in this life yet
        epochs.wait(30)
        self.assertEqual(epochs.life, self.store.incarnation)

    def test_an_update_while_the_store_is_lost_is_not_forgotten(self):
        runtime, epochs = self.process()
        old = epochs.wait(30)
        runtime.lost = True
        epochs.update()
        runtime.lost = False
        self.assertNotEqual(epochs.wait(30).namespace.text, old.namespace.text)

    def test_a_build_that_fails_is_told_once_and_tried_again_later(self):
        fail = [True]

        def build(namespace):
            if fail[0]:
                raise RuntimeError("too many namespaces")
            return "built"

        counters = engine.Counters()
        _, epochs = self.process(build=build, counters=counters)
        with self.assertLogs("kvonce", "WARNING") as logs:
            self.assertIsNone(epochs.current())
            until = time.monotonic() + 30
            while not counters.total("errors") and time.monotonic() < until:
                epochs.current()
            for _ in range(1000):
                self.assertIsNone(epochs.current())
        self.assertEqual(len(logs.output), 1)
        self.assertLess(counters.total("errors"), 20)  # most calls answered at once
        fail[0] = False
        epochs.update()  # a change is tried at once
        self.assertEqual(epochs.wait(30).built, "built")

    def test_no_runtime_yet(self):
        link = Link(None)
        epochs = engine.Epochs(link, self.identity, build=lambda namespace: namespace.text)
        self.assertIsNone(epochs.current())
        link.runtime = MemoryRuntime(self.store)
        self.assertEqual(epochs.wait(30).built, self.identity.text())


if __name__ == "__main__":
    unittest.main()
