# SPDX-License-Identifier: Apache-2.0
import threading
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
        epoch = epochs.current()
        self.assertEqual(epoch.namespace.text, self.identity.text())
        self.assertEqual(epoch.built, "built for " + self.identity.text())
        self.assertIs(epochs.current(), epoch)
        self.assertEqual(len(runtime.opened), 1)
        self.assertEqual(self.store.epochs, {})

    def test_nothing_old_is_served_after_an_update(self):
        _, epochs = self.process()
        seen = set()
        for n in range(4):
            epoch = epochs.current()
            self.assertTrue(epoch.live)
            seen.add(epoch.namespace.text)
            epochs.update("weights")
            self.assertFalse(epoch.live, n)
        self.assertEqual(len(seen), 4)
        self.assertEqual(epochs.number, 4)

    def test_a_random_epoch_is_128_bits_from_the_store_and_no_counter(self):
        _, epochs = self.process()
        epochs.update()
        value = epochs.current().value
        self.assertEqual([value], ["random:" + v.hex() for v in self.store.epochs.values()])
        self.store.restart()
        _, again = self.process()  # the same engine once more, the same first update: other weights
        again.update()
        self.assertNotEqual(again.current().value, value)

    def test_the_digest_of_new_weights_is_shared_between_engines(self):
        _, a = self.process()
        _, b = self.process()
        a.update(digest="sha256:1")
        b.update()
        b.update(digest="sha256:1")
        self.assertEqual(a.current().namespace.text, b.current().namespace.text)
        self.assertIn("sha256:1", a.current().namespace.text)

    def test_a_reset_is_an_update_unless_it_is_kept_or_was_announced(self):
        _, epochs = self.process()
        first = epochs.current()
        self.assertTrue(epochs.reset())
        self.assertFalse(first.live)
        epochs.update(digest="sha256:2", covers_next_reset=True)
        updated = epochs.current()
        self.assertFalse(epochs.reset())
        self.assertIs(epochs.current(), updated)
        self.assertTrue(epochs.reset())
        self.assertIsNot(epochs.current(), updated)

        _, keeping = self.process(on_reset="keep")
        first = keeping.current()
        self.assertFalse(keeping.reset())
        self.assertIs(keeping.current(), first)
        keeping.update()
        self.assertIsNot(keeping.current(), first)

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
        epoch = epochs.current()
        with epoch.hold() as held:
            self.assertTrue(held)
            epochs.update()
            newer = epochs.current()
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
        epoch = epochs.current()
        self.assertTrue(epoch.acquire())
        epoch.release()
        with self.assertRaises(RuntimeError):
            epoch.release()

    def test_a_take_down_that_fails_is_not_the_engines_trouble(self):
        def fail(built):
            raise RuntimeError("rows are lent")

        _, epochs = self.process(retire=fail)
        epochs.current()
        with self.assertLogs("kvonce", "WARNING") as logs:
            epochs.close()
        self.assertIn("rows are lent", logs.output[0])
        self.assertIsNone(epochs.current())


class SeveralProcesses(Case):
    def test_all_ranks_get_the_same_epoch_for_the_same_update(self):
        ranks = [self.process()[1] for _ in range(4)]
        for n in range(3):
            texts = {epochs.current().namespace.text for epochs in ranks}
            self.assertEqual(len(texts), 1, n)
            for epochs in ranks:
                epochs.update()

    def test_two_models_of_one_engine_do_not_share_an_epoch(self):
        _, a = self.process()
        _, b = self.process(identity=engine.Identity(model=engine.ModelIdentity("id:n"), dtype="bf16", page_tokens=64, layout="l"))
        a.update()
        b.update()
        self.assertNotEqual(a.current().value, b.current().value)

    def test_a_worker_follows_what_the_scheduler_tells(self):
        _, scheduler = self.process()
        retired = Retired()
        _, worker = self.process(retire=retired)
        self.assertIsNone(worker.at(None))
        first = worker.at(scheduler.current().value)
        self.assertEqual(first.namespace.text, self.identity.text())
        self.assertIs(worker.at(""), first)
        scheduler.update()
        self.assertIs(worker.current(), first)  # not told yet
        second = worker.at(scheduler.current().value)
        self.assertEqual(second.namespace.text, scheduler.current().namespace.text)
        self.assertFalse(first.live)
        self.assertIs(worker.current(), second)
        self.assertTrue(retired.wait_for(first.built))


class LostStore(Case):
    def test_no_store_is_no_epoch_and_the_same_one_when_it_is_back(self):
        runtime, epochs = self.process()
        epoch = epochs.current()
        runtime.lost = True
        self.assertIsNone(epochs.current())
        runtime.lost = False
        self.assertIs(epochs.current(), epoch)

    def test_ranks_agree_again_after_another_life_of_the_store(self):
        ranks = [self.process() for _ in range(2)]
        for _, epochs in ranks:
            epochs.update()
        before = {epochs.current().value for _, epochs in ranks}
        self.store.restart()
        ranks.append(self.process())
        ranks[2][1].update()
        after = {epochs.current().value for _, epochs in ranks}
        self.assertEqual((len(before), len(after)), (1, 1))
        self.assertNotEqual(before, after)

    def test_another_life_of_the_store_builds_nothing_anew_for_weights_that_have_a_name(self):
        runtime, epochs = self.process()
        epoch = epochs.current()
        self.store.restart()
        self.assertIs(epochs.current(), epoch)
        epochs.update(digest="sha256:1")
        epoch = epochs.current()
        self.store.restart()
        self.assertIs(epochs.current(), epoch)
        self.assertEqual(len(runtime.opened), 2)

    def test_the_life_of_the_store_behind_the_epoch(self):
        runtime, epochs = self.process()
        self.assertEqual(epochs.life, 0)
        epochs.current()
        self.assertEqual(epochs.life, self.store.incarnation)
        runtime.lost = True
        self.assertEqual(epochs.life, 0)
        runtime.lost = False
        self.store.restart()
        self.assertEqual(epochs.life, 0)  # nothing asked in this life yet
        epochs.current()
        self.assertEqual(epochs.life, self.store.incarnation)

    def test_an_update_while_the_store_is_lost_is_not_forgotten(self):
        runtime, epochs = self.process()
        old = epochs.current()
        runtime.lost = True
        epochs.update()
        runtime.lost = False
        self.assertNotEqual(epochs.current().namespace.text, old.namespace.text)

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
            for _ in range(1000):
                epochs.current()
        self.assertEqual(len(logs.output), 1)
        self.assertLess(counters.total("errors"), 20)  # most calls answered at once
        fail[0] = False
        epochs.update()  # a change is tried at once
        self.assertEqual(epochs.current().built, "built")

    def test_no_runtime_yet(self):
        link = Link(None)
        epochs = engine.Epochs(link, self.identity, build=lambda namespace: namespace.text)
        self.assertIsNone(epochs.current())
        link.runtime = MemoryRuntime(self.store)
        self.assertEqual(epochs.current().built, self.identity.text())


if __name__ == "__main__":
    unittest.main()
