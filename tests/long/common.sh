# Shared by the checks of this folder; source it from bash with the repository as working directory.
. scripts/common.sh

# run_shards BUILD NAME SHARDS COMMAND...: runs a GoogleTest program in SHARDS parts, one after the
# other. A part that passed is not run again until its program changes, so that a check which was cut
# short goes on where it was. Returns 1 where a part failed; its log is named.
run_shards() {
  local build=$1 name=$2 shards=$3 program=$4 failed=0 i began
  shift 3
  local folder=$build/long/$name
  mkdir -p "$folder"
  for ((i = 0; i < shards; ++i)); do
    local log=$folder/$((i + 1))-of-$shards.log
    if [ "$log.passed" -nt "$program" ]; then continue; fi
    rm -f "$log.passed"
    began=$SECONDS
    if GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i GTEST_BRIEF=1 timeout 5400 "$@" >"$log" 2>&1; then
      echo "$name $((i + 1))/$shards: $(grep -a 'PASSED' "$log" | tail -n 1) $((SECONDS - began)) s"
      touch "$log.passed"
    else
      failed=1
      echo "$name $((i + 1))/$shards: FAILED after $((SECONDS - began)) s: $log"
      grep -aE 'FAILED|ERROR: |WARNING: |runtime error|SUMMARY' "$log" | head -n 20 || true
    fi
  done
  return $failed
}
