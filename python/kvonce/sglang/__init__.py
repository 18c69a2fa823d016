# SPDX-License-Identifier: Apache-2.0
"""kvonce in SGLang, without a patch: an external linker (the main path) and a HiCache storage backend.

    --enable-unified-cache-external-linker --unified-cache-external-linker-backend dynamic
    --unified-cache-external-linker-config '{"linker": "Linker", "linker_module_path": "kvonce.sglang"}'

    --enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
        '{"backend_name": "kvonce", "module_path": "kvonce.sglang", "class_name": "HiCacheStorage", "interface_v1": 1}'

Both classes are made when they are first asked for, since their base classes are SGLang's: this package imports without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .hicache import HiCacheStorage
    from .linker import Linker

__all__ = ["HiCacheStorage", "Linker"]


def __getattr__(name: str) -> Any:
    if name == "Linker":
        from .linker import Linker

        return Linker
    if name == "HiCacheStorage":
        from .hicache import HiCacheStorage

        return HiCacheStorage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
