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
        self.HookType = types.SimpleNamespace(AROUND="around")

    def register(self, target, hook, hook_type):
        self.hooks.setdefault(target, []).append(hook)

    def apply_hooks(self):
        for target, hooks in self.hooks.items():
            if target not in self.patched:
                self.patched.add(target)
                module, owner, name = target.rsplit(".", 2)
                owner = getattr(sys.modules[module], owner)
                for hook in hooks:
                    setattr(owner, name, self._wrapped(getattr(owner, name), hook))

    @staticmethod
    def _wrapped(original, hook):
        return lambda *args: hook(original, *args)


class Pool:
    """An allocator of pages of 4 slots."""

    page_size, size = 4, 42

    def __init__(self):
        self.kept = 0

    def available_size(self):
        return 40 - self.kept


def engine_classes():
    """The engine's classes, new ones for each test."""

    class WeightUpdater:
        fails = None

        def update_weights_from_disk(self):
            if self.fails:
                raise self.fails

        def begin_weight_update(self):
            pass

        def end_weight_update(self):
            pass

    class SchedulerWeightUpdaterManager:
        open = False

        def __init__(self, runner, tree):
            self.runner, self.tree = runner, tree
            self.flush_cache = tree.reset
            self.memory_saver_adapter = types.SimpleNamespace(enabled=True)

        def update_weights_from_disk(self, request):
            self.runner.update_weights_from_disk()
            if request.flush_cache:
                self.tree.reset()
            return types.SimpleNamespace(success=True)

        def begin_weight_update(self, request):
            good, self.open = not self.open, True
            if good:
                self.runner.begin_weight_update()
            return types.SimpleNamespace(success=good)

        def end_weight_update(self, request):
            good, self.open = self.open, False
            if good:
                self.runner.end_weight_update()
            return types.SimpleNamespace(success=good)

        def resume_memory_occupation(self, request):
            pass

        def check_weights(self, request):
            pass

    class UnifiedRadixCache:
        def __init__(self):
            self.token_to_kv_pool_allocator, self.host = Pool(), Pool()
            self.cache_controller = types.SimpleNamespace(
                mem_pool_host=types.SimpleNamespace(entries=[types.SimpleNamespace(host_pool=self.host)])
            )

        def reset(self):
            self.token_to_kv_pool_allocator.kept = self.host.kept = 0

        def detach_storage_backend(self):
            pass

    return WeightUpdater, SchedulerWeightUpdaterManager, UnifiedRadixCache


class Case(unittest.TestCase):
    def setUp(self):
        self.runner_class, self.manager_class, self.tree_class = engine_classes()
        self.tree = self.tree_class()
        self.runner = self.runner_class()
        self.manager = self.manager_class(self.runner, self.tree)
        hicache_storage = types.SimpleNamespace(
            HiCacheStorage=object, PoolTransferResult=lambda pages, hits: types.SimpleNamespace(pages=pages, hits=hits)
        )
        memory = types.SimpleNamespace(hicache_storage_backend="dynamic")
        self.memory = memory
        self.modules = {
            "sglang.srt.mem_cache.hicache_storage": hicache_storage,
            "sglang.srt.mem_cache.unified_radix_cache": types.SimpleNamespace(UnifiedRadixCache=self.tree_class),
            "sglang.srt.managers.scheduler_components.weight_updater": types.SimpleNamespace(
                SchedulerWeightUpdaterManager=self.manager_class
            ),
            "sglang.srt.model_executor.model_runner_components.weight_updater": types.SimpleNamespace(WeightUpdater=self.runner_class),
            "sglang.srt.plugins.hook_registry": Registry(),
            "sglang.srt.runtime_context": types.SimpleNamespace(get_memory=lambda: memory),
        }
        for name in list(self.modules):
            while name := name.rpartition(".")[0]:
                self.modules.setdefault(name, types.ModuleType(name))
        self.modules["sglang.srt.mem_cache"].hicache_storage = hicache_storage
        self.modules["sglang.srt"].runtime_context = self.modules["sglang.srt.runtime_context"]
        patch = mock.patch.dict(sys.modules, self.modules)
        patch.start()
        self.addCleanup(patch.stop)
        package = importlib.import_module("kvonce.sglang")
        for name in ("updates", "hicache", "hicache_store"):  # each test has a process's first import
            sys.modules.pop("kvonce.sglang." + name, None)
            vars(package).pop(name, None)
        self.addCleanup(self.forget, package)
        self.hicache = importlib.import_module("kvonce.sglang.hicache")
        self.updates = self.hicache.updates

    @staticmethod
    def forget(package):
        for name in ("updates", "hicache", "hicache_store"):
            sys.modules.pop("kvonce.sglang." + name, None)
            vars(package).pop(name, None)

    def update(self, flush=True):
        self.manager.update_weights_from_disk(types.SimpleNamespace(flush_cache=flush))

    def fill(self):
        """A request leaves pages."""
        self.tree.token_to_kv_pool_allocator.kept = 8

    def watch(self, **how):
        """What is heard: "changed", "stop", "go"."""
        heard = []
        listener = self.updates.Listener(lambda: heard.append("changed"), lambda on: heard.append("stop" if on else "go"))
        self.assertTrue(self.updates.watch(listener, **how))
        return heard


