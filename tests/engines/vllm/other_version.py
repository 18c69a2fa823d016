# SPDX-License-Identifier: Apache-2.0
"""kvonce.vllm against another vLLM than the one of the environment, without an engine: whether it imports, and takes the calls of that version.

The wheel is fetched once (some 340 MB); its Python files are kept in the cache. Skipped where it cannot be had. For yet another version:

    tools/engines/run vllm tests/engines/vllm/other_version.py VERSION
"""
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from support import check, done

VERSION = "0.33.0"
SKIPPED = 77
DOWNLOAD_SECONDS = 200


def unpacked(version):
    """The folder with the Python files of this version; made when it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvonce" / "engines"
    final = cache / f"vllm-{version}.python"
    if not final.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=".vllm-", dir=cache))
        try:
            with zipfile.ZipFile(wheel(version, building / "wheel")) as files:
                # Whatever is compiled is for GPUs, and is not imported here.
                files.extractall(building / "files", [name for name in files.namelist() if name.endswith(".py") or ".dist-info/" in name])
            (building / "files").rename(final)
        except OSError:  # another process was faster
            if not final.is_dir():
                raise
        finally:
            shutil.rmtree(building, ignore_errors=True)
    os.utime(final)  # in use: what is not leaves the cache
    return str(final)


def wheel(version, folder):
    """Fetches the wheel. Ends the script as skipped where it cannot be had."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-cache-dir", "--no-deps", "--only-binary", ":all:",
               "--retries", "1", "--timeout", "30", "-d", folder, f"vllm=={version}"]
    try:
        fetched = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)
        why = "" if fetched.returncode == 0 else (fetched.stderr.strip().splitlines() or ["pip said nothing"])[-1]
    except subprocess.TimeoutExpired:
        why = f"it did not come within {DOWNLOAD_SECONDS} s"
    if why:
        print(f"the wheel of vLLM {version} cannot be had from the package index: {why}", flush=True)
        raise SystemExit(SKIPPED)
    [found] = Path(folder).glob("*.whl")
    return found


def main(version):
    folder = unpacked(version)
    sys.path.insert(0, folder)
    import vllm

    check(vllm.__file__.startswith(folder) and vllm.__version__ == version, "that version is imported", vllm.__version__)
    from vllm.distributed.kv_transfer.kv_connector.v1 import base

    from kvonce.vllm import KvonceConnector

    check(not KvonceConnector.__abstractmethods__, "no abstract method is missing", KvonceConnector.__abstractmethods__)
    compared, wrong = 0, []
    for name, ours in vars(KvonceConnector).items():
        theirs = getattr(base.KVConnectorBase_V1, name, None) or getattr(base.SupportsHMA, name, None)
        if name.startswith("_") or not inspect.isfunction(ours) or theirs is None:
            continue
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        arguments = [one.name for one in inspect.signature(theirs).parameters.values() if one.kind in kinds]
        try:
            inspect.signature(ours).bind(*arguments)
            inspect.signature(ours).bind(arguments[0], **dict.fromkeys(arguments[1:]))
        except TypeError as error:
            wrong.append(f"{name}: {error}")
        compared += 1
    check(not wrong, "every hook takes the calls of that version", compared, wrong)
    check(compared > 20, "and they were compared", compared)
    done()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else VERSION)
