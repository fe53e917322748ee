#!/bin/sh
# headers.sh ROOT COMPILER FLAGS...: every header compiles alone, and longspan.h includes all that are
# public but the contracts of kernels. A header that the source of its name includes first has compiled
# alone there.
# headers.sh --write ROOT: writes that list of includes into longspan.h.
set -eu

# The include lines of longspan.h, a group for each folder.
includes() {
  for folder in core autograd ops nn models data train hub; do
    [ "$folder" = core ] || echo
    find "$folder" -name '*.h' ! -path 'core/kernels/*' | LC_ALL=C sort | sed 's/.*/#include "&"/'
  done
}

if [ "${1:-}" = --write ]; then
  cd "$2"
  { sed '/^#include/,$d' longspan.h; includes; } >longspan.h.new
  mv longspan.h.new longspan.h
  exit 0
fi

root=$1
shift
compiler=$1
shift
cd "$root"
list=$(mktemp)
trap 'rm -f "$list"' EXIT
find core autograd ops nn models data train hub longspan.h app/program.h -name '*.h' 2>/dev/null | LC_ALL=C sort >"$list"
[ -s "$list" ] || { echo "no headers found below $root"; exit 1; }
if ! { sed '/^#include/,$d' longspan.h; includes; } | diff - longspan.h; then
  echo "longspan.h does not include every public header; tests/house/headers.sh --write . adds what is missing"
  exit 1
fi
alone=$(mktemp)
trap 'rm -f "$list" "$alone"' EXIT
while read -r header; do
  source=${header%.h}.cc
  [ -f "$source" ] && [ "$(grep -m1 '^#include' "$source")" = "#include \"$header\"" ] || echo "$header"
done <"$list" >"$alone"
xargs -P "$(nproc)" -I HEADER "$compiler" -std=c++20 -fsyntax-only -x c++ -Wall -Wextra -Werror \
  -I. "$@" -include HEADER /dev/null <"$alone"
while read -r header; do
  grep -q '^#pragma once' "$header" || { echo "$header: no #pragma once"; exit 1; }
done <"$list"
echo "$(wc -l <"$list") headers stand alone"
