#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes python/kvonce/_native.pyi from the extension module that is importable; needs nanobind.

usage: PYTHONPATH=$(tools/python-dev) build/python/env-cp311/bin/python tools/python_stubs.py [FILE]
"""

import pathlib
import re
import sys

HEAD = '''# SPDX-License-Identifier: Apache-2.0
# Made by tools/python_stubs.py from the module.
"""The C++ side of kvonce."""

import enum
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Generic, Self, TypeAlias, TypeVar

_Result = TypeVar("_Result", covariant=True)

# 32 bytes, or 64 hexadecimal digits.
Page: TypeAlias = bytes | bytearray | memoryview | str
# Bytes of n * 32, an (n, 32) uint8 array, or a list of pages.
Pages: TypeAlias = Any
# An integer array (numpy, torch on the CPU, buffer protocol, DLPack), a range, or a list.
Indices: TypeAlias = Any
'''


def make():
    from nanobind.stubgen import StubGen

    import kvonce._native as module

    generator = StubGen(module)
    generator.put(module)
    text = generator.get()
    body = text[text.index("def version(") :]
    body = re.sub(r"\n    __await__[^\n]*\n|\n    def __await__\(.*?(?=\n    def |\nclass )", "\n", body, flags=re.S)
    body = body.replace("class Future:", "class Future(Generic[_Result]):")
    body = body.replace("def result(self, timeout: float | None = None) -> Any:", "def result(self, timeout: float | None = None) -> _Result:")
    body = body.replace("REASONS: tuple = ...", "REASONS: tuple[str, ...]")
    for future, result in (("LookupFuture", "Lookup"), ("PutFuture", "PutResult"), ("LoadFuture", "LoadResult")):
        body = body.replace(f"class {future}(Future):", f"class {future}(Future[{result}]):")
    at = body.index("class LookupFuture")
    body = body[:at].rstrip() + "\n\n    def __await__(self) -> Generator[Any, None, _Result]: ...\n\n" + body[at:]
    return HEAD + "\n" + body.strip() + "\n"


if __name__ == "__main__":
    default = pathlib.Path(__file__).parent.parent / "python" / "kvonce" / "_native.pyi"
    pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else default).write_text(make(), encoding="utf-8")
