#!/usr/bin/env bash
# Measures what bench/results/families publishes, and writes its page.
#   bench/families.sh [PART ...]   parts: pairs growth cost layer lengths report; all by default
# What is in the files already is not measured again: delete a file, or lines, to do so.
#   PRESET=release   the build that is measured; dev otherwise
#   FOLDER=DIR       results in another folder
#   LONGSPAN_PEERS_VENV=DIR   the virtual environment of bench/peers/setup.sh, for lengths
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/${PRESET:-dev}
folder=${FOLDER:-bench/results/families}
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(pairs growth cost layer lengths report)

cmake --build "$build" --target bench_families bench_kernels bench_plot worker >/dev/null
mkdir -p "$folder"

# once PART COMMAND ...: the file of a part, complete or not there
once() {
  local part=$1
  shift
  "$@" >"$folder/part"
  mv "$folder/part" "$folder/$part.jsonl"
}

# each PART FAMILY ...: a family at a time, unless it is there
each() {
  local part=$1 family
  shift
  for family in "$@"; do
    grep -qsF "\"family\":\"$family\"" "$folder/$part.jsonl" && continue
    "$build/bench/bench_families" "$part" --family "$family" >"$folder/part"
    cat "$folder/part" >>"$folder/$part.jsonl"
    rm "$folder/part"
  done
}

families=(fixed strided blockbert bigbird longformer longformer_globals led etc)
for part in "${parts[@]}"; do
  case "$part" in
    pairs) each pairs "${families[@]}" ;;
    growth) each growth "${families[@]}" ;;
    cost)
      [ -s "$folder/cost.jsonl" ] || once cost "$build/bench/bench_families" cost ;;
    layer)
      [ -s "$folder/layer.jsonl" ] ||
        once layer "$build/bench/bench_kernels" --benchmark_filter='sparse layer/.*L=12288' \
          --benchmark_enable_random_interleaving=true --benchmark_repetitions=3 ;;
    lengths)
      bench/peers/lengths.py --worker "$build/bench/bench_worker" --out "$folder/lengths.jsonl" \
        >/dev/null ;;
    report) bench/report.py --results "$folder" --plot "$build/bench/bench_plot" ;;
    *) echo "unknown part $part; see bench/families.sh" >&2; exit 1 ;;
  esac
done
