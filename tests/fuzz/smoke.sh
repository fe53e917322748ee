#!/bin/sh
# smoke.sh BUILD [SECONDS]: runs every fuzzer of a build for some seconds (20), from the seeds beside
# this script. What they find stays in BUILD/fuzz.
set -eu
build=${1:?usage: smoke.sh BUILD [SECONDS]}
seconds=${2:-20}
here=$(cd "$(dirname "$0")" && pwd)
for name in tensor_file json toml command_line; do
  work=$build/fuzz/$name
  mkdir -p "$work/corpus"
  echo "$name: $seconds seconds"
  "$build/tests/fuzz/fuzz_$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=4096 \
    -print_final_stats=1 -artifact_prefix="$work/" "$work/corpus" "$here/corpus/$name" 2>"$work/log" ||
    { tail -40 "$work/log"; echo "$name failed; the input is in $work"; exit 1; }
  grep -E 'number_of_executed_units|DONE' "$work/log"
done
echo "no fuzzer found anything"
