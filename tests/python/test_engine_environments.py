# SPDX-License-Identifier: Apache-2.0
"""How the engines' environments come to be: what happens when the package index is away, or does not have a package. Nothing is fetched."""
import http.server
import os
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNREACHABLE = 77


class NothingHere(http.server.BaseHTTPRequestHandler):
    """An index that answers, and has no package."""

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


class Environments(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = Path(folder.name)

    def ask(self, engine, index):
        """Asks for the environment with an empty cache and an index of that address."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        variables |= {"XDG_CACHE_HOME": str(self.cache), "PIP_INDEX_URL": index, "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull,
                      "PIP_NO_CACHE_DIR": "1"}
        return subprocess.run([ROOT / "tools/engines" / f"{engine}-env"], env=variables, capture_output=True, text=True, timeout=300)

    def left(self):
        return sorted(path.name for path in (self.cache / "kvonce/engines").iterdir() if not path.name.endswith(".lock"))

    def test_an_index_that_cannot_be_reached_is_told_and_leaves_nothing(self):
        for engine in ("vllm", "sglang"):
            # The discard port: nobody listens there.
            asked = self.ask(engine, "http://127.0.0.1:9/simple")
            self.assertEqual((asked.returncode, asked.stdout), (UNREACHABLE, ""), asked.stderr)
            self.assertIn("the package index cannot be reached", asked.stderr)
            self.assertEqual(self.left(), [])

    def test_an_index_that_lacks_a_package_is_a_failure_and_leaves_nothing(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), NothingHere)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        asked = self.ask("vllm", f"http://127.0.0.1:{server.server_address[1]}/simple")
        self.assertEqual((asked.returncode, asked.stdout), (2, ""), asked.stderr)
        self.assertIn("No matching distribution", asked.stderr)
        self.assertEqual(self.left(), [])


if __name__ == "__main__":
    unittest.main()
