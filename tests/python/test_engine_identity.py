# SPDX-License-Identifier: Apache-2.0
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import tempfile
import threading
import unittest
from unittest import mock

import engine_parts

engine = engine_parts.load()
digest = engine_parts.load("kvonce.engine.digest")
Identity, ModelIdentity, Refused = engine.Identity, engine.ModelIdentity, engine.Refused


class Folder(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.root = pathlib.Path(held.name)
        patch = mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(self.root / "cache")})
        patch.start()
        self.addCleanup(patch.stop)
        for name in ("HF_HOME", "HF_HUB_CACHE"):
            os.environ.pop(name, None)

    def model(self, name, weights=b"w" * 10_000, config=None, file="model.safetensors"):
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config or {"hidden_size": 64}))
        (folder / file).write_bytes(weights)
        return folder

    def text(self, folder, **options):
        return engine.model_identity(str(folder), **options).text


class Weights(Folder):
    def test_the_path_says_nothing_and_every_byte_counts(self):
        weights = bytearray(os.urandom(9_000_000))
        one = self.text(self.model("one", bytes(weights)))
        self.assertRegex(one, r"^sha256:[0-9a-f]{64}$")
        self.assertEqual(self.text(self.model("two", bytes(weights))), one)
        weights[5_000_000] ^= 1
        self.assertNotEqual(self.text(self.model("three", bytes(weights))), one)

    def test_the_config_counts_but_not_where_a_copy_came_from(self):
        one = self.text(self.model("one", config={"hidden_size": 64, "rope": 1}))
        same = {"rope": 1, "hidden_size": 64, "_name_or_path": "/else/where", "transformers_version": "9"}
        self.assertEqual(self.text(self.model("two", config=same)), one)
        self.assertNotEqual(self.text(self.model("three", config={"hidden_size": 64, "rope": 2})), one)

    def test_other_files_that_decide_count_and_those_beside_the_model_do_not(self):
        folder = self.model("one")
        one = self.text(folder)
        (folder / "README.md").write_text("hello")
        (folder / "tokenizer.json").write_text("{}")
        (folder / "training_args.bin").write_bytes(b"of the training")
        (folder / "original.bin").mkdir()
        self.assertEqual(self.text(folder), one)
        (folder / "kv_cache_scales.json").write_text("{}")
        self.assertNotEqual(self.text(folder), one)

    def test_every_file_that_some_load_format_may_take_counts(self):
        folder = self.model("one")
        seen = {self.text(folder)}
        names = ("pytorch_model.bin", "a.pt", "a.pth", "a.gguf", "consolidated.safetensors", "model.safetensors.index.json")
        for name in (*names, "consolidated.safetensors.index.json", "adapter_config.json"):
            for content in (b"1", b"2"):
                (folder / name).write_bytes(content)
                seen.add(self.text(folder))
        self.assertEqual(len(seen), 1 + 2 * 8)

    def test_a_part_that_cannot_be_read_is_a_refusal_and_no_smaller_model(self):
        folder = self.model("one", file="model-1.safetensors")
        (folder / "model-2.safetensors").symlink_to(self.root / "gone")
        with mock.patch.object(digest, "_hash_file", side_effect=AssertionError("read")):
            with self.assertRaisesRegex(Refused, "^kvonce: .*cannot be read.*model-2.safetensors.*set model_id.$"):
                self.text(folder)
        (folder / "model-2.safetensors").unlink()
        os.mkfifo(folder / "model-2.safetensors")
        with self.assertRaisesRegex(Refused, "no regular file"):
            self.text(folder)
        (folder / "model-2.safetensors").unlink()
        (folder / "model-2.safetensors").symlink_to("model-2.safetensors")
        with self.assertRaises(Refused):
            self.text(folder)
        (folder / "model-2.safetensors").unlink()
        (folder / "config.json").write_text("[" * 100_000)
        with self.assertRaisesRegex(Refused, "RecursionError"):
            self.text(folder)

    def test_a_name_that_is_no_text_is_a_name_all_the_same(self):
        folder = self.model("one")
        one = self.text(folder)
        (folder / os.fsdecode(b"a\xff.safetensors")).write_bytes(b"w")
        self.assertNotEqual(self.text(folder), one)

    def test_which_shard_holds_which_bytes_counts(self):
        a = self.model("a", b"1" * 100, file="model-1.safetensors")
        (a / "model-2.safetensors").write_bytes(b"2" * 100)
        b = self.model("b", b"2" * 100, file="model-1.safetensors")
        (b / "model-2.safetensors").write_bytes(b"1" * 100)
        self.assertNotEqual(self.text(a), self.text(b))

    def test_a_file_is_hashed_once_and_again_when_it_changed(self):
        folder = self.model("one")
        with mock.patch.object(digest, "_hash_file", wraps=digest._hash_file) as hashing:
            one = self.text(folder)
            self.assertEqual(self.text(folder), one)
            self.assertEqual(hashing.call_count, 1)
            weights = folder / "model.safetensors"
            state = weights.stat()
            fresh = folder / "fresh"
            fresh.write_bytes(b"v" * 10_000)
            os.utime(fresh, ns=(state.st_atime_ns, state.st_mtime_ns))  # same size, same time: another inode
            fresh.replace(weights)
            self.assertNotEqual(self.text(folder), one)
            self.assertEqual(hashing.call_count, 2)

    def test_a_file_that_was_written_anew_under_its_old_time_is_hashed_again(self):
        folder = self.model("one")
        one = self.text(folder)
        weights = folder / "model.safetensors"
        before = weights.stat()
        while weights.stat().st_ctime_ns == before.st_ctime_ns:  # the kernel's clock goes in ticks
            with open(weights, "r+b") as file:
                file.write(b"v")
            os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
        after = weights.stat()
        self.assertEqual((after.st_size, after.st_mtime_ns, after.st_ino), (before.st_size, before.st_mtime_ns, before.st_ino))
        self.assertNotEqual(self.text(folder), one)

    def test_what_was_read_before_another_file_failed_is_kept(self):
        folder = self.model("one", file="model-1.safetensors")
        for n in (2, 3):
            (folder / f"model-{n}.safetensors").write_bytes(b"w" * n)
        hashed = []

        def failing(path):
            if path.name == "model-2.safetensors":
                raise OSError(5, "Input/output error")
            hashed.append(path.name)
            return original(path)

        original = digest._hash_file
        with mock.patch.object(digest, "_THREADS_MAX", 1), mock.patch.object(digest, "_hash_file", failing):
            for _ in range(3):
                with self.assertRaisesRegex(Refused, "Input/output error.*set model_id"):
                    self.text(folder)
        self.assertEqual(hashed.count("model-1.safetensors"), 1)
        self.assertLessEqual(hashed.count("model-3.safetensors"), 1)

    def test_a_broken_or_unwritable_cache_costs_time_and_nothing_else(self):
        folder = self.model("one")
        one = self.text(folder)
        cache = self.root / "cache" / "kvonce" / "weight_digests.json"
        for content in ("not json", "[]", json.dumps({key: "0" * 63 for key in json.loads(cache.read_text())})):
            cache.write_text(content)
            self.assertEqual(self.text(folder), one)
        os.environ["XDG_CACHE_HOME"] = str(folder / "config.json")  # no folder can be made there
        self.assertEqual(self.text(folder), one)

    def test_one_process_hashes_while_the_others_wait_and_not_for_ever(self):
        folder = self.model("one")
        cache = self.root / "cache" / "kvonce"
        cache.mkdir(parents=True)
        with open(cache / "weight_digests.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            asked = threading.Event()

            def poll(seconds):
                asked.set()
                released.wait(30)

            released = threading.Event()
            found = []
            with mock.patch.object(digest.time, "sleep", poll):
                thread = threading.Thread(target=lambda: found.append(self.text(folder)))
                thread.start()
                self.assertTrue(asked.wait(30))
                self.assertEqual(found, [])
                fcntl.flock(lock, fcntl.LOCK_UN)
                released.set()
                thread.join(30)
            self.assertEqual(len(found), 1)
            fcntl.flock(lock, fcntl.LOCK_EX)
            (cache / "weight_digests.json").unlink()
            with mock.patch.object(digest, "_TURN_SECONDS", 0.0):
                self.assertEqual(self.text(folder), found[0])

    def test_a_blob_of_a_hub_cache_is_named_by_its_digest_and_not_read(self):
        weights = os.urandom(1000)
        plain = self.text(self.model("plain", weights))
        hub = self.root / "cache" / "huggingface" / "hub" / "models--org--name"
        (hub / "blobs").mkdir(parents=True)
        snapshot = hub / "snapshots" / "c0ffee"
        snapshot.mkdir(parents=True)
        (hub / "refs").mkdir()
        (hub / "refs" / "main").write_text("c0ffee")
        name = hashlib.sha256(weights).hexdigest()
        (hub / "blobs" / name).write_bytes(weights)
        (snapshot / "model.safetensors").symlink_to(hub / "blobs" / name)
        (snapshot / "config.json").write_text(json.dumps({"hidden_size": 64}))
        with mock.patch.object(digest, "_hash_file", side_effect=AssertionError("read")):
            self.assertEqual(self.text("org/name"), plain)
            self.assertEqual(self.text("org/name", revision="c0ffee"), plain)
        with self.assertRaisesRegex(Refused, "set model_id"):
            engine.model_identity("org/name", revision="other")

    def test_a_blobs_name_is_believed_in_a_hub_cache_only(self):
        name = hashlib.sha256(b"another content").hexdigest()
        one = self.text(self.model("one"))
        cache = self.root / "models--org--name"
        for blobs, folder in (
            (self.root / "blobs", self.root / "linked"),  # any folder of that name
            (self.root / "x" / "blobs", self.root / "x" / "snapshots" / "1"),
            (cache / "blobs", cache / "mine"),  # the cache's, linked to by somebody else
        ):
            blobs.mkdir(parents=True)
            (blobs / name).write_bytes(b"w" * 10_000)
            folder.mkdir(parents=True)
            (folder / "config.json").write_text(json.dumps({"hidden_size": 64}))
            (folder / "model.safetensors").symlink_to(blobs / name)
            self.assertEqual(self.text(folder), one)

    def test_a_model_in_one_file(self):
        folder = self.model("one", file="m.gguf")
        one = self.text(folder)
        self.assertEqual(self.text(folder / "m.gguf"), one)
        (folder / "other.gguf").write_bytes(b"another one")
        self.assertEqual(self.text(folder / "m.gguf"), one)
        (folder / "mmproj-m.gguf").write_bytes(b"for images")
        self.assertNotEqual(self.text(folder / "m.gguf"), one)

    def test_a_model_in_parts_named_by_one_of_them(self):
        folder = self.model("one", file="m-00001-of-00002.gguf")
        seen = set()
        for content in (b"1", b"2"):
            (folder / "m-00002-of-00002.gguf").write_bytes(content)
            seen.add(self.text(folder / "m-00001-of-00002.gguf"))
        self.assertEqual(len(seen), 2)

    def test_nothing_to_read_is_refused_with_the_way_out(self):
        (self.root / "empty").mkdir()
        for path in (str(self.root / "empty"), str(self.root / "absent"), "org/unknown", "s3://bucket/model"):
            with self.assertRaisesRegex(Refused, "set model_id"):
                engine.model_identity(path)

    def test_how_the_files_are_loaded_decides_which(self):
        folder = self.model("one")
        settings = engine.Settings.parse({})

        def texts(model):
            identity = Identity(model=model, dtype="bf16", page_tokens=16, layout="l")
            return identity.text(), identity.family_text, model.short

        known = (None, "auto", "PT", "safetensors", "mistral", "sharded_state")
        found = [texts(settings.model_identity(str(folder), "", name)) for name in known]
        found += [texts(settings.model_identity(str(folder), "", "sharded_state", {"pattern": p})) for p in "ab"]
        for column in zip(*found):
            self.assertEqual(len(set(column)), len(found) - 1)
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0], texts(settings.model_identity(str(folder), "", "auto", {"num_threads": 8})))
        self.assertEqual(found[2], texts(settings.model_identity(str(folder), "", "pt", "{}")))

    def test_weights_that_are_in_no_file_need_an_id(self):
        folder = self.model("one")
        for name in ("dummy", "remote", "npcache", "tomorrow's"):
            with self.assertRaisesRegex(Refused, f"{name}.*set model_id"):
                engine.Settings.parse({}).model_identity(str(folder), "", name)
        named = engine.Settings.parse({"model_id": "mine"})
        dummy = named.model_identity(str(folder), "", "dummy")
        self.assertEqual((dummy.text, dummy.load), ("id:mine", "dummy"))
        self.assertNotEqual(dummy, named.model_identity(str(folder), "", "auto"))

    def test_no_name_is_no_model_in_the_folder_one_is_in(self):
        here = os.getcwd()
        os.chdir(self.model("one"))
        self.addCleanup(os.chdir, here)
        with self.assertRaisesRegex(Refused, "set model_id"):
            engine.model_identity("")

    def test_an_explicit_id_stands_for_the_content(self):
        self.assertEqual(engine.model_identity("/nowhere", "r1", model_id="mine"), ModelIdentity("id:mine", "r1"))
        settings = engine.Settings.parse({"model_id": "mine"})
        self.assertEqual(settings.model_identity("/nowhere").text, "id:mine")


