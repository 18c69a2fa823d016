# SPDX-License-Identifier: Apache-2.0
"""Lets the CUDA build of torch load where no CUDA library is installed.

The package index carries no CPU build of torch for this platform, and the CUDA libraries of the usual build take 3 GB. Nothing here
calls them; only the dynamic loader asks for the files, the symbols and their versions. So for each library that torch names and
nobody has, this writes an empty one beside torch's own, with every symbol that torch wants of it. Each function answers 35, CUDA's
"the driver is too old", so that torch says that there is no GPU.

Run by the Python of the environment that has torch. Needs gcc and binutils.
"""
import re
import subprocess
import sysconfig
import tempfile
from collections import defaultdict
from pathlib import Path

ANSWER = 35
CUDA_LIBRARY = re.compile(r"^lib(cu|nv|nccl)[a-zA-Z0-9_]*\.so")
CUDA_SYMBOL = re.compile(r"^(__cuda|cu|nv|nccl)\w+$")
# Loaded by name when a GPU is used, and looked for when torch asks whether there is one: must stay away.
DRIVER = "libcuda.so.1"


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Binary:
    """What the loader will ask for one shared object."""

    def __init__(self, path):
        self.wanted_libraries = set(re.findall(r"\(NEEDED\).*\[(.+?)\]", output("readelf", "-dW", path)))
        self.library_of_version = {}
        library = None
        for line in output("readelf", "-VW", path).splitlines():
            if found := re.search(r"Version: \d+\s+File: (\S+)", line):
                library = found[1]
            elif library and (found := re.search(r"Name: (\S+)\s+Flags:", line)):
                self.library_of_version[found[1]] = library
            elif "section '" in line:
                library = None
        self.defined, self.undefined = set(), set()
        for line in output("nm", "-D", "--with-symbol-versions", path).splitlines():
            kind, symbol = line.split()[-2:]
            name, _, version = symbol.partition("@")
            if kind == "U":
                self.undefined.add((name, version.lstrip("@")))
            else:
                self.defined.add(name)


def write_stub(folder, soname, versions, functions, scratch):
    """functions: {version or "": names}"""
    source, script = scratch / "stub.c", scratch / "stub.map"
    names = sorted(set().union(*functions.values())) if functions else []
    source.write_text("".join(f"int {name}(void) {{ return {ANSWER}; }}\n" for name in names))
    command = ["gcc", "-shared", "-fPIC", "-O1", "-w", "-nostdlib", f"-Wl,-soname,{soname}", "-o", folder / soname, source]
    if versions:
        script.write_text("".join(
            "%s { global: %s };\n" % (version, " ".join(f"{name};" for name in sorted(functions.get(version, ()))) or "none_of_this_version;")
            for version in sorted(versions)))
        command.append(f"-Wl,--version-script={script}")
    subprocess.run(command, check=True)


def main():
    site = Path(sysconfig.get_paths()["purelib"])
    folder = site / "torch" / "lib"
    binaries = [Binary(path) for path in [*folder.glob("*.so*"), *(site / "torch").glob("_C*.so")]]
    present = {path.name for path in folder.iterdir()}
    wanted = set().union(*(binary.wanted_libraries for binary in binaries))
    missing = sorted(name for name in wanted if CUDA_LIBRARY.match(name) and name != DRIVER and name not in present)
    defined = set().union(*(binary.defined for binary in binaries))

    versions, functions, unversioned = defaultdict(set), defaultdict(lambda: defaultdict(set)), set()
    for binary in binaries:
        for version, library in binary.library_of_version.items():
            if library in missing:
                versions[library].add(version)
        for name, version in binary.undefined:
            library = binary.library_of_version.get(version)
            if library in missing:
                functions[library][version].add(name)
            elif not version and name not in defined and CUDA_SYMBOL.match(name):
                unversioned.add(name)
    if missing:
        # The loader looks for a name without a version in every library: any one of those without versions will do.
        carrier = next(name for name in missing if name not in versions)
        functions[carrier][""] |= unversioned
    with tempfile.TemporaryDirectory() as scratch:
        for soname in missing:
            write_stub(folder, soname, versions[soname], functions[soname], Path(scratch))
    print(f"{len(missing)} stub libraries beside torch")


if __name__ == "__main__":
    main()
