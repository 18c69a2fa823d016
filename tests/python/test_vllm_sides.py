# SPDX-License-Identifier: Apache-2.0
import pickle
import types
import unittest

import vllm_parts as v


class Lookups(v.SchedulerCase):
    def test_the_scheduler_is_not_held_up_while_the_store_is_asked(self):
        request = v.Request("r", 200)
        for _ in range(3):
            self.assertEqual(self.side.matched(request, 0), (None, False))
        self.assertEqual(len(self.group.asked), 1)
        self.answer(2)
        self.assertEqual(self.side.matched(request, 0), (128, True))
        self.assertEqual(self.side.matched(request, 0), (128, True))
        self.assertEqual(len(self.group.asked), 1)
        self.assertEqual(self.group.asked[0][0], b"".join(request.block_hashes[:3]))

    def test_at_least_one_token_is_left_to_compute(self):
        self.assertEqual(self.matched(v.Request("r", 192), 0, 2), (128, True))
        self.assertEqual(len(self.group.asked[0][0]), 2 * 32)

    def test_only_what_the_engine_does_not_have_is_offered(self):
        self.assertEqual(self.matched(v.Request("r", 400), 128, 5), (192, True))
        self.assertEqual(self.matched(v.Request("s", 400), 128, 2), (0, False))
        self.assertEqual(self.released, ["lease"])

    def test_nothing_is_asked_where_nothing_can_be_won(self):
        self.assertEqual(self.side.matched(v.Request("short", 64), 0), (0, False))
        self.assertEqual(self.side.matched(v.Request("held", 200), 192), (0, False))
        skipping = v.Request("skipping", 200)
        skipping.skip_reading_prefix_cache = True
        self.assertEqual(self.side.matched(skipping, 0), (0, False))
        self.make(settings={"min_tokens": 256})
        self.assertEqual(self.side.matched(v.Request("r", 200), 0), (0, False))
        self.make(settings={"role": "write"})
        self.assertEqual(self.side.matched(v.Request("r", 200), 0), (0, False))
        self.assertEqual(self.group.asked, [])

    def test_a_lookup_that_fails_or_overruns_is_a_miss(self):
        request = v.Request("r", 200)
        self.assertEqual(self.side.matched(request, 0), (None, False))
        self.now += self.settings.lookup_ms / 1000 + v.scheduler.LATE_SECONDS
        self.assertEqual(self.side.matched(request, 0), (0, False))
        self.assertEqual(self.count("missed_tokens", "slow_lookup"), 192)
        self.answer(2, lease="late")
        self.assertEqual(self.released, ["late"])

    def test_a_store_that_is_gone_is_a_miss(self):
        self.runtime.lost = True
        self.assertEqual(self.side.matched(v.Request("r", 200), 0), (0, False))
        self.assertEqual(self.count("missed_tokens", "no_store"), 192)

    def test_hits_and_misses_are_counted_in_tokens_once_a_request(self):
        request = v.Request("r", 400)
        self.matched(request, 64, 3, reason="evicted")
        self.side.matched(request, 64)
        self.assertEqual(self.count("asked_tokens"), 5 * 64)
        self.assertEqual(self.count("hit_tokens", "memory"), 2 * 64)
        self.assertEqual(self.count("missed_tokens", "evicted"), 3 * 64)

    def test_an_answer_whose_lease_runs_out_is_asked_for_again(self):
        request = v.Request("r", 200)
        self.matched(request, 0, 2, lease="old")
        self.now += v.scheduler.LEASE_SPARE_SECONDS + 1
        self.assertEqual(self.matched(request, 0, 3), (192, True))
        self.assertEqual(self.released, ["old"])

    def test_a_request_that_ends_gives_its_lease_back(self):
        request = v.Request("r", 200)
        self.matched(request, 0, 2)
        self.assertFalse(self.side.finished(request))
        self.assertEqual(self.released, ["lease"])
        other = v.Request("s", 200)
        self.side.matched(other, 0)
        self.side.finished(other)
        self.answer(2, lease="found late")
        self.assertIn("found late", self.released)

    def test_another_connector_may_be_chosen(self):
        request = v.Request("r", 200)
        self.matched(request, 0, 2)
        self.side.allocated(request, (), 0)
        self.assertEqual(self.released, ["lease"])
        self.assertEqual(self.side.step(v.output({})).loads, [])


