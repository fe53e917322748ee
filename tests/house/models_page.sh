#!/bin/sh
# models_page.sh ROOT: docs/models.md has a row for every model in README.md's table, and every file of
# results that it names in backticks exists.
# Pages with evidence name it and have at most 90 lines.
# models_page.sh --self-test: proves that it finds what is missing.
set -eu

check() {
  cd "$1"
  bad=0
  # The table of README.md begins with the line of `--model` and ends with the first line outside.
  names=$(sed -n '/^| `--model` |/,/^$/s/^| `\([a-z_0-9]*\)` |.*/\1/p' README.md)
  [ -n "$names" ] || { echo "README.md has no table of models"; return 1; }
  for name in $names; do
    if ! grep -q "^| \`$name\` | \`longspan train " docs/models.md; then
      echo "docs/models.md has no row with the command of $name"
      bad=1
    fi
  done
  paths=$(grep -o '`bench/results/[^`]*`' docs/models.md | tr -d '`' | LC_ALL=C sort -u)
  [ -n "$paths" ] || { echo "docs/models.md names no file of results"; return 1; }
  for path in $paths; do
    [ -e "$path" ] || { echo "docs/models.md names $path, which does not exist"; bad=1; }
  done
  # A model's page says what it is and how it is used; what was measured is in docs/evidence.
  for evidence in docs/evidence/*.md; do
    [ -e "$evidence" ] || continue
    page=docs/${evidence##*/}
    [ -e "$page" ] || { echo "$evidence belongs to no page $page"; bad=1; continue; }
    lines=$(wc -l <"$page")
    [ "$lines" -le 90 ] || { echo "$page has $lines lines; expected 90 at most: measurements are in $evidence"; bad=1; }
    grep -q "evidence/${page##*/}" "$page" || { echo "$page does not name $evidence"; bad=1; }
  done
  return $bad
}

if [ "${1:-}" != --self-test ]; then
  check "$1"
  echo "every model has its row, and every file of results exists"
  exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/docs" "$folder/bench/results/one"
good() { (check "$folder") >/dev/null || { echo "refused: $1"; exit 1; }; }
bad() { if (check "$folder") >/dev/null; then echo "let through: $1"; exit 1; fi; }
row() { printf '| `%s` | `longspan train --model %s` | `bench/results/%s` |\n' "$1" "$1" "$2"; }
printf '| `--model` | what |\n|---|---|\n| `one` | a |\n| `two_b` | b |\n\n| `three` | c |\n' >"$folder/README.md"
{ row one one; row two_b one; } >"$folder/docs/models.md"
good "two models with rows and files"
row one one >"$folder/docs/models.md"
bad "a model without a row"
{ row one one; row two_b two/summary.json; } >"$folder/docs/models.md"
bad "a file that does not exist"
{ row one one; row two_b one; } | sed 's/two_b` |/two_bc` |/' >"$folder/docs/models.md"
bad "a row of another name"
{ row one one; row two_b one; } | tr -d '`' >"$folder/docs/models.md"
bad "a page without names"
{ row one one; row two_b one; } >"$folder/docs/models.md"
printf '# A page without a table\n' >"$folder/README.md"
bad "a README without a table"
printf '| `--model` | what |\n|---|---|\n| `one` | a |\n\n' >"$folder/README.md"
mkdir "$folder/docs/evidence"
echo measured >"$folder/docs/evidence/one.md"
bad "evidence of no page"
echo 'see `evidence/one.md`' >"$folder/docs/one.md"
good "a page with evidence"
seq 90 >>"$folder/docs/one.md"
bad "a page of more than 90 lines"
echo short >"$folder/docs/one.md"
bad "a page that does not name its evidence"
echo "the check of the page of models finds what it should"
