# SPDX-License-Identifier: Apache-2.0
"""kvonce.engine for tests that need no native library, and a runtime in memory for those of epochs and connections."""

import importlib
import itertools
import os
import pathlib
import sys
import types

PYTHON = pathlib.Path(__file__).resolve().parents[2] / "python"


def load(name="kvonce.engine"):
    """A pure module of the package: of the one that is installed, else of the source tree, without kvonce/__init__.py."""
    try:
        importlib.import_module("kvonce")
    except ImportError:
        package = types.ModuleType("kvonce")
        package.__path__ = [str(PYTHON / "kvonce")]
        package.GroupPool = lambda name, shards=None, trailing_pages=0, optional=False: (name, shards)
        sys.modules["kvonce"] = package
    return importlib.import_module(name)


class StoreLost(Exception):
    reason = "store_lost"


class BadArgument(Exception):
    reason = "bad_argument"


class MemoryStore:
    """What of a store outlives one runtime: epochs, namespaces and their pools. `restart` begins another life."""

    def __init__(self):
        self.restart()

    def restart(self):
        self.incarnation = int.from_bytes(os.urandom(7), "big") + 1
        self.epochs = {}
        self.pools = {}


class MemoryRuntime:
    """The part of kvonce.Runtime that engine.Connection and engine.Epochs use."""

    def __init__(self, store, engine_id="engine"):
        self.store, self.engine_id = store, engine_id
        self.lost = False
        self.closed = False
        self.opened = []
        self.closed_namespaces = []
        self.reports = []

    @property
    def connected(self):
        return not self.lost and not self.closed

    @property
    def incarnation(self):
        return self.store.incarnation if self.connected else 0

    def wait_connected(self, timeout):
        return self.connected

    def epoch(self, name):
        self._check()
        return self.store.epochs.setdefault((self.engine_id, name), os.urandom(16))

    def namespace(self, text):
        self._check()
        self.opened.append(text)
        return MemoryNamespace(self.store, text, self.closed_namespaces)

    def report(self, label, counters):
        self._check()
        self.reports.append((label, counters))

    def close(self, timeout=5.0):
        self.closed = True

    def _check(self):
        if not self.connected:
            raise StoreLost("the store is lost")


class MemoryNamespace:
    def __init__(self, store, text, closed):
        self.store, self.text, self._closed = store, text, closed
        self._known = dict(store.pools.get(text, {}))

    def close(self):
        self._closed.append(self.text)

    def pools(self):
        return [{"name": name, "shards": shards} for name, shards in self._known.items()]

    def group(self, name, pools, ranks):
        for pool in pools:
            pool_name, shards = pool if isinstance(pool, tuple) else (pool.name, pool.shards)
            self.store.pools.setdefault(self.text, {})[pool_name] = tuple(shards or ranks)
        return name


class Link:
    """What Epochs needs of a Connection."""

    def __init__(self, runtime):
        self.runtime = runtime

    connected = property(lambda self: self.runtime is not None and self.runtime.connected)
    incarnation = property(lambda self: self.runtime.incarnation if self.runtime else 0)


unique = itertools.count(1)