class Loads(v.SchedulerCase):
    specs = (v.full(), v.window(100), v.state())

    def start(self, tables, tokens=400, pages=5, computed=0, lease="lease"):
        request = v.Request("r", tokens)
        found, _ = self.matched(request, computed, pages, lease=lease)
        self.side.allocated(request, tables, found)
        (load,) = self.side.step(v.output({})).loads
        return request, load

    def rows(self, load):
        return {pool.name: load.rows[pool.key] for pool in self.plan.pools}

    def test_windows_load_what_they_see_and_states_only_the_last(self):
        _, load = self.start(([1, 2, 3, 4, 5, 6], [0, 0, 0, 14, 15, 16], [0, 0, 0, 0, 25]))
        self.assertEqual(
            self.rows(load), {"full0": [1, 2, 3, 4, 5], "window1": [-1, -1, -1, 14, 15], "state2": [-1, -1, -1, -1, 25]}
        )
        self.assertEqual(load.lease, "lease")
        self.assertEqual(pickle.loads(pickle.dumps(load)), load)

    def test_a_load_goes_on_where_the_engines_own_hit_ends(self):
        request, load = self.start(([1, 2, 3, 4, 5], [0, 0, 13, 14, 15], [0, 0, 0, 0, 25]), computed=128)
        self.assertEqual(load.hashes, b"".join(request.block_hashes[2:5]))
        self.assertEqual(self.rows(load), {"full0": [3, 4, 5], "window1": [13, 14, 15], "state2": [-1, -1, 25]})
        self.assertEqual(load.tokens, 192)

    def test_the_lease_is_kept_until_all_ranks_have_loaded(self):
        self.start(([1, 2, 3, 4, 5], [0, 0, 0, 14, 15], [0, 0, 0, 0, 25]))
        self.assertEqual(self.released, [])
        self.side.received(["r"], [])
        self.assertEqual(self.released, ["lease"])

    def test_a_request_whose_load_failed_is_computed(self):
        request, _ = self.start(([1, 2, 3, 4, 5], [0, 0, 0, 14, 15], [0, 0, 0, 0, 25]))
        self.side.received(["r"], ["r"])
        self.assertEqual(self.side.matched(request, 0), (0, False))
        tables = {"r": ([1, 2, 3], [11, 12, 13], [0, 0, 23])}
        (save,) = self.side.step(v.output({"r": 192}, tables=tables)).saves
        self.assertEqual((save.first_page, save.pages), (0, 3))

    def test_a_request_that_ends_while_it_loads_is_left_to_the_engine(self):
        request, _ = self.start(([1, 2, 3, 4, 5], [0, 0, 0, 14, 15], [0, 0, 0, 0, 25]))
        self.assertFalse(self.side.finished(request))
        self.assertEqual(self.released, [])
        self.side.received(["r"], [])
        self.assertEqual(self.released, ["lease"])

    def test_a_load_that_was_not_sent_yet_moves_nothing_for_a_request_that_ended(self):
        request = v.Request("r", 400)
        self.matched(request, 0, 5)
        self.side.allocated(request, ([1, 2, 3, 4, 5], [0, 0, 0, 14, 15], [0, 0, 0, 0, 25]), 320)
        self.side.finished(request)
        (load,) = self.side.step(v.output({})).loads
        self.assertEqual(load.rows, {})


