#!/bin/sh
# documented.sh ROOT: every class, enumeration and function that a header declares at namespace scope
# stands under a /// comment, alone or in a block without blank lines that one comment opens; every
# \cite has its entry in docs/references.bib. Members may speak for themselves.
# documented.sh --self-test: proves that it finds what is missing.
set -eu

check() {
  cd "$1"
  find core autograd ops nn models data train hub app/program.h -name '*.h' 2>/dev/null | LC_ALL=C sort | xargs -r awk '
    FNR == 1 { documented = 0; hidden = 0; depth = 0; in_macro = 0 }
    in_macro { in_macro = /\\$/; next }
    /^#/ { in_macro = /\\$/; next }
    /^namespace detail|^namespace [a-z_:]*::detail/ { hidden = 1; next }
    /^}  \/\/ namespace.*detail/ { hidden = 0; next }
    hidden { next }
    /^$/ { documented = 0; next }
    /^\/\/\// { documented = 1; next }
    # A declaration begins at the left margin; what belongs to it is indented or closes it.
    /^[A-Za-z_\[:]/ {
      if (/^namespace/ || /^using namespace/ || /^extern/ || /^requires/) next
      if (/^(class|struct|enum class) [A-Za-z_:]+;$/) next
      if (/^template/ && !/[;{]$/) { pending = 1; if (!documented) report(); next }
      if (pending) { pending = 0; next }
      if (!documented) report()
    }
    function report() { printf "%s:%d: not documented: %s\n", FILENAME, FNR, $0; bad = 1 }
    END { exit bad }' || return 1
  keys=$(find . -name build -prune -o \( -name '*.h' -o -name '*.cc' \) -print | xargs -r grep -ohE '\\cite [A-Za-z0-9_:/?+-]+' |
         awk '{ print $2 }' | LC_ALL=C sort -u)
  for key in $keys; do
    grep -q "^@[a-z]*{$key,$" docs/references.bib || { echo "docs/references.bib has no $key"; return 1; }
  done
}

if [ "${1:-}" != --self-test ]; then
  check "$1"
  echo "public names are documented"
  exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/core" "$folder/docs"
printf '@article{known2020,\n}\n' >"$folder/docs/references.bib"
good() { printf "$1" >"$folder/core/a.h"; (check "$folder") >/dev/null || { echo "refused: $1"; exit 1; }; }
bad() { printf "$1" >"$folder/core/a.h"; if (check "$folder") >/dev/null; then echo "let through: $1"; exit 1; fi; }
good '#pragma once\nnamespace n {\n/// What it does.\nint f();\nint f(int);\n}\n'
good '/// A class.\nclass A {\n public:\n  int f();\n};\n\nclass B;\n'
good '/// A template. \\\\cite known2020\ntemplate <class T>\nT f();\n'
good 'namespace detail {\nint f();\n}  // namespace detail\n'
bad 'int f();\n'
bad '/// Documented.\nint f();\n\nint g();\n'
bad 'struct A {\n};\n'
bad 'template <class T>\nT f();\n'
bad '/// Says so. \\\\cite unknown2020\nint f();\n'
bad '/// A colon is part of the key \\\\cite known2020: so.\nint f();\n'
echo "documentation check finds what it should"
