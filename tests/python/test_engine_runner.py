# SPDX-License-Identifier: Apache-2.0
"""The runner of the tests in real engines, on scripts that need none: what counts as passed, and that nothing is left running."""
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# In a process of its own: the runner takes the orphans of all its descendants and ends them.
RUN = """
import importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("engines", sys.argv[1])
engines = importlib.util.module_from_spec(spec)
spec.loader.exec_module(engines)
engines.LOGS = Path(sys.argv[3])
engines.adopt_orphans()
script = Path(sys.argv[2])
limit = min(engines.seconds_of(script), 60)
verdict, why, taken = engines.run_test("vllm", script, Path(sys.argv[4]), Path(sys.argv[5]), limit)
print(verdict, why, sep="|")
"""

# The same for the whole run, with an environment for each engine that is there already.
TEST = """
import argparse, importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("engines", sys.argv[1])
engines = importlib.util.module_from_spec(spec)
spec.loader.exec_module(engines)
engines.LOGS, engines.environment_of = Path(sys.argv[2]), lambda engine: Path(sys.argv[3])
sys.exit(engines.test(argparse.Namespace(selection=["sglang/doctor"], kvonce=Path(sys.argv[2]), minutes=float(sys.argv[4]), again=True)))
"""


class Runner(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        # What stands for an engine's environment: a folder with bin/python.
        (self.folder / "env" / "bin").mkdir(parents=True)
        (self.folder / "env" / "bin" / "python").symlink_to(sys.executable)
        (self.folder / "kvonce").mkdir()

    def run_script(self, text):
        """-> (verdict, why)"""
        script = self.folder / "script.py"
        script.write_text(textwrap.dedent(text))
        command = [sys.executable, "-c", RUN, ROOT / "tools/engines/engines.py", script, self.folder, self.folder / "env", self.folder / "kvonce"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return tuple(ran.stdout.strip().split("|"))

    def test_what_might_not_end_within_the_time_given_is_skipped_and_named(self):
        command = [sys.executable, "-c", TEST, ROOT / "tools/engines/engines.py", self.folder, self.folder / "env", "4.9"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertRegex(ran.stdout, r"skipped sglang/doctor .*might not end within the 4.9 minutes")
        self.assertRegex(ran.stdout, r"0 passed, 0 failed, 1 skipped")

    def test_a_name_that_is_not_known_is_told_with_the_nearest_before_anything_is_made(self):
        empty = {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")}
        for words, told in (
                (["run", "sglang", "linker_lorra"], "there is no file linker_lorra; nearest in tests/engines: sglang/linker_lora"),
                (["run", "vllm", "tests/engines/vllm/lama_tp1.py"], "vllm/llama_tp1"),
                (["test", "vllm/lama_tp1"], "no test vllm/lama_tp1; nearest in tests/engines: vllm/llama_tp1"),
                (["test", "lora"], "sglang/linker_lora"),
                (["test", "--kvonce", str(self.folder), "vllm/llama_tp1"], "does not hold the package kvonce")):
            ran = subprocess.run([sys.executable, ROOT / "tools/engines/engines.py", *words], capture_output=True, text=True, timeout=120, env=empty)
            self.assertEqual(ran.returncode, 2, words)
            self.assertIn(told, ran.stderr)
        self.assertFalse((self.folder / "cache").exists())

    def test_a_script_passes_that_has_made_all_its_checks(self):
        self.assertEqual(self.run_script("""
            from support import check, done
            check(1 + 1 == 2, "one and one are two")
            done()
        """), ("passed", ""))

    def test_status_0_before_the_last_check_is_a_failure(self):
        self.assertEqual(self.run_script("raise SystemExit(0)"), ("failed", "ended with status 0 before its last check"))

    def test_a_check_that_does_not_hold_is_a_failure(self):
        self.assertEqual(self.run_script("""
            from support import check, done
            check(False, "this holds")
            done()
        """), ("failed", "status 1"))

    def test_a_script_that_kills_itself_and_its_group_does_not_take_the_runner_with_it(self):
        self.assertEqual(self.run_script("""
            import os, signal
            os.killpg(os.getpgrp(), signal.SIGKILL)
        """), ("failed", "killed by signal 9"))

    def test_status_77_is_skipped_with_the_last_line_as_the_reason(self):
        self.assertEqual(self.run_script("""
            print("no such machine")
            raise SystemExit(77)
        """), ("skipped", "no such machine"))

    def test_a_script_that_does_not_end_is_ended_when_its_own_limit_is_over(self):
        self.assertEqual(self.run_script("""
            # Time limit: 1 s
            import threading
            threading.Event().wait()
        """), ("failed", "did not end within 1 s"))

    def test_nothing_is_left_running_not_even_what_left_the_session(self):
        pids = self.folder / "pids"
        self.assertEqual(self.run_script(f"""
            import subprocess, sys
            from support import done
            sleep = "import threading; threading.Event().wait()"
            nested = f"import subprocess, sys, os; p = subprocess.Popen([sys.executable, '-c', {{sleep!r}}], start_new_session=True); print(p.pid, flush=True); os._exit(0)"
            grandchild = subprocess.run([sys.executable, "-c", nested], capture_output=True, text=True, stdin=subprocess.DEVNULL, start_new_session=True)
        """.replace("capture_output=True", "stdout=open(%r, 'w')" % str(pids)) + """
            done()
        """), ("passed", ""))
        pid = int(pids.read_text())
        with self.assertRaises(ProcessLookupError):
            os.kill(pid, 0)

    def test_each_script_has_private_folders_and_none_of_the_caller_s_settings(self):
        os.environ["KVONCE_STORE"] = "unix:/nowhere"
        self.addCleanup(os.environ.pop, "KVONCE_STORE")
        self.assertEqual(self.run_script("""
            import os, stat
            from support import check, done
            check("KVONCE_STORE" not in os.environ, "settings of the caller do not reach a test")
            for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
                check(stat.S_IMODE(os.stat(os.environ[name]).st_mode) == 0o700 and not os.listdir(os.environ[name]), f"{name} is private and empty")
            done()
        """), ("passed", ""))


if __name__ == "__main__":
    unittest.main()
