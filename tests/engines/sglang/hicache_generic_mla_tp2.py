# SPDX-License-Identifier: Apache-2.0
# Time limit: 300 s
"""HiCache's generic way with latent attention on two ranks: rank 0 writes, both restore."""
import _generic
from _scenarios import PAGE
from support import check, control, done


def main():
    _generic.run("generic MLA TP2", "mla", layout="page_first", tp=2, page_size=PAGE, length=200)
    check(len({call.pid for call in control.puts()}) == 1, "one rank writes")
    done()


if __name__ == "__main__":
    main()
