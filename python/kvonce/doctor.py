# SPDX-License-Identifier: Apache-2.0
"""`python -m kvonce.doctor`: what is here, and whether it fits together.

Says the library's version, whether kvonced can be started and whether this user's store answers, what the processor can
do, which engines are installed, and whether their interfaces still are what the adapters were written for. Engines are
read, not imported. Exit status: 0 all that was found fits, 1 something does not (named), 2 usage.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kvonce.engine import interfaces

_CPU_FLAGS = ("avx2", "avx512f", "avx512bw", "avx512vl", "sha_ni", "vpclmulqdq", "asimd", "sha2", "sve")
_START = """
import json, os, sys, kvonce
options = {"auto_bytes": "16MiB", "auto_idle": 0.1, "connect_timeout": 20.0, "kvonced_path": sys.argv[1]}
with kvonce.Runtime("doctor", store="auto", **options) as runtime:
    print(json.dumps({"connected": runtime.wait_connected(20.0)}))
"""


@dataclasses.dataclass
class Finding:
    """One line: `state` is "ok", "note" (worth knowing, nothing wrong) or "bad"."""

    subject: str
    state: str
    text: str
    details: list[str] = dataclasses.field(default_factory=list)


def check_library() -> Finding:
    """The native library: can it be loaded, and which is it?"""
    try:
        import kvonce

        return Finding("library", "ok", f"kvonce {kvonce.version()}")
    except Exception as error:  # also what a loader says of a missing library
        return Finding("library", "bad", f"the native library cannot be loaded: {error}")


def check_python() -> Finding:
    libc = " ".join(platform.libc_ver()) or "unknown libc"
    text = f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}, {libc}"
    good = sys.platform == "linux"
    return Finding("python", "ok" if good else "bad", text + ("" if good else ": kvonce needs Linux"))


def cpu_flags(cpuinfo: str) -> list[str]:
    """What of the copying and hashing instructions /proc/cpuinfo names."""
    lines = [line.partition(":")[2] for line in cpuinfo.splitlines() if line.startswith(("flags", "Features"))]
    words = {word for line in lines for word in line.split()}
    return [flag for flag in _CPU_FLAGS if flag in words]


def check_cpu() -> Finding:
    try:
        flags = cpu_flags(Path("/proc/cpuinfo").read_text())
    except OSError as error:
        return Finding("cpu", "note", f"/proc/cpuinfo cannot be read: {error}")
    kernel = "avx512" if {"avx512f", "avx512bw", "avx512vl"} <= set(flags) else "avx2" if "avx2" in flags else "portable"
    named = ", ".join(flags) or "no vector instructions"
    return Finding("cpu", "ok", f"{len(os.sched_getaffinity(0))} usable cores; {named}: copies {kernel} at best")


def find_program(name: str) -> str | None:
    """The program of this installation: KVONCE_KVONCED for kvonced, else in the package's folder, else by PATH."""
    named = os.environ.get("KVONCE_KVONCED") if name == "kvonced" else None
    package = Path(__file__).parent
    candidates = [named] if named else [package / name, package / "bin" / name]
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK) and Path(candidate).is_file():
            return str(candidate)
    return named or shutil.which(name)


