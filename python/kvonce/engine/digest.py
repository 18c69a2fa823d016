# SPDX-License-Identifier: Apache-2.0
"""The digest of a model's config and weight files, made once per file and machine.

Every byte of the weights counts: two fine-tunes of one model agree in names, shapes and sizes. A file's SHA-256 is kept
in a cache under XDG_CACHE_HOME by (path, size, times of modification and of change, inode, device); a file of a Hugging
Face cache carries its SHA-256 as the name of its blob. Files are read by several threads, and by one process of the host
at a time.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import fcntl
import fnmatch
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterable
from pathlib import Path

_CHUNK_BYTES = 4 << 20
_THREADS_MAX = 16
_TURN_SECONDS = 900.0
_POLL_SECONDS = 0.05
#: What an engine may load from a folder. Which of them it does hangs on its load format, its version and the model's class, so
#: all of them count.
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
#: What a trainer leaves beside the weights; both engines leave these out.
_TRAINER = frozenset({"training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt"})
_CONFIGS = (
    "config.json",
    "adapter_config.json",
    "params.json",
    "*.index.json",
    "*quant*config*.json",
    "*kv_cache_scales*.json",
    "*processor_config.json",
    "*.py",
)
#: Fields of config.json that say where a copy came from and nothing about the model.
_PROVENANCE = ("_name_or_path", "_commit_hash", "transformers_version")


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """Files in the order of their names."""

    weights: tuple[Path, ...]
    configs: tuple[Path, ...]


def resolve_model_path(path: str, revision: str = "") -> Path | None:
    """A folder or file as it is; else the snapshot of this name in the local Hugging Face cache; None: nothing there."""
    here = Path(path).expanduser()
    if here.exists():
        return here
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", path):
        return None
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")).expanduser()
    folder = hub / ("models--" + path.replace("/", "--"))
    name = revision or "main"
    with contextlib.suppress(OSError):
        name = (folder / "refs" / name).read_text().strip()
    snapshot = folder / "snapshots" / name
    return snapshot if snapshot.is_dir() else None


def model_files(path: Path) -> ModelFiles:
    """What decides the model at `path`: files of that folder itself, not of folders in it. Raises OSError, also for a link that
    leads nowhere: a part of the weights would be missing."""
    if path.is_file():
        return ModelFiles(tuple(_parts(path)), tuple(_matching(path.parent, ("config.json",))))
    weights = [file for file in _matching(path, _WEIGHTS) if file.name not in _TRAINER]
    return ModelFiles(tuple(weights), tuple(_matching(path, _CONFIGS)))


def _matching(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """The files of `folder` with a name like one of the patterns, in the order of their names."""
    patterns = list(patterns)
    found = []
    for name in sorted(os.listdir(folder)):
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            kind = (folder / name).stat().st_mode
            if stat.S_ISREG(kind):
                found.append(folder / name)
            elif not stat.S_ISDIR(kind):
                raise OSError(f"{folder / name} is no regular file")
    return found


def _parts(path: Path) -> list[Path]:
    """A model in one file: the file, or all parts of which it is one, and what a GGUF model has beside it for images."""
    if path.suffix != ".gguf":
        return [path]
    whole = re.sub(r"-\d{5}-of-\d{5}\.gguf$", "", path.name)
    numbered = re.compile(re.escape(whole) + r"-\d{5}-of-\d{5}\.gguf")
    return [
        file
        for file in _matching(path.parent, ("*.gguf",))
        if file.name == path.name or (whole != path.name and numbered.fullmatch(file.name)) or file.name.startswith("mmproj")
    ]


def digest_of_files(files: ModelFiles) -> str:
    """64 hexadecimal digits of the names and contents of all files. Raises OSError."""
    total = hashlib.sha256(b"kvonce model 2\n")
    parts = [(file, hashlib.sha256(_config_bytes(file)).hexdigest()) for file in files.configs]
    parts += zip(files.weights, _weight_digests(files.weights), strict=True)
    for file, digest in parts:
        total.update(os.fsencode(file.name) + b"\0" + digest.encode() + b"\n")
    return total.hexdigest()


def _config_bytes(path: Path) -> bytes:
    raw = path.read_bytes()
    if path.name != "config.json":
        return raw
    try:
        config = json.loads(raw)
    except ValueError:
        return raw
    if isinstance(config, dict):
        for field in _PROVENANCE:
            config.pop(field, None)
    return json.dumps(config, sort_keys=True).encode()


def _weight_digests(paths: Iterable[Path]) -> list[str]:
    paths = list(paths)
    known = [_blob_digest(path) for path in paths]
    missing = [i for i, digest in enumerate(known) if digest is None]
    if not missing:
        return [digest for digest in known if digest is not None]
    with _Cache() as cache:
        for i in missing:
            known[i] = cache.get(paths[i])
        missing = [i for i in missing if known[i] is None]
        for i in missing:  # before hours of reading are spent on the others
            with open(paths[i], "rb"):
                pass
        threads = max(1, min(_THREADS_MAX, os.cpu_count() or 1, len(missing)))
        failure: OSError | None = None
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            jobs = [pool.submit(_hash_file, paths[i]) for i in missing]
            for i, job in zip(missing, jobs, strict=True):
                if failure is not None and job.cancel():
                    continue
                try:
                    key, known[i] = job.result()
                    cache.put(key, known[i])
                except OSError as error:  # what the others have read already is kept
                    failure = failure or error
        if failure is not None:
            raise failure
    return [digest for digest in known if digest is not None]


def _blob_digest(path: Path) -> str | None:
    """The SHA-256 that a Hugging Face cache gives a large file as its name: models--*/snapshots/<revision>/<file> is a link to
    models--*/blobs/<SHA-256>. A file of such a name anywhere else says nothing of its content."""
    if not path.is_symlink():
        return None
    blob = path.resolve()
    model = blob.parent.parent
    if blob.parent.name != "blobs" or not model.name.startswith("models--") or not re.fullmatch(r"[0-9a-f]{64}", blob.name):
        return None
    return blob.name if path.parent.resolve().is_relative_to(model / "snapshots") else None


def _key(path: Path) -> str:
    # The time of change cannot be set back: it tells a file that was written anew under its old time of modification.
    real = path.resolve()
    state = real.stat()
    return f"{real}\n{state.st_size}\n{state.st_mtime_ns}\n{state.st_ctime_ns}\n{state.st_ino}\n{state.st_dev}"


def _hash_file(path: Path) -> tuple[str, str]:
    """(cache key, digest). A file that changes while it is read is read again; the key is that of what was read."""
    for _ in range(3):
        before = _key(path)
        digest = hashlib.sha256()
        buffer = bytearray(_CHUNK_BYTES)
        view = memoryview(buffer)
        with open(path, "rb", buffering=0) as file:
            while size := file.readinto(buffer):
                digest.update(view[:size])
        if _key(path) == before:
            return before, digest.hexdigest()
    raise OSError(f"{path} changes while it is read")


class _Cache:
    """Digests of files, one JSON file, held by one process of this user at a time. A cache that cannot be used is none."""

    def __enter__(self) -> _Cache:
        self._entries: dict[str, str] = {}
        self._dirty = False
        self._lock: int | None = None
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kvonce"
        self._path = folder / "weight_digests.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "weight_digests.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._take_turns()
            entries = json.loads(self._path.read_text())
            if isinstance(entries, dict):
                self._entries = {k: v for k, v in entries.items() if isinstance(v, str) and re.fullmatch("[0-9a-f]{64}", v)}
        except (OSError, ValueError):
            pass
        return self

    def _take_turns(self) -> None:
        """Waits for the process that hashes now, since it does our work too; not for ever: then ours is done twice."""
        end = time.monotonic() + _TURN_SECONDS
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > end:
                    return
                time.sleep(_POLL_SECONDS)

    def get(self, path: Path) -> str | None:
        return self._entries.get(_key(path))

    def put(self, key: str, digest: str) -> None:
        self._entries.pop(key, None)
        self._entries[key] = digest
        self._dirty = True

    def __exit__(self, *_exception) -> None:
        if self._lock is None:
            return
        with contextlib.suppress(OSError):
            if self._dirty:
                newest = dict(list(self._entries.items())[-10_000:])
                fresh = self._path.with_suffix(".new")
                fresh.write_text(json.dumps(newest, indent=0))
                fresh.replace(self._path)
        os.close(self._lock)
