# SPDX-License-Identifier: Apache-2.0
"""Settings of an adapter, from the engine's extra config."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

SHARD_RULES = ("replicated", "rank", "heads")
ROLES = ("read", "write", "both")
ON_RESET = ("keep", "new")

#: Options of kvonce.Runtime that are handed on as they are; the runtime checks their ranges.
RUNTIME_OPTIONS = (
    "arena_bytes",
    "auto_bytes",
    "auto_idle",
    "caller_runs",
    "capacity_bytes",
    "checksums",
    "conflict_limit",
    "connect_timeout",
    "copy_kernel",
    "demote",
    "huge_pages",
    "inline_copy_bytes",
    "kvonced_path",
    "lease_time",
    "leased_stops",
    "mover_threads",
    "scheduler_threads",
    "serve",
    "window_bytes",
)


class Refused(Exception):
    """The set-up cannot be served. `text` is one sentence; the engine goes on without kvonce."""

    def __init__(self, text: str):
        super().__init__(text)
        self.text = text


class ConfigError(Refused):
    """A setting is unknown or out of its range."""


def refuse(text: str) -> None:
    """Raises Refused. For checks that read as one line: `kv_dtype in KNOWN or refuse("...")`."""
    raise Refused(text)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like `name`, or None when none looks like it."""
    found = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return found[0] if found else None


@dataclasses.dataclass(frozen=True)
class Settings:
    """Checked settings. Built by `Settings.parse`; all times in milliseconds, all lengths in tokens."""

    store: str = "auto"  #: "auto", "unix:PATH" or "embedded"
    namespace: str = ""  #: text of the operator's choice that keeps deployments apart; at most 255 bytes
    model_id: str = ""  #: replaces the digest of config and weight files: then the operator answers for it
    role: str = "both"  #: "read": never puts; "write": never looks up; "both"
    min_tokens: int = 0  #: shorter ones are not looked up; vLLM does not offer them either: 0 to 1,000,000,000
    lookup_ms: int = 50  #: a lookup that takes longer is a miss: 1 to 60,000
    load_ms: int = 10_000  #: a load that takes longer has failed: 1 to 3,600,000
    put_ms: int = 30_000  #: a put that takes longer is given up: 1 to 3,600,000
    on_reset: str = "new"  #: a reset that may have been a weight update opens a new epoch ("new") or not ("keep")
    verify_sample: int | None = None  #: one key in so many is compared over ranks; 0: none; None: the store's default
    tenant: str = ""  #: pages of two tenants are never shared; at most 255 bytes
    engine_id: str = ""  #: the same in all processes of one launch; empty: the adapter takes the engine's own
    shards: Mapping[str, str] = dataclasses.field(default_factory=dict)  #: pool name -> a word of SHARD_RULES
    runtime: Mapping[str, Any] = dataclasses.field(default_factory=dict)  #: options for kvonce.Runtime

    @classmethod
    def parse(
        cls, given: Mapping[str, Any] | None, *, ignore: Iterable[str] = (), defaults: Mapping[str, Any] | None = None
    ) -> Settings:
        """Settings from the engine's extra config: numbers may come as text, `shard.<pool>` also as `{"shard": {pool: rule}}`.

        `ignore`: keys that belong to the engine. `defaults`: an adapter's own, of settings that are not given. Raises ConfigError: no mapping, an unknown key (with the nearest known one),
        a value of the wrong type or out of its range.
        """
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(f"kvonce: the settings must be a mapping of names to values, not {given!r:.100}")
        ignored = set(ignore)
        values: dict[str, Any] = dict(defaults or {})
        shards: dict[str, str] = {}
        runtime: dict[str, Any] = {}
        for key, value in (given or {}).items():
            if not isinstance(key, str):
                raise ConfigError(f"kvonce: a setting's name must be text, not {key!r}")
            if key == "shard":
                if not isinstance(value, Mapping):
                    raise ConfigError(f"kvonce: setting shard must be a mapping of pool to rule, not {value!r}")
                for pool, rule in value.items():
                    shards[str(pool)] = _choice(f"shard.{pool}", rule, SHARD_RULES)
            elif key.startswith("shard.") and len(key) > len("shard."):
                shards[key[len("shard.") :]] = _choice(key, value, SHARD_RULES)
            elif key in _CHECKS:
                values[key] = _CHECKS[key](key, value)
            elif key in RUNTIME_OPTIONS:
                runtime[key] = value
            elif key not in ignored:
                known = nearest(key, [*_CHECKS, "shard.<pool>", *RUNTIME_OPTIONS])
                names = ", ".join([*sorted(_CHECKS), "shard.<pool>"])
                hint = f"did you mean {known}?" if known else f"known are {names}"
                raise ConfigError(f"kvonce: unknown setting {key}: {hint}")
        return cls(shards=shards, runtime=runtime, **values)

    @property
    def reads(self) -> bool:
        """True where lookups and loads are wanted."""
        return self.role != "write"

    @property
    def writes(self) -> bool:
        """True where puts are wanted."""
        return self.role != "read"

    def runtime_options(self) -> dict[str, Any]:
        """Options for kvonce.Runtime, `engine_id` and `store` apart."""
        options = dict(self.runtime)
        if self.verify_sample is not None:
            options["verify_sample"] = self.verify_sample
        if self.role == "read" and self.store != "embedded":
            options["read_only"] = True
        return options

    def model_identity(self, path: str, revision: str = "", load_format: Any = "auto", load_options: Any = None):
        """The model's identity: `model_id` where it is set, else the digest of the files at `path`. See identity.model_identity."""
        from .identity import model_identity

        return model_identity(path, revision, self.model_id, load_format, load_options)

    def check_pools(self, pools: Iterable[str]) -> None:
        """Raises ConfigError when a `shard.<pool>` names none of these pools."""
        names = list(pools)
        for pool in self.shards:
            if pool not in names:
                known = nearest(pool, names)
                hint = f"did you mean shard.{known}?" if known else "the pools are " + ", ".join(names)
                raise ConfigError(f"kvonce: setting shard.{pool} names no pool of this model: {hint}")