class Watching(Case):
    def test_all_who_listen_hear_of_every_update_until_they_stop(self):
        heard = self.watch()
        failing = self.updates.Listener(mock.Mock(side_effect=RuntimeError("mine")))
        gone = self.updates.Listener(mock.Mock())
        self.assertTrue(self.updates.watch(failing) and self.updates.watch(gone))
        with self.assertLogs("kvonce", "ERROR"):
            self.update()
        self.assertEqual((heard, self.updates.mixed()), (["changed", "stop", "go"], False))
        self.updates.unwatch(gone)
        with self.assertLogs("kvonce", "ERROR"):
            self.update()
        self.assertEqual((failing.changed.call_count, gone.changed.call_count, self.updates.number()), (2, 1, 2))

    def test_a_trainer_that_writes_the_weights_itself(self):
        heard = self.watch()
        self.tree.reset()
        self.fill()
        heard.clear()
        self.manager.begin_weight_update(None)
        self.assertEqual((heard, self.updates.mixed()), (["changed"], True))
        self.manager.begin_weight_update(None)  # refused: one is open already
        self.tree.reset()  # what comes until the end is of weights that are on their way
        self.assertTrue(self.updates.mixed())
        self.fill()
        self.manager.end_weight_update(None)
        self.assertTrue(self.updates.mixed())
        self.tree.reset()
        self.assertEqual((self.updates.mixed(), self.updates.number()), (False, 1))
        self.manager.end_weight_update(None)  # refused: none is open
        self.assertFalse(self.updates.mixed())

    def test_updates_within_a_begun_one_are_one(self):
        heard = self.watch()
        self.manager.begin_weight_update(None)
        for flush in (False, False, True):
            self.update(flush)
        self.assertEqual((heard.count("changed"), self.updates.mixed()), (1, True))
        self.manager.end_weight_update(None)
        self.assertEqual((self.updates.mixed(), self.updates.number()), (False, 1))

    def test_a_flush_before_the_updates_is_as_good_as_one_after_them(self):
        heard = self.watch()
        self.tree.reset()
        for _ in range(3):
            self.update(flush=False)
            self.assertFalse(self.updates.mixed())
        self.assertEqual(heard.count("changed"), 3)
        self.fill()
        self.update(flush=False)
        self.assertTrue(self.updates.mixed())
        self.tree.reset()
        self.assertFalse(self.updates.mixed())
        self.tree.host.kept = 4  # written back meanwhile
        self.update(flush=False)
        self.assertTrue(self.updates.mixed())

    def test_what_holds_the_pages_is_not_known(self):
        heard = self.watch()
        self.update(flush=False)
        self.assertEqual((heard, self.updates.mixed()), (["changed"], True))
        self.updates.pools_are([types.SimpleNamespace(size=3)])
        self.update(flush=False)
        self.assertTrue(self.updates.mixed())

    def test_pages_that_are_kept_are_told_once_and_when_they_matter(self):
        self.watch()
        self.updates.complain()
        self.manager.begin_weight_update(None)
        with self.assertNoLogs("kvonce", "WARNING"):
            self.updates.complain()  # the flush may still come
        self.manager.end_weight_update(None)
        with self.assertLogs("kvonce", "WARNING") as logs:
            for _ in range(10):
                self.updates.complain()
        self.assertEqual(len(logs.output), 1)
        self.assertRegex(logs.output[0], "flush_cache.*on_reset")

    def test_other_calls_that_change_weights(self):
        self.watch()
        resume, check = self.manager.resume_memory_occupation, self.manager.check_weights
        for call, request, counts in (
            (resume, types.SimpleNamespace(tags=["kv_cache"]), 0),
            (resume, types.SimpleNamespace(tags=["weights"]), 1),
            (resume, types.SimpleNamespace(tags=None), 1),
            (check, types.SimpleNamespace(action="checksum"), 0),
            (check, types.SimpleNamespace(action="reset_tensors"), 1),
        ):
            before = self.updates.number()
            call(request)
            self.assertEqual(self.updates.number() - before, counts, request)
        self.manager.memory_saver_adapter.enabled = False
        resume(types.SimpleNamespace(tags=None))  # nothing had been given up
        self.assertEqual(self.updates.number(), 3)

    def test_an_update_that_fails_is_one(self):
        heard = self.watch()
        self.runner.fails = OSError("no such file")
        with self.assertRaises(OSError):
            self.update()
        self.assertEqual((heard, self.updates.mixed()), (["changed"], True))
        self.runner.fails = None
        self.update()
        self.assertEqual((self.updates.mixed(), self.updates.number()), (False, 2))

    def taken(self, *places):
        """Another plug-in has hooked these before."""
        registry = self.modules["sglang.srt.plugins.hook_registry"]
        for place in places:
            registry.register(f"sglang.srt.{place}.update_weights_from_disk", lambda original, *args: original(*args), "around")
        registry.apply_hooks()

    def test_another_plug_in_was_at_the_scheduler_before(self):
        self.taken("managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager")
        heard = self.watch()
        self.update()
        self.assertEqual((heard.count("changed"), self.updates.number()), (1, 1))

    def test_another_plug_in_was_everywhere_before(self):
        self.taken(
            "managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager",
            "model_executor.model_runner_components.weight_updater.WeightUpdater",
        )
        for _ in range(2):
            self.assertFalse(self.updates.watch(self.updates.Listener(mock.Mock())))


