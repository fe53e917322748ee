#!/bin/sh
# profile_traces.sh PROGRAM: traces of three models, and of one that trains, are whole (check_trace.py).
set -eu
program=$1
check=$(cd "$(dirname "$0")" && pwd)/check_trace.py
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 "$check" --self-test
for model in transformer reformer transformer_xl; do
  "$program" profile --model "$model:tiny" --profile 2 --out "$folder/$model" >/dev/null
done
"$program" profile --model transformer:tiny --memory checkpoint:1 --threads 3 --out "$folder/again" >/dev/null
head -c 20000 "$check" >"$folder/text"
"$program" train --model transformer:tiny --data "bytes=$folder/text" --steps 5 --profile 2 \
  --out "$folder/run" >/dev/null
python3 "$check" "$folder"/*/trace.json "$folder"/run/profile-4/trace.json
