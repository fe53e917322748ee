#!/bin/sh
# words.sh ROOT: fails where code, comments or pages use words that this project has replaced by the
# field's own; docs/glossary.md has those that it uses.
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

check() {
  pattern=$(words | cut -d'|' -f1- | sed 's/|[^|]*$//' | paste -sd'|' -)
  cd "$1"
  found=$(find . \( -name build -o -name 'build-*' -o -name runs -o -name .git -o -name .venv -o -path ./bench/results \
                   -o -path ./tests/oracles -o -path ./tests/fuzz/corpus \) -prune -o \
               -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.md' \) -print |
    LC_ALL=C sort | xargs -r grep -nHE "(^|[^A-Za-z0-9_])($pattern)([^A-Za-z0-9_]|\$)" || true)
  [ -z "$found" ] && return 0
  printf '%s\n' "$found"
  echo "the lines above use words that are out; tests/house/words.sh says what to write instead"
  return 1
}

if [ "${1:-}" != --self-test ]; then
  check "$1"
  echo "no word is out"
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
echo "word check finds what it should"
