# SPDX-License-Identifier: Apache-2.0
import os
import time
import unittest
from unittest import mock

import engine_parts

engine = engine_parts.load()
connection = engine_parts.load("kvonce.engine.connection")


class Opening(unittest.TestCase):
    def setUp(self):
        self.store = engine_parts.MemoryStore()
        self.calls = []
        self.answers = []
        patch = mock.patch.object(connection, "_PAUSE_SECONDS", (0.001, 0.002))
        patch.start()
        self.addCleanup(patch.stop)

    def opener(self, engine_id, store, **options):
        self.calls.append((engine_id, store, options))
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        return engine_parts.MemoryRuntime(self.store, engine_id)

    def connect(self, engine_id="launch-1", **settings):
        link = engine.Connection(engine.Settings.parse(settings), engine_id, rank=0, opener=self.opener)
        self.addCleanup(link.close)
        return link

    def test_the_settings_reach_the_runtime(self):
        link = self.connect(store="unix:/run/k", role="read", auto_bytes="1GiB")
        self.assertTrue(link.connected)
        self.assertEqual(self.calls, [("launch-1", "unix:/run/k", {"read_only": True, "auto_bytes": "1GiB"})])
        self.assertEqual(link.incarnation, self.store.incarnation)
        named = engine.Connection(engine.Settings.parse({"engine_id": "mine"}), "launch-1", opener=self.opener)
        self.assertEqual((named.engine_id, self.calls[-1][0]), ("mine", "mine"))

    def test_a_store_that_does_not_answer_is_awaited_in_the_background(self):
        self.answers = [engine_parts.StoreLost("nobody listens")] * 3 + [ConnectionRefusedError("no")]
        with self.assertLogs("kvonce", "INFO") as logs:
            link = self.connect()
            self.assertTrue(link.wait(30))
        self.assertEqual(len(self.calls), 5)
        self.assertEqual([line.split(":")[0] for line in logs.output], ["WARNING", "INFO"])
        self.assertIsNotNone(link.runtime)

    def test_what_waiting_cannot_mend_is_refused_at_once(self):
        self.answers = [engine_parts.BadArgument("auto_bytes is 1: must be ...")]
        with self.assertRaisesRegex(engine.Refused, "auto_bytes is 1"):
            self.connect(auto_bytes=1)
        for wrong in ("", "e" * 256):
            with self.assertRaisesRegex(engine.Refused, "engine_id"):
                self.connect(engine_id=wrong)
        self.assertEqual(len(self.calls), 1)

    def test_a_refusal_in_the_background_ends_the_attempts(self):
        self.answers = [engine_parts.StoreLost("no")] + [engine_parts.BadArgument("another version")] * 2
        with self.assertLogs("kvonce", "WARNING"):
            link = self.connect()
            self.assertFalse(link.wait(30))
        self.assertIn("another version", link.refused.text)
        self.assertFalse(link.connected)
        self.assertEqual(len(self.calls), 2)

    def test_a_loss_is_told_and_counted_once_however_often_it_is_asked(self):
        link = self.connect()
        self.assertTrue(link.connected)
        for _ in range(2):
            link.runtime.lost = True
            with self.assertLogs("kvonce", "WARNING") as logs:
                self.assertEqual([link.connected for _ in range(100)], [False] * 100)
            self.assertEqual(len(logs.output), 1)
            link.runtime.lost = False
            self.assertTrue(link.connected)
        self.assertEqual(link.counters.total("stores_lost"), 2)

    def test_a_loss_that_was_over_before_anybody_asked_is_told_and_counted_too(self):
        link = self.connect()
        self.assertTrue(link.connected)
        for _ in range(2):
            self.store.restart()
            with self.assertLogs("kvonce", "WARNING") as logs:
                self.assertEqual([link.connected for _ in range(100)], [True] * 100)
            self.assertEqual(len(logs.output), 1)
            self.assertIn("is lost", logs.output[0])
        self.assertEqual(link.counters.total("stores_lost"), 2)

    def test_close_ends_it_and_the_attempts_too(self):
        link = self.connect()
        runtime = link.runtime
        self.assertTrue(link.connected)
        link.close()
        link.close()
        self.assertTrue(runtime.closed)
        self.assertIsNone(link.runtime)
        self.assertFalse(link.connected or link.wait(1))
        self.assertEqual(link.counters.total("stores_lost"), 0)
        self.answers = [engine_parts.StoreLost("no")] * 1_000_000
        with self.assertLogs("kvonce", "WARNING"):
            trying = self.connect()
        trying.close()
        self.assertFalse(trying._thread.is_alive())

    def reports(self, link, count):
        end = time.monotonic() + 30
        while len(link.runtime.reports) < count and time.monotonic() < end:
            time.sleep(0.001)
        return link.runtime.reports

    def test_counters_are_told_when_a_step_asks_and_once_more_after_the_last_one(self):
        with mock.patch.object(connection, "_REPORT_SECONDS", 0.05):
            link = self.connect()
            self.assertTrue(link.connected)
            self.assertEqual(link.runtime.reports, [("rank 0", {})])
            link.counters.add("asked_tokens", 100)
            self.assertTrue(link.connected)  # too soon: told later, though nobody asks again
            link.counters.add("asked_tokens", 20)
            self.assertEqual(self.reports(link, 2)[1:], [("rank 0", {"asked_tokens": 120})])
            link.counters.add("asked_tokens", 3)  # after the engine's last step
            self.assertEqual(self.reports(link, 3)[2:], [("rank 0", {"asked_tokens": 123})])
            end = time.monotonic() + 30
            while link._timer is not None and time.monotonic() < end:
                time.sleep(0.001)
            for _ in range(100):
                self.assertTrue(link.connected)
            self.assertIsNone(link._timer)  # nothing was counted since
            self.store.restart()
            self.assertTrue(link.connected)
            told = self.reports(link, 4)[3]  # another life of the store
            self.assertEqual(told, ("rank 0", {"asked_tokens": 123, "stores_lost": 1}))

    def test_the_runtime_is_not_asked_under_the_lock(self):
        # While the interpreter ends a thread that asks it stays there, and whoever closes the connection wants the lock.
        held = []
        with mock.patch.object(connection, "_REPORT_SECONDS", 0.02):
            link = self.connect()

            def incarnation(runtime):
                held.append(link._lock.locked())
                return 7

            with mock.patch.object(engine_parts.MemoryRuntime, "incarnation", property(incarnation)):
                link.counters.add("asked_tokens", 100)
                self.assertTrue(link.connected)
                link.counters.add("asked_tokens", 20)
                end = time.monotonic() + 30
                while link._timer is not None and time.monotonic() < end:
                    time.sleep(0.001)
        self.assertGreater(len(held), 2)
        self.assertNotIn(True, held)

    def test_a_report_is_told_once_a_second_at_most_and_none_after_close(self):
        with mock.patch.object(connection, "_REPORT_SECONDS", 3600):
            link = self.connect()
            runtime = link.runtime
            for _ in range(1000):
                link.counters.add("asked_tokens", 1)
                self.assertTrue(link.connected)
            self.assertEqual(len(runtime.reports), 1)
            timer = link._timer
            link.close()
            timer.join(30)
            self.assertFalse(timer.is_alive())
            self.assertEqual(len(runtime.reports), 1)

    def test_a_store_that_cannot_be_told_is_no_trouble(self):
        link = self.connect()
        with mock.patch.object(engine_parts.MemoryRuntime, "report", side_effect=engine_parts.StoreLost("gone")) as told:
            link.counters.add("asked_tokens", 1)
            self.assertTrue(link.connected)
            self.assertEqual(told.call_count, 1)

    def test_a_forked_child_has_no_connection(self):
        link = self.connect()
        runtime = link.runtime
        self.assertTrue(link.connected)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            told = []
            with mock.patch.object(connection._log, "handle", told.append):
                link.close()
                none = link.runtime is None and not link.connected and not link.connected
            quiet = not told and link.counters.total("stores_lost") == 0
            os.write(write, b"ok" if none and quiet and not runtime.closed else b"no")
            os._exit(0)
        os.close(write)
        self.addCleanup(os.close, read)
        self.assertEqual(os.read(read, 2), b"ok")
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertTrue(link.connected)


if __name__ == "__main__":
    unittest.main()
