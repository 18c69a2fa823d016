# SPDX-License-Identifier: Apache-2.0
"""kvonce.vllm's parts for tests that need no vLLM and no native library: cache groups, requests, blocks, a page group in memory."""

import importlib
import logging
import sys
import types
import unittest

import engine_parts
from sglang_parts import Future

engine = engine_parts.load()
unique = engine_parts.unique


def load(name):
    """A module of kvonce.vllm."""
    return importlib.import_module("kvonce.vllm." + name)


layout, messages, scheduler, worker = (load(name) for name in ("layout", "messages", "scheduler", "worker"))


def spec(kind, block_size=64, **fields):
    """A cache spec of vLLM's as far as it is looked at: `kind` is the name of its type."""
    made = type(kind, (), {})()
    made.block_size = block_size
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def full(**fields):
    return spec("FullAttentionSpec", **{"num_kv_heads": 2, "head_size": 32, **fields})


def mla(**fields):
    return spec("MLAAttentionSpec", **{"num_kv_heads": 1, "head_size": 576, "max_tp_shards": 1, **fields})


def window(tokens=128, **fields):
    return spec("SlidingWindowSpec", **{"num_kv_heads": 2, "head_size": 32, "sliding_window": tokens, **fields})


def state(**fields):
    return spec("MambaSpec", **{"shapes": ((4, 4),), "dtypes": ("float32",), **fields})


def group(kv_cache_spec, layers=("l0", "l1"), **fields):
    """A cache group of vLLM's."""
    return types.SimpleNamespace(kv_cache_spec=kv_cache_spec, layer_names=list(layers), **fields)


def facts(**changed):
    return layout.Facts(**{"hash_tokens": 64, "mamba_mode": "align", "blocks": 100, "total_kv_heads": 2, **changed})


def plan(*specs, overrides=None, **changed):
    """The plan for groups of these specs, two layers each."""
    groups = [group(one, (f"l{2 * at}", f"l{2 * at + 1}")) for at, one in enumerate(specs)]
    return layout.make_plan(groups, facts(**changed), overrides)


def page_hash(number):
    return number.to_bytes(32, "big")


