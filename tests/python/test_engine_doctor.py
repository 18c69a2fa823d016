# SPDX-License-Identifier: Apache-2.0
"""The doctor against engines that are folders of a few made-up lines: it reads them and runs none of them."""

import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from unittest import mock

import engine_parts

engine_parts.load()
interfaces = engine_parts.load("kvonce.engine.interfaces")
doctor = engine_parts.load("kvonce.doctor")

LINKER = "sglang.srt.mem_cache.unified_cache.unified_cache_linker"
SOURCE = '''
    from abc import ABC, abstractmethod
    import torch_that_is_not_there

    class UnifiedCacheLinker(ABC):
        layer_done_counter: object

        @abstractmethod
        def lookup(self, rid: str, transfers: list) -> list: ...

        @abstractmethod
        def offload(self, transfers, session_id: "str | None" = None) -> bool: ...

        def record_offload_ready(self): ...

        def _private(self): ...

    raise RuntimeError("this module must not be run")
'''


class WithEngine(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.root = pathlib.Path(held.name)
        self.known = self.root / "known"
        self.known.mkdir()
        self.install(SOURCE)
        path = mock.patch.object(sys, "path", [str(self.root), *sys.path])
        path.start()
        self.addCleanup(path.stop)
        self.addCleanup(sys.path_importer_cache.clear)

    def install(self, source, version="0.5.23"):
        self.write("sglang/__init__.py", "raise RuntimeError('the engine must not be imported')")
        self.write(LINKER.replace(".", "/") + ".py", textwrap.dedent(source))
        for old in self.root.glob("sglang-*.dist-info"):
            shutil.rmtree(old)
        self.write(f"sglang-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def record(self, version="0.5.23"):
        found = interfaces.find("sglang")
        (self.known / f"sglang-{version}.txt").write_text(interfaces.write(found, interfaces.read(found)))

    def check(self):
        with mock.patch.object(interfaces, "adapter_methods", return_value={"finish"}):
            known, changes = interfaces.check(interfaces.find("sglang"), self.known)
        return known, changes

    def moved(self, source):
        self.record()
        self.install(source)
        return [(c.name.partition(":")[2], c.text, c.breaks) for c in self.check()[1]]


class Reading(WithEngine):
    def test_an_engine_is_found_and_read_without_being_run(self):
        found = interfaces.find("sglang")
        self.assertEqual((found.engine, found.version), ("sglang", "0.5.23"))
        self.assertEqual(
            interfaces.read(found),
            {
                f"{LINKER}:UnifiedCacheLinker": "class",
                f"{LINKER}:UnifiedCacheLinker.layer_done_counter": "field",
                f"{LINKER}:UnifiedCacheLinker.lookup": "abstract method (self, rid, transfers)",
                f"{LINKER}:UnifiedCacheLinker.offload": "abstract method (self, transfers, session_id=None)",
                f"{LINKER}:UnifiedCacheLinker.record_offload_ready": "method (self)",
            },
        )

    def test_a_list_is_read_as_it_was_written(self):
        self.record()
        self.assertEqual(interfaces.load("sglang", "0.5.23", self.known), interfaces.read(interfaces.find("sglang")))
        self.assertEqual(self.check(), ("0.5.23", []))

    def test_annotations_and_bodies_are_no_change(self):
        self.assertEqual(self.moved(SOURCE.replace("rid: str", "rid: bytes").replace("-> list: ...", ": return []")), [])

    def test_an_engine_that_is_not_installed(self):
        with mock.patch.object(sys, "path", []):
            sys.path_importer_cache.clear()
            self.assertIsNone(interfaces.find("sglang"))
        # A folder that happens to have the name is no engine.
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(sys, "path", [folder]):
            os.mkdir(os.path.join(folder, "sglang"))
            sys.path_importer_cache.clear()
            self.assertIsNone(interfaces.find("sglang"))


class Moving(WithEngine):
    def test_a_changed_signature_is_named_with_both_forms(self):
        changes = self.moved(SOURCE.replace("session_id: \"str | None\" = None", "session_id"))
        was, now = "abstract method (self, transfers, session_id=None)", "abstract method (self, transfers, session_id)"
        self.assertEqual(changes, [("UnifiedCacheLinker.offload", f"was {was}, is {now}", True)])

    def test_a_new_abstract_method_breaks_unless_the_adapter_has_it(self):
        more = SOURCE.replace("        def record", "        @abstractmethod\n        def {}(self): ...\n\n        def record")
        self.assertEqual(self.moved(more.format("drain")), [("UnifiedCacheLinker.drain", "is new: abstract method (self)", True)])
        self.assertEqual(
            self.moved_again(more.format("finish")),
            [("UnifiedCacheLinker.finish", "is new: abstract method (self), which the adapter has", False)],
        )

    def moved_again(self, source):
        self.install(SOURCE)
        return self.moved(source)

    def test_a_new_optional_method_is_told_and_breaks_nothing(self):
        changes = self.moved(SOURCE + "\n    class LayerWiseLoadCounter:\n        def finish(self, index): ...")
        self.assertEqual([breaks for _, _, breaks in changes], [False, False])

    def test_what_is_gone_is_named_once_for_a_whole_class(self):
        self.assertEqual(
            self.moved("x = 1"), [("UnifiedCacheLinker", "is gone", True)]
        )
        self.assertEqual(
            self.moved_again(SOURCE.replace("def record_offload_ready(self): ...", "pass")),
            [("UnifiedCacheLinker.record_offload_ready", "is gone (was method (self))", True)],
        )

    def test_a_file_that_is_gone_or_broken(self):
        self.assertEqual(self.moved("def ("), [("UnifiedCacheLinker", "is gone", True)])

    def test_the_nearest_stored_version_is_compared_with(self):
        stored = ["0.5.12", "0.5.18", "0.5.23"]
        self.assertEqual(interfaces.nearest_version("0.5.23", stored), "0.5.23")
        self.assertEqual(interfaces.nearest_version("0.5.23.post1", stored), "0.5.23")
        self.assertEqual(interfaces.nearest_version("0.5.20", stored), "0.5.18")
        self.assertEqual(interfaces.nearest_version("0.6.0rc1", stored), "0.5.23")
        self.assertEqual(interfaces.nearest_version("0.4.9", stored), "0.5.12")
        self.assertIsNone(interfaces.nearest_version("0.5.23", []))
        self.install(SOURCE, "0.5.24")
        self.record("0.5.23")
        self.record("0.5.9")
        self.assertEqual(interfaces.known_versions("sglang", self.known), ["0.5.9", "0.5.23"])
        self.assertEqual(self.check(), ("0.5.23", []))


class StoredLists(unittest.TestCase):
    def test_the_package_has_lists_that_name_what_the_adapters_stand_on(self):
        sglang = interfaces.load("sglang", "0.5.23")
        self.assertEqual(sum(text.startswith("abstract") for name, text in sglang.items() if name.startswith(LINKER)), 10)
        for version in ("0.32.0", "0.33.0"):
            vllm = interfaces.load("vllm", version)
            names = [name for name, text in vllm.items() if text.startswith("abstract") and "WorkerMetadata" not in name]
            abstract = [name.rpartition(".")[2] for name in names]
            self.assertEqual(len(abstract), 8, abstract)
        newer = interfaces.compare(interfaces.load("vllm", "0.32.0"), interfaces.load("vllm", "0.33.0"))
        self.assertEqual([c for c in newer if c.breaks], [])
        self.assertTrue(any("supports_sleep_mode" in c.name for c in newer))

    def test_the_older_sglang_lists_tell_what_came_since(self):
        changes = interfaces.compare(interfaces.load("sglang", "0.5.12"), interfaces.load("sglang", "0.5.23"))
        text = "\n".join(interfaces.lines(changes))
        self.assertIn("restorable_prefix_pages", text)
        self.assertIn("on_host_pools_registered", text)


class Program(WithEngine):
    def doctor(self, *arguments):
        out = io.StringIO()
        library = doctor.Finding("library", "ok", "kvonce x")
        with (
            mock.patch.object(doctor, "check_library", return_value=library),
            mock.patch.object(doctor, "check_kvonced", return_value=[]),
            mock.patch.object(interfaces.check, "__defaults__", (self.known,)),
            contextlib.redirect_stdout(out),
        ):
            status = doctor.main(["--engine", "sglang", *arguments])
        return status, out.getvalue()

    def test_all_that_fits_is_status_0(self):
        self.record()
        status, out = self.doctor()
        self.assertEqual(status, 0)
        self.assertRegex(out, r"ok   sglang   0\.5\.23, compared with the version that the adapter was written for: nothing")

    def test_what_moved_is_named_and_is_status_1(self):
        self.record()
        self.install(SOURCE.replace("rid: str, ", ""), "0.5.24")
        status, out = self.doctor()
        self.assertEqual(status, 1)
        self.assertIn("1 name moved", out)
        was, now = "abstract method (self, rid, transfers)", "abstract method (self, transfers)"
        self.assertIn(f"{LINKER}:UnifiedCacheLinker.lookup was {was}, is {now}", out)
        self.assertEqual(self.doctor("-q"), (1, ""))
        found = json.loads(self.doctor("--json")[1])
        self.assertFalse(found["ok"])
        self.assertEqual([f["subject"] for f in found["findings"] if f["state"] == "bad"], ["sglang"])

    def test_no_engine_and_no_list_are_nothing_wrong(self):
        status, out = self.doctor()
        self.assertEqual((status, "there is no list" in out), (0, True))

    def test_an_engine_that_is_asked_for_and_not_there_is_status_1(self):
        with mock.patch.object(interfaces, "find", return_value=None):
            status, out = self.doctor()
        self.assertEqual(status, 1)
        self.assertRegex(out, r"bad  sglang   not installed")

    def test_record_prints_a_list(self):
        status, out = self.doctor("--record", "sglang")
        self.assertEqual(status, 0)
        self.assertIn("UnifiedCacheLinker.lookup abstract method (self, rid, transfers)\n", out)

    def test_a_wrong_argument_is_status_2(self):
        with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(io.StringIO()):
            doctor.main(["--engine", "other"])
        self.assertEqual(ended.exception.code, 2)

    def test_a_check_that_fails_is_a_finding(self):
        with mock.patch.object(doctor, "check_cpu", side_effect=OSError("no such thing")):
            status, out = self.doctor()
        self.assertEqual(status, 1)
        self.assertRegex(out, r"bad  cpu +cannot be examined: OSError: no such thing")


class Machine(unittest.TestCase):
    def test_cpu_flags(self):
        self.assertEqual(doctor.cpu_flags("model name : avx512f\nflags\t\t: fpu avx2 sha_ni\n"), ["avx2", "sha_ni"])
        self.assertEqual(doctor.cpu_flags("Features : asimd sve\n"), ["asimd", "sve"])

    def test_a_kvonced_that_does_not_run_says_why(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "kvonced")
            with mock.patch.dict(os.environ, {"KVONCE_KVONCED": program}):
                self.assertRegex(doctor.check_kvonced()[0].text, "does not run: .*No such file")
                pathlib.Path(program).write_text("#!/bin/sh\necho 'libfoo.so is missing' >&2\nexit 3\n")
                os.chmod(program, 0o755)
                finding = doctor.check_kvonced()[0]
        self.assertEqual(finding.state, "bad")
        self.assertIn("libfoo.so is missing", finding.text)

    @unittest.skipUnless(hasattr(sys.modules["kvonce"], "Runtime"), "needs the native library")
    def test_the_real_thing(self):
        done = subprocess.run([sys.executable, "-m", "kvonce.doctor", "--json"], capture_output=True, text=True, timeout=120)
        found = {f["subject"]: f for f in json.loads(done.stdout)["findings"]}
        states = {subject: found[subject]["state"] for subject in ("library", "python", "cpu", "kvonced", "start")}
        self.assertEqual(states, dict.fromkeys(states, "ok"), done.stdout)
        self.assertTrue(re.match("kvonce ", found["library"]["text"]))


if __name__ == "__main__":
    unittest.main()
