# SPDX-License-Identifier: Apache-2.0
"""What the linker answers SGLang, with a store whose puts and loads the tests settle by hand."""

import threading
import unittest
from unittest import mock

import sglang_parts as parts

Future, Result, Found, Group = parts.Future, parts.Result, parts.Found, parts.Group
key, transfer, view = parts.key, parts.transfer, parts.view


class StoreLost(Exception):
    reason = "store_lost"


class Slow(Exception):
    reason = "deadline"


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def kv(pages, first_slot=0):
    pages = list(pages)
    return transfer("kv", pages, list(range(first_slot, first_slot + 4 * len(pages))))


class Lookups(parts.CoreCase, unittest.TestCase):
    def test_all_legal_lengths_are_told(self):
        core = self.core(group=Group(Found([2, 5])))
        self.assertEqual(core.lookup("r", [kv(range(6))]), [2, 5])
        self.assertEqual(self.group.asked, [(bytes.fromhex("".join(key(n) for n in range(6))), "r")])

    def test_every_length_is_told_where_every_one_is_legal(self):
        core = self.core(group=Group(Found([3], every_stop=True)))
        self.assertEqual(core.lookup("r", [kv(range(6))]), [1, 2, 3])

    def test_a_repeated_question_costs_no_round_trip(self):
        core = self.core(group=Group(Found([2])))
        for _ in range(3):
            self.assertEqual(core.lookup("r", [kv(range(4))]), [2])
        self.assertEqual(len(self.group.asked), 1)
        self.assertEqual(core.counters.snapshot()["lookups", "repeated"], 2)
        self.assertEqual(core.counters.total("asked_tokens"), 16)

    def test_a_repeated_miss_costs_none_either(self):
        core = self.core(group=Group(Found()))
        for _ in range(3):
            self.assertEqual(core.lookup("r", [kv(range(4))]), [])
        self.assertEqual(len(self.group.asked), 1)

    def test_a_longer_question_of_the_request_replaces_its_lease(self):
        core = self.core(group=Group(Found([2], lease="first"), Found([3], lease="second")))
        core.lookup("r", [kv(range(4))])
        core.lookup("r", [kv(range(5))])
        self.assertTrue(self.link.wait_released(["first"]))

    def test_lengths_below_min_tokens_are_not_worth_a_load(self):
        core = self.core(group=Group(Found([1, 2, 4])), min_tokens=9)
        self.assertEqual(core.lookup("r", [kv(range(4))]), [4])
        self.assertEqual(core.lookup("short", [kv(range(2))]), [])
        self.assertEqual(len(self.group.asked), 1)

    def test_trouble_is_a_miss_with_a_cause(self):
        for error, cause in ((StoreLost(), "no_store"), (Slow(), "slow_lookup")):
            core = self.core(group=Group(error))
            self.assertEqual(core.lookup("r", [kv(range(4))]), [])
            self.assertEqual(core.counters.snapshot()["missed_tokens", cause], 16)

    def test_an_unforeseen_error_is_a_miss_too(self):
        core = self.core(group=Group(ZeroDivisionError()))
        with self.assertLogs("kvonce", "WARNING"):
            self.assertEqual(core.lookup("r", [kv(range(4))]), [])
        self.assertEqual(core.counters.snapshot()["errors", "lookup"], 1)

    def test_a_known_answer_is_not_given_again_when_its_store_is_lost(self):
        core = self.core(group=Group(Found([2])))
        self.assertEqual(core.lookup("r", [kv(range(4))]), [2])
        self.link.connected, self.epochs.epoch = False, None
        self.assertEqual(core.lookup("r", [kv(range(4))]), [])
        self.link.connected, self.link.incarnation, self.epochs.epoch = True, 2, self.epoch
        self.assertEqual(core.lookup("r", [kv(range(4))]), [2])
        self.assertEqual(len(self.group.asked), 2)

    def test_a_store_that_does_not_answer_is_waited_for_twice_and_then_only_probed(self):
        clock = Clock()
        core = self.core(group=Group(Slow()), clock=clock)
        for n in range(100):
            self.assertEqual(core.lookup(f"r{n}", [kv(range(4))]), [])
        self.assertEqual((len(self.group.asked), len(self.group.probes)), (2, 1))
        self.assertEqual(core.counters.snapshot()["missed_tokens", "not_answering"], 98 * 16)
        clock.now += 1.0
        core.lookup("s", [kv(range(4))])
        self.assertEqual(len(self.group.probes), 1)  # the first one has no answer yet
        self.group.probed.fail(Slow())
        self.group.probed = Future(done=False)
        core.lookup("t", [kv(range(4))])
        self.assertEqual(len(self.group.probes), 2)
        core.lookup("u", [kv(range(4))])
        self.group.answers = [Found([2])]
        self.group.probed.settle(Found())
        self.assertEqual(core.lookup("v", [kv(range(4))]), [2])

    def test_another_store_is_waited_for_again(self):
        core = self.core(group=Group(Slow()))
        for n in range(3):
            core.lookup(f"r{n}", [kv(range(4))])
        self.group.answers, self.link.incarnation = [Found([2])], 2
        self.assertEqual(core.lookup("s", [kv(range(4))]), [2])

    def test_a_miss_of_an_epoch_that_is_not_settled_is_none_a_moment_later(self):
        clock = Clock()
        core = self.core(group=Group(Found([2])), clock=clock)
        self.epochs.epoch = None
        self.assertEqual(core.lookup("r", [kv(range(4))]), [])
        self.assertEqual(core.counters.snapshot()["missed_tokens", "no_epoch"], 16)
        self.epochs.epoch = self.epoch
        clock.now += 0.1
        self.assertEqual(core.lookup("r", [kv(range(4))]), [2])

    def test_a_writer_looks_nothing_up(self):
        core = self.core(group=Group(Found([2])), role="write")
        self.assertEqual(core.lookup("r", [kv(range(4))]), [])
        self.assertEqual(self.group.asked, [])


