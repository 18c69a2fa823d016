# SPDX-License-Identifier: Apache-2.0
"""kvonce.vllm against another vLLM than the one of the environment, without an engine: whether it imports, and takes the calls of that version.

    pip download --no-deps vllm==0.33.0 && python3 -m zipfile -e vllm-*.whl FOLDER
    tools/engines/run vllm tests/engines/vllm/_other_version.py FOLDER
"""
import inspect
import sys

from support import check


def main(folder):
    sys.path.insert(0, folder)
    import vllm

    check(vllm.__file__.startswith(folder), "that version is imported", vllm.__version__)
    from vllm.distributed.kv_transfer.kv_connector.v1 import base

    from kvonce.vllm import KvonceConnector

    check(not KvonceConnector.__abstractmethods__, "no abstract method is missing", KvonceConnector.__abstractmethods__)
    compared, wrong = 0, []
    for name, ours in vars(KvonceConnector).items():
        theirs = getattr(base.KVConnectorBase_V1, name, None) or getattr(base.SupportsHMA, name, None)
        if name.startswith("_") or not inspect.isfunction(ours) or theirs is None:
            continue
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        arguments = [one.name for one in inspect.signature(theirs).parameters.values() if one.kind in kinds]
        try:
            inspect.signature(ours).bind(*arguments)
            inspect.signature(ours).bind(arguments[0], **dict.fromkeys(arguments[1:]))
        except TypeError as error:
            wrong.append(f"{name}: {error}")
        compared += 1
    check(not wrong, "every hook takes the calls of that version", compared, wrong)
    check(compared > 20, "and they were compared", compared)


if __name__ == "__main__":
    main(sys.argv[1])
