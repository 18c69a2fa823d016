# SPDX-License-Identifier: Apache-2.0
"""The class that vLLM loads: whatever goes wrong in a hook, the engine hears of nothing to load and nothing to do."""
import inspect
import logging
import types
import unittest

import vllm_parts as v

connector = v.connector()
GUARD = "kvonce"


class Broken(Exception):
    pass


class Raises:
    """In place of a side: every call raises."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        if name in ("events", "busy", "frees_soon"):
            raise Broken(name)

        def call(*_, **__):
            self.asked.append(name)
            raise Broken(name)

        return call


def bare(role="scheduler"):
    """A connector that was not set up: a set-up that is refused is told, and asks for nothing."""
    config = types.SimpleNamespace(
        kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={"no such": 1}),
        parallel_config=types.SimpleNamespace(rank=0, tensor_parallel_size=1),
    )
    with Quiet():
        return connector.KvonceConnector(config, role, None)


class Quiet:
    """Keeps what is logged to itself."""

    def __enter__(self):
        self.records = []
        self.handler = logging.Handler()
        self.handler.emit = self.records.append
        self.loggers = [logging.getLogger(name) for name in (GUARD, "kvonce.vllm.connector")]
        for logger in self.loggers:
            logger.addHandler(self.handler)
            logger.propagate = False
        self.level = self.loggers[0].level
        self.loggers[0].setLevel(logging.DEBUG)
        return self

    def __exit__(self, *_):
        for logger in self.loggers:
            logger.removeHandler(self.handler)
        self.loggers[0].setLevel(self.level)

    def texts(self, level):
        return [record.getMessage() for record in self.records if record.levelno == level]


def blocks(*table):
    return types.SimpleNamespace(get_block_ids=lambda: table)


def empty_output():
    return types.SimpleNamespace(kv_connector_worker_meta=None, finished_recving={"r"}, failed_recving=set(), finished_sending={"r"})


REQUEST = v.Request("r", 200)
METADATA = connector.KvonceMetadata(v.messages.Step())
#: hook -> (arguments, what the engine hears when it fails)
SCHEDULER_HOOKS = {
    "bind_gpu_block_pool": ((v.BlockPool(),), None),
    "on_new_request": ((REQUEST,), None),
    "get_num_new_matched_tokens": ((REQUEST, 0), (0, False)),
    "update_state_after_alloc": ((REQUEST, blocks([1]), 64), None),
    "get_external_cache_hit_sources": ((REQUEST, Broken), {}),
    "build_connector_meta": ((v.output({}),), "metadata"),
    "update_connector_output": ((empty_output(),), None),
    "request_finished": ((REQUEST, []), (False, None)),
    "request_finished_all_groups": ((REQUEST, ([],)), (False, None)),
    "has_pending_push_work": ((), False),
    "has_pending_block_frees": ((), False),
    "reset_cache": ((), True),
    "take_events": ((), ()),
    "get_kv_connector_stats": ((), None),
    "shutdown": ((), None),
}
WORKER_HOOKS = {
    "register_kv_caches": (({},), None),
    "handle_preemptions": ((METADATA,), None),
    "start_load_kv": ((None,), None),
    "wait_for_layer_load": (("layer",), None),
    "save_kv_layer": (("layer", None, None), None),
    "wait_for_save": ((), None),
    "get_transfer_results": ((set(),), "results"),
    "get_finished": ((set(),), (None, None)),
    "build_connector_worker_meta": ((), None),
}


class EveryHook(unittest.TestCase):
    def test_there_is_no_other_hook(self):
        hooks = {
            name
            for name, member in vars(connector.KvonceConnector).items()
            if inspect.isfunction(member) and not name.startswith("_")
        }
        self.assertEqual(hooks, {*SCHEDULER_HOOKS, *WORKER_HOOKS})

    def check(self, role, hooks, **sides):
        for name, (arguments, answer) in hooks.items():
            with self.subTest(name), Quiet():
                made = bare(role)
                made.metadata = METADATA
                made._store = Raises()
                for side, value in sides.items():
                    setattr(made, side, value)
                for _ in range(2):
                    heard = getattr(made, name)(*arguments)
                    if answer == "metadata":
                        self.assertEqual(heard.step, v.messages.Step())
                    elif answer == "results":
                        self.assertEqual((heard.finished_sending, heard.finished_recving), (set(), set()))
                    else:
                        self.assertEqual(heard, answer)

    def test_of_the_scheduler(self):
        class NoTruth:
            """A number of tokens that cannot be looked at."""

            def __bool__(self):
                raise Broken

        hooks = dict(SCHEDULER_HOOKS, get_external_cache_hit_sources=((REQUEST, NoTruth()), {}))
        self.check("scheduler", hooks, _scheduler=Raises())

    def test_of_a_rank(self):
        self.check("worker", WORKER_HOOKS, _worker=Raises())

    def test_a_failure_is_counted_each_time_and_told_once_with_its_traceback_at_debug(self):
        made = bare()
        made._scheduler = Raises()
        counters = v.engine.Counters("engine", 0)
        made.failures = connector.Failures(counters)
        with Quiet() as quiet:
            for _ in range(3):
                made.get_num_new_matched_tokens(REQUEST, 0)
        # The hook, and leaving the request alone afterwards, fail here.
        self.assertEqual(counters.snapshot(), {("errors", "get_num_new_matched_tokens"): 6})
        self.assertEqual(len(quiet.texts(logging.WARNING)), 1)
        self.assertIn("get_num_new_matched_tokens failed", quiet.texts(logging.WARNING)[0])
        self.assertTrue(any(record.exc_info for record in quiet.records if record.levelno == logging.DEBUG))

    def test_what_ends_the_process_goes_through(self):
        made = bare()
        made._scheduler = types.SimpleNamespace(matched=self.interrupted)
        self.assertRaises(KeyboardInterrupt, made.get_num_new_matched_tokens, REQUEST, 0)

    def interrupted(self, *_):
        raise KeyboardInterrupt


class Scheduler(unittest.TestCase):
    """A connector over a real scheduler's side, whose parts fail."""

    def setUp(self):
        self.plan = v.plan(v.full())
        self.group = v.Group()
        self.runtime, self.epochs = v.epochs(lambda namespace: types.SimpleNamespace(group=self.group))
        self.released = []
        self.counters = v.engine.Counters("engine", "scheduler")
        self.blocks = v.BlockPool()
        self.made = bare()
        self.made.failures = connector.Failures(self.counters)
        self.side = self.made._scheduler = v.scheduler.SchedulerSide(
            self.plan, v.engine.Settings(), self.epochs, self.released.append, self.counters, 1, failures=self.made.failures
        )
        self.made.bind_gpu_block_pool(self.blocks)
        self.quiet = Quiet()
        self.quiet.__enter__()
        self.addCleanup(self.quiet.__exit__)

    def fail(self, owner, name):
        """From now on this call raises; undone by what is returned."""
        before = owner.__dict__.get(name)

        def raising(*_, **__):
            raise Broken(name)

        setattr(owner, name, raising)
        return lambda: setattr(owner, name, before) if before is not None else delattr(owner, name)

    def matched(self, request, pages):
        self.assertEqual(self.made.get_num_new_matched_tokens(request, 0), (None, False))
        self.group.asked[-1][-1].settle(v.found(pages, "lease"))
        return self.made.get_num_new_matched_tokens(request, 0)

    def step(self, **requests):
        """{request: blocks}: each computes 128 tokens from its first on."""
        return self.made.build_connector_meta(
            v.output({name: 128 for name in requests}, {}, {name: (table,) for name, table in requests.items()})
        ).step

    def test_a_lookup_that_fails_leaves_the_request_alone_and_gives_back_what_it_found(self):
        request = v.Request("r", 200)
        self.assertEqual(self.matched(request, 2), (128, True))
        self.fail(self.side, "_answer")
        self.assertEqual(self.made.get_num_new_matched_tokens(request, 0), (0, False))
        self.assertEqual(self.released, ["lease"])
        del self.side._answer
        self.assertEqual(self.made.get_num_new_matched_tokens(request, 0), (0, False))
        self.made.update_state_after_alloc(request, blocks(), 0)
        self.assertEqual(self.step(r=[1, 2]).saves, [])
        self.assertEqual(self.made.request_finished_all_groups(request, ([],)), (False, None))
        self.assertEqual(self.side._requests, {})

    def test_a_load_that_cannot_be_planned_has_failed_on_all_ranks(self):
        for owner, name in ((self.side, "_load_rows"), (self.side, "allocated"), (self.side, "track")):
            with self.subTest(name):
                request = v.Request(name, 200)
                self.assertEqual(self.matched(request, 2), (128, True))
                undo = self.fail(owner, name)
                self.made.update_state_after_alloc(request, blocks([1, 2, 3]), 128)
                undo()
                (load,) = self.step().loads
                self.assertEqual((load.request, load.rows), (name, {}))
                rank = v.worker.WorkerSide(v.engine.Settings(), self.epochs, self.counters)
                rank.start_loads(v.messages.Step(loads=[load]))
                results = rank.results()
                self.assertEqual(results.failed, {name})
                self.made.update_connector_output(
                    types.SimpleNamespace(
                        kv_connector_worker_meta=None, finished_recving={name}, failed_recving={name}, finished_sending=None
                    )
                )
                self.assertEqual(self.released.pop(), "lease")
                self.assertEqual(self.made.get_num_new_matched_tokens(request, 0), (0, False))

    def test_a_save_that_cannot_be_planned_is_nothing_to_the_others(self):
        bad, good = v.Request("bad", 200), v.Request("good", 200)
        bad.block_hashes = Raises()
        for request in (bad, good):
            self.made.on_new_request(request)
        (save,) = self.step(bad=[1, 2], good=[3, 4]).saves
        self.assertEqual(save.request, "good")
        self.assertEqual(self.blocks.held(), {3, 4})
        self.assertEqual(self.counters.snapshot()["errors", "save"], 1)

    def test_a_step_that_fails_keeps_no_block_and_loses_no_load(self):
        for name in ("_plan_saves", "_add_save", "_look_for_another_life"):
            with self.subTest(name):
                waits, computes = v.Request(f"waits {name}", 200), v.Request("computes", 200)
                self.assertEqual(self.matched(waits, 2), (128, True))
                self.made.update_state_after_alloc(waits, blocks([1, 2, 3]), 128)
                self.made.on_new_request(computes)
                undo = self.fail(self.side, name)
                step = self.step(computes=[5, 6])
                undo()
                self.assertEqual([load.request for load in step.loads], [waits.request_id])
                self.assertEqual(step.saves, [])
                self.assertEqual(self.blocks.held(), set())
                self.assertFalse(self.made.has_pending_push_work())
                self.made.request_finished(computes, [])

    def test_an_answer_that_cannot_be_taken_frees_the_blocks_all_the_same(self):
        first, second = v.Request("first", 200), v.Request("second", 200)
        for request in (first, second):
            self.made.on_new_request(request)
        saves = self.step(first=[1, 2], second=[3, 4]).saves
        self.fail(self.side, "_remember")
        done = v.messages.Done({save.job: (1, 1) for save in saves})
        output = empty_output()
        output.kv_connector_worker_meta = connector.KvonceWorkerMetadata(done)
        self.made.update_connector_output(output)
        self.assertEqual(self.blocks.held(), set())
        self.assertFalse(self.made.has_pending_push_work())

    def test_an_answer_of_saves_that_fails_keeps_none_of_loads_back(self):
        request = v.Request("r", 200)
        self.assertEqual(self.matched(request, 2), (128, True))
        self.made.update_state_after_alloc(request, blocks([1, 2, 3]), 128)
        self.fail(self.side, "done")
        output = empty_output()
        output.kv_connector_worker_meta = connector.KvonceWorkerMetadata(v.messages.Done())
        self.made.update_connector_output(output)
        self.assertEqual(self.released, ["lease"])

    def test_new_weights_that_cannot_be_told_end_everything(self):
        request = v.Request("r", 200)
        self.assertEqual(self.matched(request, 2), (128, True))
        self.made.update_state_after_alloc(request, blocks([1, 2, 3]), 128)
        before = self.step()
        self.fail(self.epochs, "reset")
        self.assertTrue(self.made.reset_cache())
        self.assertEqual(self.made.get_num_new_matched_tokens(v.Request("s", 200), 0), (0, False))
        self.made.on_new_request(v.Request("t", 200))
        after = self.step(t=[1, 2])
        self.assertEqual(after.saves, [])
        self.assertGreater(after.updates, before.updates)  # so loads that are running have failed

    def test_without_the_pool_nothing_is_saved_since_blocks_could_not_be_kept(self):
        self.fail(self.side, "bind_block_pool")
        self.made.bind_gpu_block_pool(self.blocks)
        self.made.on_new_request(v.Request("t", 200))
        self.assertEqual(self.step(t=[1, 2]).saves, [])

    def test_a_request_whose_end_fails_is_forgotten_and_its_saves_keep_their_blocks(self):
        request = v.Request("r", 200)
        self.made.on_new_request(request)
        (save,) = self.step(r=[1, 2]).saves
        self.fail(self.side, "finished")
        self.assertEqual(self.made.request_finished(request, []), (False, None))
        self.assertEqual(self.side._requests, {})
        self.assertEqual(self.blocks.held(), {1, 2})
        self.side.done(v.messages.Done({save.job: (1, 1)}))
        self.assertEqual(self.blocks.held(), set())


