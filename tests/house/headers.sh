#!/bin/sh
# headers.sh ROOT COMPILER FLAGS...: every header compiles alone, and longspan.h includes all that are
# public but the contracts of kernels.
set -eu
root=$1
shift
compiler=$1
shift
cd "$root"
list=$(mktemp)
trap 'rm -f "$list"' EXIT
find core autograd ops nn models data train longspan.h app/program.h -name '*.h' 2>/dev/null | LC_ALL=C sort >"$list"
[ -s "$list" ] || { echo "no headers found below $root"; exit 1; }
xargs -P "$(nproc)" -I HEADER "$compiler" -std=c++20 -fsyntax-only -x c++ -Wall -Wextra -Werror \
  -I. "$@" -include HEADER /dev/null <"$list"
while read -r header; do
  grep -q '^#pragma once' "$header" || { echo "$header: no #pragma once"; exit 1; }
  case "$header" in
    core/kernels/* | longspan.h | app/*) ;;
    *) grep -qxF "#include \"$header\"" longspan.h || { echo "longspan.h does not include $header"; exit 1; } ;;
  esac
done <"$list"
echo "$(wc -l <"$list") headers stand alone"
