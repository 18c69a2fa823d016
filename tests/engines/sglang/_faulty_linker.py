# SPDX-License-Identifier: Apache-2.0
"""A linker that a test can put into trouble while the engine runs. Not a test: the engine's processes import it.

A trouble is a file in $KVONCE_TEST_CONTROL, named "trouble-WHAT" or, for one rank, "trouble-WHAT-tpN":
    lookup, load, put    this rank's call of kvonce raises StoreLost
    kill                 holds the pid of a kvonced: it is killed -9 when the next load has begun
    slow                 each load of the state begins half a second late: a forward that did not wait would read what was there before
    zero                 the state is set to zeros after it was loaded
    other                the state of the next rank is loaded instead of this rank's
"""
import os
import signal
import time
from pathlib import Path

import kvonce
from kvonce.sglang.core import LinkerCore
from kvonce.sglang.linker import Linker

FOLDER = Path(os.environ.get("KVONCE_TEST_CONTROL", "."))


def trouble(what, on=True, rank=None, text=""):
    """Switches a trouble on or off; for one rank, or for all."""
    path = FOLDER / (f"trouble-{what}" + ("" if rank is None else f"-tp{rank}"))
    path.write_text(text) if on else path.unlink(missing_ok=True)


class _Late:
    """Half a second after another event."""

    def __init__(self, gate):
        self.gate, self.since = gate, None

    def __call__(self):
        if self.since is None and (self.gate is None or self.gate.ready()):
            self.since = time.monotonic()
        return self.since is not None and time.monotonic() - self.since > 0.5


class _Then:
    """A future; who has waited for it finds that something else was done after it."""

    def __init__(self, future, then):
        self.future, self.then = future, then

    def wait(self, timeout=None):
        came = self.future.wait(timeout)
        if came and self.then is not None:
            self.then, then = None, self.then
            then()
        return came

    def __getattr__(self, name):
        return getattr(self.future, name)


class _Lost:
    """A future of a load or put whose store is gone."""

    ok = False

    def done(self):
        return True

    def wait(self, timeout=None):
        return True

    def result(self, timeout=None):
        return self

    def causes(self):
        return {"store_lost": 1}

    def cancel(self):
        pass

    def add_done_callback(self, call):
        call(self)


class _Group:
    """A page group whose lookups may find the store gone."""

    def __init__(self, group, core):
        self._group, self._core = group, core

    def __getattr__(self, name):
        return getattr(self._group, name)

    def lookup(self, *args, **kwargs):
        if self._core.in_trouble("lookup"):
            raise kvonce.StoreLost("the test says so")
        return self._group.lookup(*args, **kwargs)


class FaultyCore(LinkerCore):
    def in_trouble(self, what):
        rank = self.counters.rank.partition(" ")[0]
        return (FOLDER / f"trouble-{what}").exists() or (FOLDER / f"trouble-{what}-{rank}").exists()

    def _epoch(self):
        epoch = super()._epoch()
        if epoch is not None and not isinstance(epoch.built.group, _Group):
            epoch.built.group = _Group(epoch.built.group, self)
        return epoch

    def issue_load(self, epoch, lease, pages, rows, begin, end, timeout, after=None):
        if self.in_trouble("load"):
            return _Lost()
        if self.in_trouble("slow") and "mamba" in rows:
            after = _Late(after)
        if self.in_trouble("other") and "mamba" in rows:
            return self._load_of_other_rank(epoch, lease, pages, rows, begin, end, timeout, after)
        future = super().issue_load(epoch, lease, pages, rows, begin, end, timeout, after)
        if self.in_trouble("kill"):
            pid = int((FOLDER / "trouble-kill").read_text())
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # the other rank was faster
        if self.in_trouble("zero") and "mamba" in rows:
            return _Then(future, lambda: self._zero_state(rows["mamba"]))
        return future

    def issue_put(self, epoch, pages, rows, parent, depth, ready):
        return _Lost() if self.in_trouble("put") else super().issue_put(epoch, pages, rows, parent, depth, ready)

    def _state(self):
        return next(view for view in self.views if view.text == "mamba")

    def _zero_state(self, rows):
        for component in self._state().keep.components:
            for layer in component:
                for row in rows.tolist():
                    if row >= 0:
                        layer[row].zero_()

    def _load_of_other_rank(self, epoch, lease, pages, rows, begin, end, timeout, after):
        view, built = self._state(), epoch.built
        if not hasattr(built, "other"):
            here = built.pools["mamba"]
            rank, of = int(self.counters.rank[2:3]), 2
            built.other = built.group.rank((rank + 1) % of)
            parts = [
                kvonce.Component(name, [kvonce.Layer(address, stride, size, view.rows) for address, stride, size in layers])
                for name, layers in view.components]
            built.other_pool = built.other.register_pool(here.name, parts, rows=view.rows, shard=((rank + 1) % of, 0, 0), unit=view.unit)
        return built.other.load(lease, pages, {built.other_pool: rows["mamba"]}, layer_begin=begin, layer_end=end, after=after, timeout=timeout)


class FaultyLinker(Linker):
    core_class = FaultyCore
