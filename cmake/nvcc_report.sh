#!/bin/sh
# nvcc_report.sh COMMAND...: runs a compiler of CUDA sources, and keeps what ptxas says of each
# kernel's registers and memory beside the object, in OBJECT.ptxas, out of the build's output.
object=
previous=
for word in "$@"; do
  if [ "$previous" = -o ]; then object=$word; fi
  previous=$word
done
case "$object" in
  *.o) ;;
  *) exec "$@" ;;
esac
log=$object.log
status=0
"$@" >"$log" 2>&1 || status=$?
grep -E '^ptxas info|bytes stack frame' "$log" >"$object.ptxas" || true
grep -vE '^ptxas info|bytes stack frame' "$log" >&2 || true
rm -f "$log"
exit "$status"
