# SPDX-License-Identifier: Apache-2.0
import types
import unittest

import vllm_parts as v

Refused = v.engine.Refused


class Pages(unittest.TestCase):
    def test_a_page_is_what_all_groups_have_whole_blocks_of(self):
        plan = v.plan(v.full(block_size=64), v.state(block_size=256))
        self.assertEqual(plan.page_tokens, 256)
        self.assertEqual([pool.name for pool in plan.pools], ["full0.0", "full0.1", "full0.2", "full0.3", "state1"])
        self.assertEqual([pool.trailing for pool in plan.pools], [0, 0, 0, 0, 1])

    def test_hashes_of_pages_are_those_of_their_last_hash_block(self):
        plan = v.plan(v.full(block_size=128), hash_tokens=32)
        hashes = [v.page_hash(n) for n in range(9)]
        self.assertEqual(plan.page_hash(hashes, 0), v.page_hash(3))
        self.assertEqual(plan.page_hashes(hashes, 0, 2), v.page_hash(3) + v.page_hash(7))
        self.assertEqual(plan.hashed_pages(hashes), 2)

    def test_a_window_needs_the_blocks_that_it_sees_and_no_other(self):
        for window in (1, 2, 16, 17, 64, 65, 66, 128, 129, 200):
            for block in (16, 32, 64):
                for part in range(64 // block):
                    stop = 10 * 64
                    seen = {at for at in range(stop - (window - 1), stop)}
                    pages = [p for p in range(10) if seen & set(range(p * 64 + part * block, p * 64 + (part + 1) * block))]
                    expected = 10 - min(pages) if pages else 0
                    self.assertEqual(v.layout.trailing_pages(window, 64, block, part), expected, (window, block, part))

    def test_a_window_that_sees_nothing_of_a_part_has_no_pool_for_it(self):
        plan = v.plan(v.full(block_size=64), v.window(17, block_size=16))
        self.assertEqual([pool.name for pool in plan.pools], ["full0", "window1.3"])


class Shards(unittest.TestCase):
    def counts(self, *specs, **changed):
        return [(pool.shard.counts, pool.shard.index) for pool in v.plan(*specs, **changed).pools]

    def test_latent_attention_is_one_object_for_all_ranks(self):
        for rank in range(4):
            self.assertEqual(self.counts(v.mla(), tp_size=4, tp_rank=rank), [((1, 1, 1), (0, 0, 0))])

    def test_heads_are_split_by_head_group(self):
        self.assertEqual(self.counts(v.full(num_kv_heads=1), tp_size=2, tp_rank=1), [((2, 1, 1), (1, 0, 0))])
        one = self.counts(v.full(num_kv_heads=1), tp_size=2, tp_rank=1, total_kv_heads=1)
        self.assertEqual(one, [((1, 1, 1), (0, 0, 0))])
        two_of_four = self.counts(v.full(num_kv_heads=1), tp_size=4, tp_rank=3, total_kv_heads=2)
        self.assertEqual(two_of_four, [((2, 1, 1), (1, 0, 0))])

    def test_a_group_whose_heads_are_not_the_models_is_per_rank(self):
        self.assertEqual(self.counts(v.full(num_kv_heads=4), tp_size=2, tp_rank=1, total_kv_heads=1), [((2, 1, 1), (1, 0, 0))])

    def test_the_specs_own_word_on_heads_goes_first(self):
        self.assertEqual(self.counts(v.full(max_tp_shards=1), tp_size=2, tp_rank=1), [((1, 1, 1), (0, 0, 0))])

    def test_state_is_per_rank_unless_its_spec_says_otherwise(self):
        self.assertEqual(self.counts(v.state(), tp_size=2, tp_rank=1), [((2, 1, 1), (1, 0, 0))])
        self.assertEqual(self.counts(v.state(tp_replicated=True), tp_size=2, tp_rank=1), [((1, 1, 1), (0, 0, 0))])

    def test_a_setting_overrides(self):
        changed = {"overrides": {"full0": "replicated"}, "tp_size": 2, "tp_rank": 1}
        self.assertEqual(self.counts(v.full(num_kv_heads=1), **changed), [((1, 1, 1), (0, 0, 0))])

    def test_replicated_pools_keep_their_name_over_rank_counts_and_split_ones_do_not(self):
        def keys(one, **changed):
            return {pool.key for pool in v.plan(one, **changed).pools}

        self.assertEqual(keys(v.mla()), keys(v.mla(), tp_size=4))
        self.assertNotEqual(keys(v.full(num_kv_heads=2)), keys(v.full(num_kv_heads=1), tp_size=2))
        self.assertNotEqual(keys(v.mla(), layout="LBHNC"), keys(v.mla(), layout="BLHNC"))


class Refusals(unittest.TestCase):
    def refused(self, says, *specs, **changed):
        with self.assertRaises(Refused) as caught:
            v.plan(*(specs or [v.full()]), **changed)
        self.assertIn(says, caught.exception.text)
        self.assertNotIn("\n", caught.exception.text)

    def test_what_cannot_be_served_is_one_sentence(self):
        self.refused("pipeline", pp_size=2)
        self.refused("context parallelism", dcp_size=2)
        self.refused("context parallelism", pcp_size=2)
        self.refused("memory", device="cuda")
        self.refused("eagle", draft="eagle")
        self.refused("xxhash", hash_algorithm="xxhash")
        self.refused("nvfp4", kv_dtype="nvfp4")
        self.refused("scales", kv_dtype="fp8", kv_scales="computed")
        self.refused("multiple", hash_tokens=48)
        self.refused("ChunkedLocalAttentionSpec", v.spec("ChunkedLocalAttentionSpec"))
        self.refused("mixes", v.spec("UniformTypeKVCacheSpecs", kv_cache_specs={"a": v.full(), "b": v.mla()}))
        self.refused("blocks of cache group 0", v.full(block_size=16), v.state(block_size=512))
        self.refused("prefix caching", v.state(), prefix_caching=False)
        self.refused("mode 'all'", v.state(), mamba_mode="all")

    def test_a_subclass_of_a_known_spec_is_not_that_spec(self):
        class SinkFullAttentionSpec(type(v.full())):
            block_size, num_kv_heads = 64, 2

        self.refused("SinkFullAttentionSpec", SinkFullAttentionSpec())

    def test_groups_that_may_not_be_transferred(self):
        for flag in ({"enable_kv_transfer": False}, {"is_eagle_group": True}, {"host_resident": True}):
            with self.assertRaises(Refused):
                v.layout.make_plan([v.group(v.full(), **flag)], v.facts())


def tensor(shape, strides, item=2, pointer=4096):
    return types.SimpleNamespace(shape=shape, stride=lambda: strides, element_size=lambda: item, data_ptr=lambda: pointer)


class Rows(unittest.TestCase):
    def test_a_block_of_heads_by_tokens_is_one_row(self):
        rows = v.layout.rows_of_tensor("l", tensor((10, 2, 128, 64), (16384, 8192, 64, 1)), 10)
        self.assertEqual(rows, v.layout.Rows(4096, 32768, 32768))

    def test_padding_is_left_away(self):
        rows = v.layout.rows_of_tensor("l", tensor((10, 1, 1, 68608), (131072, 68608, 68608, 1), item=1), 10)
        self.assertEqual(rows, v.layout.Rows(4096, 131072, 68608))

    def test_the_kernels_blocks_may_be_smaller(self):
        rows = v.layout.rows_of_tensor("l", tensor((40, 2, 32, 64), (4096, 2048, 64, 1)), 10)
        self.assertEqual(rows, v.layout.Rows(4096, 32768, 32768))

    def test_a_block_in_pieces_is_refused(self):
        for shape, strides in (((10, 2, 128, 64), (8192, 81920, 64, 1)), ((20, 2, 32, 64), (8192, 2048, 64, 1))):
            with self.assertRaises(Refused):
                v.layout.rows_of_tensor("l", tensor(shape, strides), 10)
        with self.assertRaises(Refused):
            v.layout.rows_of_tensor("l", tensor((11, 2), (2, 1)), 10)

    def test_layers_with_several_tensors_are_gathered_by_kind(self):
        conv, temporal = tensor((10, 4), (40, 1), pointer=4096), tensor((10, 8), (40, 1), pointer=8192)
        kinds = v.layout.layer_rows(["a", "b"], {"a": [conv, temporal], "b": [conv, temporal]}, 10)
        self.assertEqual([[row.pointer for row in kind] for kind in kinds], [[4096, 4096], [8192, 8192]])
        with self.assertRaises(Refused):
            v.layout.layer_rows(["a", "b"], {"a": [conv, temporal], "b": conv}, 10)
        with self.assertRaises(Refused):
            v.layout.layer_rows(["c"], {"a": conv}, 10)


if __name__ == "__main__":
    unittest.main()
