# SPDX-License-Identifier: Apache-2.0
import pickle
import threading
import unittest

import engine_parts

engine = engine_parts.load()


class Counting(unittest.TestCase):
    def setUp(self):
        self.counters = engine.Counters("e1", 3)

    def test_a_lookup_counts_tokens_asked_hit_and_missed_by_cause(self):
        self.counters.lookup(1000, 640, "evicted")
        self.counters.lookup(500, 500)
        self.counters.lookup(100, 0, "other_layout")
        self.assertEqual(
            self.counters.snapshot(),
            {
                ("asked_tokens", ""): 1600,
                ("hit_tokens", "memory"): 1140,
                ("missed_tokens", "evicted"): 360,
                ("missed_tokens", "other_layout"): 100,
                ("lookups", "hit"): 1,
                ("lookups", "partial"): 1,
                ("lookups", "miss"): 1,
            },
        )
        self.assertEqual(self.counters.total("missed_tokens"), 460)
        with self.assertRaises(ValueError):
            self.counters.lookup(10, 11)

    def test_a_put_counts_what_is_stored_and_why_the_rest_is_not(self):
        self.counters.put(10, {})
        self.counters.put(8, {"no_space": 3, "busy": 1})
        self.assertEqual(self.counters.total("stored_pages"), 14)
        self.assertEqual(self.counters.snapshot()["not_stored_pages", "no_space"], 3)

    def test_a_name_that_is_not_declared_and_a_missing_label_are_errors(self):
        for bad in (("hits", 1, ""), ("missed_tokens", 1, ""), ("loaded_tokens", 1, "x"), ("loaded_tokens", -1, "")):
            with self.assertRaises(ValueError):
                self.counters.add(*bad)
        self.assertEqual(self.counters.snapshot(), {})

    def test_a_report_has_sums_first_then_the_largest_by_cause_and_64_in_all(self):
        self.assertEqual(self.counters.report(), {})
        self.counters.lookup(1000, 640, "evicted")
        self.counters.lookup(100, 0, "other_layout")
        self.assertEqual(
            list(self.counters.report().items()),
            [("asked_tokens", 1100), ("hit_tokens", 640), ("missed_tokens", 460), ("lookups", 2), ("hit_tokens:memory", 640),
             ("missed_tokens:evicted", 360), ("missed_tokens:other_layout", 100), ("lookups:miss", 1), ("lookups:partial", 1)],
        )
        changes = self.counters.changes
        for n in range(100):
            self.counters.add("errors", n, f"place {n:03}" + "x" * 60)
        self.assertNotEqual(self.counters.changes, changes)
        report = self.counters.report()
        self.assertEqual(len(report), 64)
        self.assertLessEqual(max(map(len, report)), 64)
        self.assertEqual((report["errors"], report["asked_tokens"]), (4950, 1100))

    def test_deltas_of_workers_add_up(self):
        worker = engine.Counters("e1", 0)
        worker.add("loaded_tokens", 64)
        before = worker.snapshot()
        worker.add("loaded_tokens", 16)
        worker.add("errors", 1, "load")
        delta = pickle.loads(pickle.dumps(worker.delta(before)))
        self.assertEqual(delta, {("loaded_tokens", ""): 16, ("errors", "load"): 1})
        self.counters.merge(before)
        self.counters.merge(delta)
        self.assertEqual(self.counters.snapshot(), worker.snapshot())

    def test_threads_lose_nothing(self):
        threads = [threading.Thread(target=lambda: [self.counters.add("loaded_tokens") for _ in range(2000)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        self.assertEqual(self.counters.total("loaded_tokens"), 16_000)

    def test_prometheus_text_has_each_family_once_and_escapes_labels(self):
        other = engine.Counters('e"2\\', "tp1")
        self.counters.lookup(10, 0, "absent")
        other.lookup(20, 20)
        text = engine.prometheus([self.counters, other])
        self.assertEqual(text.count("# TYPE kvonce_asked_tokens_total counter\n"), 1)
        self.assertIn('kvonce_asked_tokens_total{engine="e1",rank="3"} 10\n', text)
        self.assertIn('kvonce_hit_tokens_total{engine="e\\"2\\\\",rank="tp1",source="memory"} 20\n', text)
        self.assertIn('kvonce_missed_tokens_total{engine="e1",rank="3",cause="absent"} 10\n', text)
        self.assertEqual(engine.Counters().prometheus(), "")

    def test_one_line_for_the_log_names_the_causes(self):
        self.counters.lookup(1000, 640, "evicted")
        self.assertIn("asked 1,000 tokens, hit 640", self.counters.line())
        self.assertIn("evicted 360", self.counters.line())


if __name__ == "__main__":
    unittest.main()
