# SPDX-License-Identifier: Apache-2.0
"""The package as a whole: stubs, the selftest, the store that it starts, and the wheel."""

import ast
import glob
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile

import kvonce
import kvonce.selftest
from package_parts import DEADLINE, Case, environment

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MIB = 1 << 20


class Types(Case):
    def test_the_stubs_are_those_of_the_module(self):
        if importlib.util.find_spec("nanobind") is None:
            self.skipTest("nanobind is not installed")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "stubs.pyi")
            self.run_tool("python_stubs.py", path)
            with open(path, encoding="utf-8") as made, open(os.path.join(ROOT, "python/kvonce/_native.pyi"), encoding="utf-8") as kept:
                self.assertEqual(made.read(), kept.read(), "run tools/python_stubs.py")

    def run_tool(self, name, *arguments):
        subprocess.run([sys.executable, os.path.join(ROOT, "tools", name), *arguments], env=environment(), check=True, timeout=DEADLINE)

    def test_all_that_is_public_has_a_docstring_and_stands_in_the_stubs(self):
        with open(os.path.join(ROOT, "python/kvonce/_native.pyi"), encoding="utf-8") as file:
            stubs = {node.name: node for node in ast.parse(file.read()).body if isinstance(node, ast.ClassDef)}
        for name in kvonce.__all__:
            thing = getattr(kvonce, name)
            if name in stubs:
                members = {node.name for node in stubs[name].body if isinstance(node, ast.FunctionDef)}
                for member in vars(thing):
                    if not member.startswith("_") and name not in ("Verdict", "Reason"):
                        self.assertIn(member, members, name)
            if isinstance(thing, type):
                self.assertTrue(thing.__doc__, name)

    def test_the_import_needs_little(self):
        heavy = "asyncio, numpy, torch, typing, unittest, subprocess, logging"
        self.run_script(f"import sys\nbefore = set(sys.modules)\nimport kvonce\n"  # an interpreter may have loaded some for itself
                        f"loaded = set('{heavy}'.split(', ')) & (set(sys.modules) - before)\nassert not loaded, loaded")


