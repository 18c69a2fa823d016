# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: their content is a part of the names of pages, and what was made by another content is never saved."""
import os
import pathlib
import tempfile
import types
import unittest

import vllm_parts as v


class Adapters(v.SchedulerCase):
    def setUp(self):
        self.files = {"a": "first", "b": "other"}
        self.read = []
        self.make_with(self.content)

    def content(self, path):
        self.read.append(path)
        return self.files[path]

    def make_with(self, content):
        self.adapters = v.load("adapters").Adapters(content, lambda path: self.files.get(path))
        self.make(adapters=self.adapters)

    def request(self, path, inplace=False, number=1, tokens=200):
        """A new request with this adapter, whose content is known by now."""
        request = v.Request(f"r{next(v.unique)}", tokens)
        request.lora_request = types.SimpleNamespace(lora_int_id=number, lora_path=path, load_inplace=inplace)
        digest = self.side.track(request).content.digest
        if digest is not None:
            digest.result(timeout=60)
        return request

    def asked(self, *which, **more):
        """What a new request with this adapter asks the store for."""
        self.assertEqual(self.side.matched(self.request(*which, **more), 0), (None, False))
        return self.group.asked[-1][0]

    def saved(self, request, computed=0):
        tables = {request.request_id: ([1, 2, 3],)}
        return self.side.step(v.output({request.request_id: 192 - computed}, {request.request_id: computed}, tables)).saves

    def test_pages_are_named_by_the_content_of_the_adapter(self):
        first = self.asked("a")
        self.assertEqual(len(first), 3 * 32)
        self.assertNotEqual(first, b"".join(v.Request("r", 200).block_hashes[:3]))
        self.assertEqual(self.asked("a"), first)
        self.assertNotEqual(self.asked("b", number=2), first)

    def test_an_adapter_that_is_replaced_in_place_has_other_pages(self):
        first = self.asked("a")
        self.files["a"] = "second"
        second = self.asked("a", inplace=True)
        self.assertNotEqual(second, first)
        self.assertEqual(self.asked("a", inplace=True), second)
        self.files["a"] = "first"
        self.assertEqual(self.asked("a", inplace=True), first)

    def test_files_are_read_again_only_when_they_have_changed(self):
        first = self.asked("a", inplace=True)
        request = v.Request("at once", 200)
        request.lora_request = types.SimpleNamespace(lora_int_id=1, lora_path="a", load_inplace=True)
        self.assertEqual(self.side.matched(request, 0), (None, False))  # asked already: nothing had to be read
        self.assertEqual(self.group.asked[-1][0], first)
        self.assertEqual(self.read, ["a"])

    def test_files_that_changed_behind_the_engine_are_not_served_until_it_loads_them(self):
        self.asked("a")
        self.files["a"] = "second"
        request = self.request("a")
        self.assertEqual(self.side.matched(request, 0), (0, False))
        self.assertEqual(self.saved(request), [])
        self.assertEqual(self.count("missed_tokens", "adapter"), 192)
        second = self.asked("a", inplace=True)
        self.assertEqual(self.asked("a"), second)

    def test_files_that_were_only_touched_are_served(self):
        self.adapters = v.load("adapters").Adapters(lambda path: "the same", lambda path: self.files[path])
        self.make(adapters=self.adapters)
        first = self.asked("a")
        for n in range(3):
            self.files["a"] = f"touched {n}"
            self.assertEqual(self.asked("a"), first)

    def test_another_path_under_a_number_that_the_engine_has_is_not_served(self):
        self.asked("a")
        self.assertEqual(self.side.matched(self.request("b"), 0), (0, False))
        self.assertEqual(self.asked("b", inplace=True), self.asked("b", number=2))

    def test_the_engines_own_pages_of_a_replaced_adapter_are_not_saved_under_the_new_ones_name(self):
        self.assertEqual(len(self.saved(self.request("a"))), 1)
        self.files["a"] = "second"
        request = self.request("a", inplace=True)
        self.assertEqual(self.side.matched(request, 128), (None, False))
        self.answer(0)
        self.side.matched(request, 128)
        self.assertEqual(self.saved(request, computed=128), [])
        # Nor behind them what the store has, and what is computed behind that.
        request = self.request("a", inplace=True, tokens=300)
        self.matched(request, 64, 2)
        self.side.allocated(request, ([1, 2, 3, 4],), 64)
        tables = {request.request_id: ([1, 2, 3, 4],)}
        self.assertEqual(self.side.step(v.output({request.request_id: 128}, {request.request_id: 128}, tables)).saves, [])
        # Neither is what was computed behind them; even where the scheduler did not say that it had them.
        self.assertEqual(self.saved(self.request("a", inplace=True), computed=64), [])
        # What a request computes from its first token on is.
        (save,) = self.saved(self.request("a", inplace=True))
        self.assertEqual((save.first_page, save.pages), (0, 3))

    def test_a_prefix_that_came_from_the_store_is_saved_behind(self):
        self.asked("a")
        self.files["a"] = "second"
        request = self.request("a", inplace=True)
        self.matched(request, 0, 2)
        self.side.allocated(request, ([1, 2, 3],), 128)
        (save,) = self.saved(request, computed=128)
        self.assertEqual((save.first_page, save.pages), (2, 1))

    def test_when_the_engine_has_emptied_its_cache_its_own_pages_are_saved_again(self):
        self.asked("a")
        self.files["a"] = "second"
        self.asked("a", inplace=True)
        self.blocks.empty()
        self.assertEqual(len(self.saved(self.request("a", inplace=True), computed=128)), 1)

    def test_a_preempted_request_may_come_back_with_pages_of_the_old_adapter(self):
        self.asked("a")
        self.files["a"] = "second"
        request = self.request("a", inplace=True)
        self.assertEqual(len(self.saved(request)), 1)
        self.side.step(v.output({}, preempted=[request.request_id]))
        request.block_hashes.append(v.page_hash(44))
        self.assertEqual(self.saved(request, computed=64), [])

    def test_a_request_whose_adapter_is_replaced_meanwhile_is_left_alone(self):
        for replace in (lambda: self.files.update(a="second"), lambda: self.request("b", inplace=True)):
            self.setUp()
            request = self.request("a", tokens=400)
            self.assertEqual(len(self.saved(request)), 1)
            replace()
            tables = {request.request_id: ([1, 2, 3, 4, 5],)}
            output = v.output({request.request_id: 128}, {request.request_id: 192}, tables)
            self.assertEqual(self.side.step(output).saves, [])
            self.assertEqual(self.side.matched(request, 0), (0, False))

    def test_an_adapter_whose_content_is_not_known_is_not_served(self):
        def none(path):
            raise v.engine.Refused("kvonce: nothing there.")

        for content, path in ((none, "a"), (self.content, "nowhere")):
            self.make_with(content)
            request = self.request(path)
            self.assertEqual(self.side.matched(request, 0), (0, False))
            self.assertEqual(self.saved(request), [])

    def test_an_adapter_that_changes_while_it_is_read_is_not_served(self):
        def changing(path):
            self.files[path] = "second"
            return "first"

        self.make_with(changing)
        self.assertEqual(self.side.matched(self.request("a"), 0), (0, False))

    def test_the_files_of_an_adapter_tell_when_they_change(self):
        state = v.load("adapters")._state
        with tempfile.TemporaryDirectory() as folder:
            weights = pathlib.Path(folder, "adapter_model.safetensors")
            weights.write_bytes(b"first")
            pathlib.Path(folder, "adapter_config.json").write_text("{}")
            first = state(folder)
            self.assertEqual(state(folder), first)
            old = weights.stat()
            weights.write_bytes(b"other")
            os.utime(weights, ns=(old.st_atime_ns, old.st_mtime_ns))
            self.assertNotEqual(state(folder), first)
            self.assertIsNone(state(folder + "/nowhere"))


if __name__ == "__main__":
    unittest.main()
