# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: vLLM's page hashes carry an adapter's name and path, but what lies there may be replaced."""

from __future__ import annotations

import concurrent.futures
import hashlib
import logging
from collections.abc import Callable
from typing import Any

from kvonce.engine import Refused, model_identity
from kvonce.engine.digest import model_files, resolve_model_path

_log = logging.getLogger("kvonce")


def _digest(path: str) -> str:
    return model_identity(path).text


def _state(path: str) -> Any:
    """What changes when the files at `path` do: names, sizes, times of modification and of change, inodes. None: nothing there."""
    try:
        found = resolve_model_path(path)
        files = model_files(found) if found is not None else None
        if files is None:
            return None
        state = []
        for file in (*files.configs, *files.weights):
            now = file.stat()
            state.append((file.name, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino, now.st_dev))
        return tuple(state)
    except OSError:
        return None


class Content:
    """What an adapter's files held at one time; a request keeps that of its beginning."""

    def __init__(self, path: str, state: Any, digest: concurrent.futures.Future | None, must_be: Content | None = None):
        self.path = path
        self.state = state
        self.digest = digest
        self.must_be = must_be  # what the engine has, if it did not read the files again

    @property
    def doubtful(self) -> bool:
        """Whether the engine may have read the files before they became these."""
        return self.must_be is not None

    @property
    def salt(self) -> bytes | None:
        """What is added to the page hashes: b"" without an adapter; None while the digest is made, or where it cannot be known."""
        if self.digest is None:
            return b"" if self.path == "" else None
        salt = self.digest.result() if self.digest.done() else None
        if self.must_be is not None and salt != self.must_be.salt:
            return None
        return salt


#: Of requests without an adapter.
NONE = Content("", None, None)
UNKNOWN = Content("?", None, None)


def _doubted(before: Content) -> Content:
    """What the engine has if it has not read the files that came after `before`; short, however often files are touched."""
    if not before.doubtful or not before.digest.done():
        return before
    return before.must_be if before.salt is not None else UNKNOWN


class Adapters:
    """The contents of the adapters that requests have named. Digests are made on a thread of its own, once for each state of
    an adapter's files. digest(path): text of the content; state(path): equal while the files are the same."""

    def __init__(self, digest: Callable[[str], str] = _digest, state: Callable[[str], Any] = _state):
        self._digest = digest
        self._state = state
        self._now: dict[int, Content] = {}  # by the engine's number of the adapter
        self._by_path: dict[str, Content] = {}
        self._replaced: dict[str, Any] = {}  # path -> the engine's cache when it was seen
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None

    def content(self, lora: Any, cache: Any = None) -> Content:
        """For a new request: what its adapter holds now. cache: what stands for the present life of the engine's own cache.

        The engine reads an adapter when it first gets it, and again when a request loads it in place. Where files have changed
        otherwise it is not known which of the two the engine has.
        """
        if lora is None:
            return NONE
        path, inplace = lora.lora_path, bool(getattr(lora, "load_inplace", False))
        state = self._state(path)
        before = self._now.get(lora.lora_int_id)
        if before is not None and (before.path, before.state) == (path, state) and not (inplace and before.doubtful):
            return before
        if state is None or (before is not None and before.path != path and not inplace):
            return UNKNOWN
        known = self._by_path.get(path)
        if known is None or known.state != state or (inplace and known.doubtful):
            digest = known.digest if known is not None and known.state == state else self._start(path, state)
            if known is not None:
                self._replaced[path] = cache
            known = self._by_path[path] = Content(path, state, digest, _doubted(before) if before is not None and not inplace else None)
        self._now[lora.lora_int_id] = known
        return known

    def holds(self, lora: Any, content: Content) -> bool:
        """Whether the engine still computes with what the request began with, as far as can be known."""
        if lora is None:
            return True
        return self._now.get(lora.lora_int_id) is content and self._state(content.path) == content.state

    def replaced(self, lora: Any, cache: Any) -> bool:
        """Whether the engine's own cache, if it is still that one, may have pages of this adapter from before it was replaced:
        vLLM finds them under the same hashes."""
        return lora is not None and lora.lora_path in self._replaced and self._replaced[lora.lora_path] is cache

    def _start(self, path: str, state: Any) -> concurrent.futures.Future:
        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "kvonce-adapters")
        return self._thread.submit(self._make, path, state)

    def _make(self, path: str, state: Any) -> bytes | None:
        try:
            text = self._digest(path)
        except (Refused, OSError) as error:
            _log.warning("kvonce: prefixes of the adapter at %r are not kept: %s", path, error)
            return None
        except Exception:
            _log.exception("kvonce: prefixes of the adapter at %r are not kept", path)
            return None
        if self._state(path) != state:
            _log.warning("kvonce: the adapter at %r changed while it was read: its prefixes are not kept.", path)
            return None
        return hashlib.sha256(text.encode()).digest()


def salted(pages: bytes, salt: bytes) -> bytes:
    """Other names for these pages, 32 bytes each; the same for the same salt. Without a salt, the pages' own."""
    if not salt:
        return pages
    return b"".join(hashlib.sha256(pages[at : at + 32] + salt).digest() for at in range(0, len(pages), 32))
