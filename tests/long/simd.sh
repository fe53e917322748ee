#!/usr/bin/env bash
# Runs the test programs on the kernels of other processors: AVX2, and the portable ones.
#   tests/long/simd.sh                 both
#   tests/long/simd.sh avx2 ops nn     one of them, and these programs alone
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/long/common.sh

levels=(avx2 portable)
programs=(core autograd nn data train app models ops system)
if [ $# -gt 0 ]; then levels=("$1"); shift; fi
if [ $# -gt 0 ]; then programs=("$@"); fi

install_missing
say "Building (preset release)"
configure release -DLONGSPAN_CUDA=OFF
build release "${programs[@]/#/test_}"
failed=0
for level in "${levels[@]}"; do
  say "Testing the kernels of $level"
  export LONGSPAN_SIMD=$level
  for program in "${programs[@]}"; do
    binary=$(test_program build/release "$program")
    run_shards build/release "$level-$program" 8 "$binary" --gtest_filter='-*Slow*:MemoryOfAProcess*' || failed=1
  done
done
exit $failed