class Rank(unittest.TestCase):
    """A connector over a real rank's side, whose parts fail."""

    def setUp(self):
        self.plan = v.plan(v.full())
        self.rank = v.Rank()
        (self.pool,) = self.plan.pools
        built = types.SimpleNamespace(rank=self.rank, pools={self.pool.key: "the pool"})
        self.runtime, self.epochs = v.epochs(lambda namespace: built)
        self.counters = v.engine.Counters("engine", 0)
        self.made = bare("worker")
        self.made.failures = connector.Failures(self.counters)
        self.side = self.made._worker = v.worker.WorkerSide(v.engine.Settings(), self.epochs, self.counters)
        self.quiet = Quiet()
        self.quiet.__enter__()
        self.addCleanup(self.quiet.__exit__)

    def begin(self):
        load = v.messages.Load("loads", 0, "", "lease", v.page_hash(1), {self.pool.key: [3]}, 64)
        save = v.messages.Save(7, "saves", 0, None, v.page_hash(2), {self.pool.key: [4]})
        self.made.metadata = connector.KvonceMetadata(v.messages.Step(epoch="", loads=[load], saves=[save]))
        self.made.handle_preemptions(self.made.metadata)

    def broken(self, *_, **__):
        raise Broken

    def test_loads_that_could_not_be_started_have_failed(self):
        self.begin()
        self.side.start_loads = self.broken
        self.made.start_load_kv(None)
        results = self.made.get_transfer_results(set())
        self.assertEqual((results.finished_recving, results.failed_recving), ({"loads"}, {"loads"}))

    def test_saves_that_could_not_be_started_are_answered(self):
        self.begin()
        self.side.start_saves = self.broken
        self.made.wait_for_save()
        self.assertEqual(self.made.build_connector_worker_meta().done.jobs, {7: (1, 0)})

    def test_one_that_was_started_is_not_answered_twice(self):
        self.begin()
        self.side.start_loads(self.made.metadata.step)
        self.side.start_saves(self.made.metadata.step)
        self.side.start_loads = self.side.start_saves = self.broken
        self.made.start_load_kv(None)
        self.made.wait_for_save()
        self.assertEqual(self.made.get_transfer_results(set()).finished_recving, set())
        self.assertIsNone(self.made.build_connector_worker_meta())

    def test_results_that_cannot_be_read_are_failures(self):
        self.begin()
        self.made.start_load_kv(None)
        self.made.wait_for_save()
        for future in (self.rank.loads[0][-1], self.rank.puts[0][-1]):
            future.settle(types.SimpleNamespace(ok=True, causes=self.broken))
        results = self.made.get_transfer_results(set())
        self.assertEqual((results.finished_recving, results.failed_recving), ({"loads"}, {"loads"}))
        self.assertEqual(self.made.build_connector_worker_meta().done.jobs, {7: (1, 0)})

    def test_an_epoch_that_cannot_be_let_go_is_counted(self):
        self.begin()
        self.made.start_load_kv(None)
        self.side._loads[0].epoch.release()  # once too often
        self.rank.loads[0][-1].settle(v.result())
        self.assertEqual(self.made.get_transfer_results(set()).finished_recving, {"loads"})
        self.assertEqual(self.counters.snapshot()["errors", "epoch"], 1)
        self.assertEqual(self.made.get_transfer_results(set()).finished_recving, set())


if __name__ == "__main__":
    unittest.main()
