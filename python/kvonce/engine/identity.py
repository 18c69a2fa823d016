# SPDX-License-Identifier: Apache-2.0
"""What decides the bytes of a page besides its hash, pool and shard, as the text of a namespace."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from .config import Refused
from .digest import digest_of_files, model_files, resolve_model_path
from .shards import Axes

_NAMESPACE_LIMIT = 4096
_POOL_NAME_LIMIT = 255
_FORMAT = "kvonce engine 1"

#: KV dtypes that carry their whole meaning in the page: no scale beside it.
PLAIN_KV_DTYPES = frozenset({"float32", "float16", "bfloat16", "int8_raw"})
#: 8-bit floats whose scales stand in the checkpoint (or are 1): the scale source must be told.
SCALED_KV_DTYPES = frozenset(
    {"fp8", "fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"}
)
#: Where the scales of an 8-bit KV cache may come from for pages to be worth keeping. "none": every scale is 1.
SCALE_SOURCES = frozenset({"none", "checkpoint"})
#: What engines do when nobody asks for a load format.
DEFAULT_LOAD_FORMAT = "auto"
#: Other load formats whose weights are files of the model's own folder, so that the digest covers them. Formats that make
#: weights up ("dummy"), take them from elsewhere ("remote", "tensorizer") or from a copy that nobody compares ("npcache") are
#: not here, nor are those of tomorrow.
FILE_LOAD_FORMATS = frozenset(
    {"safetensors", "hf", "pt", "gguf", "mistral", "bitsandbytes", "layered", "sharded_state", "fastsafetensors", "instanttensor"}
    | {"runai_streamer", "runai_streamer_sharded"}
)
#: Hash algorithms that give the same value in every process.
STABLE_HASHES = frozenset({"sha256", "sha256_cbor", "sglang-sha256"})


@dataclasses.dataclass(frozen=True)
class ModelIdentity:
    """One model's weights. `text` is "sha256:<64 hex>" of its content, or "id:<model_id>"."""

    text: str
    revision: str = ""
    load: str = ""  #: how the engine loads them, where it is not as by default: that decides which of the files it takes

    @property
    def short(self) -> str:
        """16 hexadecimal digits that stand for the whole of it, for the names of pools."""
        parts = [self.text, self.revision, *([self.load] if self.load else [])]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def model_identity(
    path: str, revision: str = "", model_id: str = "", load_format: Any = DEFAULT_LOAD_FORMAT, load_options: Any = None
) -> ModelIdentity:
    """The identity of the model at `path`: a folder, a file, or a name in the local Hugging Face cache.

    `model_id`, where given, stands for the content and nothing is read; then the revision is part of the identity too. The
    digest covers every byte of the weight files that an engine may read, and the config files. It is made once per file
    and machine (cached by path, size, times and inode), by one process while the others of the host wait.
    load_format, load_options: the engine's load format and what it gives the loader beside it; part of the identity unless the
    format is "auto". Raises Refused, in one sentence, when there is nothing to read, when something cannot be read, and for a
    format whose weights are not these files, unless there is a `model_id`.
    """
    load = _load_text(load_format, load_options)
    if model_id:
        return ModelIdentity(f"id:{model_id}", revision, load)
    name = load.partition(" ")[0]
    if name and name not in FILE_LOAD_FORMATS:
        raise Refused(f"kvonce: weights of load format {name!r} are not the model's files, so their content is not known: set model_id.")
    try:
        found = resolve_model_path(path, revision) if path else None
        files = model_files(found) if found is not None else None
        if files is not None and files.weights:
            return ModelIdentity("sha256:" + digest_of_files(files), load=load)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle, a config nested too deeply
        why = f"{type(error).__name__}: {error}"
        raise Refused(f"kvonce: the model files at {path!r} cannot be read, so its content is not known ({why}): set model_id.") from error
    what = "model" if files is None else "weight"
    raise Refused(f"kvonce: no {what} files found at {path!r}, so its content cannot be identified: set model_id.")