class Request:
    """A request of the engine's: `tokens` tokens, all of whose whole pages are hashed."""

    def __init__(self, name, tokens, page=64, first_hash=1):
        self.request_id = name
        self.num_tokens = tokens
        self.num_computed_tokens = 0
        self.block_hashes = [page_hash(first_hash + n) for n in range(tokens // page)]
        self.all_token_ids = list(range(tokens))
        self.skip_reading_prefix_cache = False


class Block:
    def __init__(self, number):
        self.block_id, self.ref_cnt = number, 1


class BlockPool:
    """Reference counts as the engine keeps them."""

    def __init__(self, blocks=100):
        self.blocks = [Block(number) for number in range(blocks)]
        self.empty()

    def empty(self):
        """The engine's own cache is emptied: another table takes the place of the old one."""
        self.cached_block_hash_to_block = object()

    def touch(self, blocks):
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, blocks):
        for block in blocks:
            block.ref_cnt -= 1

    def held(self):
        """Blocks with a reference beside the request's."""
        return {block.block_id for block in self.blocks if block.ref_cnt > 1}


class Group:
    """A page group whose lookups the test answers."""

    def __init__(self):
        self.asked = []

    def lookup_async(self, pages, request_id="", probe=False, lease_time=0.0, timeout=5.0):
        future = Future(done=False)
        self.asked.append((pages, lease_time, timeout, future))
        return future


def found(pages, lease="lease", reason=None):
    """What a lookup answers."""
    return types.SimpleNamespace(pages=pages, lease=lease, reason=reason)


class Rank:
    """A rank whose copies the test ends."""

    def __init__(self):
        self.loads, self.puts = [], []
        self.closed = False

    def load(self, lease, pages, rows, after=None, timeout=0.0):
        self.loads.append((lease, pages, rows, Future(done=False)))
        return self.loads[-1][-1]

    def put(self, pages, rows, parent=None, first_depth=0, after=None, timeout=0.0):
        self.puts.append((pages, rows, parent, first_depth, Future(done=False)))
        return self.puts[-1][-1]

    def close(self):
        self.closed = True


def result(ok=True, causes=None):
    """What a load or a put answers."""
    return types.SimpleNamespace(ok=ok, causes=lambda: dict(causes or {}))


def epochs(build, store=None, **options):
    """(runtime in memory, its epochs, which settle in the call that asks for them)."""
    options.setdefault("spawn", lambda settle: settle())
    runtime = engine_parts.MemoryRuntime(store or engine_parts.MemoryStore())
    identity = engine.Identity(model=engine.ModelIdentity("id:m"), dtype="bf16", page_tokens=64, layout="l")
    return runtime, engine.Epochs(engine_parts.Link(runtime), identity, build, **options)


def output(scheduled, computed=None, tables=None, boundaries=None, preempted=(), finished=()):
    """A step's SchedulerOutput: {request: tokens}, {request: tokens computed before}, {request: block ids by group}."""
    computed = computed or {}
    block_state = types.SimpleNamespace(
        get_block_ids=lambda name: (tables or {})[name], boundary_state_offloads=boundaries or {}
    )
    names = list(scheduled)
    return types.SimpleNamespace(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=types.SimpleNamespace(req_ids=names, num_computed_tokens=[computed.get(name, 0) for name in names]),
        num_scheduled_tokens=dict(scheduled),
        preempted_req_ids=set(preempted),
        finished_req_ids=set(finished),
        kv_connector_block_state=block_state,
    )


def connector():
    """kvonce.vllm.connector, over a vLLM of which there is no more than the names that it takes from it."""

    class Base:
        def __init__(self, vllm_config, role, kv_cache_config):
            self._vllm_config, self.role, self._kv_cache_config = vllm_config, role, kv_cache_config
            self._kv_transfer_config = vllm_config.kv_transfer_config
            self.metadata = None

        def _get_connector_metadata(self):
            return self.metadata

    class Results:
        def __init__(self, sending=(), receiving=(), failed=()):
            self.finished_sending, self.finished_recving, self.failed_recving = set(sending), set(receiving), set(failed)

    def plain(name):
        return type(name, (), {})

    base = "vllm.distributed.kv_transfer.kv_connector"
    made = {
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.v1.metrics.cache_hit_source": {"CacheHitSource": types.SimpleNamespace(HOST="host")},
        f"{base}.factory": {"KVConnectorFactory": types.SimpleNamespace(register_connector=lambda *_: None)},
        f"{base}.v1.metrics": {"KVConnectorPromMetrics": plain("Prom"), "KVConnectorStats": plain("Stats")},
        f"{base}.v1.base": {
            "KVConnectorBase_V1": Base,
            "KVConnectorTransferResults": Results,
            "KVConnectorRole": types.SimpleNamespace(SCHEDULER="scheduler", WORKER="worker"),
            **{name: plain(name) for name in ("KVConnectorMetadata", "KVConnectorWorkerMetadata", "SupportsHMA")},
        },
    }
    for name, members in made.items():
        module = sys.modules[name] = types.ModuleType(name)
        module.__dict__.update(members)
    return load("connector")


class SchedulerCase(unittest.TestCase):
    """One scheduler's side for a plan; the store in memory, lookups answered by the test."""

    specs = (full(),)

    def setUp(self):
        self.make()

    def make(self, *specs, ranks=1, settings=None, **options):
        self.plan = plan(*(specs or self.specs))
        self.settings = engine.Settings.parse(settings or {})
        self.runtime, self.epochs = epochs(lambda namespace: types.SimpleNamespace(group=self.group))
        self.group = Group()
        self.now = 100.0
        self.released = []
        self.counters = engine.Counters("engine", "scheduler")
        self.blocks = BlockPool()
        self.side = scheduler.SchedulerSide(
            self.plan, self.settings, self.epochs, self.released.append, self.counters, ranks, clock=lambda: self.now, **options
        )
        self.side.bind_block_pool(self.blocks)

    def answer(self, pages, lease="lease", reason=None):
        self.group.asked[-1][-1].settle(found(pages, lease, reason))

    def matched(self, request, computed, pages, **more):
        """The answer to a request whose lookup finds `pages` pages."""
        self.assertEqual(self.side.matched(request, computed), (None, False))
        self.answer(pages, **more)
        return self.side.matched(request, computed)

    def count(self, name, label=""):
        return self.counters.snapshot().get((name, label), 0)
