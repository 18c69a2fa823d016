# SPDX-License-Identifier: Apache-2.0
# Time limit: 300 s
"""HiCache's generic way on one rank, in the default layout (layer first), with more pages than SGLang hands over at once."""
import _generic
from support import done


def main():
    _generic.run("generic Llama", "llama", layout="layer_first", tp=1, page_size=4, length=700)
    done()


if __name__ == "__main__":
    main()
