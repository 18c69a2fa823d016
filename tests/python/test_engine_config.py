# SPDX-License-Identifier: Apache-2.0
import unittest

import engine_parts

engine = engine_parts.load()
Settings, ConfigError, Refused = engine.Settings, engine.ConfigError, engine.Refused


class Parsing(unittest.TestCase):
    def refused(self, **given):
        with self.assertRaises(ConfigError) as caught:
            Settings.parse(given)
        self.assertEqual(str(caught.exception), caught.exception.text)
        self.assertNotIn("\n", caught.exception.text)
        return caught.exception.text

    def test_nothing_given_means_a_store_of_this_user_both_ways(self):
        settings = Settings.parse(None)
        self.assertEqual((settings.store, settings.role, settings.on_reset), ("auto", "both", "new"))
        self.assertTrue(settings.reads and settings.writes)
        self.assertEqual(settings.runtime_options(), {})
        self.assertEqual(Settings.parse({}), settings)

    def test_numbers_may_come_as_text(self):
        settings = Settings.parse({"min_tokens": "1,024", "lookup_ms": 5.0, "load_ms": "60_000", "verify_sample": "1"})
        self.assertEqual((settings.min_tokens, settings.lookup_ms, settings.load_ms), (1024, 5, 60_000))
        self.assertEqual(settings.runtime_options(), {"verify_sample": 1})

    def test_an_unknown_key_names_the_nearest_known_one(self):
        self.assertIn("did you mean min_tokens?", self.refused(min_token=1))
        self.assertIn("did you mean namespace?", self.refused(name_space="x"))
        self.assertIn("did you mean auto_bytes?", self.refused(auto_byte="1GiB"))
        self.assertIn("model_id", self.refused(zzzzzzzzz=1))

    def test_keys_of_the_engine_are_left_alone(self):
        settings = Settings.parse({"backend_name": "kvonce", "role": "read"}, ignore=["backend_name"])
        self.assertEqual(settings.role, "read")
        with self.assertRaises(ConfigError):
            Settings.parse({"backend_name": "kvonce"})

    def test_values_out_of_range_or_of_the_wrong_type_are_told_with_what_is_allowed(self):
        self.assertIn("must be 1 to 60,000", self.refused(lookup_ms=0))
        self.assertIn("must be 1 to 3,600,000", self.refused(load_ms=3_600_001))
        self.assertIn("whole number", self.refused(min_tokens="many"))
        self.assertIn("whole number", self.refused(min_tokens=True))
        self.assertIn("whole number", self.refused(min_tokens=1.5))
        self.assertIn("whole number", self.refused(min_tokens=None))
        self.assertIn("read, write, both", self.refused(role="reader"))
        self.assertIn("did you mean read?", self.refused(role="reader"))
        self.assertIn("keep, new", self.refused(on_reset="maybe"))
        self.assertIn("at most 255", self.refused(namespace="n" * 256))
        self.assertIn("must be text", self.refused(tenant=7))
        for store in ("tcp:host:1", "unix:", "", "Auto"):
            self.assertIn("unix:PATH", self.refused(store=store))

    def test_shards_are_overridden_per_pool_flat_or_nested(self):
        flat = Settings.parse({"shard.kv": "rank", "shard.a.b": "heads"})
        nested = Settings.parse({"shard": {"kv": "rank", "a.b": "heads"}})
        self.assertEqual(dict(flat.shards), {"kv": "rank", "a.b": "heads"})
        self.assertEqual(flat, nested)
        self.assertIn("did you mean replicated?", self.refused(**{"shard.kv": "replicate"}))
        self.assertIn("mapping", self.refused(shard="rank"))
        self.assertIn("shard.<pool>", self.refused(shards={"kv": "rank"}))

    def test_an_override_for_a_pool_that_does_not_exist_is_refused(self):
        settings = Settings.parse({"shard.kw": "rank"})
        with self.assertRaisesRegex(ConfigError, r"did you mean shard\.kv\?"):
            settings.check_pools(["kv", "state"])
        settings.check_pools(["kw", "state"])

    def test_a_reader_maps_the_store_read_only_and_an_embedded_store_is_never_that(self):
        self.assertEqual(Settings.parse({"role": "read"}).runtime_options(), {"read_only": True})
        self.assertEqual(Settings.parse({"role": "read", "store": "embedded"}).runtime_options(), {})
        write = Settings.parse({"role": "write", "auto_bytes": "1GiB"})
        self.assertFalse(write.reads)
        self.assertEqual(write.runtime_options(), {"auto_bytes": "1GiB"})

    def test_what_is_no_mapping_is_refused_in_one_sentence(self):
        for given in ([], ["store"], "store", "", 5, 0, True, {"store"}, "x" * 10_000):
            with self.assertRaisesRegex(ConfigError, "must be a mapping") as caught:
                Settings.parse(given)
            self.assertLess(len(caught.exception.text), 200)
        self.assertEqual(Settings.parse({}), Settings.parse(None))

    def test_text_that_no_store_could_take_is_refused(self):
        for name in ("tenant", "engine_id", "namespace", "model_id", "store"):
            self.assertIn(f"setting {name} is", self.refused(**{name: "unix:\ud800"}))

    def test_every_refusal_of_the_adapters_is_one_class(self):
        self.assertTrue(issubclass(ConfigError, Refused))
        with self.assertRaisesRegex(Refused, "not today"):
            engine.refuse("not today")


if __name__ == "__main__":
    unittest.main()