class Store(Case):
    def test_two_processes_meet_at_a_store_that_the_first_one_starts(self):
        ended = subprocess.run([sys.executable, "-m", "kvonce.selftest", "--pages", "16"], env=environment(), timeout=DEADLINE, capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertRegex(ended.stdout, r"first verified page after [0-9.]+ s")
        self.assertIn("every byte is right", ended.stdout)

    def selftest(self, *arguments, **variables):
        """(exit status, standard output, lines on standard error that are not of the library's log)"""
        command = [sys.executable, "-m", "kvonce.selftest", *arguments]
        ended = subprocess.run(command, env={**environment(), **variables}, timeout=DEADLINE, capture_output=True, text=True)
        return ended.returncode, ended.stdout, [line for line in ended.stderr.splitlines() if "[kvonce]" not in line]

    def test_a_selftest_that_finds_no_store_fails_with_one_sentence(self):
        status, _, lines = self.selftest("--store", "unix:/nowhere/kvonce.sock")
        self.assertEqual((status, len(lines)), (1, 1), lines)
        self.assertRegex(lines[0], "^put: StoreLost: .*/nowhere/kvonce.sock")
        status, _, lines = self.selftest(TMPDIR="/nowhere", TEMP="/nowhere", TMP="/nowhere", KVONCE_KVONCED="/nowhere/kvonced")
        self.assertEqual((status, len(lines)), (1, 1), lines)
        status, _, lines = self.selftest("--timeout", "1e-9")
        self.assertEqual((status, lines), (1, ["the process that should put has not ended within 1e-09 s"]))

    def test_a_folder_that_is_too_deep_is_told_with_the_variable_that_helps(self):
        with tempfile.TemporaryDirectory(prefix="kvonce-test-") as folder:
            deep = os.path.join(folder, "d" * 100)
            os.mkdir(deep)
            status, _, lines = self.selftest(TMPDIR=deep)
            self.assertEqual((status, len(lines)), (1, 1), lines)
            self.assertRegex(lines[0], "set TMPDIR to a shorter path")
            command = [sys.executable, "-m", "kvonce.doctor", "--engine", "vllm"]
            ended = subprocess.run(command, env={**environment(), "TMPDIR": deep}, timeout=DEADLINE, capture_output=True, text=True)
            (line,) = [line for line in ended.stdout.splitlines() if line.split()[:2] == ["bad", "start"]]
            self.assertRegex(line, "set TMPDIR to a shorter path")

    def test_the_doctor_says_what_a_missing_store_means(self):
        with tempfile.TemporaryDirectory(prefix="kvonce-test-") as folder:
            command = [sys.executable, "-m", "kvonce.doctor", "--engine", "vllm"]
            ended = subprocess.run(command, env=environment(XDG_RUNTIME_DIR=folder), timeout=DEADLINE, capture_output=True, text=True)
            (line,) = [line for line in ended.stdout.splitlines() if line.split()[:2] == ["note", "store"]]
            self.assertTrue(line.endswith('none runs for this user: the first engine with store "auto" starts one, or kvonced does'), line)

    def test_the_help_says_what_is_done_and_allowed(self):
        status, out, _ = self.selftest("--help")
        self.assertEqual(status, 0)
        self.assertIn("one process puts pages, another one gets them", out)
        self.assertNotIn("python -m kvonce.selftest:", out)
        self.assertIn("1 to 512", out)

    def test_a_selftest_takes_only_a_timeout_that_is_one(self):
        for wrong in ("-1", "0", "nan", "inf", "1e300", "soon"):
            status, _, lines = self.selftest(f"--timeout={wrong}")
            self.assertEqual(status, 2)
            self.assertIn("--timeout", lines[-1])

    def test_the_program_of_the_guide(self):
        with open(os.path.join(ROOT, "examples/python/round_trip.py"), encoding="utf-8") as file:
            program = file.read().split("\n", 2)[2]
        with open(os.path.join(ROOT, "docs/python.md"), encoding="utf-8") as file:
            self.assertIn(f"```python\n{program}```", file.read())
        with tempfile.TemporaryDirectory(prefix="kvonce-test-") as folder:
            path = os.pathsep.join([os.path.join(ROOT, "examples/python"), environment()["PYTHONPATH"]])
            output = self.run_script("from round_trip import *", XDG_RUNTIME_DIR=folder, PYTHONPATH=path)
            kvonce.selftest.stop_store(environment(XDG_RUNTIME_DIR=folder))
        self.assertEqual(output.splitlines(), ["rank 0: 8 of 8 are stored", "rank 1: 8 of 8 are stored", "8 pages can be restored", "loaded"])

    def test_what_the_guide_says_that_verdicts_print(self):
        with open(os.path.join(ROOT, "docs/python.md"), encoding="utf-8") as file:
            program, output = re.search(r"```python\n([^`]*verdicts[^`]*)```\n\n```\n([^`]*)```", file.read()).groups()
        self.assertEqual(self.run_script(program), output)

    def test_processes_of_an_engine_are_given_the_same_epoch(self):
        with tempfile.TemporaryDirectory(prefix="kvonce-test-") as folder:
            text = "import kvonce, sys\nr = kvonce.Runtime(sys.argv[1], auto_bytes='16MiB', auto_idle=5)\nprint(r.epoch(sys.argv[2]).hex())\nr.close()"
            with kvonce_folder(folder):
                keep = kvonce.Runtime("a", auto_bytes="16MiB", auto_idle=0.2)
                told = [self.run_script(text, *names, XDG_RUNTIME_DIR=folder) for names in (("a", "1"), ("a", "1"), ("a", "2"), ("b", "1"))]
                self.assertEqual(keep.epoch("1").hex() + "\n", told[0])
                keep.close()
            self.assertEqual(told[0], told[1])
            self.assertEqual(len(set(told)), 3)


class kvonce_folder:
    """XDG_RUNTIME_DIR for this process."""

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        self.before = os.environ.get("XDG_RUNTIME_DIR")
        os.environ["XDG_RUNTIME_DIR"] = self.folder

    def __exit__(self, *_):
        del os.environ["XDG_RUNTIME_DIR"]
        if self.before is not None:
            os.environ["XDG_RUNTIME_DIR"] = self.before


def symbols(library):
    """Names that an ELF file defines for others."""
    output = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True, timeout=DEADLINE).stdout
    return {line.split()[-1].split("@")[0] for line in output.splitlines() if line}


def needed(path):
    output = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True, timeout=DEADLINE).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", output))


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


