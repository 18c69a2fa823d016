# SPDX-License-Identifier: Apache-2.0
"""What both adapters make of an engine's configuration: no engine, no torch, no native library."""

import json
import os
import pathlib
import sys
import tempfile
import types
import unittest
from unittest import mock

import engine_parts
import sglang_parts
import vllm_parts

engine = engine_parts.load()


class LoadFormats(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        root = pathlib.Path(held.name)
        self.model = root / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text(json.dumps({"hidden_size": 64}))
        (self.model / "model.safetensors").write_bytes(b"weights")
        torch = types.SimpleNamespace(
            backends=types.SimpleNamespace(cpu=types.SimpleNamespace(get_cpu_capability=lambda: "AVX2"))
        )
        modules = {"vllm": types.SimpleNamespace(__version__="0.32.0"), "torch": torch}
        for patch in (mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(root / "cache")}), mock.patch.dict(sys.modules, modules)):
            patch.start()
            self.addCleanup(patch.stop)

    def vllm(self, load_format, settings, **options):
        facts = vllm_parts.load("facts")
        model = types.SimpleNamespace(model=str(self.model), revision=None, hf_overrides=None, quantization=None)
        load = types.SimpleNamespace(load_format=load_format, model_loader_extra_config=options)
        config = types.SimpleNamespace(model_config=model, cache_config=types.SimpleNamespace(), load_config=load)
        known = vllm_parts.facts(dtype="bfloat16", kv_dtype="auto", hash_algorithm="sha256", device="cpu")
        return facts.identity_of(config, known, vllm_parts.plan(vllm_parts.full()), settings)

    def sglang(self, load_format, settings, **options):
        startup = sglang_parts.load("startup")
        args = types.SimpleNamespace(
            model_path=str(self.model), dtype="bfloat16", load_format=load_format, model_loader_extra_config=options
        )
        return startup.identity_of(startup.Facts(args), settings, layout="l", page_tokens=16, kv_dtype="bfloat16")

    def test_pages_are_shared_with_engines_only_that_load_the_weights_alike(self):
        settings, named = engine.Settings.parse({}), engine.Settings.parse({"model_id": "mine"})
        for identity in (self.vllm, self.sglang):
            auto = identity("auto", settings).text()
            self.assertEqual(identity("auto", settings, num_threads=8).text(), auto)
            texts = {auto, identity("pt", settings).text(), identity("sharded_state", settings).text()}
            texts |= {identity("sharded_state", settings, pattern=p).text() for p in "ab"}
            texts |= {identity("auto", named).text(), identity("dummy", named).text()}
            self.assertEqual(len(texts), 7, identity)
            with self.assertRaisesRegex(engine.Refused, "load format 'dummy'.*set model_id"):
                identity("dummy", settings)

    def test_a_draft_is_loaded_as_its_own_format_says(self):
        startup = sglang_parts.load("startup")
        settings = engine.Settings.parse({})

        def draft(**fields):
            args = types.SimpleNamespace(speculative_draft_model_path=str(self.model), **fields)
            return startup.draft_identity(startup.Facts(args), settings)

        self.assertIsNone(startup.draft_identity(startup.Facts(types.SimpleNamespace()), settings))
        plain = draft()
        self.assertEqual(draft(load_format="auto"), plain)
        self.assertEqual(draft(load_format="pt", speculative_draft_load_format="auto"), plain)
        self.assertNotEqual(draft(load_format="pt").short, plain.short)
        with self.assertRaisesRegex(engine.Refused, "dummy"):
            draft(speculative_draft_load_format="dummy")


if __name__ == "__main__":
    unittest.main()
