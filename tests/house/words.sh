#!/bin/sh
# words.sh ROOT: fails where code, comments or pages use words that this project has replaced by the
# field's own, and where docs/glossary.md, which has the project's own words, has more than 70 terms or
# a term twice.
# words.sh --self-test: proves that it finds them.
set -eu

# A word or phrase (extended regular expression) | what to write instead.
words() {
  cat <<'LIST'
Complaint|ErrorHandler, error
complain(s|ts?)?|throw, report, error
Live<|DeviceScalar<
plan_device|meta_device
on the plan|on the meta device
unhold|release
dear (op|result)s?|expensive op
kept_or|reuse_or_recompute
PartialNode|AccumulatingNode
[Ww]hom|target, owner, or another sentence
DrawWatch|RngReuseCheck
InversionWatch|ReconstructionErrorMonitor
with_unit_rows|last_dim_contiguous
heads_inside|empty_blhd
Blueprint|ModelSpec
[Bb]lueprints?|model spec
Material|TaskData
Recipe|LayoutSpec, InputSpec
PlanRoom|WorkspaceUsage
[Ss]tretch(es)?|split, range, segment
[a-z0-9_]*_(stretch|stretches|room|rooms_?)|split, range, workspace
[a-z0-9_]*_complain(s|_[a-z_]*)?|raise, throw
[Ss]poilt|nonfinite, corrupted
least_of|min
most_of|max
two_to|exp2
lies_packed_[ab]|is_packed_a
shadow device|host-backed test device
way (back|there)|backward pass, forward pass
LIST
}

# The terms of the glossary: the first column of its table.
check_glossary() {
  terms=$(awk '/^\|---/ { body = 1; next } body && /^\| / { sub(/^\| /, ""); sub(/ \|.*/, ""); print }' "$1")
  count=$(printf '%s\n' "$terms" | grep -c . || true)
  [ "$count" -gt 0 ] || { echo "$1 has no table of terms"; return 1; }
  [ "$count" -le 70 ] || { echo "$1 has $count terms; expected at most 70: explain a term of one page there"; return 1; }
  # A word in brackets would tell two meanings of one term apart.
  twice=$(printf '%s\n' "$terms" | sed 's/ (.*//' | LC_ALL=C sort -f | uniq -di)
  [ -z "$twice" ] || { echo "$1 has more than one meaning of: $twice"; return 1; }
}

check() {
  pattern=$(words | cut -d'|' -f1- | sed 's/|[^|]*$//' | paste -sd'|' -)
  cd "$1"
  found=$(find . \( -name build -o -name 'build-*' -o -name runs -o -name .git -o -name .venv -o -path ./bench/results \
                   -o -path ./tests/oracles -o -path ./tests/fuzz/corpus \) -prune -o \
               -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.md' \) -print |
    LC_ALL=C sort | xargs -r grep -nHE "(^|[^A-Za-z0-9_])($pattern)([^A-Za-z0-9_]|\$)" || true)
  [ -n "$found" ] || { [ ! -e docs ] || check_glossary docs/glossary.md; return; }
  printf '%s\n' "$found"
  echo "the lines above use words that are out; tests/house/words.sh says what to write instead"
  return 1
}

if [ "${1:-}" != --self-test ]; then
  check "$1"
  echo "no word is out, and the glossary has at most 70 terms of one meaning each"
  exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
good() { printf '%s\n' "$1" >"$folder/a.h"; (check "$folder") >/dev/null || { echo "refused: $1"; exit 1; }; }
bad() { printf '%s\n' "$1" >"$folder/a.h"; if (check "$folder") >/dev/null; then echo "let through: $1"; exit 1; fi; }
good '/// Returns the release of a storage.'
good 'int materialized = recipes_of(x);'
bad '/// It complains of the first.'
bad '/// The way back reads it.'
bad 'class Blueprint {'
bad 'x.unhold();'
bad '// runs on the plan'
bad 'if (least_of(a, b) > 0) {'
bad '/// for whom'
echo "int f();" >"$folder/a.h"
mkdir "$folder/docs"
glossary() { printf '# Glossary\n\n| term | meaning |\n|---|---|\n'; for t in "$@"; do printf '| %s | m |\n' "$t"; done; }
good_terms() { glossary "$@" >"$folder/docs/glossary.md"; (check "$folder") >/dev/null || { echo "refused: $*"; exit 1; }; }
bad_terms() {
  glossary "$@" >"$folder/docs/glossary.md"
  if (check "$folder") >/dev/null; then echo "let through: $*"; exit 1; fi
}
# shellcheck disable=SC2046
good_terms $(seq 70)
# shellcheck disable=SC2046
bad_terms $(seq 71)
bad_terms
bad_terms "block (memory)" "block (model)"
bad_terms run Run
good_terms "run" "run of keys"
rm "$folder/docs/glossary.md"
if (check "$folder") >/dev/null 2>&1; then echo "let through: pages without a glossary"; exit 1; fi
echo "word check finds what it should"
