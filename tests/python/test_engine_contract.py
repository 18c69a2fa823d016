# SPDX-License-Identifier: Apache-2.0
"""The adapters' classes against the stored lists of the engines' interfaces: every call that a version of an engine may make
is one that the adapter takes. No engine is needed; what real engines do is tested in tests/engines."""

import ast
import inspect
import pathlib
import unittest

import engine_parts

engine_parts.load()
interfaces = engine_parts.load("kvonce.engine.interfaces")
ADAPTERS = pathlib.Path(interfaces.__file__).parent.parent

#: adapter's file and class -> (engine, module and class that it stands for).
CLASSES = {
    ("sglang/linker.py", "Linker"): ("sglang", "sglang.srt.mem_cache.unified_cache.unified_cache_linker:UnifiedCacheLinker"),
    ("sglang/hicache.py", "HiCacheStorage"): ("sglang", "sglang.srt.mem_cache.hicache_storage:HiCacheStorage"),
    ("vllm/connector.py", "KvonceConnector"): ("vllm", "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1"),
}
#: Interfaces that a version adds to another class.
MORE = {"KvonceConnector": ["vllm.distributed.kv_transfer.kv_connector.v1.base:SupportsHMA"]}


def signature(parameters):
    """Of "(self, a, b=None)"; defaults are left out of sight."""
    arguments = ast.parse(f"def f{parameters}: pass").body[0].args
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [default and ast.Constant(None) for default in arguments.kw_defaults]
    scope = {}
    exec(ast.unparse(ast.fix_missing_locations(ast.parse(f"def f({ast.unparse(arguments)}): pass"))), scope)
    return inspect.signature(scope["f"])


def methods_of(file, name):
    """{method: parameters} of an adapter's class, with those of its base classes and nested definitions in the same file."""
    tree = ast.parse((ADAPTERS / file).read_text(encoding="utf-8"))
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found = {}
    for base in reversed([name, *(b.id for b in classes[name].bases if isinstance(b, ast.Name) and b.id in classes)]):
        found.update(interfaces._members(classes[base]))
    return {member: "(" + text.partition("(")[2] for member, text in found.items() if "(" in text and text.split()[0] != "value"}


def takes(ours, theirs):
    """None, or how a call that `theirs` allows fails on `ours`."""
    wanted = [p for p in signature(theirs).parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in wanted if p.default is p.empty]
    for chosen in (wanted, required):
        try:
            signature(ours).bind(*(p.name for p in chosen))
            signature(ours).bind(chosen[0].name, **{p.name: None for p in chosen[1:]})
        except TypeError as error:
            return str(error)
    return None


class Contract(unittest.TestCase):
    def each(self):
        for (file, name), (engine, target) in CLASSES.items():
            for version in interfaces.known_versions(engine):
                known = interfaces.load(engine, version)
                for theirs in [target, *MORE.get(name, [])]:
                    members = {n.rpartition(".")[2]: text for n, text in known.items() if n.startswith(theirs + ".")}
                    if members:
                        yield name, version, methods_of(file, name), members

    def test_every_abstract_method_of_every_known_version_is_there(self):
        seen = set()
        for name, version, ours, members in self.each():
            missing = [m for m, text in members.items() if text.startswith("abstract") and m not in ours]
            self.assertEqual(missing, [], f"{name} for {version}")
            seen.add(name)
        self.assertEqual(seen, {name for _, name in CLASSES})

    def test_every_method_takes_the_calls_that_any_known_version_makes(self):
        wrong, compared = [], 0
        for name, version, ours, members in self.each():
            for member, text in members.items():
                if member in ours and "method (" in text and member != "__init__":
                    compared += 1
                    why = takes(ours[member], "(" + text.partition("(")[2])
                    if why:
                        wrong.append(f"{name}.{member}{ours[member]}: {version} has {text}: {why}")
        self.assertEqual(wrong, [])
        self.assertGreater(compared, 60)

    def test_what_the_comparison_finds(self):
        self.assertIsNone(takes("(self, a, b=None, **more)", "(self, a, b=1)"))
        self.assertIsNotNone(takes("(self, a)", "(self, a, b=None)"))
        self.assertIsNotNone(takes("(self, x, b=None)", "(self, a, b=None)"))  # by keyword
        self.assertIsNotNone(takes("(self, a, b)", "(self, a, b=None)"))
        self.assertIsNotNone(takes("(self, a, b, c)", "(self, a, b)"))

    def test_methods_that_older_linkers_had_are_kept(self):
        self.assertLessEqual({"num_completed_loads", "pop_completed_load"}, set(methods_of("sglang/linker.py", "Linker")))


if __name__ == "__main__":
    unittest.main()