class Wheel(Case):
    """Built by tools/wheel for this interpreter (or KVONCE_TEST_WHEEL), and installed into an environment of its own."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="kvonce-wheel-")
        cls.addClassCleanup(cls.folder.cleanup)
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        cls.wheel = os.environ.get("KVONCE_TEST_WHEEL")
        if not cls.wheel:
            if importlib.util.find_spec("scikit_build_core") is None:
                raise unittest.SkipTest("scikit-build-core is not installed, and KVONCE_TEST_WHEEL names no wheel")
            build = [os.path.join(ROOT, "tools/wheel"), sys.executable]
            subprocess.run(build, env={**clean, "KVONCE_DIST": cls.folder.name}, check=True, timeout=500, stdout=subprocess.DEVNULL)
            (cls.wheel,) = glob.glob(os.path.join(cls.folder.name, "*.whl"))
        home = os.path.join(cls.folder.name, "home")
        venv.create(home, with_pip=True)
        cls.python = os.path.join(home, "bin/python")
        cls.bin = os.path.dirname(cls.python)
        install = [cls.python, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet", "--disable-pip-version-check", cls.wheel]
        subprocess.run(install, env=clean, check=True, timeout=DEADLINE)
        cls.clean = {**clean, "PATH": cls.bin + os.pathsep + clean["PATH"]}
        cls.package = os.path.join(glob.glob(os.path.join(home, "lib/python3.*/site-packages"))[0], "kvonce")

    def call(self, *command, **more):
        """The environment's own program or Python, with no package of the source tree in sight."""
        with tempfile.TemporaryDirectory(prefix="kvonce-test-") as folder:
            environment = {**self.clean, "XDG_RUNTIME_DIR": folder, **more}
            ended = subprocess.run(command, env=environment, cwd=folder, timeout=DEADLINE, capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        return ended.stdout

    def test_tag_and_size(self):
        name = os.path.basename(self.wheel)
        minor = sys.version_info.minor
        tag = "cp312-abi3" if minor >= 12 else f"cp3{minor}-cp3{minor}"
        self.assertRegex(name, rf"^kvonce-{re.escape(kvonce.__version__)}-{tag}-manylinux_2_[0-9]+_x86_64\.whl$")
        self.assertLessEqual(os.path.getsize(self.wheel), 10 * MIB)

    def test_contents(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            names = wheel.namelist()
            metadata = next(wheel.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
        for wanted in ("kvonce/__init__.py", "kvonce/py.typed", "kvonce/_native.pyi", "kvonce/kvonced", "kvonce/kvonce", "kvonce/selftest.py"):
            self.assertIn(wanted, names)
        ours = re.compile(r"kvonce/|kvonce\.libs/|kvonce-[0-9.]+\.(dist-info|data/scripts)/")
        self.assertEqual([name for name in names if not name.endswith("/") and (not ours.match(name) or "__pycache__" in name)], [])
        self.assertEqual([name for name in names if name.endswith((".hpp", ".a", ".cmake"))], [])
        self.assertNotIn("Requires-Dist", metadata)

    def test_the_module_exports_its_entry_and_the_c_api_only(self):
        (module,) = glob.glob(os.path.join(self.package, "_native*.so"))
        other = {name for name in symbols(module) if not name.startswith(("PyInit_", "kvonce_"))}
        self.assertEqual(other, set())
        self.assertIn("PyInit__native", symbols(module))

    def test_it_is_a_release_build_without_debug_information(self):
        self.assertIn("Release, checks off", self.call(self.python, "-c", "import kvonce; print(kvonce.version())"))
        for path in glob.glob(os.path.join(self.package, "*")):
            if os.path.isfile(path) and is_elf(path):
                sections = subprocess.run(["readelf", "-SW", path], check=True, capture_output=True, text=True, timeout=DEADLINE).stdout
                self.assertNotIn(".debug_info", sections, path)

    def test_nothing_that_a_machine_may_lack_is_needed(self):
        """All libraries are bundled, or of every Linux; none is for RDMA."""
        everywhere = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2"}
        bundled = os.path.join(os.path.dirname(self.package), "kvonce.libs")
        have = {os.path.basename(path) for path in glob.glob(os.path.join(bundled, "*"))}
        programs = [os.path.join(self.package, name) for name in ("kvonced", "kvonce")]
        for path in programs + glob.glob(os.path.join(self.package, "_native*.so")) + glob.glob(os.path.join(bundled, "*")):
            self.assertEqual(needed(path) - everywhere - have, set(), path)
            self.assertFalse([name for name in needed(path) if re.match("lib(ibverbs|rdmacm|mlx|efa)", name)])

    def test_what_is_on_path_needs_libc_alone_and_becomes_the_program(self):
        for name in ("kvonce", "kvonced"):
            launcher = os.path.join(self.bin, name)
            self.assertTrue(is_elf(launcher), "a script: it would start a Python first")
            self.assertLessEqual(needed(launcher), {"libc.so.6"})
            self.assertIn(kvonce.__version__, self.call(name, "--version"))

    def test_the_selftest_of_the_installed_wheel(self):
        self.assertIn("every byte is right", self.call(self.python, "-m", "kvonce.selftest"))


if __name__ == "__main__":
    unittest.main()