class Saves(v.SchedulerCase):
    def step(self, request, scheduled, computed, *tables, **more):
        return self.side.step(v.output({request.request_id: scheduled}, {request.request_id: computed}, {request.request_id: tables}, **more))

    def test_blocks_are_saved_in_the_step_that_fills_them(self):
        request = v.Request("r", 300)
        self.side.track(request)
        (first,) = self.step(request, 150, 0, [1, 2, 3]).saves
        self.assertEqual((first.first_page, first.parent, first.rows), (0, None, {self.plan.pools[0].key: [1, 2]}))
        self.assertEqual(self.step(request, 20, 150, [1, 2, 3]).saves, [])
        (second,) = self.step(request, 130, 170, [1, 2, 3, 4, 5]).saves
        self.assertEqual((second.first_page, second.parent), (2, request.block_hashes[1]))
        self.assertEqual(second.hashes, b"".join(request.block_hashes[2:4]))

    def test_a_block_whose_hash_is_not_known_yet_waits_for_it(self):
        request = v.Request("r", 127)
        self.side.track(request)
        self.assertEqual(self.step(request, 128, 0, [1, 2]).saves[0].pages, 1)
        request.block_hashes.append(v.page_hash(77))
        self.assertEqual(self.step(request, 1, 128, [1, 2, 3]).saves[0].rows, {self.plan.pools[0].key: [2]})

    def test_what_the_store_has_is_not_offered_again(self):
        request = v.Request("r", 300)
        self.matched(request, 0, 3)
        self.side.allocated(request, ([1, 2, 3, 4, 5],), 192)
        (save,) = self.step(request, 108, 192, [1, 2, 3, 4, 5]).saves
        self.assertEqual((save.first_page, save.pages), (3, 1))

    def test_blocks_are_kept_until_every_rank_has_read_them(self):
        self.make(ranks=2)
        request = v.Request("r", 300)
        self.side.track(request)
        (save,) = self.step(request, 128, 0, [7, 9]).saves
        self.assertEqual(self.blocks.held(), {7, 9})
        self.assertTrue(self.side.busy)
        self.side.done(v.messages.Done({save.job: (1, 1)}))
        self.assertEqual(self.blocks.held(), {7, 9})
        self.side.done(v.messages.Done({save.job: (1, 1)}))
        self.assertEqual(self.blocks.held(), set())
        self.assertFalse(self.side.busy)

    def test_a_finished_request_waits_for_its_saves(self):
        request = v.Request("r", 300)
        self.side.track(request)
        (save,) = self.step(request, 128, 0, [7, 9]).saves
        self.assertTrue(self.side.finished(request))
        self.assertEqual(self.side.step(v.output({})).held, ["r"])
        self.side.done(v.messages.Done({save.job: (1, 1)}))
        self.side.sent(["r"])
        self.assertFalse(self.side.busy)
        other = v.Request("s", 300)
        self.side.track(other)
        self.assertFalse(self.side.finished(other))

    def test_pages_that_were_stored_lately_are_offered_once(self):
        first, second = v.Request("r", 300), v.Request("s", 300)
        self.side.track(first)
        (save,) = self.step(first, 256, 0, [1, 2, 3, 4]).saves
        self.side.done(v.messages.Done({save.job: (1, 1)}))
        self.side.track(second)
        self.assertEqual(self.step(second, 44, 256, [1, 2, 3, 4, 5]).saves, [])
        self.runtime.store.restart()
        third = v.Request("t", 300)
        self.side.track(third)
        self.assertEqual(self.step(third, 44, 256, [1, 2, 3, 4, 5]).saves[0].pages, 4)

    def test_pages_that_a_rank_could_not_store_are_offered_again(self):
        first, second = v.Request("r", 300), v.Request("s", 300)
        self.side.track(first)
        (save,) = self.step(first, 256, 0, [1, 2, 3, 4]).saves
        self.side.done(v.messages.Done({save.job: (1, 0)}))
        self.side.track(second)
        self.assertEqual(self.step(second, 44, 256, [1, 2, 3, 4, 5]).saves[0].pages, 4)

    def test_saves_that_are_running_keep_half_of_the_blocks_at_most(self):
        def request(name, first):
            found = v.Request(name, 64 * 45)
            self.side.track(found)
            return self.step(found, 64 * 45, 0, list(range(first, first + 45))).saves

        (save,) = request("first", 1)
        self.assertEqual(request("second", 50), [])
        self.assertEqual(self.count("skipped_pages", "backlog"), 45)
        self.assertEqual(len(self.blocks.held()), 45)
        self.side.done(v.messages.Done({save.job: (1, 1)}))
        self.assertEqual(len(request("third", 50)), 1)

    def test_waiting_is_better_than_preempting_where_blocks_are_free_soon(self):
        request = v.Request("r", 300)
        self.side.track(request)
        self.step(request, 128, 0, [7, 9])
        self.assertFalse(self.side.frees_soon)  # the request has them itself
        for block in (7, 9):
            self.blocks.blocks[block].ref_cnt -= 1  # preempted
        self.assertTrue(self.side.frees_soon)
        self.now += v.scheduler.SOON_SECONDS
        self.assertFalse(self.side.frees_soon)

    def test_nothing_is_saved_without_a_store_or_a_role_for_it(self):
        request = v.Request("r", 300)
        self.make(settings={"role": "read"})
        self.side.track(request)
        self.assertEqual(self.step(request, 256, 0, [1, 2, 3, 4]).saves, [])
        self.make()
        self.runtime.lost = True
        self.side.track(request)
        self.assertEqual(self.step(request, 256, 0, [1, 2, 3, 4]).saves, [])
        self.assertEqual(self.step(request, 1, 256, [1, 2, 3, 4, 5]).saves, [])
        self.assertEqual(self.count("skipped_pages", "no_store"), 4)
        self.assertEqual(self.blocks.held(), set())
        self.runtime.lost = False
        self.assertEqual(self.step(request, 1, 257, [1, 2, 3, 4, 5]).saves[0].pages, 4)

    def test_a_store_that_comes_back_empty_is_offered_all_of_a_request(self):
        request = v.Request("r", 400)
        self.side.track(request)
        (save,) = self.step(request, 256, 0, [1, 2, 3, 4]).saves
        self.side.done(v.messages.Done({save.job: (1, 1)}))
        self.runtime.store.restart()
        (save,) = self.step(request, 64, 256, [1, 2, 3, 4, 5]).saves
        self.assertEqual((save.first_page, save.pages), (0, 5))

    def test_events_tell_what_all_ranks_have_stored(self):
        self.make(events=True)
        request = v.Request("r", 300)
        self.side.track(request)
        (save,) = self.step(request, 128, 0, [1, 2]).saves
        self.assertEqual(self.side.events, [])
        self.side.done(v.messages.Done({save.job: (1, 1)}))
        (event,) = self.side.events
        self.assertEqual((event.hashes, event.parent, event.tokens), (request.block_hashes[:2], None, list(range(128))))


