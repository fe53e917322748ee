#!/bin/sh
# run.sh CMAKE BUILD ROOT COMPILER GENERATOR SANITIZE: installs the build into an empty prefix; configures, builds
# and runs another project that knows nothing but that prefix; and does in an empty folder what
# docs/your-own-program.md tells a reader to do, and docs/tutorial.md of a program.
set -eu
cmake=$1 build=$2 root=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export CXX="$4" CMAKE_GENERATOR="$5"
if [ -n "${6:-}" ]; then export CXXFLAGS="-fsanitize=$6"; fi
export CMAKE_BUILD_PARALLEL_LEVEL=2

"$cmake" --install "$build" --prefix "$folder/prefix" >"$folder/log" || { cat "$folder/log"; exit 1; }

mkdir "$folder/consumer"
cp "$root"/tests/install/CMakeLists.txt "$root"/tests/install/consumer.cc "$folder/consumer"
sh "$root/tests/install/pytorch.sh" "$root/docs/from-pytorch.md" >"$folder/consumer/pytorch.cc"
"$cmake" -S "$folder/consumer" -B "$folder/consumer/build" -DCMAKE_PREFIX_PATH="$folder/prefix"
"$cmake" --build "$folder/consumer/build"
"$folder/consumer/build/consumer"
# The program of docs/from-pytorch.md: a gradient that is right, and tensors that come back.
(cd "$folder" && consumer/build/pytorch >log)
grep -qF '[[1, 0, 2],' "$folder/log" || { cat "$folder/log"; exit 1; }
[ -e "$folder/net.safetensors" ]
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

mkdir "$folder/page"
sh "$root/tests/install/page.sh" "$root/docs/your-own-program.md" "$root" >"$folder/page.sh"
cd "$folder/page"
PREFIX="$folder/prefix" sh "$folder/page.sh"

# The program of docs/tutorial.md, in a folder beside data/.
if [ -z "${6:-}" ]; then
  mkdir "$folder/data" "$folder/tutorial"
  cp -r "$root/data/samples" "$folder/data"
  sh "$root/tests/install/page.sh" "$root/docs/tutorial.md" "$root" >"$folder/tutorial.sh"
  (cd "$folder/tutorial" && PREFIX="$folder/prefix" sh "$folder/tutorial.sh") >"$folder/log"
  grep -qE '^rows of 256 tokens, step 6: [0-9.]+ bits per byte$' "$folder/log" || { cat "$folder/log"; exit 1; }
fi

# What the example says: gradients are right, the prediction is the measurement, the op that gave NaN has a name, and
# what was loaded is what was saved.
build/custom_model >"$folder/log"
says() { grep -qxF "$1" "$folder/log" || { cat "$folder/log"; echo "custom_model: expected the line $1"; exit 1; }; }
says 'gradients of decay: right'
says "$(sed -n 's/^meta: /cpu: /p' "$folder/log")"
says 'log: forward produced NaN or Inf'
near=$(sed -n 's/^a, near 0.9 in the channels that the output uses most:.*\[\(.*\)\]$/\1/p' "$folder/log" | tr ',' '\n' |
  awk '$1 > 0.85 && $1 < 0.95 { ++n } END { print n + 0 }')
[ "$near" -ge 4 ] || { cat "$folder/log"; echo "custom_model: $near of 8 channels have a near 0.9"; exit 1; }
says 'difference after loading: f32[8] cpu [0, 0, 0, 0, 0, 0, 0, 0]'

# What the commands of the page left: a run that was resumed, a study and two kinds of pictures.
for file in run/checkpoints/step-40 run/pictures/loss.png study/memory.csv study/timeline.html pictures/pictures/pattern.png; do
  [ -e "$file" ] || { echo "the commands of the page left no $file"; exit 1; }
done
awk -F, 'NR > 1 && ($8 != $9 || $10 != $11) { print "predicted is not measured: " $0; bad = 1 } END { exit bad }' \
  study/memory.csv
build/mine models | grep -q '^decay_lm  running sums that forget$' || { echo "models does not list decay_lm"; exit 1; }
build/mine models | grep -q '^transformer  ' || { echo "models does not list the library's"; exit 1; }