def _load_text(load_format: Any, options: Any) -> str:
    """Empty for what is done by default, whose loaders take no option that changes weights."""
    name = str(getattr(load_format, "value", load_format) or DEFAULT_LOAD_FORMAT).lower()
    if name == DEFAULT_LOAD_FORMAT:
        return ""
    if not options or options == "{}":
        return name
    text = options if isinstance(options, str) else json.dumps(options, sort_keys=True, default=repr)
    return f"{name} {hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:32]}"


def draft_pool_name(pool: str, draft: ModelIdentity) -> str:
    """The pool of a draft model: named by the draft's own identity, so that an engine without it, or with another one,
    shares the target's pages all the same. Register it as optional."""
    name = f"{pool}@{draft.short}"
    if len(name.encode()) > _POOL_NAME_LIMIT:
        raise Refused(f"kvonce: the pool name {name!r} is longer than {_POOL_NAME_LIMIT} bytes.")
    return name


@dataclasses.dataclass(frozen=True)
class Identity:
    """All that the namespace says. Equal identities share pages; `epoch` is added by Epochs."""

    model: ModelIdentity
    dtype: str  #: of the weights as run: "bfloat16"
    page_tokens: int  #: tokens per page hash
    layout: str  #: how the engine lays a row's bytes out, without sizes, ranks or tp: "sglang mla rows", "vllm LBHNC"
    kv_dtype: str = ""  #: empty: as dtype
    kv_scales: str = "none"  #: where the KV's scales come from; see SCALE_SOURCES
    hash_scheme: str = ""  #: how page hashes are made: "sglang-sha256", "sha256"
    stages: str = ""  #: layers of the pipeline stages, see shards.stages_text
    namespace: str = ""  #: Settings.namespace
    tenant: str = ""  #: Settings.tenant
    extra: Mapping[str, str] = dataclasses.field(default_factory=dict)  #: what else changes the bytes: config overrides ...

    def __post_init__(self):
        if self.page_tokens < 1:
            raise ValueError(f"page_tokens is {self.page_tokens}: must be at least 1")
        size = len(self.text("0" * 64).encode())
        if size > _NAMESPACE_LIMIT:
            raise Refused(f"kvonce: the namespace would be {size} bytes long, but at most {_NAMESPACE_LIMIT} are allowed.")

    def _family_fields(self) -> list[tuple[str, str]]:
        fields = [("namespace", self.namespace), ("tenant", self.tenant), ("model", self.model.text)]
        return [*fields, ("revision", self.model.revision), ("load", self.model.load)]

    def _layout_fields(self) -> list[tuple[str, str]]:
        fields = [
            ("dtype", self.dtype),
            ("kv", self.kv_dtype or self.dtype),
            ("scales", self.kv_scales),
            ("page", str(self.page_tokens)),
            ("hash", self.hash_scheme),
            ("layout", self.layout),
            ("stages", self.stages),
        ]
        return [*fields, *sorted((f"x-{key}", str(value)) for key, value in self.extra.items())]

    def text(self, epoch: str = "") -> str:
        """The namespace's text: at most 4,096 bytes. Two identities, or epochs, never give one text."""
        return _join(_FORMAT, [*self._family_fields(), *self._layout_fields(), ("epoch", epoch)])

    @property
    def family_text(self) -> str:
        """The namespace in which engines of this model tell one another their layouts; it never holds pages."""
        return _join(_FORMAT + " layouts", self._family_fields())

    @property
    def layout_label(self) -> str:
        """This layout as the name of a pool in `family_text`: readable, at most 255 bytes, never that of another layout."""
        full = _join("", self._layout_fields())
        mark = hashlib.sha256(full.encode()).hexdigest()[:16]
        head = f"page {self.page_tokens}, "
        rest = _POOL_NAME_LIMIT - len(mark) - len(head.encode()) - 2
        readable = f"{self.kv_dtype or self.dtype}, {self.layout}".encode()[:rest].decode(errors="ignore")
        return f"{head}{readable}, {mark}"[:_POOL_NAME_LIMIT]


