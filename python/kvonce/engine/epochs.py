# SPDX-License-Identifier: Apache-2.0
"""Weight epochs: after new weights, nothing that the old ones made is served.

The epoch is a part of the namespace's text: empty for the weights that the engine was started with (their digest is in
the identity already), afterwards the digest of the new weights, or 16 random bytes that the store gives out once per
(engine while it is connected, n-th update), so that all its processes get the same. Every epoch has pools and a page
group of its own; rows that were accepted under one epoch go under that one, however late they are copied.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from .counters import Counters
from .identity import Identity

_log = logging.getLogger("kvonce")

_RETRY_SECONDS = (0.05, 2.0)  # after a failure: first and longest pause


def _on_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="kvonce-epoch", daemon=True).start()


class Epoch:
    """One weight epoch and what the adapter built for it."""

    def __init__(self, owner: Epochs, value: str, namespace: Any, built: Any):
        self.value = value  #: its name; empty: the weights that the engine was started with
        self.namespace = namespace  #: kvonce.Namespace
        self.built = built  #: what `build` returned
        self._owner = owner
        self._holders = 0
        self._retired = False

    @property
    def live(self) -> bool:
        """False once newer weights are there: start no load under it any more, and take no lookup's answer of it."""
        return not self._retired

    def acquire(self) -> bool:
        """Keeps `built` until as many `release` calls. False: too late, it is being taken down already."""
        return self._owner._acquire(self)

    def release(self) -> None:
        """Gives one `acquire` back; from any thread, a future's callback too."""
        self._owner._release(self)

    @contextlib.contextmanager
    def hold(self) -> Iterator[bool]:
        """`with epoch.hold() as held:` acquire, and release at the end."""
        held = self.acquire()
        try:
            yield held
        finally:
            if held:
                self.release()


