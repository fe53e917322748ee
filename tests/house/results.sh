#!/bin/sh
# results.sh ROOT: every file below bench/results is quoted by a page, a script or a comment that names
# it or its folder, and has a line with its command in bench/results/README.md; and every name of a
# result leads to a file.
# results.sh --self-test: proves that it finds what is missing.
set -eu

# The files of the repository; those that measurements left there on this machine alone do not count.
kept_files() {
  if [ -e .git ] && git ls-files bench/results 2> /dev/null | grep -q .; then
    git ls-files bench/results
  else
    find bench/results -type f
  fi
}

# Names of the folder stand for its files, except for rows of single steps and configurations: a run
# leaves them behind, and few pages need them. `*` stands for any name, of one folder or file.
check() {
  cd "$1"
  names=$(find . \( -name build -o -name 'build-*' -o -name runs -o -name .git -o -name .venv \
                    -o -path ./bench/results -o -path ./tests/house -o -path ./tests/oracles \) -prune -o \
               -type f \( -name '*.md' -o -name '*.sh' -o -name '*.py' -o -name '*.h' -o -name '*.cc' \
                    -o -name '*.cu' -o -name '*.cuh' -o -name CMakeLists.txt -o -name '*.cmake' \) -print0 |
    xargs -0 grep -hoE 'bench/results/[A-Za-z0-9_./*-]*[A-Za-z0-9_*]' -- /dev/null | LC_ALL=C sort -u)
  # The first column of the table, without its header.
  rows=$(sed -n 's/^| \(`[^|]*`[^|]*\) |.*/\1/p' bench/results/README.md | grep -o '`[^`]*`' | tr -d '`' |
    sed 's|^|bench/results/|;s|/$||' | LC_ALL=C sort -u)
  [ -n "$names" ] && [ -n "$rows" ] || { echo "no page or no line names a result"; return 1; }
  found=$(
    for name in $names; do  # unquoted, so that the shell expands what has an asterisk
      if [ ! -e "$name" ]; then echo "$name is named, but does not exist"; fi
    done
    for name in $rows; do
      if [ ! -e "$name" ]; then echo "$name has a line in bench/results/README.md, but does not exist"; fi
    done
    covered=" $(for name in $names bench/results/README.md; do printf '%s ' "$name"; done)"
    listed=" $(printf '%s ' $rows bench/results/README.md)"
    kept_files | LC_ALL=C sort | while read -r file; do
      folder=${file%/*}
      case "$folder/${file##*/}" in
        bench/results/[!/]*/config.toml | bench/results/[!/]*/metrics.jsonl) folder=none ;;
      esac
      case "$covered" in
        *" $file "* | *" $folder "*) ;;
        *) echo "$file is quoted nowhere: name it beside its numbers, or remove it (the history keeps it)" ;;
      esac
      at=$file
      while [ "$at" != bench/results ]; do
        case "$listed" in *" $at "*) break ;; esac
        at=${at%/*}
      done
      if [ "$at" = bench/results ]; then
        echo "$file has no line with its command in bench/results/README.md: write one"
      fi
    done)
  [ -z "$found" ] && return 0
  printf '%s\n' "$found"
  return 1
}

if [ "${1:-}" != --self-test ]; then
  check "$1"
  echo "every result is quoted and has its command, and every name of one leads to it"
  exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
results=$folder/bench/results
good() { (check "$folder") >/dev/null || { echo "refused: $1"; exit 1; }; }
bad() { if (check "$folder") >/dev/null; then echo "let through: $1"; exit 1; fi; }
start() {
  rm -rf "$folder/docs" "$folder/bench"
  mkdir -p "$folder/docs" "$results/run/deep" "$results/other"
  touch "$results/run/summary.json" "$results/run/deep/table.txt" "$results/other/table.txt" "$results/a.jsonl"
  # shellcheck disable=SC2016
  printf '| file | command |\n|---|---|\n| `run/`, `other/table.txt` | x `no.txt` |\n| `a.jsonl` (old) | y |\n' \
    >"$results/README.md"
  # shellcheck disable=SC2016
  printf 'See `bench/results/run`, ![p](../bench/results/*/table.txt), bench/results/a.jsonl.\n' \
    >"$folder/docs/a.md"
  printf '# bench/results/run/deep/table.txt\n' >"$folder/bench/b.py"
}
start && good "files that are named or whose folders are"
touch "$results/left.txt" && bad "a file that nothing names"
start && touch "$results/run/deep/left.txt" && bad "a file of a folder below one that is named"
start && touch "$results/run/metrics.jsonl" && bad "rows of single steps that only their folder names"
start && touch "$results/run/config.toml" && bad "a configuration that only its folder names"
start && echo "bench/results/run/config.toml" >>"$folder/docs/a.md" && touch "$results/run/config.toml" &&
  good "a configuration that a page names"
start && echo "bench/results/run/none.txt" >>"$folder/docs/a.md" && bad "a name without a file"
start && echo "bench/results/*/none.txt" >>"$folder/docs/a.md" && bad "an asterisk that no file fits"
start && rm "$folder/bench/b.py" && bad "a file that no script names any more"
# shellcheck disable=SC2016
start && printf '| `gone.txt` | z |\n' >>"$results/README.md" && bad "a line without a file"
start && sed -i.was '/a.jsonl/d' "$results/README.md" && rm "$results/README.md.was" && bad "a file without a line"
start && rm "$folder/docs/a.md" "$folder/bench/b.py" && bad "no page"
echo "the check of results finds what it should"