class Loads(parts.CoreCase, unittest.TestCase):
    def start(self, core, rid="r", pages=2):
        core.lookup(rid, [kv(range(pages))])
        self.assertTrue(core.load(rid, [kv(range(pages), 8)]))
        index = core.start_layer_wise_loading()
        core.layer_done_counter.set_consumer(index)
        return index

    def test_layers_come_in_order_and_the_batch_lands(self):
        core = self.core(group=Group(Found([2])))
        index = self.start(core)
        core.layer_done_counter.wait_until(2)
        self.assertTrue(core.finish_layer_wise_loading(index))
        self.assertEqual([call[2:] for call in self.issued], [(0, 1), (1, 2), (2, 3)])
        self.assertEqual(self.issued[0][:2], ("lease", {"kv": list(range(8, 16))}))
        self.assertEqual(core.counters.total("loaded_tokens"), 8)

    def test_pools_of_other_layers_are_loaded_with_the_layers_that_need_them(self):
        pools = [view(layers=(1, 3)), view("mamba", unit=1, layers=(0, 2), kind="state")]
        core = self.core(group=Group(Found([2])), views=pools, num_layers=4)
        both = [kv(range(2)), transfer("mamba", [1], [5], "trailing_pages")]
        core.lookup("r", both)
        core.load("r", both)
        index = core.start_layer_wise_loading()
        self.assertTrue(core.finish_layer_wise_loading(index))
        order = [(next(iter(rows)), begin, end) for _, rows, begin, end in self.issued]
        self.assertEqual(order, [("mamba", 0, 1), ("kv", 0, 1), ("mamba", 1, 2), ("kv", 1, 2)])

    def test_first_layers_of_all_requests_come_before_later_layers_of_any(self):
        core = self.core(group=Group(Found([2], lease="a"), Found([2], lease="b")))
        for rid in "ab":
            core.lookup(rid, [kv(range(2))])
            core.load(rid, [kv(range(2))])
        fired = []
        for (lease, _, begin, _), (_, gate) in zip(self.issued, self.loads, strict=True):
            gate.signal = lambda one=(lease, begin): fired.append(one)
        self.assertTrue(core.finish_layer_wise_loading(core.start_layer_wise_loading()))
        self.assertEqual(fired, [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)])

    def test_nothing_queued_starts_nothing(self):
        core = self.core()
        self.assertEqual(core.start_layer_wise_loading(), -1)
        self.assertTrue(core.finish_layer_wise_loading(-1))

    def test_a_load_that_fails_completes_no_later_layer_and_is_told_at_the_end(self):
        core = self.core(group=Group(Found([2])))
        self.load_results = [Future(Result()), Future(Result({"checksum_mismatch": 1})), Future(done=False)]
        last = self.load_results[-1]
        index = self.start(core)
        core.layer_done_counter.wait_until(2)
        self.assertFalse(core.finish_layer_wise_loading(index))
        self.assertTrue(core._loader.wait_idle(30))
        self.assertTrue(last.cancelled, "what had not begun is not written any more")
        self.assertEqual(core.counters.snapshot()["failed_load_tokens", "checksum_mismatch"], 8)

    def test_a_lease_that_ended_early_is_asked_for_anew_once(self):
        core = self.core(group=Group(Found([2], lease="old"), Found([2], lease="new")))
        self.load_results = [Future(Result({"lease_expired": 2})) for _ in range(3)]
        self.assertTrue(core.finish_layer_wise_loading(self.start(core)))
        self.assertEqual([call[0] for call in self.issued], ["old"] * 3 + ["new"] * 3)
        self.assertEqual(self.group.asked[1][1], "", "of this rank alone")

    def test_pages_that_are_gone_end_in_a_failed_batch_and_not_in_a_loop(self):
        core = self.core(group=Group(Found([2]), Found()))
        self.load_results = [Future(Result({"lease_expired": 2})) for _ in range(3)]
        self.assertFalse(core.finish_layer_wise_loading(self.start(core)))
        self.assertEqual(len(self.issued), 3)

    def test_an_error_in_the_thread_fails_the_batch(self):
        core = self.core(group=Group(Found([2])))
        core.lookup("r", [kv(range(2))])
        core.load("r", [transfer("kv", range(2), list(range(5)))])
        with self.assertLogs("kvonce", "ERROR"):
            self.assertFalse(core.finish_layer_wise_loading(core.start_layer_wise_loading()))

    def test_a_lease_is_given_back_only_after_all_ranks_have_finished(self):
        core = self.core(group=Group(Found([2])))
        self.assertTrue(core.finish_layer_wise_loading(self.start(core)))
        self.assertEqual(self.link.released, [])
        core.num_completed_offloads()  # SGLang has reduced finish_layer_wise_loading over the ranks by now
        self.assertTrue(self.link.wait_released(["lease"]))

    def test_a_load_is_kvonces_when_it_is_accepted_and_writes_when_it_is_started(self):
        core = self.core(group=Group(Found([2])))
        core.lookup("r", [kv(range(2))])
        self.assertTrue(core.load("r", [kv(range(2), 8)]))
        self.assertEqual([call[2:] for call in self.issued], [(0, 1), (1, 2), (2, 3)])
        self.assertEqual([gate.ready() for _, gate in self.loads], [False] * 3)
        self.link.connected, self.epochs.epoch = False, None  # what is lost from here on does not matter
        self.assertTrue(core.finish_layer_wise_loading(core.start_layer_wise_loading()))
        self.assertEqual([gate.ready() for _, gate in self.loads], [True] * 3)
        self.assertEqual((len(self.issued), self.epoch.held), (3, 0))

    def test_nothing_of_replaced_weights_is_loaded(self):
        core = self.core(group=Group(Found([2])))
        core.lookup("r", [kv(range(2))])
        core.load("r", [kv(range(2))])
        self.epoch.live = False
        self.assertFalse(core.finish_layer_wise_loading(core.start_layer_wise_loading()))
        self.assertEqual([(future.cancelled, gate.ready()) for future, gate in self.loads], [(False, False)] * 3)
        self.assertEqual(core.counters.snapshot()["failed_load_tokens", "stale_epoch"], 8)

    def test_a_failed_batch_is_told_after_the_last_write(self):
        core = self.core(group=Group(Found([2])), load_ms=1)
        stuck = Future(done=False)
        stuck.cancel = lambda: None  # a copy that has begun ends by itself
        self.addCleanup(lambda: stuck.done() or stuck.settle(Result()))
        self.load_results = [stuck]
        with mock.patch.object(parts.load("loads"), "_CLOSE_SECONDS", 0.01), self.assertLogs("kvonce", "ERROR"):
            index = self.start(core)
            while index not in core._loader._writing:  # one that has not begun is never written, and not waited for
                threading.Event().wait(0.001)
            core.layer_done_counter.fail(index, TimeoutError())  # as at its deadline
            told = []
            finishing = threading.Thread(target=lambda: told.append(core.finish_layer_wise_loading(index)), daemon=True)
            finishing.start()
            while not any("still writes" in record.getMessage() for record in self.records()):
                finishing.join(0.01)
            self.assertEqual(told, [])
            stuck.settle(Result())
            finishing.join(30)
        self.assertEqual(told, [False])

    def test_a_batch_that_was_not_begun_is_never_written(self):
        core = self.core(group=Group(Found([2])))
        core.lookup("r", [kv(range(2))])
        core.load("r", [kv(range(2))])
        go = threading.Event()
        core._loader._put(go.wait)  # the thread is busy with something else
        index = core.start_layer_wise_loading()
        core.layer_done_counter.fail(index, TimeoutError())
        self.assertFalse(core.finish_layer_wise_loading(index))
        go.set()
        self.assertTrue(core._loader.wait_idle(30))
        self.assertEqual([gate.ready() for _, gate in self.loads], [False] * 3)

    def test_a_cancelled_load_is_not_started(self):
        core = self.core(group=Group(Found([2])))
        self.load_results = [Future(done=False) for _ in range(3)]
        core.lookup("r", [kv(range(2))])
        core.load("r", [kv(range(2))])
        self.assertTrue(core.cancel_queued_load("r"))
        self.assertFalse(core.cancel_queued_load("r"))
        self.assertEqual(core.start_layer_wise_loading(), -1)
        self.assertTrue(self.link.wait_released(["lease"]))
        self.assertTrue(core._loader.wait_idle(30))
        self.assertEqual([(future.cancelled, gate.ready()) for future, gate in self.loads], [(True, False)] * 3)
        self.assertEqual(self.epoch.held, 0)

    def test_an_optional_pool_that_is_missing_fails_nothing(self):
        found = Found([2])
        found.optional_missing = ["draft@1"]
        pools = [view(), view("draft", source="kv", kind="draft", pool_name="draft@1", optional=True)]
        core = self.core(group=Group(found), views=pools)
        self.assertTrue(core.finish_layer_wise_loading(self.start(core)))
        self.assertEqual({name for _, rows, _, _ in self.issued for name in rows}, {"kv"})


