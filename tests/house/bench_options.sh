#!/bin/sh
# bench_options.sh ROOT FOLDER: the benchmark programs in FOLDER that read options name what they take
# after --help, and end with a message and nothing measured after what they do not know. Skipped (77)
# where they are not built.
set -eu
root=$1
folder=$2
status=0
met=0
for source in $(cd "$root" && grep -l 'CommandLine command(' bench/*.cc); do
  name=bench_$(basename "$source" .cc)
  program=$folder/$name
  [ -x "$program" ] || continue
  met=$((met + 1))
  if ! "$program" --help | grep -q "Usage: $name"; then
    echo "$name --help does not say how the program is called"
    status=1
  fi
  parts=$("$program" --help | sed -n '/^Subcommands:/,$s/^  \([a-z]*\) .*/\1/p')
  for part in "" $parts; do
    if said=$("$program" $part --no-such-option 2>&1); then
      echo "$name $part takes --no-such-option"
      status=1
    fi
    case $said in
      *no-such-option* | *subcommand* | *required*) ;;
      *) echo "$name $part --no-such-option says: $said"; status=1 ;;
    esac
  done
done
if [ "$met" -eq 0 ]; then
  echo "skipped: no benchmarks in $folder; cmake --build ... --target benchmarks builds them"
  exit 77
fi
[ "$status" -eq 0 ] && echo "$met programs refuse what they do not know"
exit "$status"
