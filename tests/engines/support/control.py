# SPDX-License-Identifier: Apache-2.0
"""What a test sees and changes of kvonce inside the processes of an engine.

hooks/sitecustomize.py puts wrap() around kvonce in each process; the folder $KVONCE_TEST_CONTROL carries switches and records, so
that they reach processes of all ranks while they run.

    moves_nothing(True)   from now on Rank.load reports success and copies nothing: a restore that goes unnoticed then proves nothing
    puts(), loads()       what the ranks were asked to put and load so far, by all processes
    store_lost(True)      from now on Rank.load answers that the store is lost, for each item; with a pid: in that process alone
    hold_loads(True)      from now on a Rank.load that starts touches no row until hold_loads(False)
    hold_puts(True)       the same of Rank.put
"""
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Call:
    """One Rank.put or Rank.load. pool: its name; pages: those with a row in the pool, as 64 hexadecimal digits; layers: of a load,
    the first and the one after the last (None: all)."""
    pid: int
    pool: str
    pages: tuple
    layers: tuple


def _folder():
    return Path(os.environ["KVONCE_TEST_CONTROL"])


def _switch(name, on):
    path = _folder() / name
    path.touch() if on else path.unlink(missing_ok=True)


def moves_nothing(on):
    _switch("moves-nothing", on)


def store_lost(on, pid=None):
    _switch("store-lost" if pid is None else f"store-lost-{pid}", on)


def hold_loads(on):
    _switch("hold-loads", on)


def hold_puts(on):
    _switch("hold-puts", on)


def puts():
    return _calls("put")


def loads():
    return _calls("load")


def namespaces():
    """Texts of all namespaces that were opened."""
    return sorted({json.loads(line)["text"] for path in _folder().glob("namespace-*") for line in _whole_lines(path)})


def _whole_lines(path):
    text = path.read_text()
    return text[: text.rfind("\n") + 1].splitlines()


def _calls(kind):
    found = []
    for path in sorted(_folder().glob(f"{kind}-*")):
        pid = int(path.name.rpartition("-")[2])
        for line in _whole_lines(path):
            call = json.loads(line)
            found.append(Call(pid, call["pool"], tuple(call["pages"]), tuple(call["layers"])))
    return found


# ---- in the engine's processes ----

_lock = threading.Lock()


def _record(kind, entry):
    with _lock, open(_folder() / f"{kind}-{os.getpid()}", "a") as out:
        out.write(json.dumps(entry) + "\n")


def _hexadecimal(pages):
    if isinstance(pages, (list, tuple)):
        return [page if isinstance(page, str) else bytes(page).hex() for page in pages]
    raw = bytes(memoryview(pages).cast("B"))
    return [raw[at:at + 32].hex() for at in range(0, len(raw), 32)]


def _by_pool(pages, rows):
    """-> {name of the pool: indices of the pages that have a row in it}"""
    found = {}
    for pool, indices in rows.items():
        listed = indices.tolist() if hasattr(indices, "tolist") else list(indices)
        found[pool.name] = [page for page in range(len(pages)) if listed[page * pool.unit] >= 0]
    return found


def _record_call(kind, pages, rows, layers=(None, None)):
    names = _hexadecimal(pages)
    for pool, having in _by_pool(names, rows).items():
        _record(kind, {"pool": pool, "pages": [names[page] for page in having], "layers": layers})


def _hold(switch, arguments):
    """While the switch is on, the call that gets these arguments waits as for its own gate, and for that afterwards."""
    if (_folder() / switch).exists():
        gate = arguments.get("after")
        arguments["after"] = lambda: not (_folder() / switch).exists() and (gate is None or (gate() if callable(gate) else gate.ready()))


class _Result:
    """Answers as kvonce.LoadResult does, with the same reason for each item."""

    def __init__(self, pages, by_pool, reason):
        self._pages, self._by_pool, self._reason = pages, by_pool, reason
        self.items = sum(map(len, by_pool.values()))
        self.loaded = 0 if reason else self.items
        self.ok = not reason

    def reasons(self, pool):
        out = bytearray(self._pages)
        for page in self._by_pool[getattr(pool, "name", pool)]:
            out[page] = self._reason
        return bytes(out)

    def causes(self):
        return {} if self.ok else {self._reason.name: self.items}


class _Future:
    """Answers as kvonce.LoadFuture does, at once."""

    def __init__(self, result, layers):
        self._result, self.layers_done = result, layers

    def done(self):
        return True

    def wait(self, timeout=None):
        return True

    def result(self, timeout=None):
        return self._result

    def wait_layers(self, layers, timeout=None):
        return layers <= self.layers_done

    def cancel(self):
        pass

    def add_done_callback(self, call):
        call(self)

    def __await__(self):
        return self._result
        yield


def wrap(kvonce):
    """Puts records and switches around kvonce's Rank and Runtime; called once, when kvonce has been imported."""
    put, load, namespace = kvonce.Rank.put, kvonce.Rank.load, kvonce.Runtime.namespace

    def recorded_put(self, pages, rows, *args, **kwargs):
        _record_call("put", pages, rows)
        _hold("hold-puts", kwargs)
        return put(self, pages, rows, *args, **kwargs)

    def recorded_load(self, lease, pages, rows, layer_begin=0, layer_end=None, *args, **kwargs):
        _record_call("load", pages, rows, (layer_begin, layer_end))
        reason = None
        if (_folder() / "moves-nothing").exists():
            reason = kvonce.Reason(0)
        elif (_folder() / "store-lost").exists() or (_folder() / f"store-lost-{os.getpid()}").exists():
            reason = kvonce.Reason["store_lost"]
        _hold("hold-loads", kwargs)
        if reason is None:
            return load(self, lease, pages, rows, layer_begin, layer_end, *args, **kwargs)
        names = _hexadecimal(pages)
        layers = max((pool.layers for pool in rows), default=0) if layer_end is None else layer_end
        return _Future(_Result(len(names), _by_pool(names, rows), reason), 0 if reason else layers)

    def recorded_namespace(self, text):
        _record("namespace", {"text": text})
        return namespace(self, text)

    kvonce.Rank.put, kvonce.Rank.load, kvonce.Runtime.namespace = recorded_put, recorded_load, recorded_namespace
