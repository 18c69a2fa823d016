# SPDX-License-Identifier: Apache-2.0
"""Runs scripts in real engines on the CPU.

    engines.py test [--kvonce DIR] [SELECTION...]            each script of tests/engines/{sglang,vllm} in a process of its own
    engines.py run [--kvonce DIR] ENGINE SCRIPT [ARGS...]    one script, in the foreground

A selection is an engine (vllm), or a script without its ending (vllm/llama_tp1). --kvonce names the folder that holds the package kvonce;
without it a wheel is made by tools/wheel and unpacked in the cache. Where the package index cannot be reached, and so an environment
cannot be made, its tests are skipped and that is said.

A script that passes ends with status 0 after it has called support.done(); with status 77 it is skipped; everything else is a failure.
What a script has left running is killed, whatever it did. Its output is in build/engines.
"""
import argparse
import contextlib
import ctypes
import difflib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools" / "engines"
TESTS = ROOT / "tests" / "engines"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvonce" / "engines"
LOGS = ROOT / "build" / "engines"

ENGINES = ("sglang", "vllm")
SKIPPED = 77
SECONDS_MAX = 300
ALL_SECONDS_MAX = 45 * 60
# What nobody has used for so long leaves the cache.
ENVIRONMENT_DAYS_MAX = 14
WHEEL_DAYS_MAX = 3

VARIABLES = {
    "sglang": {"TORCHDYNAMO_DISABLE": "1"},
    "vllm": {
        # One process where there is one rank; no binding of threads to cores, of which there may be fewer than ranks.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # What little is compiled in spite of enforce_eager takes each process ten seconds.
        "TORCHDYNAMO_DISABLE": "1",
    },
}
PATCHES = {"sglang": TOOLS / "sglang_cpu", "vllm": TOOLS / "vllm_cpu"}


def say(text):
    print(f"== {text}", file=sys.stderr, flush=True)


class NoIndex(Exception):
    """The package index cannot be reached; the text tells what is missing for that."""


def forget_unused(pattern, days):
    for old in CACHE.glob(pattern):
        if time.time() - old.stat().st_mtime > days * 86400:
            shutil.rmtree(old, ignore_errors=True)


def environment_of(engine):
    """The folder of the engine's environment, made when it is not there. NoIndex, or SystemExit with the reason."""
    made = subprocess.run([TOOLS / f"{engine}-env"], stdout=subprocess.PIPE, text=True)
    if made.returncode == SKIPPED:
        raise NoIndex(f"the package index cannot be reached, so there is no environment with {engine}")
    if made.returncode != 0:
        raise SystemExit(f"the environment of {engine} could not be made (status {made.returncode})")
    environment = Path(made.stdout.strip())
    for used in (environment, compiled(environment)):
        used.mkdir(exist_ok=True)
        os.utime(used)
    for pattern in (f"{engine}-*", "models-*"):
        forget_unused(pattern, ENVIRONMENT_DAYS_MAX)
    return environment


def compiled(environment):
    """The folder for what the engine compiles when it runs."""
    return CACHE / f"{environment.name}.compiled"


def index_answers(python):
    with tempfile.TemporaryDirectory() as scratch:
        asked = ["bash", "-c", 'set -euo pipefail; source "$1"; index_answers "$2" pip "$3"', "bash", TOOLS / "env.sh", python, scratch]
        return subprocess.run(asked).returncode == 0


def unpacked_wheel(python):
    """The folder with kvonce as users get it: a wheel for that interpreter, made by now and installed in a folder of its own."""
    LOGS.mkdir(parents=True, exist_ok=True)
    with open(LOGS / "wheel.lock", "w") as lock, tempfile.TemporaryDirectory(prefix="wheel-", dir=LOGS) as dist:
        # One at a time: they are built in the same folder.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return unpacked(built_wheel(python, Path(dist)), python)


def built_wheel(python, dist):
    made = subprocess.run([ROOT / "tools" / "wheel", python.resolve()], stdout=sys.stderr, env={**os.environ, "KVONCE_DIST": str(dist)})
    if made.returncode != 0:
        if not index_answers(python):
            raise NoIndex("the package index cannot be reached, so there is nothing to build the wheel with")
        raise SystemExit(f"tools/wheel failed (status {made.returncode})")
    [wheel] = dist.glob("*.whl")
    return wheel


def unpacked(wheel, python):
    CACHE.mkdir(parents=True, exist_ok=True)
    forget_unused("wheel-*", WHEEL_DAYS_MAX)
    final = CACHE / f"wheel-{hashlib.sha256(wheel.read_bytes()).hexdigest()[:16]}"
    if not final.is_dir():
        building = Path(tempfile.mkdtemp(prefix=".wheel-", dir=CACHE))
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", building, wheel], check=True)
        building.chmod(0o755)
        try:
            building.rename(final)
        except OSError:  # somebody else was faster
            shutil.rmtree(building, ignore_errors=True)
    os.utime(final)
    return final


