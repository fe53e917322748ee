#!/usr/bin/env bash
# Installs what is missing, builds everything and runs the quick tests.
#   scripts/test.sh                 the whole quick suite
#   scripts/test.sh --slow          the slow tests too
#   scripts/test.sh --emulated      instead, the CUDA backend's tests on a device that the host plays
#   scripts/test.sh --continuous    both in one build, with the benchmarks; CUDA is compiled where nvcc is
#   scripts/test.sh --preset asan   another preset of CMakePresets.json (release, asan, tsan)
#   scripts/test.sh -R NAME         arguments that ctest understands go to it
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

preset=dev
labels=(-L quick)
options=(-DLONGSPAN_EMULATED_DEVICE=OFF -DLONGSPAN_UNITY=OFF)
targets=()
extra=()
while [ $# -gt 0 ]; do
  case "$1" in
    --slow) labels=(-L "quick|device|slow"); options=(-DLONGSPAN_EMULATED_DEVICE=ON -DLONGSPAN_UNITY=OFF); targets=(all benchmarks); shift ;;
    --emulated) labels=(-L device); options=(-DLONGSPAN_EMULATED_DEVICE=ON -DLONGSPAN_UNITY=OFF); shift ;;
    --continuous)
      labels=(-L "quick|device")
      options=(-DLONGSPAN_EMULATED_DEVICE=ON -DLONGSPAN_CUDA=OFF -DLONGSPAN_UNITY=ON)
      targets=(all benchmarks)
      packages+=("${site_packages[@]}")  # the test `site` builds the site of the documentation
      nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
      if [ -x "$nvcc" ]; then
        export CUDACXX=$nvcc
        options+=(-DLONGSPAN_CUDA_OBJECTS=ON "-DCMAKE_CUDA_ARCHITECTURES=80-real;90a-real")
      else
        echo "CUDA backend: not compiled: no nvcc"
        options+=(-DLONGSPAN_CUDA_OBJECTS=OFF)
      fi
      shift ;;
    --preset)
      [ $# -ge 2 ] || die "--preset needs a name of CMakePresets.json"
      preset=$2
      shift 2 ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) extra+=("$1"); shift ;;
  esac
done

started=$SECONDS
# Other presets (cuda, sanitizers) have no emulated device.
if [ "$preset" != dev ] && [ "$preset" != release ]; then options=(); fi
install_missing
say "Building (preset $preset)"
configure "$preset" "${options[@]}"
build "$preset" "${targets[@]}"
built=$SECONDS
say "Testing"
results=$PWD/build/$preset/test-results
rm -rf "$results"
mkdir -p "$results"
status=0
GTEST_BRIEF=1 ctest --test-dir "build/$preset" -j "${LONGSPAN_JOBS:-$(nproc)}" --output-on-failure \
  --no-tests=error --output-junit "$results/ctest.junit" "${labels[@]}" "${extra[@]}" || status=$?

# Why cases were skipped, each reason once with its number.
skips=$(grep -aoh '<skipped message="[^"]*"' "$results"/*.xml 2>/dev/null |
  sed 's/<skipped message="//; s/&#x0A;/\n/g; s/"$//' | grep -avE '^([^ ]*/[^ ]*:[0-9]+|)$' |
  sed 's/^skipped: //; s/&apos;/'"'"'/g; s/&quot;/"/g; s/&lt;/</g; s/&gt;/>/g; s/&amp;/\&/g' | sort | uniq -c | sort -rn || true)

# Single cases: those that GoogleTest counted, and one for each test that is not a GoogleTest program.
awk -v results="$results" '
  /<testcase / && match($0, /name="[^"]*"/) {
    name = substr($0, RSTART + 6, RLENGTH - 7)
    state = /status="run"/ ? "run" : /status="fail"/ ? "fail" : "skip"
    file = results "/" name ".xml"
    cases = 0
    while ((getline line < file) > 0) {
      if (line ~ /<testsuites /) {
        match(line, / tests="[0-9]+"/); cases = substr(line, RSTART + 8, RLENGTH - 9) + 0
        match(line, / failures="[0-9]+"/); bad = substr(line, RSTART + 11, RLENGTH - 12) + 0
      } else if (line ~ /<skipped /) {
        ++skipped; --cases
      }
    }
    close(file)
    if (cases > 0) { passed += cases - bad; failed += bad; if (state == "fail" && bad == 0) ++failed }
    else if (state == "run") ++passed
    else if (state == "fail") ++failed
    else ++skipped
  }
  END { printf "%s%d passed, %d failed\n", skipped ? sprintf("%d skipped\n", skipped) : "", passed, failed }
' "$results/ctest.junit" >"$results/summary.txt" || echo "0 passed, 1 failed" >"$results/summary.txt"
say "Built in $((built - started)) s, tested in $((SECONDS - built)) s"
if [ -n "$skips" ]; then printf 'Skipped:\n%s\n' "$skips"; fi
cat "$results/summary.txt"
exit "$status"
