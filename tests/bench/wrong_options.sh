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
refused '"12abc" has an unknown unit; allowed is a size from 1 B to 256 MiB' put --page-bytes 12abc
refused 'a size from 17 B to 256 MiB' memory --page-bytes 16
refused 'integer from 1 to 16,777,216' put --pages -1
refused 'integer from 1 to 65,536' lookup --pages 65537
refused '--preset: preset "gpt-9" is unknown' lookup --preset gpt-9
refused '--ranks: 3 ranks are not allowed' lookup --ranks 3
refused '--pages is 16: with a checkpoint at every 64th page (--checkpoint-pages)' lookup --pages 16
refused --operations lookup --operations 0
refused --operations exists --operations 0
refused --operations allocator --operations 0
refused 'no store runs on unix:/nope; start one with kvonced --socket /nope' put --via unix:/nope
refused 'start one with kvonced --socket /nope' coalesce --via unix:/nope
refused 'start one with kvonced --socket /nope' lookup --via unix:/nope
refused --lockstep exists --lockstep
refused --limit-time put --limit-time 5
refused --via put --via tcp:1
refused --via put --via unix:
refused '--via is not for memory: this benchmark has no --via' memory --via spawn
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