class Offloads(parts.CoreCase, unittest.TestCase):
    def test_they_are_told_in_the_order_in_which_they_came(self):
        core = self.core()
        for n in range(3):
            self.assertTrue(core.offload([kv([n])], None))
        self.assertTrue(self.wait_put(3))
        self.put[1][0].settle(Result())
        self.assertEqual(core.num_completed_offloads(), 0)
        self.put[0][0].settle(Result({"no_space": 1}))
        self.assertEqual(core.num_completed_offloads(), 2)
        self.assertEqual([core.pop_completed_offload(), core.pop_completed_offload()], [False, True])
        self.assertEqual(core.num_completed_offloads(), 0)
        self.put[2][0].settle(Result())
        self.assertTrue(core.pop_completed_offload())

    def test_rows_are_put_only_with_the_event_that_says_when(self):
        core = self.core()
        ready = lambda: False  # noqa: E731
        core.offload([kv([1])], ready)
        self.assertTrue(self.wait_put(1))
        self.assertIs(self.put[0][5], ready)
        self.put[0][0].settle(Result())

    def test_a_page_is_put_behind_the_one_before_it(self):
        core = self.core()
        core.lookup("r", [kv(range(4))])
        core.offload([kv([2, 3])], None)
        self.assertTrue(self.wait_put(1))
        self.assertEqual(self.put[0][3:5], (bytes.fromhex(key(1)), 2))
        self.put[0][0].settle(Result())

    def test_a_reset_ends_what_is_under_way(self):
        core = self.core()
        core.offload([kv([1])], None)
        self.assertTrue(self.wait_put(1))
        drain = parts.load("core")
        drain._DRAIN_SECONDS, kept = 0.05, drain._DRAIN_SECONDS
        self.addCleanup(setattr, drain, "_DRAIN_SECONDS", kept)
        core.reset(knows_updates=True)
        self.assertTrue(self.put[0][0].cancelled)
        self.assertEqual(core.num_completed_offloads(), 0)
        self.assertEqual(self.epoch.held, 0)

    def test_a_reset_returns_after_the_last_read(self):
        core = self.core()
        core.offload([kv([1])], None)
        self.assertTrue(self.wait_put(1))
        future = self.put[0][0]
        future.cancel = lambda: None  # a copy that has begun ends by itself
        self.addCleanup(lambda: future.done() or future.settle(Result()))
        patches = [mock.patch.object(parts.load("core"), "_DRAIN_SECONDS", 0.01), mock.patch.object(parts.load("offloads"), "_TELL_SECONDS", 0.01)]
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)
        with self.assertLogs("kvonce", "ERROR"):
            resetting = threading.Thread(target=core.reset, args=(True,), daemon=True)
            resetting.start()
            while not any("still reads" in record.getMessage() for record in self.records()):
                resetting.join(0.01)
            self.assertTrue(resetting.is_alive())
            future.settle(Result())
            resetting.join(30)
        self.assertFalse(resetting.is_alive())

    def test_each_offload_is_over_once_whatever_its_future_does(self):
        class Odd(Future):
            def cancel(self):
                raise RuntimeError("cancel")

            def add_done_callback(self, callback):
                super().add_done_callback(callback)
                raise RuntimeError("callback")

        core = self.core()
        futures = [Odd(Result()), Odd(done=False), Future(Result())]
        core._offloader._put = lambda *_: futures.pop(0)
        second = futures[1]
        with self.assertLogs("kvonce", "WARNING"):
            for n in range(3):
                core.offload([kv([n])], None)
            while core.num_completed_offloads() == 0:
                second.wait(0.001)
            for one in core._offloader._fifo:
                core._offloader._cancel(one)
            second.settle(Result())
            while core.num_completed_offloads() < 3:
                second.wait(0.001)
        self.assertEqual([core.pop_completed_offload() for _ in range(3)], [True] * 3)
        self.assertEqual((self.epoch.held, core._offloader._pages), (0, 0))
        self.assertEqual(core.counters.total("stored_pages"), 3)


