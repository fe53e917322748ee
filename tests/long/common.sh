# Shared by the checks of this folder; source it from bash with the repository as working directory.
. scripts/common.sh

# test_program BUILD NAME: the path of a test program.
test_program() {
  case "$2" in
    app | system) echo "$1/tests/$2/test_$2" ;;
    *) echo "$1/tests/test_$2" ;;
  esac
}

# run_shards BUILD NAME SHARDS COMMAND...: runs a GoogleTest program in SHARDS parts, as many at a
# time as there are processors. A part that passed is not run again until its program changes, so that
# a check which was cut short goes on where it was. Returns 1 where a part failed; its log is named.
run_shards() {
  local build=$1 name=$2 shards=$3 program=$4 failed=0 i
  shift 3
  local folder=$build/long/$name
  mkdir -p "$folder"
  for ((i = 0; i < shards; ++i)); do
    if [ "$folder/$((i + 1))-of-$shards.log.passed" -nt "$program" ]; then continue; fi
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done
    run_shard "$folder/$((i + 1))-of-$shards.log" "$name" "$i" "$shards" "$@" &
  done
  wait
  for ((i = 0; i < shards; ++i)); do
    [ "$folder/$((i + 1))-of-$shards.log.passed" -nt "$program" ] || failed=1
  done
  return $failed
}

# run_shard LOG NAME INDEX SHARDS COMMAND...: one of them.
run_shard() {
  local log=$1 name=$2 i=$3 shards=$4 began=$SECONDS
  shift 4
  rm -f "$log.passed"
  if GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i GTEST_BRIEF=1 timeout 5400 "$@" >"$log" 2>&1; then
    echo "$name $((i + 1))/$shards: $(grep -a 'PASSED' "$log" | tail -n 1) $((SECONDS - began)) s"
    touch "$log.passed"
  else
    echo "$name $((i + 1))/$shards: FAILED after $((SECONDS - began)) s: $log"
    grep -aE 'FAILED|ERROR: |WARNING: |runtime error|SUMMARY' "$log" | head -n 20 || true
  fi
}
