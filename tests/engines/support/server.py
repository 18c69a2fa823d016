# SPDX-License-Identifier: Apache-2.0
"""An engine's HTTP server in processes of its own."""
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

_END_SECONDS = 60


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class HttpServer:
    """Runs a command while it is entered; `command`: without host and port. Entered when /health answers."""

    def __init__(self, command, start_seconds, environment=None, headers=None):
        port = free_port()
        self._at, self._start_seconds, self._headers = f"http://127.0.0.1:{port}", start_seconds, headers or {}
        self._process = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port)], env=environment, start_new_session=True)

    def __enter__(self):
        deadline = time.monotonic() + self._start_seconds
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with status {self._process.returncode}")
            try:
                self.ask("/health")
                return self
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_END_SECONDS)

    def ask(self, path, data=None, method=None):
        """The answer's text; data: sent as JSON."""
        body = json.dumps(data).encode() if data is not None else None
        asked = urllib.request.Request(f"{self._at}{path}", body, {"Content-Type": "application/json", **self._headers}, method=method)
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return answer.read().decode()
