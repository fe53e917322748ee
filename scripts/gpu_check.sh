#!/usr/bin/env bash
# Builds the CUDA backend for the GPU of this machine, tests it and measures it beside PyTorch.
#   scripts/gpu_check.sh                     every part, about ten minutes
#   scripts/gpu_check.sh --part NAME ...     some: build tests repeat graphs ranks sanitizer bench
#   scripts/gpu_check.sh --out DIR           where logs and JSON lines go (runs/gpu-check)
#   scripts/gpu_check.sh --packages DIR      Debian packages' files for a machine without network
#   scripts/gpu_check.sh --gather DIR        puts these files into DIR, on a Debian machine with network
#   scripts/gpu_check.sh --again             parts that passed for this commit too
# It needs a GPU, the CUDA toolkit, g++, cmake, ninja and pkg-config; the last part python3 with
# PyTorch. A part that passed for the same commit is not run again, so a check that was cut short
# goes on where it stopped. It ends with 0 only if every part asked for passed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

out=runs/gpu-check
packages=
again=no
parts=()
# What the engine is built with, and what that needs at run time.
files=(libhwy-dev libhwy1 libopenblas-pthread-dev libopenblas0-pthread libgfortran5 libquadmath0
       libfmt-dev libfmt9 libcli11-dev libtomlplusplus-dev libtomlplusplus3 nlohmann-json3-dev
       libxxhash-dev libxxhash0 libpng-dev libpng16-16 zlib1g-dev zlib1g libgtest-dev
       libsentencepiece-dev libsentencepiece0 libutf8proc-dev libutf8proc2
       libcairo2-dev libcairo2 fontconfig-config fonts-dejavu-core libblkid-dev libblkid1
       libbrotli-dev libbrotli1 libbsd0 libexpat1 libexpat1-dev libffi-dev libffi8 libfontconfig-dev
       libfontconfig1 libfreetype-dev libfreetype6 libglib2.0-0 libglib2.0-dev libmd0 libmount-dev
       libmount1 libpcre2-8-0 libpcre2-dev libpixman-1-0 libpixman-1-dev libselinux1 libselinux1-dev
       libsepol-dev libsepol2 libx11-6 libx11-dev libxau-dev libxau6 libxcb-render0
       libxcb-render0-dev libxcb-shm0 libxcb-shm0-dev libxcb1 libxcb1-dev libxdmcp-dev libxdmcp6
       libxext-dev libxext6 libxrender-dev libxrender1 x11proto-dev
       libbenchmark-dev libbenchmark1debian pkgconf pkgconf-bin libpkgconf3)

die() { printf '%s\n' "$*" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case "$1" in
    --out) out=${2:?}; shift 2 ;;
    --packages) packages=${2:?}; shift 2 ;;
    --part) parts+=("${2:?}"); shift 2 ;;
    --again) again=yes; shift ;;
    --gather)
      mkdir -p "${2:?}" && cd "$2" || exit 2
      apt-get -q download "${files[@]}" || die "Fetching failed; is this Debian 12 with its lists up to date?"
      du -sh . | cut -f 1
      exit 0 ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) die "unknown option $1; see scripts/gpu_check.sh --help" ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || parts=(build tests repeat graphs ranks sanitizer bench)

mkdir -p "$out" && out=$(cd "$out" && pwd) || die "cannot write $out"
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
record=$out/parts.jsonl
build=build/gpu
started=$SECONDS