class States(v.SchedulerCase):
    specs = (v.full(), v.state(), v.window(100))

    def step(self, boundaries, scheduled=192, computed=0, **more):
        tables = {"r": ([1, 2, 3, 4, 5], [8, 8, 8, 8, 8], [0, 12, 13, 14, 15])}
        return self.side.step(v.output({"r": scheduled}, {"r": computed}, tables, {"r": boundaries}, **more))

    def named(self, save):
        return {pool.name: save.rows[pool.key] for pool in self.plan.pools if pool.key in save.rows}

    def test_states_come_from_boundary_offloads_alone(self):
        self.side.track(v.Request("r", 400))
        (save,) = self.step([(1, 30, 192)]).saves
        self.assertEqual(self.named(save), {"full0": [1, 2, 3], "state1": [-1, -1, 30], "window2": [-1, 12, 13]})
        self.assertEqual(self.blocks.held(), {1, 2, 3, 12, 13, 30})

    def test_a_state_within_a_page_or_in_the_null_block_is_left_out(self):
        self.side.track(v.Request("r", 400))
        (save,) = self.step([(1, 30, 100), (1, 0, 128)]).saves
        self.assertNotIn("state1", self.named(save))

    def test_a_state_of_a_page_that_was_saved_before_is_saved_by_itself(self):
        request = v.Request("r", 400)
        self.side.track(request)
        self.step([])
        (save,) = self.step([(1, 31, 192)], scheduled=10, computed=192).saves
        self.assertEqual((self.named(save), save.first_page, save.parent), ({"state1": [31]}, 2, request.block_hashes[1]))

    def test_the_state_that_was_just_restored_is_not_offered_again(self):
        request = v.Request("r", 400)
        self.matched(request, 0, 3)
        self.side.allocated(request, ([1, 2, 3], [0, 0, 30], [0, 12, 13]), 192)
        self.assertEqual(self.step([(1, 30, 192)], scheduled=10, computed=192).saves, [])

    def test_blocks_of_a_request_that_was_preempted_or_ended_are_not_read(self):
        self.side.track(v.Request("r", 400))
        for gone in ({"preempted": ["r"]}, {"finished": ["r"]}):
            step = self.side.step(v.output({}, boundaries={"r": [(1, 30, 192)]}, **gone))
            self.assertEqual(step.saves, [])


