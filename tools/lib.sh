# SPDX-License-Identifier: Apache-2.0
# Common code of tools/run and tools/test; sourced, with `set -euo pipefail` in force.

repo_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

# What a bare Debian 12 lacks; nothing but Debian's own packages.
packages=(g++ cmake ninja-build ccache git binutils libcaf-dev libspdlog-dev doctest-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev
  libxxhash-dev liblzma-dev python3-dev python3-venv make pkgconf)

# Recorded request traces, where they lie beside the project: with them the hit rates published for them are checked.
if [[ -z "${KVONCE_TRACES:-}" && -d "$repo_root/../shared/traces" ]]; then
  KVONCE_TRACES="$(cd "$repo_root/../shared/traces" && pwd)"
fi
export KVONCE_TRACES="${KVONCE_TRACES:-}"

say() { printf '== %s\n' "$*" >&2; }

die() {
  printf '%s\n' "$*" >&2
  exit 2
}

# install_missing [PACKAGE...]: installs those that are missing, of all that the library needs without a name.
install_missing() {
  local wanted=("$@") missing=() package
  (($# > 0)) || wanted=("${packages[@]}")
  command -v dpkg-query > /dev/null || die "This needs Debian 12 (dpkg-query is not there). Elsewhere, install: ${wanted[*]}"
  for package in "${wanted[@]}"; do
    if [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null)" != installed ]]; then
      missing+=("$package")
    fi
  done
  ((${#missing[@]} == 0)) && return
  local as_root=()
  if ((EUID != 0)); then
    command -v sudo > /dev/null || die "Missing packages, and neither root nor sudo to install them: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq || die "apt-get update failed: no network? Install by hand: ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null \
    || die "apt-get could not install: ${missing[*]}"
}

# Jobs at once: one a core, and no more than memory carries (a file with actors takes up to 1 GiB to compile).
build_jobs() {
  local cores gib
  cores="$(nproc)"
  gib="$(awk '/MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)"
  ((gib < 1)) && gib=1
  echo $((cores < gib ? cores : gib))
}

# Options of CMake for the next build.
build_options=()

# build PRESET [TARGET...]: configures build/PRESET and builds the targets, all of them without a name.
build() {
  local preset="$1"
  shift
  say "building $preset"
  (
    cd "$repo_root"
    cmake --preset "$preset" "${build_options[@]}" > "build-$preset.log" 2>&1 || {
      cat "build-$preset.log" >&2
      exit 2
    }
    rm -f "build-$preset.log"
    local targets=()
    (($# > 0)) && targets=(--target "$@")
    cmake --build "build/$preset" -j "$(build_jobs)" "${targets[@]}"
  ) >&2
}

# python_tag INTERPRETER: cp311
python_tag() { "$1" -c 'import sys; print("cp%d%d" % sys.version_info[:2])'; }

# python_env INTERPRETER: a virtual environment of that interpreter, $python_env, with what builds the Python package (from the package
# index, once). False when it cannot be had; $python_env_failed says why.
python_env=""
python_env_failed=""
python_env() {
  local interpreter="$1" wanted="$repo_root/tools/python-build.txt" tag
  tag="$(python_tag "$interpreter")" || {
    python_env_failed="$interpreter does not run"
    return 1
  }
  python_env="$repo_root/build/python/env-$tag"
  cmp -s "$wanted" "$python_env/installed.txt" && return
  say "making $python_env"
  local log="$python_env.log"
  mkdir -p "$repo_root/build/python"
  if ! { "$interpreter" -m venv --clear "$python_env" && timeout 300 "$python_env/bin/pip" install --quiet --retries 1 --requirement "$wanted"; } > "$log" 2>&1; then
    python_env_failed="no environment to build the Python package in ($(tail -n 1 "$log"))"
    return 1
  fi
  cp "$wanted" "$python_env/installed.txt"
}

# python_options: sets build_options for a build with the Python package; without, and with the reason, where that cannot be.
python_options() {
  if python_env python3; then
    build_options=("-DKVONCE_PYTHONS=$python_env/bin/python")
  else
    say "the Python package is not built: $python_env_failed"
    build_options=(-DKVONCE_PYTHONS= "-DKVONCE_PYTHON_MISSING=the Python package is not built: $python_env_failed")
  fi
}