class Storage(Case):
    """HiCacheStorage with a store in memory."""

    def setUp(self):
        super().setUp()
        case = self
        case.stores = []

        class Store:
            def __init__(self, *_args, **_more):
                case.stores.append(self)
                self.calls, self.stops = [], []

            def check_names(self):
                pass

            build = retire = None

            def weights_changed(self, number):
                self.calls.append(number)

            def stopping(self, on):
                self.stops.append(on)

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

    def test_every_backend_of_a_process_knows_all_updates(self):
        first, second = self.storage(), self.storage()
        self.assertEqual(first.batch_exists(["a"]), 1)
        self.update()
        self.assertEqual((self.stores[0].calls, self.updates.mixed()), ([0, 1], False))
        self.assertEqual(self.stores[0].stops, [True, False])
        self.assertEqual(second.batch_exists(["a"]), 1)  # opened after the update
        self.assertEqual(self.stores[1].calls, [1])
        first.close()
        second.close()
        self.fill()
        self.update(flush=False)  # while none is attached
        third = self.storage()
        self.assertEqual(third.batch_exists(["a"]), 1)
        self.assertEqual((self.stores[2].calls, self.updates.mixed()), ([2], True))
        self.assertEqual(len(self.stores[0].calls), 2)
        self.tree.reset()
        self.assertEqual((self.stores[2].calls, self.updates.mixed()), ([2], False))
        self.tree.detach_storage_backend()
        self.assertEqual(self.stores[2].stops, [True, False] * 2)

    def attached_late(self, **settings):
        """A backend that is attached to a running engine, which has looked its methods up already."""
        self.memory.hicache_storage_backend = None
        self.manager.update_weights_from_disk = self.manager.update_weights_from_disk
        return self.storage(**settings)

    def test_what_came_before_the_first_backend_was_attached_is_not_known(self):
        with self.assertLogs("kvonce", "WARNING") as logs:
            storage = self.attached_late()
            self.assertEqual(storage.batch_exists(["a"]), 1)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("/flush_cache", logs.output[0])
        self.assertEqual((self.stores[0].calls, self.updates.mixed()), ([1], True))
        self.update(flush=False)
        self.assertEqual((self.stores[0].calls, self.updates.mixed()), ([1, 2], True))
        storage.close()
        again = self.storage()  # no update came in between
        again.batch_exists(["a"])
        self.assertEqual((self.stores[1].calls, self.updates.mixed()), ([2], True))
        self.tree.reset()
        self.assertEqual((self.stores[1].calls, self.updates.mixed()), ([2], False))

    def test_the_operator_may_know_better(self):
        storage = self.attached_late(on_reset="keep")
        storage.batch_exists(["a"])
        self.assertEqual((self.stores[0].calls, self.updates.mixed()), ([0], False))
        self.update(flush=False)
        self.assertEqual((self.stores[0].calls, self.updates.mixed()), ([0, 1], True))

    def test_a_running_engine_whose_updates_cannot_be_heard_is_refused(self):
        del self.modules["sglang.srt.model_executor.model_runner_components.weight_updater"].WeightUpdater
        with self.assertLogs("kvonce", "WARNING") as logs:
            self.attached_late()
        self.assertIn("cannot be heard", logs.output[0])

    def test_one_call_must_not_outlast_a_flush(self):
        for settings in ({"put_ms": 8000}, {"load_ms": 30_000}, {"lookup_ms": 4000}):
            with self.assertLogs("kvonce", "WARNING") as logs:
                storage = self.storage(**settings)
            self.assertRegex(logs.output[0], r"lookup_ms and \w+_ms are [\d,]+ ms together.* 8,000")
            self.assertEqual(storage.batch_exists(["a"]), 0)
        self.assertEqual(self.storage(load_ms=7900, put_ms=7000).batch_exists(["a"]), 1)
        self.assertEqual((self.storage().settings.load_ms, self.storage().settings.put_ms), (5000, 5000))

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