class Guards(parts.CoreCase, unittest.TestCase):
    """Nothing of ours raises into the engine, and no rank answers otherwise for it."""

    def broken(self, core, *names):
        for name in names:
            path, _, attribute = name.rpartition(".")
            owner = core
            for part in filter(None, path.split(".")):
                owner = getattr(owner, part)
            patch = mock.patch.object(owner, attribute, mock.Mock(side_effect=RuntimeError(name)))
            patch.start()
            self.addCleanup(patch.stop)

    def test_load_answers_by_the_transfers_and_fails_at_its_end(self):
        for name in ("_book.take", "_loader.accept", "_loader.start"):
            core = self.core(group=Group(Found([2])))
            self.broken(core, name)
            core.lookup("r", [kv(range(2))])
            with self.assertLogs("kvonce", "WARNING"):
                self.assertTrue(core.load("r", [kv(range(2))]))
                index = core.start_layer_wise_loading()
                core.layer_done_counter.set_consumer(index)
                core.layer_done_counter.wait_until(2)
                landed = core.finish_layer_wise_loading(index)
            self.assertEqual(landed, name != "_loader.start", name)  # else they are made when the batch begins
            self.assertGreaterEqual(index, 0)
            mock.patch.stopall()

    def test_an_offload_has_its_place_in_the_order(self):
        for name in ("_epoch", "_offloader._queue.put", "_why_not_put"):
            core = self.core()
            queue = core._offloader._queue
            if name == "_offloader._queue.put":
                core._offloader._queue = mock.Mock(put=mock.Mock(side_effect=RuntimeError(name)))
            else:
                self.broken(core, name)
            with self.assertLogs("kvonce", "WARNING"):
                self.assertTrue(core.offload([kv([1])], None))
            self.assertEqual((core.num_completed_offloads(), core.pop_completed_offload(), self.epoch.held), (1, False, 0), name)
            self.assertEqual(core.counters.snapshot()["skipped_pages", "failed"], 1)
            mock.patch.stopall()
            core._offloader._queue = queue

    def test_what_is_left_of_the_calls(self):
        core = self.core()
        self.assertFalse(core.pop_completed_offload())  # nothing is there
        self.broken(core, "_book.clear", "epochs.reset", "epochs.update", "epochs.wait", "layer_done_counter.finish", "_loader.drop")
        core.load("r", [kv(range(2))])
        with self.assertLogs("kvonce", "WARNING"):
            self.assertTrue(core.cancel_queued_load("r"))
            self.assertFalse(core.finish_layer_wise_loading(0))
            core.settle(1)
            core.reset(knows_updates=False)
        mock.patch.stopall()

    def test_transfers_that_make_no_sense_are_refused_on_all_ranks(self):
        core = self.core()
        with self.assertLogs("kvonce", "WARNING"):
            self.assertFalse(core.load("r", [object()]))
            self.assertFalse(core.offload([object()], None))


