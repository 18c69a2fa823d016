# SPDX-License-Identifier: Apache-2.0
"""What both adapters find out about the engine at start: its place, its identity, its name. All fields by getattr: SGLang
moves them from version to version."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..engine import Identity, ModelIdentity, Place, Refused, Settings, check_kv_scales
from ..engine.digest import resolve_model_path

_log = logging.getLogger("kvonce")

HASH_SCHEME = "sglang-sha256"


class Facts:
    """A field of the engine's configuration, wherever this version keeps it."""

    def __init__(self, server_args: Any = None):
        self._sources = [server_args] if server_args is not None else []
        try:
            from sglang.srt import runtime_context
        except Exception as error:  # no engine, or an older one
            _log.debug("kvonce: no runtime context: %s", error)
            try:
                from sglang.srt.server_args import get_global_server_args

                self._sources.append(get_global_server_args())
            except Exception as older:
                _log.debug("kvonce: no server arguments: %s", older)
            return
        for name in ("get_model", "get_parallel", "get_spec", "get_lora", "get_memory"):
            try:
                self._sources.append(getattr(runtime_context, name)())
            except Exception as error:  # an older version, or an engine that is not that far yet
                _log.debug("kvonce: no runtime context: %s: %s", name, error)

    def get(self, name: str, default: Any = None) -> Any:
        """The first value that is there and not None."""
        for source in self._sources:
            try:
                value = getattr(source, name, None)
            except Exception as error:  # a property of an engine that is not that far yet
                _log.debug("kvonce: %s: %s", name, error)
                continue
            if value is not None:
                return value
        return default


def place_of(facts: Facts, params: Any = None) -> Place:
    """This rank's place: by the attention's tensor-parallel group, never by the global rank."""
    tp_size = int(facts.get("attn_tp_size", facts.get("tp_size", 1)))
    tp = int(facts.get("attn_tp_rank", facts.get("tp_rank", 0)))
    pp_size = int(getattr(params, "pp_size", None) or facts.get("pp_size", 1))
    cp_size = int(getattr(params, "attn_cp_size", None) or facts.get("attn_cp_size", 1))
    cp = int(getattr(params, "attn_cp_rank", None) or facts.get("attn_cp_rank", 0) if cp_size > 1 else 0)
    pp = int(getattr(params, "pp_rank", None) or facts.get("pp_rank", 0) if pp_size > 1 else 0)
    return Place(tp=tp, tp_size=tp_size, pp=pp, pp_size=pp_size, cp=cp, cp_size=cp_size)


def check_place(facts: Facts, place: Place) -> None:
    """Raises Refused for what neither adapter serves."""
    if place.pp_size > 1:
        raise Refused(f"kvonce: pipeline parallelism ({place.pp_size} stages) is not served.")
    dcp = int(facts.get("attn_dcp_size", facts.get("dcp_size", 1)) or 1)
    if dcp > 1:
        raise Refused(f"kvonce: decode context parallelism ({dcp} ranks) is not served: a page is spread over ranks.")
    nodes = int(facts.get("nnodes", 1) or 1)
    if nodes > 1 and place.tp_size > 1:
        raise Refused(f"kvonce: a tensor-parallel group over {nodes} hosts is not served: the store is one host's.")


def engine_name() -> str:
    """The same in all processes of one launch on this host, another one for the next launch: of the process that started them."""
    parent = os.getppid()
    started = "0"
    try:
        started = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    return f"sglang-{os.uname().nodename[:64]}-{parent}-{started}"


def dtype_name(dtype: Any) -> str:
    """torch.bfloat16 -> "bfloat16"."""
    return str(dtype).rpartition(".")[2]


def identity_of(facts: Facts, settings: Settings, *, layout: str, page_tokens: int, kv_dtype: str, model_name: str = "") -> Identity:
    """What decides the bytes besides hash, pool and shard. Raises Refused."""
    path = str(facts.get("model_path", model_name) or model_name)
    scales = "none"
    if "float8" in kv_dtype or "fp8" in kv_dtype:
        scales = "a file" if facts.get("quantization_param_path") else "checkpoint"
    check_kv_scales(kv_dtype, scales)
    extra: dict[str, str] = {}
    overrides = facts.get("json_model_override_args")
    if overrides and overrides not in ("{}", {}):
        text = overrides if isinstance(overrides, str) else json.dumps(overrides, sort_keys=True)
        extra["overrides"] = hashlib.sha256(text.encode()).hexdigest()[:32]
    for name in ("quantization", "rl_quant_profile", "enable_torchao"):
        value = facts.get(name)
        if value:
            extra[name] = str(value)
    adapters = _adapters(facts.get("lora_paths"))
    if adapters:
        extra["lora"] = adapters
    return Identity(
        model=settings.model_identity(
            path, str(facts.get("revision", "") or ""), facts.get("load_format"), facts.get("model_loader_extra_config")
        ),
        dtype=dtype_name(facts.get("dtype", "auto")),
        page_tokens=page_tokens,
        layout=layout,
        kv_dtype=kv_dtype,
        kv_scales=scales,
        hash_scheme=HASH_SCHEME,
        namespace=settings.namespace,
        tenant=settings.tenant,
        extra=extra,
    )


def draft_identity(facts: Facts, settings: Settings) -> ModelIdentity | None:
    """The draft model's identity; None: the engine names no draft model. Raises Refused."""
    path = str(facts.get("speculative_draft_model_path", "") or "")
    if not path and not settings.model_id:
        return None
    revision = str(facts.get("speculative_draft_model_revision", "") or "")
    load_format = facts.get("speculative_draft_load_format", facts.get("load_format"))
    return settings.model_identity(path, revision, load_format, facts.get("model_loader_extra_config"))


def kv_heads_in_all(facts: Facts, heads_here: int, place: Place, model_name: str = "") -> int | None:
    """KV heads of all ranks together. With one head a rank, several ranks may hold the same one: the model's config tells;
    None: it does not."""
    if place.tp_size == 1:
        return heads_here
    if heads_here > 1:
        return heads_here * place.tp_size
    found = resolve_model_path(str(facts.get("model_path", model_name) or ""), str(facts.get("revision", "") or ""))
    try:
        config = json.loads((found / "config.json").read_text()) if found is not None else {}
    except (OSError, ValueError):
        return None
    for part in (config.get("text_config"), config.get("llm_config"), config):
        if isinstance(part, Mapping):
            heads = part.get("num_key_value_heads", part.get("num_attention_heads"))
            if isinstance(heads, int):
                return heads
    return None


def _adapters(paths: Any) -> str:
    """Adapters that are loaded at start have stable ids, so what they are must stand in the identity."""
    if not paths:
        return ""
    items = paths.items() if isinstance(paths, Mapping) else enumerate(paths)
    digest = hashlib.sha256()
    for _, item in sorted(items, key=lambda pair: str(pair[0])):
        name = str(getattr(item, "lora_name", "") or item)
        path = Path(str(getattr(item, "lora_path", "") or item).rpartition("=")[2]).expanduser()
        digest.update(name.encode())
        for file in sorted(path.glob("*.safetensors")) + sorted(path.glob("*.bin")) + sorted(path.glob("*.json")):
            digest.update(file.name.encode())
            with file.open("rb") as source:
                while chunk := source.read(1 << 20):
                    digest.update(chunk)
    return digest.hexdigest()[:32]
