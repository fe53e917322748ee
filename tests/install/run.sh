#!/bin/sh
# run.sh CMAKE BUILD ROOT COMPILER GENERATOR SANITIZE: installs the build into an empty prefix, and
# configures, builds and runs another project that knows nothing but that prefix.
set -eu
cmake=$1 build=$2 root=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export CXX="$4" CMAKE_GENERATOR="$5"
if [ -n "$6" ]; then export CXXFLAGS="-fsanitize=$6"; fi
export CMAKE_BUILD_PARALLEL_LEVEL=2

"$cmake" --install "$build" --prefix "$folder/prefix" >"$folder/log" || { cat "$folder/log"; exit 1; }

mkdir "$folder/consumer"
cp "$root"/tests/install/CMakeLists.txt "$root"/tests/install/consumer.cc "$folder/consumer"
"$cmake" -S "$folder/consumer" -B "$folder/consumer/build" -DCMAKE_PREFIX_PATH="$folder/prefix"
"$cmake" --build "$folder/consumer/build"
"$folder/consumer/build/consumer"
# refuses MESSAGE ARGUMENTS...: the program must fail with this message.
refuses() {
  message=$1
  shift
  if "$folder/consumer/build/consumer" "$@" >"$folder/log" 2>&1 || ! grep -qF "$message" "$folder/log"; then
    echo "consumer $*: expected the error $message"
    cat "$folder/log"
    exit 1
  fi
}
"$folder/consumer/build/consumer" models bare
refuses 'the configuration of bare has no field "n_layer"' memory --model bare
refuses 'there is a model "etc" already' twice
refuses 'consumer: there is no command "trian"; did you mean train?' trian
refuses 'see consumer train --help' train extra
