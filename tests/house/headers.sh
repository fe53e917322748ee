#!/bin/sh
# headers.sh ROOT COMPILER FLAGS...: every header compiles alone.
set -eu
root=$1
shift
compiler=$1
shift
cd "$root"
list=$(mktemp)
trap 'rm -f "$list"' EXIT
find core autograd ops nn models data train -name '*.h' 2>/dev/null | LC_ALL=C sort >"$list"
[ -s "$list" ] || { echo "no headers found below $root"; exit 1; }
xargs -P "$(nproc)" -I HEADER "$compiler" -std=c++20 -fsyntax-only -x c++ -Wall -Wextra -Werror \
  -I. "$@" -include HEADER /dev/null <"$list"
while read -r header; do
  grep -q '^#pragma once' "$header" || { echo "$header: no #pragma once"; exit 1; }
done <"$list"
echo "$(wc -l <"$list") headers stand alone"
