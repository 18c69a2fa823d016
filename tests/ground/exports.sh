#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# exports.sh LIBKVONCE_SO: fails when the library exports anything but the public API.
#
# Allowed: mangled names in namespace kvonce (functions, and their classes' vtables and type information), and C names kvonce_*.
# Nothing else needs a place here: the version script makes even the weak instances of libstdc++'s and CAF's templates local,
# which no caller needs, as no type of theirs but libstdc++'s own (exported by libstdc++.so) crosses our border. In sanitizer
# builds the instrumentation's own names are not looked at.
set -euo pipefail

library="$1"
symbols="$(nm -D --defined-only "$library" | awk '{ print $3 }' | sed 's/@.*//' | sort -u)"
# Instances of our templates over, or members of ours that take, what must stay inside.
foreign="$(grep -E '3caf|6spdlog|3fmt' <<< "$symbols" || true)"
# kvonce::detail and the actor side's namespaces are no API either.
inner="$(grep -E '^_Z(TV|TI|TS|N|NK)*N6kvonce(6compat|8messages|6actors|8protocol|7storage|9transport|9telemetry)' <<< "$symbols" || true)"
# Nor are the classes behind the public ones: members of X::Impl.
impl="$(grep -E '^_ZNK?6kvonce[0-9]+[A-Za-z]+4Impl' <<< "$symbols" || true)"
others="$(grep -Ev '^(_ZN6kvonce|_ZNK6kvonce|_ZT[VIS]N6kvonce|kvonce_|__(asan|ubsan|tsan|odr_asan)|$)' <<< "$symbols" || true)"

status=0
for kind in foreign inner impl others; do
  if [[ -n "${!kind}" ]]; then
    echo "exported, but no part of the API ($kind):"
    c++filt <<< "${!kind}"
    status=1
  fi
done
echo "$(grep -c . <<< "$symbols" || true) symbols exported"
exit "$status"