def variables(engine, environment, kvonce, scratch):
    """The environment of a script's process: private folders, and only what is named here on the path of modules."""
    folders = {"XDG_RUNTIME_DIR": "run", "TMPDIR": "tmp", "KVONCE_TEST_CONTROL": "control"}
    for folder in folders.values():
        (scratch / folder).mkdir(mode=0o700)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KVONCE", "VLLM_", "SGLANG_", "PYTHON"))}
    jit = compiled(environment)
    return {
        **kept,
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": os.pathsep.join(map(str, (TESTS / "hooks", TESTS, PATCHES[engine], kvonce))),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        # What an engine compiles when it first runs is the same each time.
        "TORCH_EXTENSIONS_DIR": str(jit / "extensions"),
        "TORCHINDUCTOR_CACHE_DIR": str(jit / "inductor"),
        "VLLM_CACHE_ROOT": str(jit / "vllm"),
        **VARIABLES[engine],
        **{name: str(scratch / folder) for name, folder in folders.items()},
    }


def adopt_orphans():
    """Descendants whose parents have ended become children of this process, so that it can end them."""
    become_subreaper = 36
    ctypes.CDLL(None).prctl(become_subreaper, 1, 0, 0, 0)


def children():
    me, found = os.getpid(), []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == me:
                found.append(int(entry))
    return found


def end_all_children():
    """Kills what a script has left, generation by generation: each that ends hands its own children to this process."""
    deadline = time.monotonic() + 30
    while (left := children()) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


def seconds_of(script):
    """A script that needs longer says so in its head: `# Time limit: 480 s`."""
    found = re.search(r"^# Time limit: (\d+) s$", script.read_text()[:2000], re.MULTILINE)
    return int(found[1]) if found else SECONDS_MAX


def run_test(engine, script, environment, kvonce, seconds):
    """-> ("passed" | "failed" | "skipped", why, seconds taken)"""
    log = LOGS / f"{engine}-{script.stem}.log"
    # Of its own until it is whole: the same test may run for somebody else.
    writing = log.with_suffix(f".{os.getpid()}.log")
    scratch = Path(tempfile.mkdtemp(prefix="kvonce-"))
    started = time.monotonic()
    try:
        env = variables(engine, environment, kvonce, scratch)
        with open(writing, "wb") as out:
            process = subprocess.Popen([environment / "bin" / "python", script], cwd=scratch / "tmp", env=env, stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status, late = process.wait(timeout=seconds), False
            except subprocess.TimeoutExpired:
                status, late = None, True
            end_all_children()
            process.poll()
        taken = time.monotonic() - started
        writing.replace(log)
        lines = log.read_text(errors="replace").splitlines()
        if late:
            return "failed", f"did not end within {seconds} s", taken
        if status == SKIPPED:
            return "skipped", lines[-1] if lines else "", taken
        if status < 0:
            return "failed", f"killed by signal {-status}", taken
        if status != 0:
            return "failed", f"status {status}", taken
        if not (scratch / "control" / "done").exists():
            return "failed", "ended with status 0 before its last check", taken
        return "passed", "", taken
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            writing.unlink()


def known_scripts():
    """[(engine, path)] of all tests."""
    return [(engine, path) for engine in ENGINES for path in sorted((TESTS / engine).glob("*.py")) if not path.stem.startswith("_")]


def nearest(wanted):
    """A sentence that names the tests whose names are most like this one; all where none is."""
    names = [f"{engine}/{path.stem}" for engine, path in known_scripts()]
    wanted = wanted.removesuffix(".py")
    stem = Path(wanted).name
    stems = difflib.get_close_matches(stem, [name.partition("/")[2] for name in names], 3)
    close = [*difflib.get_close_matches(wanted, names, 3), *(name for name in names if name.partition("/")[2] in stems),
             *(name for name in names if stem and stem in name)]
    if not close:
        return f"there are: {' '.join(names)}"
    return f"nearest in tests/engines: {' '.join(list(dict.fromkeys(close))[:6])}"


def wrong_use(text):
    """Says it, before anything was made, and ends with the status of a wrong command line."""
    say(text)
    raise SystemExit(2)


def package_folder(text):
    folder = Path(text).resolve()
    if not (folder / "kvonce" / "__init__.py").is_file():
        raise argparse.ArgumentTypeError(f"{text} does not hold the package kvonce (tools/python-dev makes one: build/python/cp311/stage)")
    return folder


def selected(selection):
    scripts = known_scripts()
    chosen = []
    for wanted in selection or ENGINES:
        found = [(engine, path) for engine, path in scripts if wanted.removesuffix(".py") in (engine, f"{engine}/{path.stem}")]
        if not found and wanted not in ENGINES:
            wrong_use(f"no test {wanted}; {nearest(wanted)}")
        chosen += [one for one in found if one not in chosen]
    return chosen


def test(arguments):
    chosen = selected(arguments.selection)
    given_until = time.monotonic() + 60 * arguments.minutes if arguments.minutes is not None else None
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    environments, reasons, kvonce = {}, {}, arguments.kvonce
    for engine in {engine for engine, _ in chosen}:
        try:
            environments[engine] = environment_of(engine)
        except NoIndex as error:
            reasons[engine] = str(error)
            say(f"SKIPPED: all tests of {engine}: {error}")
    if environments and kvonce is None:
        try:
            kvonce = unpacked_wheel(next(iter(environments.values())) / "bin" / "python")
        except NoIndex as error:
            reasons = dict.fromkeys(ENGINES, str(error))
            say(f"SKIPPED: all tests in engines: {error}")
    LOGS.mkdir(parents=True, exist_ok=True)
    adopt_orphans()
    # The environments may have to be made first; that is not part of the time for tests.
    deadline = time.monotonic() + ALL_SECONDS_MAX
    for engine, script in chosen:
        name = f"{engine}/{script.stem}"
        left = int(deadline - time.monotonic())
        if engine in reasons:
            verdict, why, taken = "skipped", reasons[engine], 0.0
        elif left < 1:
            verdict, why, taken = "failed", f"not run: the {ALL_SECONDS_MAX // 60} minutes for all are over", 0.0
        elif given_until is not None and given_until - time.monotonic() < seconds_of(script):
            verdict, why, taken = "skipped", f"it might not end within the {arguments.minutes:g} minutes that were given (--minutes)", 0.0
        else:
            verdict, why, taken = run_test(engine, script, environments[engine], kvonce, min(seconds_of(script), left))
            left -= int(taken)
            if verdict == "failed" and arguments.again and left > seconds_of(script):
                log = LOGS / f"{engine}-{script.stem}.log"
                print(f"failed  {name:32} {taken:6.1f} s  {why}; once more:", *log.read_text(errors="replace").splitlines()[-40:], sep="\n    ", flush=True)
                verdict, why, taken = run_test(engine, script, environments[engine], kvonce, seconds_of(script))
                why = why or "the second time"
        counts[verdict] += 1
        print(f"{verdict:7} {name:32} {taken:6.1f} s  {why}".rstrip(), flush=True)
        if verdict == "failed" and taken > 0:
            log = LOGS / f"{engine}-{script.stem}.log"
            print("".join(f"    {line}\n" for line in log.read_text(errors="replace").splitlines()[-40:]), end="", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), flush=True)
    return 1 if counts["failed"] else 0


