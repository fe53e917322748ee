#!/bin/sh
# fuzzed.sh ROOT: whether the fuzzers, which only clang builds, link all that they call: every source
# of data/ and train/ whose header a fuzzed source of these folders includes must be fuzzed too.
set -eu
cd "$1"
list=tests/fuzz/CMakeLists.txt
parts=$(grep -oE '\b(data|train)/[a-z0-9_]+' "$list" | sort -u)
missing=0
for part in $parts; do
  [ -f "$part.cc" ] || continue
  for header in $(cat "$part.cc" "$part.h" 2>/dev/null | sed -nE 's/^#include "((data|train)\/[a-z0-9_]+)\.h".*/\1/p' | sort -u); do
    [ -f "$header.cc" ] || continue
    echo "$parts" | grep -qx "$header" && continue
    echo "$part includes $header.h, but $list does not name $header"
    missing=1
  done
done
[ $missing -eq 0 ] && echo "the fuzzers have all that they call"
exit $missing