class Epochs:
    """The epochs of one engine process.

    `link`: has `runtime` (kvonce.Runtime, or None while there is none), `connected` and `incarnation` as the runtime;
    engine.Connection. `build(namespace)`: registers what the adapter needs and returns it; may raise.
    `retire(built)`: takes it down (closes its rank), when the last holder let go.
    `number`: updates that this engine had before, where the adapter has counted them. `spawn`: runs a function on a thread.

    What asks the store (`build` and `retire` among it) runs on threads of its own: no call here but `wait` and `close` waits
    for the store, and no lock is held meanwhile.
    """

    def __init__(
        self,
        link: Any,
        identity: Identity,
        build: Callable[[Any], Any],
        retire: Callable[[Any], None] | None = None,
        on_reset: str = "new",
        counters: Counters | None = None,
        number: int = 0,
        spawn: Callable[[Callable[[], None]], None] = _on_a_thread,
    ):
        self._link = link
        self._identity = identity
        self._build = build
        self._retire = retire
        self._on_reset = on_reset
        self._counters = counters
        self._spawn = spawn
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._number = number
        self._digest = ""  # of the current weights, where it is known
        self._told: str | None = None  # value that another process told
        self._epoch: Epoch | None = None
        self._incarnation = 0  # of the store that gave _epoch its value
        self._pause = _RETRY_SECONDS[0]
        self._not_before = 0.0
        self._skip_reset = False
        self._closed = False
        self._settling = False
        self._takedowns: list[threading.Thread] = []
        self._name = hashlib.sha256(identity.text().encode()).hexdigest()[:32]

    # -- which epoch it is ---------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """Updates so far."""
        return self._number

    @property
    def life(self) -> int:
        """The store's incarnation behind the current epoch, 0 while there is none. When it changed, what was known to be stored
        may be gone."""
        epoch = self._epoch
        return self._incarnation if epoch is not None and self._link.incarnation == self._incarnation else 0

    def current(self) -> Epoch | None:
        """The epoch of this moment; None: not known now (no store is connected, it has not answered yet, or it refuses), so all
        is a miss. Never waits: what has to be asked and registered after a change is done by a thread, after a failure again
        when a while has passed. Never raises what the store or `build` raises: it is logged.
        """
        epoch = self._epoch
        if not self._link.connected:
            return None
        if epoch is not None and epoch._retired is False and self._incarnation == self._link.incarnation:
            return epoch
        with self._lock:
            return self._now()

    def wait(self, timeout: float) -> Epoch | None:
        """As current, after at most so many seconds: at an engine's start, so that its first requests are served too."""
        end = time.monotonic() + timeout
        with self._lock:
            while (epoch := self._now()) is None:
                left = end - time.monotonic()
                if left <= 0 or self._closed:
                    return None
                # A connection that comes tells nobody here, and a failure is tried again when its pause is over.
                self._changed.wait(min(left, 0.02))
            return epoch

    def update(self, why: str = "update", digest: str = "", covers_next_reset: bool = False) -> None:
        """New weights are, or are about to be, in place: nothing stored before is found from now on.

        Every process of the engine must call it for the same updates in the same order. digest: of the new weights, where
        it is known (ModelIdentity.text), so that other engines with these weights share the pages; else the epoch is random.
        covers_next_reset: the engine will call reset for this very update; that one opens no further epoch.
        """
        with self._lock:
            self._number += 1
            self._digest = digest
            self._skip_reset = covers_next_reset
            self._drop()
            if self._counters:
                self._counters.add("epochs", 1, why)
            _log.info("kvonce: new weights (%s, update %d): pages stored before are not used any more", why, self._number)

    def reset(self) -> bool:
        """The engine's reset, which cannot tell a flush from new weights: opens an epoch, unless on_reset is "keep" or
        the update was announced before. True when it did."""
        with self._lock:
            covered, self._skip_reset = self._skip_reset, False
            if covered or self._on_reset == "keep":
                return False
            self.update("reset")
            return True

    def at(self, value: str | None) -> Epoch | None:
        """The epoch of that value, which another process of this engine told (`Epoch.value`; text, may be pickled).

        For processes that do not hear of updates themselves, such as vLLM's workers; there, `current` is the epoch told last.
        Values must come in the order in which they were current. None: no value, or no store now.
        """
        if value is None:
            return None
        with self._lock:
            if value != self._told:
                self._told, self._not_before = value, 0.0
                if self._epoch is not None and self._epoch.value != value:
                    self._drop()
            return self._now()

    def close(self, timeout: float = 5.0) -> None:
        """Takes everything down; waits no longer than `timeout` seconds for what others still hold."""
        end = time.monotonic() + timeout
        with self._lock:
            self._closed = True
            self._drop()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._settling, timeout)  # what it has begun to build, it takes down
            takedowns = list(self._takedowns)
        for thread in takedowns:
            thread.join(max(0.0, end - time.monotonic()))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _now(self) -> Epoch | None:
        """As current, under the lock: what needs no answer of the store is settled at once, for the rest a thread is started."""
        epoch = self._epoch
        if self._closed or self._link.runtime is None or not self._link.connected:
            return None
        incarnation = self._link.incarnation
        if epoch is not None and self._incarnation == incarnation:
            return epoch
        value = self._known_value()
        if epoch is not None and value is not None and epoch.value == value:
            self._incarnation = incarnation
            return epoch
        if not self._settling and time.monotonic() >= self._not_before:
            self._settling = True
            try:
                self._spawn(self._settle)
            except RuntimeError as error:  # no more threads for now
                self._settling = False
                self._failed(error)
        return self._epoch if self._incarnation == incarnation else None

    def _known_value(self) -> str | None:
        """The current epoch's value; None: the store has to be asked."""
        if self._told is not None:
            return self._told
        return "" if self._number == 0 else self._digest or None

    def _settle(self) -> None:
        """The thread: asks and builds until that is of the newest weights, or fails."""
        while True:
            with self._lock:
                runtime, incarnation = self._link.runtime, self._link.incarnation
                wanted, value, old = self._wanted(), self._known_value(), self._epoch
                if self._closed or runtime is None or not self._link.connected:
                    self._settling = False
                    self._changed.notify_all()
                    return
            made, error = None, None
            try:
                if value is None:
                    value = "random:" + bytes(runtime.epoch(f"{self._name}:{wanted[0]}")).hex()
                if old is None or old.value != value:
                    namespace = runtime.namespace(self._identity.text(value))
                    made = Epoch(self, value, namespace, self._build(namespace))
            except Exception as raised:  # a miss, whatever it is: the engine goes on
                error = raised
            with self._lock:
                late = wanted != self._wanted() or self._epoch is not old
                if made is not None and (late or self._closed):
                    made._retired = True
                    self._take_down(made)
                if late and not self._closed:
                    continue
                if error is not None:
                    self._failed(error)
                elif not self._closed:
                    if made is not None:
                        self._drop()
                        self._epoch = made
                    self._incarnation = incarnation
                    self._pause = _RETRY_SECONDS[0]
                self._settling = False
                self._changed.notify_all()
                return

    def _wanted(self) -> tuple[int, str, str | None]:
        return self._number, self._digest, self._told

    def _failed(self, error: Exception) -> None:
        if self._pause == _RETRY_SECONDS[0]:
            _log.warning("kvonce: cannot register with the store, all is a miss until that works: %s", error)
        if self._counters:
            self._counters.add("errors", 1, "epoch")
        self._not_before = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, _RETRY_SECONDS[1])

    def _drop(self) -> None:
        epoch, self._epoch = self._epoch, None
        self._not_before = 0.0
        if epoch is not None:
            epoch._retired = True
            if epoch._holders == 0:
                self._take_down(epoch)

    def _acquire(self, epoch: Epoch) -> bool:
        with self._lock:
            if epoch._retired and epoch._holders == 0:
                return False
            epoch._holders += 1
            return True

    def _release(self, epoch: Epoch) -> None:
        with self._lock:
            if epoch._holders == 0:
                raise RuntimeError("an epoch was released more often than it was acquired")
            epoch._holders -= 1
            if epoch._retired and epoch._holders == 0:
                self._take_down(epoch)

    def _take_down(self, epoch: Epoch) -> None:
        self._takedowns = [thread for thread in self._takedowns if thread.is_alive()]
        thread = threading.Thread(target=self._retire_one, args=(epoch,), name="kvonce-retire", daemon=True)
        self._takedowns.append(thread)
        thread.start()

    def _retire_one(self, epoch: Epoch) -> None:
        try:
            if self._retire is not None:
                self._retire(epoch.built)
            epoch.namespace.close()  # its place in the store may be another's
        except Exception as error:  # its rows may still be lent; the rank stays, nothing else is wrong
            _log.warning("kvonce: an old weight epoch could not be taken down: %s", error)
