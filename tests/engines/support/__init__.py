# SPDX-License-Identifier: Apache-2.0
"""What the tests in real engines share. Each module tells in its first lines what it is for."""
import os
from pathlib import Path


def check(holds, sentence, *values):
    """Ends the test when what the sentence says does not hold; the values are shown."""
    shown = f" {values}" if values else ""
    if not holds:
        raise AssertionError(f"does not hold: {sentence}{shown}")
    print(f"holds: {sentence}{shown}", flush=True)


def done():
    """All checks were made. A script that ends without it has failed: an engine may end its processes in its own ways."""
    Path(os.environ["KVONCE_TEST_CONTROL"], "done").touch()
