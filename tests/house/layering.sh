#!/bin/sh
# layering.sh ROOT: fails on an include that points upward in the order of the folders, and on a
# backend that is named outside the one file that may. layering.sh --self-test: proves that it does.
set -eu

check() {
  find "$1" \( -name build -o -name 'build-*' -o -name '.*' ! -path "$1" \) -prune -o \
       -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print |
  LC_ALL=C sort | xargs -r awk -v root="$1/" '
    BEGIN {
      # folder: the folders that it may include
      sees["core"] = "core"
      sees["ops/kernels"] = "core ops/kernels"
      sees["cpu"] = "core ops/kernels cpu"
      sees["cuda"] = "core ops/kernels cuda"
      sees["autograd"] = "core ops/kernels autograd"
      sees["ops"] = "core ops/kernels autograd ops"
      sees["nn"] = sees["ops"] " nn"
      sees["models"] = sees["nn"] " models"
      sees["train"] = sees["nn"] " train"
      all = sees["nn"] " models train"
      sees["examples"] = all " examples"
      sees["bench"] = all " cpu cuda bench"
      sees["tests"] = all " cpu cuda tests"
      known = all " cpu cuda examples bench tests"
    }
    function folder_of(path) {
      if (path ~ /^ops\/kernels\//) return "ops/kernels"
      sub(/\/.*/, "", path)
      return path
    }
    function has(list, word) { return index(" " list " ", " " word " ") > 0 }
    FNR == 1 { path = substr(FILENAME, length(root) + 1); here = folder_of(path) }
    here in sees && /^[ \t]*#[ \t]*include[ \t]*["<]/ {
      match($0, /["<][^">]*[">]/)
      target = substr($0, RSTART + 1, RLENGTH - 2)
      sub(/^longspan\//, "", target)
      if (target ~ /^\.\.?\// ) {
        printf "%s:%d: include by the path from the root, not %s\n", path, FNR, target; bad = 1; next
      }
      there = folder_of(target)
      if (index(target, "/") == 0 || !has(known, there)) next
      if (!has(sees[here], there)) {
        printf "%s:%d: %s may not include %s (%s)\n", path, FNR, here, there, target; bad = 1
      }
    }
    /LONGSPAN_CUDA/ && /^[ \t]*#[ \t]*(if|elif|ifdef|ifndef)/ && here != "cuda" && here in sees &&
    path != "core/backends.cc" {
      printf "%s:%d: only core/backends.cc asks for LONGSPAN_CUDA\n", path, FNR; bad = 1
    }
    END { exit bad }'
}

if [ "${1:-}" != --self-test ]; then
  check "${1%/}"
  echo "layering holds"
  exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/core" "$folder/ops/kernels" "$folder/cpu" "$folder/models" "$folder/train" "$folder/nn" "$folder/cuda"
good() { printf '%s\n' "$2" >"$folder/$1"; check "$folder" >/dev/null || { echo "refused: $1: $2"; exit 1; }; rm "$folder/$1"; }
bad() { printf '%s\n' "$2" >"$folder/$1"; if check "$folder" >/dev/null; then echo "let through: $1: $2"; exit 1; fi; rm "$folder/$1"; }
good core/a.h '#include "core/b.h"'
good nn/a.h '#include "ops/matmul.h"'
good cpu/a.cc '#include "ops/kernels/matmul.h"'
good cpu/a.cc '#include <hwy/highway.h>'
good core/backends.cc '#if LONGSPAN_CUDA'
good cuda/a.cc '#if LONGSPAN_CUDA'
bad core/a.h '#include "autograd/node.h"'
bad core/a.h '  # include <longspan/autograd/node.h>'
bad ops/kernels/a.h '#include "autograd/node.h"'
bad ops/kernels/a.h '#include "ops/matmul.h"'
bad cpu/a.cc '#include "ops/matmul.h"'
bad cpu/a.cc '#include "cuda/launch.h"'
bad models/a.cc '#include "train/state.h"'
bad train/a.cc '#include "models/transformer.h"'
bad nn/a.cc '#include "cpu/register.h"'
bad nn/a.cc '#include "tests/harness/naive.h"'
bad nn/a.cc '#include "../ops/matmul.h"'
bad ops/a.cc '#if LONGSPAN_CUDA'
echo "layering check finds what it should"
