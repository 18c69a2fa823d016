# SPDX-License-Identifier: Apache-2.0
"""Python imports this when it starts, in each process of an engine under test: support.control is put around kvonce when that is imported.
Nothing happens outside tests, where the folder of this file is on no path."""
import importlib.abc
import importlib.util
import os
import sys


class _AfterKvonce(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "kvonce":
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)  # whoever asks where kvonce is does not import it yet
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                from support import control
                control.wrap(module)

            spec.loader.exec_module = exec_module
        return spec


if os.environ.get("KVONCE_TEST_CONTROL"):
    sys.meta_path.insert(0, _AfterKvonce())
