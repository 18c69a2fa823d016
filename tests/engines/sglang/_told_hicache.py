# SPDX-License-Identifier: Apache-2.0
"""kvonce's HiCache backend that tells who called it. Not a test: the engine's processes import it.

SGLang has several ways to its storage, and picks one by the model and the settings: a test that names one must see that it was taken."""
import functools
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from kvonce.sglang import HiCacheStorage

FOLDER = Path(os.environ.get("KVONCE_TEST_CONTROL", "."))
CALLS = ("batch_exists", "batch_exists_v2", "batch_get", "batch_get_v1", "batch_get_v2", "batch_set", "batch_set_v1", "batch_set_v2")
TOLD = {"module_path": "_told_hicache", "class_name": "ToldStorage"}  # what the engine's extra config says


@dataclass(frozen=True)
class Told:
    """One call: of which function, by which of SGLang's."""
    pid: int
    call: str
    by: str


def told():
    """All calls by now, of all ranks."""
    return [Told(**json.loads(line)) for path in FOLDER.glob("told-*") for line in path.read_text().splitlines()]


def _telling(name):
    inner = getattr(HiCacheStorage, name)

    @functools.wraps(inner)
    def call(self, *args, **kwargs):
        told_of = {"pid": os.getpid(), "call": name, "by": sys._getframe(1).f_code.co_qualname}
        with open(FOLDER / f"told-{os.getpid()}", "a") as out:
            out.write(json.dumps(told_of) + "\n")
        return inner(self, *args, **kwargs)

    return call


class ToldStorage(HiCacheStorage):
    pass


for one in CALLS:
    setattr(ToldStorage, one, _telling(one))
