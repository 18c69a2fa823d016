# SPDX-License-Identifier: Apache-2.0
"""The three traps of a library with threads inside Python: fork, Ctrl-C, and the end of the interpreter."""

import os
import signal
import subprocess
import sys
import unittest

import kvonce
from package_parts import DEADLINE, Case, environment, own_store, script

# All that a child can ask of objects that its parent made. `kv` is a package_parts.Setup, `put` a future that is not done.
FORKED_CALLS = """
    def calls(kv, put, lookup, lease, event):
        page = bytes(32)
        runtime, space, group, rank, pool = kv.runtime, kv.namespace, kv.group, kv.rank, kv.pool
        return [
            lambda: runtime.namespace("x"), lambda: runtime.find_namespace("x"), lambda: runtime.connected, lambda: runtime.incarnation,
            lambda: runtime.wait_connected(1), lambda: runtime.stats(), lambda: runtime.clients(), lambda: runtime.store_start,
            lambda: runtime.flush(), lambda: runtime.clear(), lambda: runtime.release(lease), lambda: runtime.narrow(lease, 0),
            lambda: runtime.epoch("x"), lambda: runtime.close(), lambda: runtime.closed, lambda: runtime.engine_id,
            lambda: space.group("g", [kvonce.GroupPool("a")]), lambda: space.stat(page), lambda: space.remove([page]),
            lambda: space.clear(), lambda: space.pools(), lambda: group.rank(), lambda: group.lookup([page]),
            lambda: group.lookup_async([page]), lambda: group.exists("kv", 0, [page]), lambda: group.remove_key("kv", 0, page),
            lambda: rank.register_pool("kv", []), lambda: rank.put([page], {pool: [0]}), lambda: rank.load(lease, [page], {pool: [0]}),
            lambda: rank.exists(pool, [page]), lambda: rank.moved_bytes, lambda: rank.close(), lambda: pool.unregister(),
            lambda: put.done(), lambda: put.wait(1), lambda: put.result(), lambda: put.cancel(),
            lambda: put.add_done_callback(print), lambda: lookup.result(), lambda: event.signal(), lambda: event.ready(),
        ]
"""


class Fork(Case):
    def test_every_call_in_a_child_says_so_at_once_and_the_parent_goes_on(self):
        output = self.run_script(
            """
    import gc, os, sys
    import kvonce
    from package_parts import Setup, pages
    """
            + FORKED_CALLS
            + """
    kv = Setup()
    put, event = kv.waiting_put()
    lookup = kv.group.lookup_async(pages(1))
    lookup.wait()
    lease = bytes(16)
    child = os.fork()
    if child == 0:
        for number, call in enumerate(calls(kv, put, lookup, lease, event)):
            try:
                call()
            except kvonce.Forked as error:
                assert error.reason == "closed", error.reason
            else:
                print("call", number, "of the child was not refused", flush=True)
                os._exit(3)
        kv.__dict__.clear()
        del kv, put, lookup, event
        gc.collect()
        print("child done", flush=True)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    event.signal()
    assert put.result(60).ok
    assert kv.put(8).result(60).ok
    kv.runtime.close()
    print("parent done")
    """
        )
        self.assertEqual(output, "child done\nparent done\n")

    def test_a_child_may_start_a_runtime_of_its_own(self):
        self.run_script(
            """
            import os, sys
            from package_parts import Setup
            kv = Setup()
            kv.put(2).result(60)
            child = os.fork()
            if child == 0:
                with Setup(engine="child") as own:
                    assert own.put(3).result(60).ok
                    told = []
                    future = own.put(4)
                    future.add_done_callback(told.append)
                    future.result(60)
                    own.runtime.flush()
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert kv.put(3).result(60).ok
            """
        )

    def test_multiprocessing_with_fork(self):
        self.run_script(
            """
            import multiprocessing
            from package_parts import Setup
            kv = Setup()
            kv.put(2).result(60)

            def work(answers):
                with Setup(engine="child") as own:
                    answers.put(own.put(3).result(60).succeeded)

            context = multiprocessing.get_context("fork")
            answers = context.Queue()
            children = [context.Process(target=work, args=(answers,)) for _ in range(2)]
            for child in children:
                child.start()
            assert [answers.get(timeout=60) for _ in children] == [3, 3]
            for child in children:
                child.join(60)
                assert child.exitcode == 0, child.exitcode
            """
        )