def _join(head: str, fields: Iterable[tuple[str, str]]) -> str:
    """`head | name=value | ...` without the empty ones; bars, percents and line ends in a value are escaped, so no two
    lists give one text."""
    parts = [head] if head else []
    parts += [f"{_escape(name)}={_escape(value)}" for name, value in fields if value]
    return " | ".join(parts)


def _escape(value: str) -> str:
    return re.sub(r"[%|=\x00-\x1f\x7f]", lambda found: f"%{ord(found.group()):02x}", value)


class OtherLayouts:
    """Tells a miss because nothing was stored from one because it was stored in another layout.

    Engines of one model register the label of their layout in the family's namespace, and their pools in their own. A miss
    of the very first page is counted `other_layout` while another layout is registered: what its engine stored cannot be
    asked for by our hashes (other page sizes hash otherwise), so such a miss may as well be of a prompt that nobody stored.
    """

    def __init__(self, identity: Identity):
        self.identity = identity
        self.others: tuple[str, ...] = ()

    def announce(self, runtime: Any, namespace: Any = None, pools: Mapping[str, Axes] | None = None) -> None:
        """Registers our label and reads the others'. Once per connection and epoch, not per request; two round trips.

        namespace, pools: also compares our pools (name -> shards per axis) with those of the same name there that have
        other shards, or another suffix behind their last "-" (where an adapter puts the digest of an object's layout).
        """
        label = self.identity.layout_label
        family = runtime.namespace(self.identity.family_text)
        others = {pool["name"] for pool in family.pools()} - {label}
        if namespace is not None and pools:
            others |= _other_pools(namespace.pools(), pools)
        self.others = tuple(sorted(others))
        family.group(label, [_label_pool(label)], ranks=(1, 1, 1))

    def cause(self, reason: str | None, restorable_pages: int) -> str:
        """The cause under which a miss is counted: `reason` as the store gave it, or "other_layout"."""
        if self.others and reason == "absent" and restorable_pages == 0:
            return "other_layout"
        return reason or "absent"


def _label_pool(label: str) -> Any:
    from kvonce import GroupPool

    return GroupPool(label, shards=(1, 1, 1))


def _base(pool: str) -> str:
    return pool.rpartition("-")[0] or pool


def _other_pools(known: Iterable[Mapping[str, Any]], ours: Mapping[str, Axes]) -> set[str]:
    bases = {_base(name) for name in ours}
    return {
        f"{pool['name']} {tuple(pool['shards'])}"
        for pool in known
        if _base(pool["name"]) in bases and tuple(pool["shards"]) != ours.get(pool["name"])
    }


def check_kv_scales(kv_dtype: str, kv_scales: str = "none") -> None:
    """Raises Refused for a KV cache whose bytes mean nothing without scales that we do not carry.

    kv_dtype: as the engine names it. kv_scales: "none" (every scale is 1), "checkpoint" (part of the weights), anything
    else (computed while running, per token, per block) is refused.
    """
    name = kv_dtype.removeprefix("torch.").lower()
    if "fp4" in name or "float4" in name or "nvfp4" in name or "mxfp" in name:
        raise Refused(f"kvonce: a KV cache of {kv_dtype} keeps block scales in buffers of its own, which are not carried.")
    if name in PLAIN_KV_DTYPES:
        return
    if name not in SCALED_KV_DTYPES:
        raise Refused(f"kvonce: a KV cache of {kv_dtype} is not known here, so it is not known what its bytes mean.")
    if kv_scales not in SCALE_SOURCES:
        raise Refused(f"kvonce: the scales of the {kv_dtype} KV cache come from {kv_scales!r}: they are not carried.")


def check_hash_algorithm(name: str) -> None:
    """Raises Refused for page hashes that differ from process to process, or that are not known here."""
    if name.startswith("xxhash"):
        raise Refused(f"kvonce: the page hash algorithm {name} is seeded at random in every process: use sha256.")
    if name not in STABLE_HASHES:
        raise Refused(f"kvonce: the page hash algorithm {name} is not known to give the same value in every process: use sha256.")