def _run(command: list[str], timeout: float, **options: Any) -> tuple[int, str, str]:
    """(exit status, standard output, last line of what went wrong)."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)
    except subprocess.TimeoutExpired:
        return 124, "", f"no answer within {timeout:g} s"
    except OSError as error:
        return 127, "", str(error)
    why = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[-1]
    return done.returncode, done.stdout, why


def check_kvonced() -> list[Finding]:
    """Can a store be started here (one of its own, in a folder of its own), and does this user's answer?"""
    program = find_program("kvonced")
    if program is None:
        return [Finding("kvonced", "bad", "not found in the package, by KVONCE_KVONCED or by PATH")]
    status, out, why = _run([program, "--version"], 20)
    if status != 0:
        return [Finding("kvonced", "bad", f"{program} does not run: {why}")]
    findings = [Finding("kvonced", "ok", f"{program}: {out.strip()}")]
    with tempfile.TemporaryDirectory(prefix="kvonce-doctor-") as folder:
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder}
        status, out, why = _run([sys.executable, "-c", _START, program], 60, env=environment)
        good = status == 0 and json.loads(out.splitlines()[-1])["connected"]
    why = why.replace("XDG_RUNTIME_DIR", "TMPDIR")  # the folder is ours, made where TMPDIR says
    started = "a store was started and answered" if good else f"no store could be started: {why}"
    findings.append(Finding("start", "ok" if good else "bad", started))
    shell = find_program("kvonce")
    if shell is not None:
        status, out, why = _run([shell, "stat", "--json", "--timeout", "5s"], 20)
        if status == 0:
            running = "this user's store answers"
        elif "no store runs on" in why:
            running = 'none runs for this user: the first engine with store "auto" starts one, or kvonced does'
        else:
            running = f"this user's does not answer ({why})"
        findings.append(Finding("store", "ok" if status == 0 else "note", running))
    return findings


def check_engine(engine: str, asked_for: bool = False) -> Finding:
    """Is the engine installed, and is what the adapter relies on still there as it was? One that was asked for must be."""
    found = interfaces.find(engine)
    if found is None:
        return Finding(engine, "bad" if asked_for else "note", "not installed for this interpreter")
    known, changes = interfaces.check(found)
    if known is None:
        return Finding(engine, "note", f"{found.version}: there is no list to compare it with")
    same = "the version" if known == found.version else f"{known}, the nearest version"
    what = f"{found.version}, compared with {same} that the adapter was written for"
    details = interfaces.lines(changes)
    if any(change.breaks for change in changes):
        moved = sum(change.breaks for change in changes)
        return Finding(engine, "bad", f"{what}: {moved} {'name' if moved == 1 else 'names'} moved", details)
    return Finding(engine, "ok", f"{what}: nothing that it relies on moved", details)


def examine(engines: Iterable[str], asked_for: bool = False) -> list[Finding]:
    """All findings. Never raises: what cannot be found out is a finding too."""
    library = check_library()
    checks: list[tuple[str, Callable[[], Finding | list[Finding]]]] = [("python", check_python), ("cpu", check_cpu)]
    if library.state == "ok":
        checks.append(("kvonced", check_kvonced))
    checks += [(engine, lambda engine=engine: check_engine(engine, asked_for)) for engine in engines]
    findings = [library]
    for subject, check in checks:
        try:
            result = check()
        except Exception as error:
            result = Finding(subject, "bad", f"cannot be examined: {type(error).__name__}: {error}")
        findings += result if isinstance(result, list) else [result]
    return findings


def main(arguments: list[str] | None = None) -> int:
    engines = sorted(interfaces.WATCHED)
    parser = argparse.ArgumentParser(prog="python -m kvonce.doctor", description=__doc__.partition("\n\n")[2].strip())
    parser.add_argument("--engine", action="append", choices=engines, help="examine this engine only (may be repeated)")
    parser.add_argument("--json", action="store_true", help="the findings as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="no output: the exit status tells")
    parser.add_argument("--record", metavar="ENGINE", choices=engines, help="print what the adapter relies on as this engine has it, in the form of kvonce/engine/known/, and examine nothing")
    options = parser.parse_args(arguments)
    if options.record:
        found = interfaces.find(options.record)
        if found is None:
            print(f"{options.record} is not installed for this interpreter", file=sys.stderr)
            return 1
        sys.stdout.write(interfaces.write(found, interfaces.read(found)))
        return 0
    findings = examine(options.engine or engines, asked_for=bool(options.engine))
    good = all(finding.state != "bad" for finding in findings)
    if options.json:
        print(json.dumps({"ok": good, "findings": [dataclasses.asdict(finding) for finding in findings]}, indent=1))
    elif not options.quiet:
        for finding in findings:
            print(f"{finding.state:<5}{finding.subject:<9}{finding.text}")
            for line in finding.details:
                print(f"     {'':<9}{line}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