class CtrlC(Case):
    """The child tells when it is about to wait; what it waits for would last far longer than the test may."""

    def interrupt(self, text, *arguments):
        command = script("from package_parts import Setup, freeze, pages\nimport kvonce, sys\n" + text) + list(arguments)
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            self.assertEqual(process.stdout.readline(), "waiting\n")
            # Until it has seen one: the first may come before it waits.
            for _ in range(int(DEADLINE / 0.2)):
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(0.2)
                    break
                except subprocess.TimeoutExpired:
                    continue
            output, errors = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
            process.wait(DEADLINE)
        self.assertEqual(process.returncode, 0, errors)
        self.assertEqual(output, "interrupted\n")

    def waiting(self, call, *arguments):
        text = f"""
kv = Setup(*sys.argv[1:2])
put, event = kv.waiting_put(timeout=3600)
import os, signal
try:
    if len(sys.argv) > 2:
        freeze(int(sys.argv[2]))
    print("waiting", flush=True)
    {call}
    print("it ended without Ctrl-C", flush=True)
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if len(sys.argv) > 2:
        os.kill(int(sys.argv[2]), signal.SIGCONT)
    print("interrupted", flush=True)
"""
        self.interrupt(text, *arguments)

    def test_a_wait_for_a_result(self):
        self.waiting("put.result()")

    def test_a_wait_of_a_future(self):
        self.waiting("put.wait(3600)")

    def test_a_flush(self):
        self.waiting("kv.runtime.flush(3600)")

    def test_a_pool_that_waits_for_its_rows(self):
        self.waiting("kv.pool.unregister(3600)")

    def test_a_lookup_at_a_store_that_does_not_answer(self):
        with own_store() as (store, path):
            self.waiting("kv.group.lookup(pages(1), timeout=3600)", path, str(store.pid))

    def test_a_call_that_the_library_cannot_cut_into_slices(self):
        with own_store() as (store, path):
            # Its own deadline would raise Deadline, and the child would not say `interrupted`.
            self.waiting("kv.runtime.namespace('another one')", path, str(store.pid))


class End(Case):
    def test_with_a_put_that_nobody_finishes(self):
        self.run_script("from package_parts import Setup\nkv = Setup()\nput, event = kv.waiting_put(timeout=3600)")

    def test_with_futures_in_a_cycle(self):
        self.run_script(
            """
            from package_parts import Setup
            kv = Setup()
            put, event = kv.waiting_put(timeout=3600)
            kv.put_too = put
            put.add_done_callback(lambda future: kv)
            """
        )

    def test_with_daemon_threads_inside_calls(self):
        self.run_script(
            """
            import threading, time
            from package_parts import Setup, pages
            kv = Setup()
            put, event = kv.waiting_put(timeout=3600)
            ready = threading.Barrier(5)

            def wait(call):
                ready.wait()
                try:
                    call()
                except Exception:
                    pass
                while True:
                    try:
                        kv.group.lookup(pages(1))
                    except Exception:
                        pass

            for call in (put.result, lambda: put.wait(3600), lambda: kv.runtime.flush(3600), lambda: kv.pool.unregister(3600)):
                threading.Thread(target=wait, args=(call,), daemon=True).start()
            ready.wait()
            """
        )

    def test_with_callbacks_on_their_way(self):
        self.run_script(
            """
            from package_parts import Setup
            kv = Setup()
            for _ in range(200):
                kv.put(16).add_done_callback(lambda future: future.result())
            """
        )

    def test_with_a_polled_event(self):
        self.run_script("from package_parts import Setup\nkv = Setup()\nput = kv.put(2, after=lambda: False, timeout=3600)")

    def test_with_a_store_that_does_not_answer(self):
        with own_store() as (store, path):
            self.run_script(
                """
                import sys
                from package_parts import Setup, freeze, pages
                kv = Setup(sys.argv[1])
                kv.put(2).result(60)
                freeze(int(sys.argv[2]))
                lookup = kv.group.lookup_async(pages(2), timeout=3600)
                """,
                path,
                str(store.pid),
            )

    def test_with_a_store_that_was_killed(self):
        with own_store() as (store, path):
            self.run_script(
                """
                import os, signal, sys
                from package_parts import Setup
                kv = Setup(sys.argv[1])
                put, event = kv.waiting_put(timeout=3600)
                os.kill(int(sys.argv[2]), signal.SIGKILL)
                """,
                path,
                str(store.pid),
            )

    def test_an_exit_handler_that_was_there_first_still_hears_what_became_of_its_calls(self):
        output = self.run_script(
            """
            import atexit
            atexit.register(lambda: print(put.result(60).causes()))
            from package_parts import Setup
            kv = Setup()
            put, event = kv.waiting_put(timeout=3600)
            """
        )
        self.assertEqual(output, "{'unknown: closed': 4}\n")


if __name__ == "__main__":
    unittest.main()
