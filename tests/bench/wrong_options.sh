#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# wrong_options.sh KVONCE: bad options of `kvonce bench` end with status 2 and a line that names the option.
kvonce=$1
failed=0

# refused WORD ARGUMENT...: status 2, nothing on stdout, WORD on stderr.
refused() {
  word=$1
  shift
  out=$("$kvonce" bench "$@" 2>/dev/null)
  error=$("$kvonce" bench "$@" 2>&1 >/dev/null)
  status=$?
  if [ "$status" -ne 2 ] || [ -n "$out" ]; then
    echo "kvonce bench $*: status $status, output '$out'"
    failed=1
  fi
  case $error in
    *"$word"*) ;;
    *)
      echo "kvonce bench $*: '$word' is not in '$error'"
      failed=1
      ;;
  esac
}

refused --ranks put --ranks 0
refused --ranks put --ranks -1
refused --ranks put --ranks 0x10
refused --pages put --pages 12abc
refused --pages put --pages ""
refused --page-bytes put --page-bytes 512MiB
refused --page-bytes put --page-bytes 1.3B
refused --batch get --batch 0
refused --depth get --depth 5000
refused --time idle --time 10
refused gpt-9 lookup --preset gpt-9
refused --lockstep exists --lockstep
refused --limit-time put --limit-time 5
refused --via put --via tcp:1
refused --via put --via unix:
refused --via memory --via spawn
refused --expect-path put --via spawn --expect-path memcpy
refused --expect-path put --expect-path shm
refused --expect-path put --expect-path both
refused --kills coalesce --kills -1
refused --rounds coalesce --rounds 0
refused --ranks coalesce --ranks 1
refused --page-bytes coalesce --kills 1 --page-bytes 4KiB
refused --repeat coalesce --repeat 2
refused /proc restart --pages 16 --folder /proc
refused '"nothing" is no command; allowed are put, get, exists' nothing
refused 'a command is missing; allowed are put, get, exists'
exit "$failed"
