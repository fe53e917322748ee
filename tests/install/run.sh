#!/bin/sh
# run.sh CMAKE BUILD CONSUMER COMPILER GENERATOR SANITIZE: installs the build into an empty prefix, and configures,
# builds and runs another project that knows nothing but that prefix.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$1" --install "$2" --prefix "$folder/prefix" >"$folder/log" || { cat "$folder/log"; exit 1; }
cp -r "$3" "$folder/consumer"
flags=
if [ -n "$6" ]; then flags=-fsanitize=$6; fi
"$1" -G "$5" -S "$folder/consumer" -B "$folder/build" -DCMAKE_PREFIX_PATH="$folder/prefix" \
  -DCMAKE_CXX_COMPILER="$4" -DCMAKE_CXX_FLAGS="$flags"
"$1" --build "$folder/build"
"$folder/build/consumer"
