# SPDX-License-Identifier: Apache-2.0
# Makes the environment in which a real engine runs on the CPU; sourced by vllm-env and sglang-env, with `set -euo pipefail` in force.

engines_dir="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$engines_dir/../lib.sh"

# What the environments need of Debian: a compiler for the stub libraries and for what the engines compile when they start.
engine_packages=(python3 python3-venv python3-dev g++ binutils ninja-build libssl-dev libnuma1)

engines_cache="${XDG_CACHE_HOME:-$HOME/.cache}/kvonce/engines"

# The wheels in the lock files are made for this version of Python.
engine_python() {
  local candidate
  for candidate in /usr/bin/python3.11 python3.11 python3; do
    if command -v "$candidate" > /dev/null \
      && "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2> /dev/null; then
      command -v "$candidate"
      return
    fi
  done
  die "The engines' environments need Python 3.11 with its module venv."
}

# Whether the package index answers: asked only after an installation has failed. With a log of the question for the reader.
index_answers() {
  local python="$1" package="$2" scratch="$3"
  "$python" -m pip download -q --no-cache-dir --no-deps --retries 1 --timeout 30 -d "$scratch/probe" "$package" > "$scratch/probe.log" 2>&1 && return 0
  ! grep -qiE 'connection (broken|refused|reset|timed out|error)|name resolution|max retries exceeded|unreachable|ProxyError|ReadTimeout' \
    "$scratch/probe.log"
}

# engine_environment NAME SCRIPT: prints the path of the environment for NAME.lock, made by now. Its name carries a digest of all
# that it is made of, so that a change makes another one. Ends with status 77 when the package index cannot be reached.
engine_environment() {
  local name="$1" script="$2" digest final
  digest="$(cat "$engines_dir/$name.lock" "$script" "$engines_dir/env.sh" "$engines_dir/stub_cuda.py" | sha256sum | cut -c1-16)"
  final="$engines_cache/$name-$digest"
  if [[ ! -d "$final" ]]; then
    install_missing "${engine_packages[@]}" >&2
    mkdir -p "$engines_cache"
    (
      # One at a time: the second finds what the first has made.
      flock 9
      [[ -d "$final" ]] || make_environment "$name" "$final" >&2
    ) 9> "$engines_cache/$name.lock" || exit $?
  fi
  printf '%s\n' "$final"
}

make_environment() {
  local name="$1" final="$2" python building pinned
  python="$(engine_python)"
  building="$(mktemp -d "$engines_cache/.$name-XXXXXX")"
  # shellcheck disable=SC2064
  trap "rm -rf '$building'" EXIT
  say "making the environment of $name in $final (once; some 3 GB)"
  "$python" -m venv "$building/env"
  if ! "$building/env/bin/pip" install -q --disable-pip-version-check --no-deps --no-compile -r "$engines_dir/$name.lock" \
    > "$building/pip.log" 2>&1; then
    pinned="$(grep -m1 -v '^#' "$engines_dir/$name.lock")"
    if ! index_answers "$building/env/bin/python" "$pinned" "$building"; then
      say "$name: the package index cannot be reached, so its environment cannot be made here: $(tail -n 1 "$building/probe.log")"
      exit 77
    fi
    tail -n 20 "$building/pip.log"
    die "$name: its packages could not be installed"
  fi
  "$building/env/bin/python" "$engines_dir/stub_cuda.py"
  check_environment "$building/env"
  # As if it had been made under its last name: in the programs' first lines, and in what tracebacks show.
  grep -lIr "^#!$building/env" "$building/env/bin" | xargs -r sed -i "1s|$building/env|$final|"
  sed -i "s|$building/env|$final|g" "$building/env"/bin/activate* "$building/env/pyvenv.cfg"
  "$building/env/bin/python" -m compileall -q -j "$(nproc)" -s "$building/env" -p "$final" "$building/env/lib" > /dev/null || true
  mv -T "$building/env" "$final"
}