class Texts(unittest.TestCase):
    def setUp(self):
        self.identity = Identity(
            model=ModelIdentity("id:m", "main"), dtype="bfloat16", page_tokens=64, layout="sglang mla", hash_scheme="sglang-sha256"
        )

    def changed(self, **fields):
        return dataclasses.replace(self.identity, **fields)

    def test_whatever_decides_the_bytes_is_in_the_text(self):
        others = [
            self.changed(**fields)
            for fields in (
                {"model": ModelIdentity("id:n", "main")},
                {"model": ModelIdentity("id:m", "dev")},
                {"dtype": "float16"},
                {"page_tokens": 32},
                {"layout": "sglang mha"},
                {"kv_dtype": "fp8_e4m3"},
                {"kv_scales": "checkpoint"},
                {"hash_scheme": "sha256"},
                {"stages": "0-1,2-3"},
                {"namespace": "ci"},
                {"tenant": "t"},
                {"extra": {"rope": "2"}},
            )
        ]
        texts = {identity.text() for identity in [self.identity, *others]} | {self.identity.text("random:00")}
        self.assertEqual(len(texts), len(others) + 2)
        self.assertIn("page=64", self.identity.text())
        self.assertEqual(self.changed(kv_dtype="bfloat16").text(), self.identity.text())

    def test_no_value_can_pretend_to_be_another_field(self):
        self.assertNotEqual(
            self.changed(namespace="a | tenant=b").text(), self.changed(namespace="a", tenant="b").text()
        )
        self.assertNotEqual(self.changed(tenant="a%7c").text(), self.changed(tenant="a|").text())

    def test_a_text_that_the_store_does_not_take_is_refused_at_once(self):
        with self.assertRaisesRegex(Refused, "4096"):
            self.changed(extra={"overrides": "x" * 4096})

    def test_a_draft_has_a_pool_of_its_own_and_changes_nothing_for_the_target(self):
        a, b = ModelIdentity("id:a"), ModelIdentity("id:b")
        self.assertNotEqual(engine.draft_pool_name("draft", a), engine.draft_pool_name("draft", b))
        self.assertEqual(engine.draft_pool_name("draft", a), engine.draft_pool_name("draft", ModelIdentity("id:a")))
        with self.assertRaises(Refused):
            engine.draft_pool_name("d" * 250, a)


