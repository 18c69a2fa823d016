# SPDX-License-Identifier: Apache-2.0
"""The one connection of an engine process to its store. Its loss is misses, not an error."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from .config import Refused, Settings
from .counters import Counters

_log = logging.getLogger("kvonce")

_REPORT_SECONDS = 1.0  # at most so often the counters are given to the store
_PAUSE_SECONDS = (1.0, 30.0)  # between attempts to open a store that does not answer
#: Reasons that another attempt may not see again.
_TRANSIENT = frozenset({"store_lost", "deadline", "busy", "closed"})


def _open_runtime(engine_id: str, store: str, **options: Any) -> Any:
    import kvonce

    return kvonce.Runtime(engine_id, store=store, **options)


class Connection:
    """Opens a Runtime as the settings say.

    A store that does not answer is tried again in the background, so an engine may start before its store. What cannot get
    better by waiting (a wrong address, an option out of range) raises Refused from the constructor.
    rank: for log lines and counters. opener: what makes the runtime; tests give their own.
    """

    def __init__(
        self,
        settings: Settings,
        engine_id: str,
        rank: int | str = "",
        counters: Counters | None = None,
        opener: Callable[..., Any] = _open_runtime,
    ):
        self.engine_id = settings.engine_id or engine_id
        if not 1 <= len(self.engine_id.encode(errors="replace")) <= 255:
            raise Refused(f"kvonce: the engine id {self.engine_id!r} must be 1 to 255 bytes long: set engine_id.")
        self.counters = counters or Counters(self.engine_id, rank)
        self._settings = settings
        self._opener = opener
        self._pid = os.getpid()
        self._runtime: Any = None
        self._refused: Refused | None = None
        self._life = 0  # incarnation of the store that answered when it was asked last; 0: none did
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._reported = (0, 0)  # store's incarnation, counters.changes: what the store has been told
        self._report_at = 0.0
        self._timer: threading.Timer | None = None
        if not self._try_open(first=True):
            self._thread = threading.Thread(target=self._keep_trying, name="kvonce-connect", daemon=True)
            self._thread.start()

    @property
    def runtime(self) -> Any:
        """kvonce.Runtime; None while none could be opened, after close, and in a forked child."""
        return self._runtime if os.getpid() == self._pid else None

    @property
    def connected(self) -> bool:
        """True while a store answers; never in a forked child. Cheap: asked in every step. Each loss is counted and told once,
        also one that was over before anybody asked: the store that answers now is then another one."""
        if os.getpid() != self._pid:
            return False
        runtime = self._runtime
        life = runtime.incarnation if runtime is not None and runtime.connected else 0
        if life != self._life:
            self._changed(life)
        if life and self._timer is None and self._reported != (life, self.counters.changes):
            self._report_soon(runtime)
        return life != 0

    @property
    def incarnation(self) -> int:
        """Random number of the store's life; 0 while there is none."""
        runtime = self.runtime
        return runtime.incarnation if runtime is not None else 0

    @property
    def refused(self) -> Refused | None:
        """Why no further attempt is made to open a store; None: all is well, or attempts go on."""
        return self._refused

    def wait(self, timeout: float) -> bool:
        """True when a store is connected within `timeout` seconds. For start-up and tests, not for steps."""
        end = time.monotonic() + timeout
        while not self._stop.is_set() and self._refused is None:
            runtime, left = self.runtime, end - time.monotonic()
            if runtime is not None:
                return runtime.wait_connected(max(left, 0.001)) and self.connected
            if left <= 0:
                break
            self._stop.wait(min(left, 0.02))
        return False

    def close(self, timeout: float = 5.0) -> None:
        """Ends the runtime and all attempts. Idempotent; does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        self._stop.set()
        with self._lock:
            runtime, self._runtime = self._runtime, None
            timer = self._timer
        if timer is not None:
            timer.cancel()
        if runtime is not None:
            try:
                runtime.close(timeout)
            except Exception as error:
                _log.warning("kvonce: the runtime did not close in order: %s", error)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _try_open(self, first: bool) -> bool:
        try:
            runtime = self._opener(self.engine_id, self._settings.store, **self._settings.runtime_options())
        except Exception as error:
            reason = getattr(error, "reason", "")
            if reason in _TRANSIENT or (not reason and isinstance(error, OSError) and not isinstance(error, FileNotFoundError)):
                if first:
                    _log.warning("kvonce: store %s does not answer, all is a miss until it does: %s", self._settings.store, error)
                return False
            refused = Refused(f"kvonce: cannot open the store {self._settings.store}: {error}")
            if first:
                raise refused from error
            _log.error("%s", refused)
            self._refused = refused
            return True
        with self._lock:
            if not self._stop.is_set():
                self._runtime = runtime
                return True
        runtime.close(1.0)
        return True

    def _keep_trying(self) -> None:
        pause = _PAUSE_SECONDS[0]
        while not self._stop.wait(pause):
            if self._try_open(first=False):
                return
            pause = min(pause * 2, _PAUSE_SECONDS[1])

    def _report_soon(self, runtime: Any) -> None:
        # Asked in every step: told at once when the last time was long ago, else a second after it. And looked at once more a
        # second later: what the engine's last step counted after it had asked is told too, though no further step comes.
        # Nothing runs while nothing is counted.
        with self._lock:
            if self._timer is not None or self._stop.is_set():
                return
            wait = self._report_at - time.monotonic()
            self._look_again(wait if wait > 0 else _REPORT_SECONDS)
            if wait > 0:
                return
            self._report_at = time.monotonic() + _REPORT_SECONDS
        self._report(runtime)

    def _look_again(self, wait: float) -> None:
        self._timer = threading.Timer(wait, self._report_late)
        self._timer.daemon = True
        self._timer.start()

    def _report_late(self) -> None:
        with self._lock:
            self._timer = None
            runtime = self._runtime
        # Not under the lock: while the interpreter ends, a thread that calls the runtime stays there.
        if runtime is None or self._stop.is_set() or self._reported == (runtime.incarnation, self.counters.changes):
            return
        with self._lock:
            if self._timer is not None or self._stop.is_set():
                return
            self._report_at = time.monotonic() + _REPORT_SECONDS
            self._look_again(_REPORT_SECONDS)
        self._report(runtime)

    def _report(self, runtime: Any) -> None:
        rank = self.counters.rank
        label = f"rank {rank}" if rank.isdigit() else rank or "engine"
        told = (runtime.incarnation, self.counters.changes)
        try:
            runtime.report(label, self.counters.report())
        except Exception as error:  # the store's news only; the loss of a store is told elsewhere
            _log.debug("kvonce: the store was not told of the counters: %s", error)
        self._reported = told

    def _changed(self, life: int) -> None:
        with self._lock:
            before, self._life = self._life, life
        if before == life:
            return
        if before and not self._stop.is_set():
            self.counters.add("stores_lost")
            then = "another one answers, and what was stored may be gone" if life else "all is a miss until it is back"
            _log.warning("kvonce: the store %s is lost, %s", self._settings.store, then)
        if life:
            _log.info("kvonce: connected to the store %s as %s", self._settings.store, self.engine_id)
