# SPDX-License-Identifier: Apache-2.0
"""Hearing of weight updates, and what HiCacheStorage does at start, with stand-ins for SGLang's modules."""

import importlib
import sys
import types
import unittest
from unittest import mock

import engine_parts
import sglang_parts as parts

engine = engine_parts.load()


class Registry:
    """As SGLang's: hooks are applied to a function once, in the order of their registration; later ones are never heard."""

    def __init__(self):
        self.hooks, self.patched = {}, set()
        self.HookRegistry = self
        self.HookType = types.SimpleNamespace(BEFORE="before", AFTER="after")

    def register(self, target, hook, hook_type):
        self.hooks.setdefault(target, []).append((hook_type, hook))

    def apply_hooks(self):
        for target, hooks in self.hooks.items():
            if target in self.patched:
                continue
            self.patched.add(target)
            module, owner, name = target.rsplit(".", 2)
            owner = getattr(sys.modules[module], owner)
            setattr(owner, name, self._wrapped(getattr(owner, name), hooks))

    def _wrapped(self, original, hooks):
        def wrapped(*args):
            for kind, hook in hooks:
                if kind == "before":
                    assert hook(*args) is None
            result = original(*args)
            for kind, hook in hooks:
                if kind == "after":
                    assert hook(result, *args) is None
            return result

        return wrapped


class Updater:
    """The engine's class: a request says whether to flush."""

    def update_weights_from_disk(self, request):
        return types.SimpleNamespace(success=True)


class Case(unittest.TestCase):
    def setUp(self):
        self.updater = type("SchedulerWeightUpdaterManager", (), {"update_weights_from_disk": Updater.update_weights_from_disk})
        place = "sglang.srt.managers.scheduler_components.weight_updater"
        hicache_storage = types.SimpleNamespace(
            HiCacheStorage=object, PoolTransferResult=lambda pages, hits: types.SimpleNamespace(pages=pages, hits=hits)
        )
        self.modules = {
            "sglang": types.ModuleType("sglang"),
            "sglang.srt": types.ModuleType("sglang.srt"),
            "sglang.srt.mem_cache": types.SimpleNamespace(hicache_storage=hicache_storage),
            "sglang.srt.mem_cache.hicache_storage": hicache_storage,
            place: types.SimpleNamespace(SchedulerWeightUpdaterManager=self.updater),
            "sglang.srt.plugins.hook_registry": Registry(),
        }
        for name in (place.rpartition(".")[0], "sglang.srt.managers", "sglang.srt.plugins"):
            self.modules[name] = types.ModuleType(name)
        patch = mock.patch.dict(sys.modules, self.modules)
        patch.start()
        self.addCleanup(patch.stop)
        package = importlib.import_module("kvonce.sglang")
        for name in ("updates", "hicache"):  # each test has a process's first import
            sys.modules.pop("kvonce.sglang." + name, None)
            vars(package).pop(name, None)
        self.hicache = importlib.import_module("kvonce.sglang.hicache")
        self.updates = self.hicache.updates

    def update(self, flush=True):
        self.updater().update_weights_from_disk(types.SimpleNamespace(flush_cache=flush))


class Watching(Case):
    def test_all_who_listen_hear_of_every_update_until_they_stop(self):
        heard = []
        listeners = [mock.Mock(), mock.Mock(side_effect=RuntimeError("mine"))]
        listeners.append(lambda: heard.append("changed"))
        for listener in listeners:
            self.assertTrue(self.updates.watch(listener, heard.append))
        with self.assertLogs("kvonce", "ERROR"):
            self.update()
        self.assertEqual(heard, ["changed", True, True, True])
        self.updates.unwatch(listeners[1])
        self.update(flush=False)
        self.assertEqual(heard[4:], ["changed", False, False])
        self.assertEqual(listeners[0].call_count, 2)

    def test_another_plug_in_was_there_before(self):
        registry = self.modules["sglang.srt.plugins.hook_registry"]
        registry.register(
            "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager.update_weights_from_disk",
            lambda *_: None,
            "before",
        )
        registry.apply_hooks()
        self.assertFalse(self.updates.watch(print))
        self.assertFalse(self.updates.watch(print))


class Storage(Case):
    """HiCacheStorage with a store in memory."""

    def setUp(self):
        super().setUp()
        case = self
        case.stores = []

        class Store:
            def __init__(self, *_args, **_more):
                case.stores.append(self)
                self.calls = []

            def check_names(self):
                pass

            build = retire = None

            def weights_changed(self):
                self.calls.append("changed")

            def weights_replaced(self, flushed):
                self.calls.append(flushed)

            def leading_kv(self, keys):
                return len(keys)

            def close(self):
                pass

        pool = types.SimpleNamespace(pool=types.SimpleNamespace(dtype="bfloat16"), mode="direct", page_slots=4)
        patches = (
            mock.patch.object(self.hicache, "open_pool", lambda *_: pool),
            mock.patch.object(self.hicache, "Connection", lambda *_: parts.Link()),
            mock.patch.object(self.hicache.HiCacheStorage, "store_class", Store),
        )
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)

    def storage(self, **settings):
        config = types.SimpleNamespace(extra_config={"model_id": "m", **settings}, tp_rank=0, tp_size=1)
        made = self.hicache.HiCacheStorage(config, {})
        self.addCleanup(made.close)
        made.register_mem_pool_host(types.SimpleNamespace())
        return made

    def test_updates_that_cannot_be_heard_are_refused_at_start_unless_there_are_none(self):
        del sys.modules["sglang.srt.plugins.hook_registry"]
        with self.assertLogs("kvonce", "WARNING") as logs:
            storage = self.storage()
        self.assertEqual(len(logs.output), 1)
        self.assertRegex(logs.output[0], "weight updates cannot be heard.*on_reset to keep")
        self.assertEqual((storage.batch_exists(["a"]), self.stores), (0, []))
        self.assertEqual(self.storage(on_reset="keep").batch_exists(["a"]), 1)

    def test_every_backend_of_a_process_hears_of_updates_from_the_start(self):
        storages = [self.storage(), self.storage()]
        self.assertEqual(storages[0].batch_exists(["a"]), 1)
        self.update()
        self.update(flush=False)
        self.assertEqual(storages[1].batch_exists(["a"]), 1)  # opened after the updates
        self.assertEqual([store.calls for store in self.stores], [["changed", True, "changed", False]] * 2)
        storages[0].close()
        self.update()
        self.assertEqual([len(store.calls) for store in self.stores], [4, 6])

    def test_a_store_that_cannot_be_set_up_is_tried_and_told_once(self):
        for error in (OSError(5, "Input/output error"), engine.Refused("kvonce: no.")):
            storage = self.storage()
            with mock.patch.object(self.hicache, "identity_of", side_effect=error) as identity_of:
                with self.assertLogs("kvonce", "WARNING") as logs:
                    self.assertEqual([storage.batch_exists(["a"]) for _ in range(10)], [0] * 10)
                self.assertEqual(identity_of.call_count, 1)
            self.assertEqual(sum("SGLang goes on without kvonce" in line for line in logs.output), 1)


if __name__ == "__main__":
    unittest.main()
