#!/usr/bin/env bash
# Installs what is missing, builds, and trains a Local Transformer on Shakespeare for three minutes.
#   scripts/quickstart.sh                 into runs/quickstart; there already: shows it again
#   scripts/quickstart.sh --seconds 600   longer
#   scripts/quickstart.sh --again         once more from the start, in a new folder
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=180
again=no
while [ $# -gt 0 ]; do
  case "$1" in
    --seconds)
      [ $# -ge 2 ] || { echo "--seconds needs a number" >&2; exit 1; }
      seconds=$2
      shift 2 ;;
    --again) again=yes; shift ;;
    -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "unknown option $1; see scripts/quickstart.sh --help" >&2; exit 1 ;;
  esac
done
. scripts/common.sh

install_missing
say "Building (the first time takes a few minutes)"
configure dev
build dev longspan_program
longspan=build/dev/longspan

text=runs/data/tinyshakespeare.txt
sum=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
if ! sha256sum --status --check <<<"$sum  $text" 2>/dev/null; then
  mkdir -p runs/data
  gzip -dc data/samples/tinyshakespeare.txt.gz >"$text.part"
  mv "$text.part" "$text"
  sha256sum --status --check <<<"$sum  $text" || die "$text is not what it should be; delete it and start again"
fi

run=runs/quickstart
if [ "$again" = yes ]; then
  number=2
  while [ -e "$run-$number" ]; do number=$((number + 1)); done
  run=$run-$number
fi
if [ -s "$run/summary.json" ]; then
  say "$run is trained already; scripts/quickstart.sh --again trains anew"
else
  say "Training for $seconds s into $run"
  "$longspan" train --model local_transformer --task bytes --data "bytes=$text" --split 90/10/0 \
    --lr 0.003 --set optimizer.clip=1 --seconds "$seconds" --save-every 500 --keep 2 --out "$run" --resume
fi

say "A sample"
prompt='ROMEO:'
"$longspan" generate --out "$run" --prompt "$prompt" --tokens 400 --temperature 0.8 --seed 1 >"$run/sample.txt"
cat "$run/sample.txt"

checkpoint=$(ls -d "$run"/checkpoints/step-* | sort -V | tail -n 1)
cat <<TEXT

== What there is
  checkpoint      $checkpoint
  loss curve      $run/pictures/loss.png
  attention map   $run/pictures/attention.png
  sample          $run/sample.txt
  every figure    $run/metrics.jsonl
  configuration   $run/config.toml

== What to try next
  $longspan generate --out $run --prompt "JULIET:" --temperature 0.7 --top-p 0.9
  $longspan train --out $run --resume --seconds 300        # go on with this run
  $longspan train --model local_transformer --data bytes=YOUR_FILE --seconds 600 --out runs/mine
  $longspan models                                         # what else there is to train
  scripts/test.sh                                          # every quick test

== The run (bits per byte: valid_bpb; order-4 n-grams reach 2.408)
TEXT
cat "$run/summary.json"
