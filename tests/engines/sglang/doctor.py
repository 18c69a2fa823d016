# SPDX-License-Identifier: Apache-2.0
"""The doctor finds this environment's engine, and nothing in it that moved since the adapter was written."""

import json
import subprocess
import sys

from support import check, done

if __name__ == "__main__":
    ended = subprocess.run(
        [sys.executable, "-m", "kvonce.doctor", "--engine", "sglang", "--json"], capture_output=True, text=True, timeout=120
    )
    print(ended.stdout, ended.stderr, sep="")
    found = {finding["subject"]: finding for finding in json.loads(ended.stdout)["findings"]}
    check(found["library"]["state"] == "ok", "the native library loads beside the engine's libraries", found["library"])
    check(found["start"]["state"] == "ok", "a store is started and answers", found["start"])
    check(found["sglang"]["state"] == "ok", "the engine's interface is what the adapter was written for", found["sglang"])
    check("compared with the version" in found["sglang"]["text"], "there is a list of this very version", found["sglang"]["text"])
    check(ended.returncode == 0, "the exit status says so", ended.returncode)
    done()
