# SPDX-License-Identifier: Apache-2.0
import unittest

import engine_parts

engine = engine_parts.load()
Place, entry, spec = engine.Place, engine.shard_of_entry, engine.shard_of_spec


def all_ranks(tp_size, shard_of, **place):
    """The shards of all ranks: ((counts of rank 0), [tp index of each])."""
    shards = [shard_of(Place(tp=tp, tp_size=tp_size, **place)) for tp in range(tp_size)]
    assert len({s.counts for s in shards}) == 1, "ranks of one group must agree on the number of shards"
    return shards[0].counts, [s.index[0] for s in shards]


class EntriesOfSGLang(unittest.TestCase):
    def test_latent_attention_is_one_shard_at_every_tp_size(self):
        for size in (1, 2, 4, 8):
            for kind in ("mla", "indexer"):
                self.assertEqual(all_ranks(size, lambda p: entry("kv", p, kind=kind)), ((1, 1, 1), [0] * size))

    def test_a_group_that_the_engine_calls_replicated_is_so_in_all_its_entries(self):
        for kind in ("mla", "indexer", "state", "draft", "heads"):
            counts, index = all_ranks(4, lambda p: entry("e", p, kind=kind, rank_replicated=True, kv_heads=8))
            self.assertEqual((counts, index), ((1, 1, 1), [0, 0, 0, 0]), kind)

    def test_recurrent_state_and_a_draft_of_its_own_are_per_rank(self):
        for kind in ("state", "draft"):
            self.assertEqual(all_ranks(4, lambda p: entry("s", p, kind=kind)), ((4, 1, 1), [0, 1, 2, 3]))

    def test_ranks_that_hold_the_same_heads_share_a_shard(self):
        self.assertEqual(all_ranks(8, lambda p: entry("kv", p, kind="heads", kv_heads=2)), ((2, 1, 1), [0] * 4 + [1] * 4))
        self.assertEqual(all_ranks(8, lambda p: entry("kv", p, kind="heads", kv_heads=1)), ((1, 1, 1), [0] * 8))
        self.assertEqual(all_ranks(4, lambda p: entry("kv", p, kind="heads", kv_heads=8)), ((4, 1, 1), [0, 1, 2, 3]))

    def test_heads_that_do_not_divide_evenly_or_are_not_known_are_per_rank(self):
        self.assertEqual(all_ranks(8, lambda p: entry("kv", p, kind="heads", kv_heads=3))[0], (8, 1, 1))
        self.assertEqual(all_ranks(8, lambda p: entry("kv", p, kind="heads"))[0], (8, 1, 1))

    def test_what_the_entries_declare_goes_before_their_kind(self):
        declared = [0, 0, 1, 1]
        self.assertEqual(all_ranks(4, lambda p: entry("kv", p, kind="state", declared=declared)), ((2, 1, 1), declared))
        self.assertEqual(all_ranks(4, lambda p: entry("s", p, kind="state", declared=[0] * 4)), ((1, 1, 1), [0] * 4))
        for wrong in ([0, 2, 2, 0], [1, 1, 1, 1], [0, 1], [0, -1, 1, 1]):
            with self.assertRaises(engine.Refused):
                entry("kv", Place(tp=1, tp_size=4), kind="mla", declared=wrong)

    def test_the_operators_word_goes_before_everything(self):
        place = Place(tp=3, tp_size=4)
        self.assertEqual(entry("kv", place, kind="mla", overrides={"kv": "rank"}).index, (3, 0, 0))
        self.assertEqual(entry("kv", place, kind="state", declared=[0, 1, 2, 3], overrides={"kv": "replicated"}).counts, (1, 1, 1))
        self.assertEqual(entry("kv", place, kind="mla", kv_heads=2, overrides={"kv": "heads"}).index, (1, 0, 0))
        self.assertEqual(entry("other", place, kind="mla", overrides={"kv": "rank"}).index, (0, 0, 0))
        with self.assertRaisesRegex(engine.ConfigError, "KV heads"):
            entry("kv", place, kind="mla", overrides={"kv": "heads"})

    def test_an_unknown_kind_is_an_error_and_no_guess(self):
        with self.assertRaisesRegex(ValueError, "swa"):
            entry("kv", Place(), kind="swa")

    def test_pipeline_and_context_ranks_are_axes_of_their_own(self):
        place = Place(tp=1, tp_size=2, pp=2, pp_size=3, cp=1, cp_size=2)
        shard = entry("kv", place, kind="mla")
        self.assertEqual((shard.counts, shard.index, shard.count), ((1, 3, 2), (0, 2, 1), 6))
        self.assertEqual(shard.flat, 5)
        self.assertEqual(entry("kv", place, kind="mla", cp_replicated=True).counts, (1, 3, 1))
        state = entry("s", place, kind="state")
        self.assertEqual((state.count, state.flat), (12, 1 + 2 * (2 + 3 * 1)))
        self.assertEqual(place.ranks, (2, 3, 2))
        with self.assertRaises(ValueError):
            Place(tp=2, tp_size=2)


class SpecsOfVllm(unittest.TestCase):
    def test_latent_attention_is_one_shard(self):
        self.assertEqual(all_ranks(4, lambda p: spec("g", p, mla=True, max_tp_shards=4)), ((1, 1, 1), [0] * 4))

    def test_heads_by_the_specs_own_number_or_by_the_models(self):
        self.assertEqual(all_ranks(4, lambda p: spec("g", p, max_tp_shards=2, kv_heads=8)), ((2, 1, 1), [0, 0, 1, 1]))
        self.assertEqual(all_ranks(2, lambda p: spec("g", p, kv_heads=1)), ((1, 1, 1), [0, 0]))
        self.assertEqual(all_ranks(2, lambda p: spec("g", p, kv_heads=2)), ((2, 1, 1), [0, 1]))
        self.assertEqual(all_ranks(2, lambda p: spec("g", p)), ((2, 1, 1), [0, 1]))

    def test_state_is_per_rank_unless_the_spec_says_replicated(self):
        self.assertEqual(all_ranks(2, lambda p: spec("g", p, state=True, kv_heads=1)), ((2, 1, 1), [0, 1]))
        self.assertEqual(all_ranks(2, lambda p: spec("g", p, state=True, tp_replicated=True)), ((1, 1, 1), [0, 0]))

    def test_overrides(self):
        self.assertEqual(spec("g", Place(tp=1, tp_size=2), mla=True, overrides={"g": "rank"}).index, (1, 0, 0))
        self.assertEqual(spec("g", Place(tp=1, tp_size=2), kv_heads=1, overrides={"g": "rank"}).counts, (2, 1, 1))

    def test_stages_are_told_only_where_there_are_several(self):
        self.assertEqual(engine.stages_text([(0, 61)]), "")
        self.assertEqual(engine.stages_text([(0, 30), (30, 61)]), "0-29,30-60")


if __name__ == "__main__":
    unittest.main()
