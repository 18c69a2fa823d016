#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# install.sh SOURCE BUILD VERSION LIBDIR: installs the build into a temporary prefix, moves that, and builds and runs examples/c
# against it: by find_package, by pkg-config, and as C++. Fails when anything of the installed tree names the source or the build.
set -euo pipefail
source_dir="$1"
build="$2"
version="$3"
libdir="$4"

folder="$(mktemp -d)"
clean_up() {
  [[ ! -d "$folder/run" ]] || "$prefix/bin/kvonce" stop > /dev/null 2>&1 || true  # unless it has been stopped
  rm -rf "$folder"
}
trap clean_up EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
# The lines that a run must print, in any order between other ones.
expect() {
  local out="$1" line
  shift
  for line in "$@"; do grep -qxF "$line" <<< "$out" || fail "'$line' is not in: $out"; done
}

cmake --install "$build" --prefix "$folder/first" > "$folder/install.log"
prefix="$folder/kvonce"
mv "$folder/first" "$prefix"

for file in include/kvonce/kvonce.h include/kvonce/runtime.hpp "$libdir/libkvonce.so" "$libdir/libkvonce.so.$version" bin/kvonce \
  bin/kvonced "$libdir/pkgconfig/kvonce.pc" "$libdir/cmake/kvonce/kvonceConfig.cmake" \
  "$libdir/cmake/kvonce/kvonceConfigVersion.cmake" share/doc/kvonce/c.md share/doc/kvonce/embedding.md \
  share/doc/kvonce/kvonced.md share/doc/kvonce/cli.md share/doc/kvonce/examples/embedding.cpp share/doc/kvonce/LICENSE; do
  [[ -e "$prefix/$file" ]] || fail "$file is not installed"
done
soname="$(objdump -p "$prefix/$libdir/libkvonce.so" | awk '$1 == "SONAME" { print $2 }')"
[[ "$soname" == "libkvonce.so.${version%%.*}" && -e "$prefix/$libdir/$soname" ]] || fail "the soname is '$soname'"
if grep -rlE --include='*.cmake' --include='*.pc' --include='*.h' --include='*.hpp' -e "$source_dir|$build|$folder/first" "$prefix"; then
  fail "these files name where they were built"
fi

cmp -s "$source_dir/LICENSE" "$prefix/share/doc/kvonce/LICENSE" || fail "the installed LICENSE is another text"
# What the installed pages point to is installed, or they say that it is of the source (kvonced.md tells where `packaging` went).
for page in "$prefix"/share/doc/kvonce/*.md; do
  while IFS= read -r target; do
    [[ "$target" =~ ^(https?:|#) || -e "$prefix/share/doc/kvonce/${target%%#*}" ]] || fail "${page##*/} links to $target, which is not installed"
  done < <(grep -oP '\]\(\K[^)]+' "$page")
  if grep -nE '(^|[^[:alnum:]/])((docs|tests|tools|bench|apps|runtime)/[a-z]|README)' "$page" | grep -vE 'source|checkout'; then
    fail "${page##*/} names these of the source without saying so"
  fi
done

pages=("page 0: stored" "page 1: stored" "restorable: 2 of 2 pages" "layer 0 is there" "layer 3 is there" "loaded bytes are the same")
loop=("8 of 8 pages are stored")

command -v make > /dev/null || export CMAKE_GENERATOR=Ninja

# The guide's own commands, from a folder that has examples/c, with $HOME/kvonce as the prefix. Its blocks by number: 1 installs (done
# above), 2 builds by find_package, 3 by pkg-config and make, 4 is what `pages` prints.
block() {
  awk -v wanted="$1" '/^```/ { inside = !inside; if (inside) { number += $0 == "```"; plain = $0 == "```" } next }
                      inside && plain && number == wanted' "$source_dir/docs/c.md" | sed "s,kvonce/lib/,kvonce/$libdir/,"
}
mkdir "$folder/examples"
cp -r "$source_dir/examples/c" "$folder/examples/c"
export HOME="$folder"
printed="$(block 4)"
[[ "$(head -n 1 <<< "$printed")" == "${pages[0]}" ]] || fail "the guide's fourth block is not what pages prints"
follow() {
  local out
  out="$(cd "$folder" && bash -euo pipefail -c "$(block "$1")" 2> "$folder/follow.err")" || { cat "$folder/follow.err"; fail "block $1"; }
  # What the program prints comes last.
  [[ "$(tail -n "$(wc -l <<< "$printed")" <<< "$out")" == "$printed" ]] || fail "block $1 of the guide prints: $out"
}
[[ "$(block 2)" == *"cmake -S examples/c"* && "$(block 3)" == *"make -C examples/c"* ]] || fail "the guide's blocks are others"
follow 2
expect "$("$folder/build/c/loop")" "${loop[@]}"
cp -r "$source_dir/examples/c" "$folder/c"
if sed 's/find_package(kvonce 0.1/find_package(kvonce 9.0/' "$source_dir/examples/c/CMakeLists.txt" > "$folder/c/CMakeLists.txt" \
  && cmake -S "$folder/c" -B "$folder/c/build9" -DCMAKE_PREFIX_PATH="$prefix" > "$folder/cmake9.log" 2>&1; then
  fail "version 9.0 was found in $version"
fi
grep -q 'requested version "9.0"' "$folder/cmake9.log" || fail "version 9.0 was refused, but not for its number"

# pkg-config, and the store that the installed kvonced serves.
if command -v pkg-config > /dev/null && command -v make > /dev/null; then
  export PKG_CONFIG_PATH="$prefix/$libdir/pkgconfig"
  [[ "$(pkg-config --modversion kvonce)" == "$version" ]] || fail "pkg-config says $(pkg-config --modversion kvonce)"
  follow 3
  # "auto" starts the kvonced beside the library, in a run folder of this test's own.
  export XDG_RUNTIME_DIR="$folder/run"
  mkdir -m 700 "$XDG_RUNTIME_DIR"
  expect "$("$folder/examples/c/pages" auto)" "${pages[@]}"
  expect "$("$folder/examples/c/pages" auto)" "page 0: already_stored" "loaded bytes are the same"
  "$prefix/bin/kvonce" stop > /dev/null || fail "the store did not stop"
else
  echo "make or pkg-config is not there: the build by pkg-config is left out"
fi

# The header is C++ as well.
echo '#include <kvonce/kvonce.h>
int main() { kvonce_put_options options = {sizeof options}; return options.size == sizeof options && kvonce_version() ? 0 : 1; }' \
  > "$folder/plus.cpp"
"${CXX:-c++}" -std=c++11 -Wall -Wextra -Wno-missing-field-initializers -Werror -I"$prefix/include" "$folder/plus.cpp" \
  -o "$folder/plus" -L"$prefix/$libdir" -lkvonce -Wl,-rpath,"$prefix/$libdir"
"$folder/plus" || fail "the C++ program"
echo "installed, moved, built against and run"