def _text(limit: int):
    def check(key: str, value: Any) -> str:
        if not isinstance(value, str):
            raise ConfigError(f"kvonce: setting {key} must be text, not {value!r}")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise ConfigError(f"kvonce: setting {key} is {value!r}: must be text that UTF-8 can hold") from None
        if size > limit:
            raise ConfigError(f"kvonce: setting {key} is {size} bytes long: at most {limit} are allowed")
        return value

    return check


def _number(least: int, most: int):
    def check(key: str, value: Any) -> int:
        number = value
        if isinstance(value, str):
            try:
                number = int(value.replace("_", "").replace(",", ""))
            except ValueError:
                number = None
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if isinstance(number, bool) or not isinstance(number, int):
            raise ConfigError(f"kvonce: setting {key} must be a whole number, not {value!r}")
        if not least <= number <= most:
            raise ConfigError(f"kvonce: setting {key} is {number}: must be {least:,} to {most:,}")
        return number

    return check


def _choice(key: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        known = nearest(value, allowed) if isinstance(value, str) else None
        hint = f" (did you mean {known}?)" if known else ""
        raise ConfigError(f"kvonce: setting {key} is {value!r}: must be one of {', '.join(allowed)}{hint}")
    return value


def _store(key: str, value: Any) -> str:
    text = _text(4096)(key, value)
    if text not in ("auto", "embedded") and not (text.startswith("unix:") and len(text) > len("unix:")):
        raise ConfigError(f'kvonce: setting {key} is {text!r}: must be "auto", "unix:PATH" or "embedded"')
    return text


_CHECKS = {
    "store": _store,
    "namespace": _text(255),
    "model_id": _text(1024),
    "role": lambda key, value: _choice(key, value, ROLES),
    "min_tokens": _number(0, 1_000_000_000),
    "lookup_ms": _number(1, 60_000),
    "load_ms": _number(1, 3_600_000),
    "put_ms": _number(1, 3_600_000),
    "on_reset": lambda key, value: _choice(key, value, ON_RESET),
    "verify_sample": _number(0, 2**32 - 1),
    "tenant": _text(255),
    "engine_id": _text(255),
}
