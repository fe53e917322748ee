#!/bin/sh
# functions.sh ROOT: no function of the product is longer than 80 lines, kernels apart. A function ends at a
# closing brace in the first or third column, and begins at the latest line before it that starts there.
# functions.sh --self-test: proves that it finds one that is too long.
set -eu

check() {
  cd "$1"
  find core autograd ops nn models data train hub app examples \( -name '*.h' -o -name '*.cc' \) 2>/dev/null |
    LC_ALL=C sort | xargs -r awk '
    function ends(column) {
      if (begin[column] > 0 && FNR - begin[column] + 1 > 80) {
        printf "%s:%d: %d lines; expected at most 80\n", FILENAME, begin[column], FNR - begin[column] + 1
        bad = 1
      }
      begin[column] = 0
    }
    FNR == 1 { begin[0] = begin[2] = 0 }
    /^}/ { ends(0); next }
    /^  }/ { ends(2); next }
    /^[A-Za-z_~\[]/ {
      begin[0] = /^(namespace|struct|class|enum|union|extern|using)/ || / = \{$/ || />\{$/ ? 0 : FNR
      if (/^template/) begin[0] = 0
      begin[2] = 0
      next
    }
    /^  [A-Za-z_~\[]/ { begin[2] = / (namespace|struct|class|enum|union) .*\{$/ || / = \{$/ ? 0 : FNR }
    END { exit bad }'
}

if [ "${1:-}" != --self-test ]; then
  check "$1"
  echo "no function is too long"
  exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/core"
lines() { for i in $(seq "$1"); do echo "  x = $i;"; done; }
good() { (check "$folder") >/dev/null || { echo "refused: $1"; exit 1; }; }
bad() { if (check "$folder") >/dev/null; then echo "let through: $1"; exit 1; fi; }
{ echo 'int f(int a,'; echo '      int b) {'; lines 77; echo '}'; } >"$folder/core/a.cc"
good 'a function of 80 lines'
{ echo 'int f(int a,'; echo '      int b) {'; lines 78; echo '}'; } >"$folder/core/a.cc"
bad 'a function of 81 lines'
{ echo 'struct A {'; echo '  int f() {'; lines 90 | sed 's/^/  /'; echo '  }'; echo '};'; } >"$folder/core/a.cc"
bad 'a member of 92 lines'
{ echo 'struct A {'; lines 90; echo '};'; echo 'const int a[] = {'; lines 90; echo '};'; } >"$folder/core/a.cc"
good 'a class and a table'
echo "function check finds what it should"
