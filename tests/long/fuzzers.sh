#!/bin/sh
# fuzzers.sh [SECONDS [NAME...]]: builds the fuzzers with clang and runs each for some seconds (600),
# one after the other; fails on any crash, leak or hang (tests/fuzz/smoke.sh).
set -eu
cd "$(dirname "$0")/../.."
mkdir -p build
cmake --preset fuzz >build/fuzz-configure.log 2>&1 || { cat build/fuzz-configure.log; exit 1; }
cmake --build build/fuzz --target fuzz
seconds=${1:-600}
[ $# -eq 0 ] || shift
exec sh tests/fuzz/smoke.sh build/fuzz "$seconds" "$@"
