#!/usr/bin/env bash
# Runs test programs built with sanitizers, in parts; a second start goes on where the first was cut.
#   tests/long/sanitizers.sh asan             addresses, leaks and undefined behaviour: all programs
#   tests/long/sanitizers.sh tsan             races: core, ops, nn, data, train
#   tests/long/sanitizers.sh asan ops nn      these programs alone
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/long/common.sh

preset=${1:-}
case "$preset" in
  asan) programs=(core autograd nn data train hub cuda app models ops system) ;;
  tsan) programs=(core nn data train ops) ;;
  *) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
shift
if [ $# -gt 0 ]; then programs=("$@"); fi

install_missing
say "Building (preset $preset)"
configure "$preset"
build "$preset" "${programs[@]/#/test_}"
say "Testing"
export ASAN_OPTIONS=${ASAN_OPTIONS:-strict_string_checks=1:detect_stack_use_after_return=1}
export LSAN_OPTIONS=${LSAN_OPTIONS:-suppressions=$PWD/tests/long/lsan.supp:print_suppressions=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-second_deadlock_stack=1}
failed=0
for program in "${programs[@]}"; do
  case "$program" in
    system) shards=8 ;;
    ops | models) shards=24 ;;
    *) shards=4 ;;
  esac
  binary=$(test_program "build/$preset" "$program")
  run_shards "build/$preset" "$program" "$shards" "$binary" --gtest_filter='-*Slow*:MemoryOfAProcess*' || failed=1
done
[ $failed -eq 0 ] && echo "no sanitizer found anything"
exit $failed
