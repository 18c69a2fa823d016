# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: vLLM's page hashes carry an adapter's name, but an adapter may be replaced under its name."""

from __future__ import annotations

import concurrent.futures
import hashlib
import logging
from collections.abc import Callable
from typing import Any

from kvonce.engine import Refused, model_identity

_log = logging.getLogger("kvonce")


def _content(path: str) -> str:
    return model_identity(path).text


class Adapters:
    """What is added to the page hashes of a request: the digest of its adapter's files, made on a thread of its own."""

    def __init__(self, content: Callable[[str], str] = _content):
        self._content = content
        self._known: dict[int, tuple[str, concurrent.futures.Future]] = {}
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None

    def salt(self, lora: Any, new_request: bool = True) -> bytes | None:
        """b"" without an adapter; None while its content is not known, or if it cannot be: then its pages are not served.

        An adapter is read when it is first seen, and again when a new request loads it in place.
        """
        if lora is None:
            return b""
        found = self._known.get(lora.lora_int_id)
        again = new_request and getattr(lora, "load_inplace", False)
        if found is None or found[0] != lora.lora_path or again:
            if self._thread is None:
                self._thread = concurrent.futures.ThreadPoolExecutor(1, "kvonce-adapters")
            found = self._known[lora.lora_int_id] = (lora.lora_path, self._thread.submit(self._digest, lora.lora_path))
        return found[1].result() if found[1].done() else None

    def _digest(self, path: str) -> bytes | None:
        try:
            return hashlib.sha256(self._content(path).encode()).digest()
        except (Refused, OSError) as error:
            _log.warning("kvonce: prefixes of the adapter at %r are not kept: %s", path, error)
            return None


def salted(pages: bytes, salt: bytes) -> bytes:
    """Other names for these pages, 32 bytes each; the same for the same salt. Without a salt, the pages' own."""
    if not salt:
        return pages
    return b"".join(hashlib.sha256(pages[at : at + 32] + salt).digest() for at in range(0, len(pages), 32))