class AnswersOfOneRank(parts.CoreCase, unittest.TestCase):
    """load() and offload() answer by the transfers alone: one rank that answers otherwise ends the whole engine."""

    def answers(self, core):
        out = [core.offload(list(ts), None) for ts in ([kv([1])], [kv([])], [], [transfer("mamba", [1], [1])])]
        return out + [core.load("r", list(ts)) for ts in ([kv([1])], [kv([])], [])]

    def test_they_are_the_same_in_every_state_of_the_store(self):
        healthy = self.answers(self.core())
        self.assertEqual(healthy, [True, False, False, False, True, False, False])
        for state in (
            {"refusal": "kvonce: no."},
            {"epochs": parts.Epochs(None)},
            {"link": parts.Link(connected=False), "epochs": parts.Epochs(None)},
            {"role": "read"},
            {"role": "write"},
        ):
            core = self.core(**state)
            self.assertEqual(self.answers(core), healthy, state)

    def test_an_offload_that_cannot_be_kept_is_done_at_once_and_not_stored(self):
        core = self.core(epochs=parts.Epochs(None), link=parts.Link(connected=False))
        self.assertTrue(core.offload([kv([1])], None))
        self.assertEqual(core.num_completed_offloads(), 1)
        self.assertFalse(core.pop_completed_offload())
        self.assertEqual(core.counters.snapshot()["skipped_pages", "no_store"], 1)

    def test_a_load_without_a_store_fails_by_itself(self):
        core = self.core(epochs=parts.Epochs(None))
        core.load("r", [kv([1])])
        index = core.start_layer_wise_loading()
        core.layer_done_counter.set_consumer(index)
        core.layer_done_counter.wait_until(2)
        self.assertFalse(core.finish_layer_wise_loading(index))


