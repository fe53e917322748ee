#!/bin/sh
# smoke.sh BUILD [SECONDS [NAME...]]: runs every fuzzer of a build, or those of these names, for some
# seconds each (20), one after the other: half of the time on inputs of up to 4 KiB, from the seeds
# beside this script, half on inputs of up to a mebibyte, from long ones. What they find stays in
# BUILD/fuzz; a crash, a leak, 60 seconds or 2 GiB for one input end it.
set -eu
build=${1:?usage: smoke.sh BUILD [SECONDS [NAME...]]}
seconds=${2:-20}
here=$(cd "$(dirname "$0")" && pwd)
if [ $# -gt 2 ]; then
  shift 2
else
  set -- $(cd "$build/tests/fuzz" && ls | sed -n 's/^fuzz_\([a-z_]*\)$/\1/p')
fi

# Of what nests, repeats or goes on without an end.
long=$build/fuzz/long
mkdir -p "$long"
i=0
for part in '[' '{"a":' '[{"a":' '"a",' 'a.' '[[a.' 'a={a.' '>a\nA\n' 'a b\n' '[UNK]\n##a' '\0' 'PK\1\2'; do
  i=$((i + 1))
  [ -s "$long/$i" ] || awk -v part="$part" -v n=$((1000000 / ${#part})) 'BEGIN {
    for (i = 0; i < n; ++i) printf part }' >"$long/$i"
done

# run NAME SECONDS LENGTH FOLDER...: fuzzes from the inputs in the folders.
run() {
  name=$1 time=$2 length=$3
  shift 3
  work=$build/fuzz/$name
  mkdir -p "$work/corpus-$length" "$here/corpus/$name"
  dictionary=
  [ -f "$here/$name.dict" ] && dictionary=-dict=$here/$name.dict
  "$build/tests/fuzz/fuzz_$name" -max_total_time="$time" -timeout=60 -rss_limit_mb=2048 \
    -max_len="$length" -print_final_stats=1 -artifact_prefix="$work/" $dictionary \
    "$work/corpus-$length" "$@" 2>"$work/log-$length" ||
    { tail -40 "$work/log-$length"; echo "$name failed; the input is in $work"; exit 1; }
  echo "  up to $length bytes: $(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log-$length") inputs"
}

for name; do
  echo "$name: $seconds seconds"
  run "$name" $((seconds / 2 + 1)) 4096 "$here/corpus/$name"
  run "$name" $((seconds / 2 + 1)) 1048576 "$build/fuzz/$name/corpus-4096" "$long" -len_control=0
done
echo "no fuzzer found anything"
