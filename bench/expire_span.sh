#!/usr/bin/env bash
# What a step costs as the longest span grows, against a memory of fixed length that reaches as far.
#   bench/expire_span.sh FILE > bench/results/expire_span/steps.jsonl     FILE: any text of a megabyte
# Processor seconds of one thread: the difference of a run of 44 and one of 12 steps. Spans begin at
# 102.4 steps and have one penalty; there are rows for 256 memories.
set -euo pipefail
file=$(realpath "${1:?a file of text}")
cd "$(dirname "$0")/.."
longspan=${LONGSPAN:-build/dev/longspan}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# seconds STEPS OPTION...: of the processor, for a run.
seconds() {
  local steps=$1 TIMEFORMAT=%U
  shift
  rm -rf "$out/run"
  { time "$longspan" train "$@" --data "bytes=$file" --split 98/1/1 --batch 4 --length 128 \
      --threads 1 --seed 1 --steps "$steps" --set eval_every=0 --out "$out/run" \
      > /dev/null 2> "$out/messages"; } 2>&1
}

# measure MODEL LENGTH OPTION...
measure() {
  local model=$1 length=$2 few many
  shift 2
  few=$(seconds 12 --model "$model" "$@")
  many=$(seconds 44 --model "$model" "$@")
  peak=$(sed 's/.*"peak_bytes":{"total":\([0-9]*\).*/\1/' "$out/run/summary.json")
  awk -v m="$model" -v n="$length" -v a="$few" -v b="$many" -v p="$peak" 'BEGIN {
    printf "{\"model\":\"%s\",\"longest\":%d,\"step_ms\":%.1f,\"peak_bytes\":%d}\n", m, n, (b - a) / 32 * 1000, p }'
}

for length in 256 512 1024 2048 4096; do
  measure expire_span "$length" --set "model.span_max=$length" \
    --set "model.span_init=$(awk -v n="$length" 'BEGIN { print 102.4 / n }')"
  measure transformer_xl "$length" --set "model.mem_len=$length"
done