class Updates(parts.CoreCase, unittest.TestCase):
    def test_a_flush_keeps_the_epoch_where_updates_are_heard(self):
        core = self.core()
        core.reset(knows_updates=True)
        self.assertEqual((self.epochs.updates, self.epochs.resets), (0, 0))

    def test_a_reset_may_have_been_an_update_where_they_are_not(self):
        core = self.core()
        core.reset(knows_updates=False)
        self.assertEqual(self.epochs.resets, 1)

    def test_nothing_is_kept_between_new_weights_and_the_flush(self):
        core = self.core(group=Group(Found([2])))
        updates = parts.load("core").updates
        with mock.patch.object(updates, "mixed", lambda: True):
            self.assertEqual(core.lookup("not told yet", [kv(range(2))]), [])
            core.weights_changed()
            self.refuses(core)
        core.reset(knows_updates=True)  # the flush
        self.assertEqual(core.lookup("r", [kv(range(2))]), [2])
        self.assertEqual(self.epochs.updates, 1)

    def refuses(self, core):
        self.assertEqual(core.lookup("r", [kv(range(2))]), [])
        self.assertTrue(core.offload([kv([1])], None))
        self.assertEqual(core.num_completed_offloads(), 1)
        self.assertFalse(core.pop_completed_offload())
        self.assertEqual(core.counters.snapshot()["skipped_pages", "stale_pages"], 1)


if __name__ == "__main__":
    unittest.main()
