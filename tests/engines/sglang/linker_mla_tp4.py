# SPDX-License-Identifier: Apache-2.0
# Time limit: 480 s
"""The external linker with latent attention on four ranks: a page is stored once."""
from _scenarios import PAGE, control_differs, linker, objects_once, restored_equals_computed
from support import check, control, done
from support import sglang_engine as se
from support.store import Store


def main():
    with Store() as store:
        engine = se.engine("mla", tp=4, page_size=PAGE, **linker(store))
        tokens, right = restored_equals_computed(engine, name="MLA TP4")
        objects_once(store, "kv", "MLA TP4")
        check(len({call.pid for call in control.puts()}) == 4, "all four ranks offered the pages")
        control_differs(engine, tokens, right, name="MLA TP4")
        engine.shutdown()
    done()


if __name__ == "__main__":
    main()
