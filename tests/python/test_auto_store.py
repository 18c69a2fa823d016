# SPDX-License-Identifier: Apache-2.0
"""store="auto": what the store that is started goes by, and what is said where one runs already with other settings."""

import contextlib
import subprocess
import tempfile
import textwrap
import unittest

import kvonce
import kvonce.selftest
from package_parts import DEADLINE, Case, environment, script

#: Starts or finds the store, and says what its process was given.
OPEN = """
import json, sys, kvonce
options = json.loads(sys.argv[1])
runtime = kvonce.Runtime("engine", store="auto", **{"auto_bytes": "16MiB", **options})
"""
SHOW = """
import glob, os
(lock,) = glob.glob(os.environ["XDG_RUNTIME_DIR"] + "/kvonce/*.sock.lock")
with open(f"/proc/{int(open(lock).read())}/cmdline", "rb") as file:
    print("\\n".join(file.read().decode().split("\\0")[1:-1]))
"""


class Auto(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvonce-test-")
        self.addCleanup(folder.cleanup)
        self.variables = environment(XDG_RUNTIME_DIR=folder.name)
        self.addCleanup(self.stop)

    def stop(self):
        with contextlib.suppress(Exception):
            kvonce.selftest.stop_store(self.variables)

    def call(self, program, options="{}"):
        """(the store's arguments by name, lines of the log)"""
        ended = subprocess.run(script(program) + [options], env=self.variables, timeout=DEADLINE, capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        words = ended.stdout.splitlines()
        return {word: words[i + 1] for i, word in enumerate(words[:-1]) if word.startswith("--")}, ended.stderr.splitlines()

    def assert_bad(self, part, **options):
        with self.assertRaises(kvonce.BadArgument) as caught:
            kvonce.Runtime("engine", store="auto", **options)
        self.assertIn(part, caught.exception.text)

    def test_a_store_that_is_started_has_the_settings_that_were_given(self):
        options = """{"capacity_bytes": "8MiB", "max_clients": 9, "index_pages": 2048, "partitions": 2, "huge_pages": "off",
                      "ghost_entries": 10, "engine_grace": 0.5, "grant_base": 2, "least_rate": "1MiB", "window_bytes": "1MiB",
                      "lease_time": 1.5, "leased_bytes": "1MiB", "leased_stops": 2, "verify_sample": 1, "verify_window": 3,
                      "conflict_limit": 7, "demote": false, "auto_idle": 30, "scheduler_threads": 2}"""
        given, log = self.call(OPEN + SHOW, options)
        wanted = {
            "--memory": str(16 << 20), "--idle-exit": "30000ms", "--capacity": str(8 << 20), "--max-clients": "9", "--index-pages": "2048",
            "--partitions": "2", "--huge-pages": "off", "--ghost-entries": "10", "--engine-grace": "500ms", "--grant-deadline": "2000ms",
            "--least-rate": str(1 << 20), "--window": str(1 << 20), "--lease-time": "1500ms", "--leased-bytes": str(1 << 20),
            "--leased-stops": "2", "--verify-sample": "1", "--verify-window": "3000ms", "--conflict-limit": "7", "--demote": "no",
        }  # fmt: skip
        self.assertEqual({name: given.get(name) for name in wanted}, wanted)
        self.assertNotIn("--scheduler-threads", given)
        self.assertEqual(log, [])
        # Another process of the engine, with the same settings, has nothing to be warned of.
        self.assertEqual(self.call(OPEN, options)[1], [])

    def test_what_is_not_given_is_left_to_the_stores_own_sources(self):
        given, _ = self.call(OPEN + SHOW)
        self.assertLessEqual(set(given), {"--socket", "--memory", "--idle-exit", "--populate", "--detach", "--ready-fd", "--start-lock-fd"})

    def test_a_store_that_runs_with_other_settings_is_told_once_with_both_values(self):
        self.call(OPEN, '{"verify_sample": 8, "partitions": 2}')
        program = OPEN + "runtime.namespace('x')\n"
        _, log = self.call(program, '{"verify_sample": 1, "partitions": 2, "lease_time": 3, "auto_bytes": "32MiB", "checksums": false}')
        self.assertEqual(len(log), 1, log)
        differs = "auto_bytes (32 MiB here, 16 MiB there), lease_time (3000ms here, 10000ms there), verify_sample (1 here, 8 there), checksums (no here, yes there);"
        self.assertIn("[warning] the store that runs already", log[0])
        self.assertIn(differs, log[0])
        # What an engine leaves at its default it does not ask for.
        self.assertEqual(self.call(program)[1], [])

    def test_the_adapters_setting_reaches_the_store(self):
        program = """
        import sys
        from kvonce import engine
        settings = engine.Settings.parse({"verify_sample": "1", "auto_bytes": "16MiB", "conflict_limit": 1})
        link = engine.Connection(settings, "launch")
        assert link.wait(60)
        """
        given, log = self.call(textwrap.dedent(program) + SHOW)
        self.assertEqual((given["--verify-sample"], given["--conflict-limit"]), ("1", "1"))
        self.assertEqual(log, [])

    def test_arena_bytes_count_where_auto_bytes_are_not_given(self):
        given, log = self.call(OPEN + SHOW, '{"auto_bytes": 0, "arena_bytes": "24MiB"}')
        self.assertEqual((given["--memory"], log), (str(24 << 20), []))

    def test_what_no_started_store_can_have_is_refused(self):
        self.assert_bad("serve_group is 'users': needs a store with a socket of its own", serve_group="users")
        self.assert_bad("capacity_bytes is 17825792: must be at most auto_bytes (16777216)", auto_bytes="16MiB", capacity_bytes="17MiB")


if __name__ == "__main__":
    unittest.main()