# Third-party headers and libraries: the system's, or from the folder that was brought along.
if [ -n "$packages" ]; then
  packages=$(cd "$packages" && pwd) || die "no folder $packages"
  root=$packages/root
  if [ ! -e "$root/.complete" ]; then
    mkdir -p "$root"
    for file in "$packages"/*.deb; do
      dpkg-deb -x "$file" "$root" || die "cannot unpack $file"
    done
    touch "$root/.complete"
  fi
  lib=$root/usr/lib/x86_64-linux-gnu
  export PKG_CONFIG_SYSROOT_DIR=$root
  export PKG_CONFIG_LIBDIR=$lib/openblas-pthread/pkgconfig:$lib/pkgconfig:$root/usr/share/pkgconfig
  export CMAKE_PREFIX_PATH=$root/usr
  export FONTCONFIG_SYSROOT=$root FONTCONFIG_FILE=/etc/fonts/fonts.conf
  export LD_LIBRARY_PATH=$lib:$lib/openblas-pthread:${LD_LIBRARY_PATH:-}
  export PATH=$PATH:$root/usr/bin
  echo "Third-party files: $root"
else
  echo "Third-party files: this system's"
fi
export PATH=$PATH:/usr/local/cuda/bin

command -v nvcc >/dev/null || die "no nvcc: install the CUDA toolkit or put it on the PATH"
device=$(nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader 2>/dev/null | head -n 1)
[ -n "$device" ] || die "no GPU here (nvidia-smi names none): scripts/test.sh tests what needs none"
IFS=, read -r name driver capability <<<"$device"
name=$(echo $name) driver=$(echo $driver) capability=$(echo $capability)
architecture=${capability/./}
[ "$architecture" != 90 ] || architecture=90a
printf '{"date": "%s", "device": "%s", "driver": "%s", "toolkit": "%s", "architecture": "%s", "commit": "%s", "changed_files": %d}\n' \
  "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$name" "$driver" \
  "$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')" "sm_$architecture" "$commit" \
  "$(git status --porcelain --untracked-files=no 2>/dev/null | wc -l)" | tee "$out/machine.json"

# run SECONDS LOG COMMAND...: within a time, its output in a log; shows the end where it fails.
run() {
  local limit=$1 log=$out/$2.log status=0
  shift 2
  timeout "$limit" "$@" >"$log" 2>&1 || status=$?
  if [ $status -ne 0 ]; then
    [ $status -ne 124 ] || echo "  stopped after $limit s"
    tail -n 25 "$log" | sed 's/^/  | /'
  fi
  return $status
}

skip() { detail=$1; return 77; }

part_build() {
  run 420 configure cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DLONGSPAN_CUDA=ON \
    -DLONGSPAN_HOST_SIMD=ON -DCMAKE_CUDA_ARCHITECTURES="$architecture-real" &&
    run 420 build cmake --build $build --target all bench_graph bench_worker -j "$(nproc)" || return 1
  detail=$(tests/cuda/budgets.sh $build | tr '\n' ' ')
}

# Among the tests of ops and models are those that compare the device with the CPU; where they do
# not run, the tests did not see the device, and all they say is about the CPU.
part_tests() {
  local failed=0 compared
  run 600 ctest ctest --test-dir $build -L quick --output-on-failure --no-tests=error \
    -E '_on_host_device|install|quickstart' || failed=1
  cp $build/Testing/Temporary/LastTest.log "$out/tests.log" || return 1
  compared=$(grep -c '^\[       OK \].*parity' "$out/tests.log")
  detail="$(sed -n 's/^\(.* tests passed.*\)$/\1/p' "$out/ctest.log"); $compared comparisons with the CPU passed"
  [ "$compared" -gt 0 ] || failed=1
  return $failed
}

# Twenty runs of the same kernels in one process: the same bits each time.
part_repeat() {
  run 120 repeat $build/tests/test_cuda --gtest_filter='*TheSameBits*'
}

# Recorded steps have the bits of those run kernel by kernel; what the host spends on either.
part_graphs() {
  run 120 graphs $build/tests/test_cuda --gtest_filter='Graphs*' &&
    run 120 graph_models $build/tests/test_models --gtest_filter='*recorded*' &&
    run 120 graph_steps $build/bench/bench_graph || return 1
  grep '^{' "$out/graph_steps.log" >"$out/graph_steps.jsonl"
  detail=$(grep -v '^{' "$out/graph_steps.log" | tail -n 1)
}

# Two processes have the bits of one: with a GPU each by NCCL and by way of the host; where there is one
# GPU, by way of the host alone.
part_ranks() {
  command -v mpirun >/dev/null && [ -e $build/longspan_mpi.so ] || { skip "no MPI here"; return; }
  local folder=$out/ranks gpus way file said=()
  gpus=$(nvidia-smi -L | wc -l)
  rm -rf "$folder" && mkdir -p "$folder" && cat docs/*.md >"$folder/text" || return 1
  local train=($build/longspan train --model transformer:tiny --data "bytes=$folder/text" --device cuda --steps 20
    --length 64 --batch 2)
  local two=(mpirun --allow-run-as-root --oversubscribe --bind-to none -np 2)
  run 60 ranks_one "${train[@]}" --set accumulate=2 --out "$folder/one" || return 1
  if [ "$gpus" -gt 1 ]; then
    run 60 ranks_nccl env NCCL_DEBUG=WARN "${two[@]}" "${train[@]}" --out "$folder/nccl" || return 1
    grep -q 'by way of the host' "$out/ranks_nccl.log" && said+=("no NCCL here:")
    run 60 ranks_host env LONGSPAN_NCCL=off "${two[@]}" "${train[@]}" --out "$folder/host" || return 1
  else
    said+=("one GPU, NCCL not tried:")
    run 60 ranks_host env LONGSPAN_NCCL=off CUDA_VISIBLE_DEVICES=0 "${two[@]}" "${train[@]}" \
      --out "$folder/host" || return 1
  fi
  for way in nccl host; do
    [ -e "$folder/$way" ] || continue
    for file in model optimizer; do
      cmp "$folder/one/checkpoints/step-20/$file.safetensors" \
        "$folder/$way/checkpoints/step-20/$file.safetensors" || return 1
    done
    said+=("the bits of one process, by $way;")
  done
  detail="${said[*]}"
}

part_sanitizer() {
  command -v compute-sanitizer >/dev/null || { skip "no compute-sanitizer"; return; }
  local failed=0 tool
  for tool in memcheck racecheck initcheck; do
    run 150 "sanitizer_$tool" compute-sanitizer --tool $tool --error-exitcode 9 \
      $build/tests/test_cuda --gtest_filter=Kernels.TrainAModel || failed=1
  done
  return $failed
}

part_bench() {
  python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null ||
    { skip "python3 has no PyTorch that sees the device"; return; }
  run 300 bench python3 bench/peers/gpu.py --worker $build/bench/bench_worker --out "$out/bench.jsonl"
  local status=$?
  grep -v '^{' "$out/bench.log" | tail -n 60
  return $status
}

table=()
failures=0
for part in "${parts[@]}"; do
  declare -F "part_$part" >/dev/null || die "no part $part; there are build, tests, repeat, graphs, ranks, sanitizer and bench"
  if [ $again = no ] && grep -qs "\"part\": \"$part\", \"commit\": \"$commit\", \"state\": \"passed\"" "$record"; then
    table+=("$part|passed before|")
    continue
  fi
  printf '\n== %s\n' "$part"
  detail="" before=$SECONDS status=0
  "part_$part" || status=$?
  case $status in
    0) state=passed ;;
    77) state=skipped ;;
    *) state=failed; failures=$((failures + 1)) ;;
  esac
  printf '{"part": "%s", "commit": "%s", "state": "%s", "seconds": %d, "detail": "%s"}\n' \
    "$part" "$commit" "$state" $((SECONDS - before)) "${detail//\"/}" >>"$record"
  table+=("$part|$state|$((SECONDS - before)) s  $detail")
  [ "$part/$state" != build/failed ] || break
done

printf '\n== %s, driver %s, commit %s\n' "$name" "$driver" "$commit"
for row in "${table[@]}"; do
  IFS='|' read -r part state detail <<<"$row"
  printf '%-10s %-14s %s\n' "$part" "$state" "$detail"
done
printf 'in %d s; logs and JSON lines in %s\n' $((SECONDS - started)) "$out"
[ $failures -eq 0 ]