class OtherLayouts(unittest.TestCase):
    def announce(self, store, **fields):
        identity = Identity(model=ModelIdentity("id:m"), dtype="bfloat16", layout="l", **fields)
        other = engine.OtherLayouts(identity)
        other.announce(engine_parts.MemoryRuntime(store))
        return other

    def test_a_first_page_that_is_absent_while_another_layout_is_known(self):
        store = engine_parts.MemoryStore()
        first = self.announce(store, page_tokens=64)
        self.assertEqual(first.cause("absent", 0), "absent")
        same = self.announce(store, page_tokens=64)
        self.assertEqual(same.cause("absent", 0), "absent")
        second = self.announce(store, page_tokens=32)
        self.assertEqual(second.cause("absent", 0), "other_layout")
        self.assertEqual(second.cause("absent", 3), "absent")
        self.assertEqual(second.cause("evicted", 0), "evicted")
        self.assertEqual(second.cause(None, 0), "absent")
        self.assertEqual(self.announce(store, page_tokens=64, tenant="t").cause("absent", 0), "absent")

    def test_labels_fit_a_pools_name_and_differ_however_long_the_layout_is(self):
        model = ModelIdentity("id:m")
        a, b = (Identity(model=model, dtype="bf16", page_tokens=64, layout="ä" * 400 + end) for end in "xy")
        self.assertLessEqual(len(a.layout_label.encode()), 255)
        self.assertNotEqual(a.layout_label, b.layout_label)
        self.assertEqual(a.family_text, b.family_text)

    def test_pools_of_the_same_namespace_with_other_shards_or_layout_suffix(self):
        store = engine_parts.MemoryStore()
        runtime = engine_parts.MemoryRuntime(store)
        identity = Identity(model=ModelIdentity("id:m"), dtype="bf16", layout="l", page_tokens=16)
        runtime.namespace(identity.text()).group("g", [("kv-aa", (2, 1, 1)), ("mla-bb", (1, 1, 1))], (2, 1, 1))
        other = engine.OtherLayouts(identity)

        def cause(**pools):
            names = {name.replace("_", "-"): shards for name, shards in pools.items()}
            other.announce(runtime, runtime.namespace(identity.text()), names)
            return other.cause("absent", 0)

        self.assertEqual(cause(kv_aa=(2, 1, 1), mla_bb=(1, 1, 1)), "absent")
        self.assertEqual(cause(kv_aa=(4, 1, 1)), "other_layout")
        self.assertEqual(cause(kv_cc=(2, 1, 1)), "other_layout")
        self.assertEqual(cause(swa_aa=(2, 1, 1)), "absent")


class Refusals(unittest.TestCase):
    def test_scales_that_are_not_carried(self):
        for dtype, scales in (("bfloat16", "none"), ("torch.float16", "none"), ("fp8_e4m3", "none"), ("fp8", "checkpoint")):
            engine.check_kv_scales(dtype, scales)
        for dtype, scales in (("fp8_e4m3", "dynamic"), ("nvfp4", "none"), ("fp4_e2m1", "checkpoint"), ("int4", "none")):
            with self.assertRaises(Refused):
                engine.check_kv_scales(dtype, scales)

    def test_hashes_that_differ_between_processes(self):
        engine.check_hash_algorithm("sha256")
        engine.check_hash_algorithm("sha256_cbor")
        for name in ("xxhash", "xxhash_cbor", "builtin"):
            with self.assertRaises(Refused):
                engine.check_hash_algorithm(name)


if __name__ == "__main__":
    unittest.main()
