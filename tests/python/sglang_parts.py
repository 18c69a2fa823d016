# SPDX-License-Identifier: Apache-2.0
"""kvonce.sglang's parts for tests that need no SGLang and no native library: transfers, pools and a store in memory."""

import importlib
import logging
import threading
import types

import engine_parts

engine = engine_parts.load()


def load(name):
    """A module of kvonce.sglang."""
    return importlib.import_module("kvonce.sglang." + name)


def key(n):
    """The n-th page's hash as SGLang writes it."""
    return f"{n:064x}"


def transfer(name, pages, slots=None, hit_policy="all_pages"):
    """A transfer of SGLang's as far as the linker looks at it."""
    return types.SimpleNamespace(name=name, keys=[key(p) for p in pages], device_indices=slots, hit_policy=hit_policy)


class Future:
    """A future of kvonce's that the test settles."""

    def __init__(self, result=None, done=True):
        self._result = result
        self._error = None
        self._done = threading.Event()
        self._callbacks = []
        self.cancelled = False
        if done:
            self._done.set()

    def settle(self, result):
        self._result = result
        self._done.set()
        for callback in self._callbacks:
            callback(self)

    def fail(self, error):
        """Settles it with an exception."""
        self._error = error
        self.settle(None)

    def done(self):
        return self._done.is_set()

    def wait(self, timeout=None):
        return self._done.wait(timeout)

    def result(self, timeout=None):
        assert self._done.wait(timeout)
        if self._error is not None:
            raise self._error
        return self._result

    def cancel(self):
        self.cancelled = True
        if not self.done():
            self.settle(Result({"canceled": 1}))

    def add_done_callback(self, callback):
        if self.done():
            callback(self)
        else:
            self._callbacks.append(callback)


class Result:
    """A result of a put or a load: ok without causes."""

    def __init__(self, causes=None):
        self._causes = causes or {}

    @property
    def ok(self):
        return not self._causes

    def causes(self):
        return dict(self._causes)


class Found:
    """An answer of a lookup."""

    def __init__(self, stops=(), lease="lease", every_stop=False, reason=None):
        self.stops = list(stops)
        self.pages = self.stops[-1] if self.stops else 0
        self.every_stop = every_stop
        self.lease = lease if stops else None
        self.lease_left = 10.0 if stops else 0.0
        self.reason = reason
        self.optional_missing = []


class Group:
    """A page group that answers from a list; the last answer stays."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        self.probes = []
        self.probed = Future(done=False)

    def lookup(self, pages, request_id="", probe=False, lease_time=0.0, timeout=5.0):
        self.asked.append((bytes(pages), request_id))
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def lookup_async(self, pages, probe=False, timeout=5.0):
        self.probes.append(bytes(pages))
        return self.probed


class Gate:
    """As kvonce.Event: what a load waits for."""

    def __init__(self):
        self.fired = threading.Event()

    def signal(self):
        self.fired.set()

    def ready(self):
        return self.fired.is_set()


class Epoch:
    """An epoch of engine.Epochs'."""

    def __init__(self, built):
        self.built = built
        self.live = True
        self.held = 0

    def acquire(self):
        self.held += 1
        return True

    def release(self):
        self.held -= 1


class Epochs:
    """One epoch, or none while `epoch` is None."""

    def __init__(self, epoch):
        self.epoch = epoch
        self.resets = 0
        self.updates = 0

    @property
    def number(self):
        return self.updates

    def current(self):
        return self.epoch

    def wait(self, timeout):
        return self.epoch

    def update(self, why="update", digest="", covers_next_reset=False):
        self.updates += 1

    def reset(self):
        self.resets += 1
        return True

    def close(self, timeout=5.0):
        pass


class Link:
    """A connection whose runtime notes the leases that are given back."""

    def __init__(self, connected=True):
        self.connected = connected
        self.incarnation = 1 if connected else 0
        self.released = []
        self.changed = threading.Condition()
        self.runtime = types.SimpleNamespace(release=self._release)

    def _release(self, lease):
        with self.changed:
            self.released.append(lease)
            self.changed.notify_all()

    def wait_released(self, leases):
        with self.changed:
            return self.changed.wait_for(lambda: self.released == list(leases), timeout=30)

    def close(self, timeout=5.0):
        pass


def view(name="kv", unit=4, layers=(0, 1, 2), source=None, **more):
    """A pool view without memory."""
    transfers = load("transfers")
    return transfers.PoolView(name, source or name, unit, 64, tuple(layers), [], more.pop("kind", "mla"), **more)


class CoreCase:
    """Makes LinkerCores whose puts and loads the test settles: `issued` and `put` note the calls."""

    def core(self, *, group=None, views=None, epochs=None, link=None, refusal="", num_layers=3, clock=None, **settings):
        core_module = load("core")
        case = self
        case.issued, case.put, case.loads = [], [], []
        case.over = False  # the test is: puts settle themselves
        case.load_results = []

        class Core(core_module.LinkerCore):
            def make_gate(self):
                return Gate()

            def issue_load(self, epoch, lease, pages, rows, begin, end, timeout, after=None):
                future = case.load_results.pop(0) if case.load_results else Future(Result())
                case.issued.append((lease, {name: list(slots) for name, slots in rows.items()}, begin, end))
                case.loads.append((future, after))
                return future

            def issue_put(self, epoch, pages, rows, parent, depth, ready):
                future = Future(Result(), done=case.over)
                case.put.append((future, pages, {name: list(slots) for name, slots in rows.items()}, parent, depth, ready))
                with case.put_changed:
                    case.put_changed.notify_all()
                return future

        case.put_changed = threading.Condition()
        case.group = group or Group(Found())
        case.epoch = Epoch(types.SimpleNamespace(group=case.group))
        case.epochs = epochs or Epochs(case.epoch)
        case.link = link or Link()
        more = {"clock": clock} if clock else {}
        core = Core(
            views or [view()],
            num_layers,
            4,
            engine.Settings.parse(settings),
            engine.Counters("engine", "0"),
            link=None if refusal else case.link,
            epochs=None if refusal else case.epochs,
            refusal=refusal,
            **more,
        )
        case.addCleanup(core.close)
        case.addCleanup(case.settle_puts, case.put)
        return core

    def records(self):
        """What kvonce has logged so far within assertLogs."""
        return [record for handler in logging.getLogger("kvonce").handlers for record in getattr(getattr(handler, "watcher", None), "records", ())]

    def settle_puts(self, puts):
        self.over = True
        for put in list(puts):
            if not put[0].done():
                put[0].cancel()

    def wait_put(self, n):
        with self.put_changed:
            return self.put_changed.wait_for(lambda: len(self.put) >= n, timeout=30)