def run(arguments):
    script = Path(arguments.script).resolve()
    if not script.is_file():
        wrong_use(f"there is no file {arguments.script}; {nearest(f'{arguments.engine}/{script.name}')}")
    try:
        environment = environment_of(arguments.engine)
        kvonce = arguments.kvonce or unpacked_wheel(environment / "bin" / "python")
    except NoIndex as error:
        say(str(error))
        return SKIPPED
    scratch = Path(tempfile.mkdtemp(prefix="kvonce-"))
    adopt_orphans()
    try:
        return subprocess.run([environment / "bin" / "python", script, *arguments.arguments],
                              env=variables(arguments.engine, environment, kvonce, scratch)).returncode
    finally:
        end_all_children()
        shutil.rmtree(scratch, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("test", help="run tests")
    one.add_argument("--kvonce", type=package_folder, metavar="DIR", help="use the package in DIR")
    one.add_argument("--minutes", type=float, metavar="N", help="skip what might not end within N minutes from now, making the environments included")
    one.add_argument("--again", action="store_true", help="run a script that fails once more; what it printed the first time is shown")
    one.add_argument("selection", nargs="*", metavar="SELECTION", help="vllm, sglang, or vllm/llama_tp1")
    one.set_defaults(call=test)
    one = commands.add_parser(
        "run", help="run one script in an engine's environment", usage="tools/engines/run [--kvonce DIR] {sglang,vllm} SCRIPT [ARGUMENT ...]",
        description="Runs a Python script in an environment with the real engine, for the CPU, and with kvonce. The first time it makes both: some minutes, and about 3 GB in the cache.")
    one.add_argument("--kvonce", type=package_folder, metavar="DIR", help="use the package in DIR")
    one.add_argument("engine", choices=ENGINES)
    one.add_argument("script", metavar="SCRIPT")
    one.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT")
    one.set_defaults(call=run)
    arguments = parser.parse_args()
    # As if interrupted, so that what runs is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return arguments.call(arguments)
    except KeyboardInterrupt:
        # Once is enough: what runs is ended before this process is.
        for again in (signal.SIGINT, signal.SIGTERM):
            signal.signal(again, signal.SIG_IGN)
        end_all_children()
        return 130


if __name__ == "__main__":
    sys.exit(main())
