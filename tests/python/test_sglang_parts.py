# SPDX-License-Identifier: Apache-2.0
import hashlib
import threading
import unittest

import sglang_parts as parts

counter_module = parts.load("layer_counter")
hit_policies = parts.load("hit_policies")
lookups = parts.load("lookups")
loads = parts.load("loads")
transfers = parts.load("transfers")
key, transfer, view = parts.key, parts.transfer, parts.view


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class LayerCounterTest(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()
        self.counter = counter_module.LayerCounter(3, limit=10.0, clock=self.clock)
        self.index = self.counter.update_producer()
        self.counter.set_consumer(self.index)

    def test_a_forward_waits_for_its_layer_and_not_for_later_ones(self):
        passed = threading.Event()
        waiter = threading.Thread(target=lambda: (self.counter.wait_until(1), passed.set()), daemon=True)
        waiter.start()
        self.counter.complete(self.index, 0)
        self.assertFalse(passed.wait(0.05))
        self.counter.complete(self.index, 1)
        self.assertTrue(passed.wait(30))

    def test_a_batch_that_is_complete_landed_and_is_forgotten(self):
        for layer in range(3):
            self.counter.complete(self.index, layer)
        self.assertTrue(self.counter.finish(self.index))
        self.assertTrue(self.counter.finish(self.index))

    def test_a_failed_batch_lets_the_forward_go_on_and_says_so_at_the_end(self):
        self.counter.complete(self.index, 0)
        self.counter.fail(self.index, RuntimeError("gone"))
        self.counter.wait_until(2)
        self.assertEqual(str(self.counter.error(self.index)), "gone")
        self.assertFalse(self.counter.finish(self.index))

    def test_a_layer_that_comes_after_the_failure_changes_nothing(self):
        self.counter.fail(self.index, RuntimeError("gone"))
        for layer in range(3):
            self.counter.complete(self.index, layer)
        self.assertFalse(self.counter.finish(self.index))

    def test_nobody_waits_longer_than_the_batch_has_time(self):
        self.clock.now += 10.0
        self.counter.wait_until(0)
        self.assertFalse(self.counter.finish(self.index))

    def test_a_batch_that_nobody_started_is_not_waited_for(self):
        self.counter.set_consumer(-1)
        self.counter.wait_until(0)
        self.assertTrue(self.counter.finish(-1))

    def test_a_reset_wakes_who_waits(self):
        passed = threading.Event()
        waiter = threading.Thread(target=lambda: (self.counter.wait_until(2), passed.set()), daemon=True)
        waiter.start()
        self.counter.reset()
        self.assertTrue(passed.wait(30))
        self.assertEqual(self.counter.update_producer(), 0)


class HitPoliciesTest(unittest.TestCase):
    def test_all_pages_count_up_to_the_first_that_is_missing(self):
        self.assertEqual(hit_policies.leading(bytes([1, 1, 0, 1])), 2)
        self.assertEqual(hit_policies.leading(bytes([1, 1])), 2)
        self.assertEqual(hit_policies.leading(b""), 0)

    def test_a_state_allows_exactly_the_lengths_that_end_on_it(self):
        self.assertEqual(hit_policies.trailing_stops(bytes([0, 1, 0, 0, 1]), 1), [2, 5])

    def test_a_window_must_be_there_as_far_as_the_prefix_reaches(self):
        self.assertEqual(hit_policies.trailing_stops(bytes([1, 1, 0, 1, 1]), 2), [1, 2, 5])
        self.assertEqual(hit_policies.trailing_stops(bytes([1, 1, 1]), 9), [1, 2, 3])

    def test_only_leading_complete_groups_of_blocks_count(self):
        have = bytes([1, 1, 1, 1, 1, 0])
        self.assertEqual(hit_policies.block_pages_covered(have, 2, 8, 100), 16)
        self.assertEqual(hit_policies.block_pages_covered(bytes([1] * 6), 2, 8, 20), 20)
        self.assertEqual(hit_policies.block_pages_covered(have, 0, 8, 100), 0)


class TransfersTest(unittest.TestCase):
    def test_a_key_of_64_digits_is_its_32_bytes(self):
        self.assertEqual(transfers.page_hashes([key(1), key(2)]), bytes.fromhex(key(1) + key(2)))

    def test_any_other_key_counts_by_its_digest(self):
        for odd in ("page", "zz" * 32):
            self.assertEqual(transfers.page_hashes([odd]), hashlib.sha256(odd.encode()).digest())

    def test_a_state_has_a_row_for_the_last_page_only(self):
        pools = [view(), view("mamba", unit=1, layers=(3,), kind="state")]
        resolved = transfers.resolve(pools, [transfer("kv", range(3), list(range(12))), transfer("mamba", [2], [7])], partial=True)
        self.assertEqual(resolved.rows(), {"kv": list(range(12)), "mamba": [-1, -1, 7]})

    def test_a_sidecar_uses_the_slots_of_its_source(self):
        draft = view("draft", source="kv", kind="draft")
        resolved = transfers.resolve([view(), draft], [transfer("kv", [0], [4, 5, 6, 7])], partial=False)
        self.assertEqual(resolved.rows(), {"kv": [4, 5, 6, 7], "draft": [4, 5, 6, 7]})

    def test_pages_that_are_not_the_chains_last_ones_are_an_error(self):
        resolved = transfers.resolve([view(), view("mamba", unit=1)], [transfer("kv", [0, 1], [0] * 8), transfer("mamba", [0], [1])], partial=True)
        with self.assertRaisesRegex(ValueError, "mamba"):
            resolved.rows()

    def test_too_few_slots_are_an_error(self):
        resolved = transfers.resolve([view()], [transfer("kv", [0, 1], [0] * 7)], partial=True)
        with self.assertRaisesRegex(ValueError, "7 slots for 2 pages"):
            resolved.rows()

    def test_without_kv_or_with_a_pool_missing_there_is_nothing_to_do(self):
        pools = [view(), view("mamba", unit=1)]
        self.assertIsNone(transfers.resolve(pools, [transfer("mamba", [0], [1])], partial=True))
        self.assertIsNone(transfers.resolve(pools, [transfer("kv", [], [])], partial=True))
        self.assertIsNone(transfers.resolve(pools, [transfer("kv", [0], [0] * 4)], partial=False))
        self.assertIsNotNone(transfers.resolve(pools, [transfer("kv", [0], [0] * 4)], partial=True))


class LookupBookTest(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()
        self.book = lookups.LookupBook(most=2, clock=self.clock)

    def answer(self, *pages, lease="lease", until=10.0):
        return lookups.Answer([key(p) for p in pages], [len(pages)], lease, parts.Epoch(None), self.clock.now + until, self.clock.now + until,
                              life=1)

    def test_the_same_question_has_the_same_answer_while_it_is_fresh(self):
        answer = self.answer(1, 2)
        self.book.keep("r", answer)
        self.assertIs(self.book.repeated("r", [key(1), key(2)], 1), answer)
        self.assertIsNone(self.book.repeated("r", [key(1)], 1))
        self.assertIsNone(self.book.repeated("other", [key(1), key(2)], 1))
        self.clock.now += 10.0
        self.assertIsNone(self.book.repeated("r", [key(1), key(2)], 1))

    def test_an_answer_of_a_store_that_is_gone_is_not_given_again(self):
        self.book.keep("r", self.answer(1))
        for life in (0, 2):
            self.assertIsNone(self.book.repeated("r", [key(1)], life))

    def test_an_answer_of_replaced_weights_is_not_given_again(self):
        answer = self.answer(1)
        self.book.keep("r", answer)
        answer.epoch.live = False
        self.assertIsNone(self.book.repeated("r", [key(1)], 1))

    def test_another_question_of_a_request_gives_its_first_lease_back(self):
        first, second = self.answer(1), self.answer(1, 2)
        self.assertEqual(self.book.keep("r", first), [])
        self.assertEqual(self.book.keep("r", second), [first])

    def test_the_same_question_asked_anew_does_not_end_the_lease_of_other_ranks(self):
        self.book.keep("r", self.answer(1))
        self.assertEqual(self.book.keep("r", self.answer(1, lease="newer")), [])

    def test_leases_do_not_pile_up(self):
        first = self.answer(1)
        self.book.keep("a", first)
        self.book.keep("b", self.answer(2))
        self.assertEqual(self.book.keep("c", self.answer(3)), [first])
        self.assertEqual(len(self.book), 2)

    def test_a_load_takes_the_lease_over(self):
        answer = self.answer(1)
        self.book.keep("r", answer)
        self.assertIs(self.book.take("r"), answer)
        self.assertEqual(self.book.clear(), [])


class ChainsTest(unittest.TestCase):
    def test_a_page_knows_the_one_before_it_from_the_lookups(self):
        chains = lookups.Chains()
        chains.learn([key(1), key(2), key(3)])
        chains.learn([key(3), key(4)])
        self.assertEqual(chains.parent(key(1)), (None, 0))
        self.assertEqual(chains.parent(key(3)), (key(2), 2))
        self.assertEqual(chains.parent(key(4)), (key(3), 3))

    def test_it_forgets_before_it_grows_too_large(self):
        chains = lookups.Chains(most=4)
        chains.learn([key(n) for n in range(4)])
        chains.learn([key(n) for n in range(10, 14)])
        self.assertEqual(chains.parent(key(3)), (None, 0))
        self.assertEqual(chains.parent(key(13)), (key(12), 3))


class LayerGroupsTest(unittest.TestCase):
    def test_all_layers_are_covered_once_and_in_order(self):
        for layers in (1, 2, 3, 8, 9, 61):
            groups = loads.layer_groups(layers)
            self.assertEqual([n for begin, end in groups for n in range(begin, end)], list(range(layers)))
            self.assertLessEqual(len(groups), 8)


if __name__ == "__main__":
    unittest.main()