class BlocksOfSeveralSizes(v.SchedulerCase):
    specs = (v.full(block_size=32), v.full(block_size=64))

    def named(self, rows):
        return {pool.name: rows[pool.key] for pool in self.plan.pools}

    def test_a_page_has_a_row_in_a_pool_for_each_of_its_blocks(self):
        request = v.Request("r", 300)
        self.side.track(request)
        tables = {"r": ([1, 2, 3, 4, 5, 6], [11, 12, 13])}
        (save,) = self.side.step(v.output({"r": 190}, {}, tables)).saves
        self.assertEqual(self.named(save.rows), {"full0.0": [1, 3], "full0.1": [2, 4], "full1": [11, 12]})

    def test_a_load_leaves_alone_what_the_engine_has_of_a_page(self):
        request = v.Request("r", 300)
        self.matched(request, 96, 4)
        self.side.allocated(request, ([1, 2, 3, 4, 5, 6, 7, 8], [11, 12, 13, 14]), 160)
        (load,) = self.side.step(v.output({})).loads
        self.assertEqual(self.named(load.rows), {"full0.0": [-1, 5, 7], "full0.1": [4, 6, 8], "full1": [12, 13, 14]})


class NewWeights(v.SchedulerCase):
    def test_what_was_computed_before_is_not_saved_after(self):
        old, fresh = v.Request("old", 400), v.Request("fresh", 400)
        self.side.track(old)
        before = self.side.step(v.output({"old": 128}, {}, {"old": ([1, 2],)}))
        old.num_computed_tokens = 128
        self.side.track(fresh)
        self.assertTrue(self.side.reset())
        tables = {"old": ([1, 2, 3, 4],), "fresh": ([5, 6],)}
        after = self.side.step(v.output({"old": 128, "fresh": 128}, {"old": 128}, tables))
        self.assertEqual([save.request for save in after.saves], ["fresh"])
        self.assertNotEqual(before.epoch, after.epoch)
        self.assertEqual((before.updates, after.updates), (0, 1))

    def test_a_request_that_is_computed_anew_is_saved_again(self):
        request = v.Request("r", 400)
        self.side.track(request)
        request.num_computed_tokens = 128
        self.side.reset()
        self.side.step(v.output({}, preempted=["r"]))
        (save,) = self.side.step(v.output({"r": 128}, {}, {"r": ([1, 2],)})).saves
        self.assertEqual(save.first_page, 0)

    def test_the_engines_own_pages_are_not_saved_where_it_could_not_forget_them(self):
        old, own = v.Request("old", 400), v.Request("own", 400)
        self.side.track(old)
        self.side.step(v.output({"old": 128}, {}, {"old": ([1, 2],)}))
        old.num_computed_tokens = 128
        self.side.reset()  # with blocks in use vLLM's own cache stays
        self.side.track(own)
        self.assertEqual(self.side.step(v.output({"own": 128}, {"own": 128}, {"own": ([1, 2, 3, 4],)})).saves, [])
        self.blocks.empty()
        self.side.reset()
        self.side.track(v.Request("later", 400))
        self.assertEqual(len(self.side.step(v.output({"later": 128}, {"later": 128}, {"later": ([5, 6, 7, 8],)})).saves), 1)

    def test_what_was_found_before_is_not_loaded_after(self):
        request = v.Request("r", 200)
        self.matched(request, 0, 2, lease="old")
        self.side.reset()
        self.assertEqual(self.released, ["old"])
        self.assertEqual(self.side.matched(request, 0), (None, False))
        self.assertEqual(len(self.group.asked), 2)

    def test_reset_may_be_told_to_keep(self):
        self.runtime, self.epochs = v.epochs(lambda namespace: types.SimpleNamespace(group=self.group), on_reset="keep")
        self.side.epochs = self.epochs
        self.matched(v.Request("r", 200), 0, 2)
        self.assertTrue(self.side.reset())
        self.assertEqual(self.released, [])


if __name__ == "__main__":
    unittest.main()
