#!/bin/sh
# layering.sh ROOT: holds the folders of the product to their order. Fails on
#   an include that points upward, or from one part of a folder to a part that may not see it,
#   a folder of more than 25 pages (a header and its source are one page),
#   a circle of pages,
#   a backend that is named outside the one file that may.
# layering.sh --list ROOT: prints for each folder its pages, their median and longest length in lines.
# layering.sh --self-test: proves that it finds what it should.
set -eu

# Every file of the product, tests and benchmarks.
sources() {
  find "$1" \( -name build -o -name 'build-*' -o -name '.*' ! -path "$1" \) -prune -o \
       -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print | LC_ALL=C sort
}

check() {
  families=$(cd "$1" && find models -mindepth 1 -maxdepth 1 -type d 2>/dev/null | LC_ALL=C sort | tr '\n' ' ')
  sources "$1" | xargs -r awk -v root="$1/" -v families="$families" '
    BEGIN {
      # folder: the folders that it may include
      sees["core"] = "core"
      sees["core/kernels"] = "core core/kernels"
      sees["core/ranks"] = "core core/ranks"
      sees["mpi"] = sees["core/ranks"] " mpi"
      sees["cpu"] = sees["core/kernels"] " cpu"
      sees["cpu/matmul"] = sees["cpu"] " cpu/matmul"
      sees["cpu/attention"] = sees["cpu"] " cpu/attention"
      sees["cpu/lsh"] = sees["cpu/attention"] " cpu/lsh"
      sees["cpu/edge_attention"] = sees["cpu/attention"] " cpu/edge_attention"
      sees["cpu/linear_attention"] = sees["cpu/attention"] " cpu/linear_attention"
      sees["cuda"] = sees["core/kernels"] " cuda"
      sees["cuda/attention"] = sees["cuda"] " cuda/attention"
      sees["cuda/lsh"] = sees["cuda/attention"] " cuda/lsh"
      sees["cuda/nccl"] = sees["cuda"] " core/ranks cuda/nccl"
      sees["cuda/linear_attention"] = sees["cuda"] " cuda/linear_attention"
      sees["autograd"] = sees["core/kernels"] " autograd"
      sees["ops"] = sees["autograd"] " core/ranks ops"
      sees["ops/patterns"] = sees["ops"] " ops/patterns"
      sees["ops/attention"] = sees["ops/patterns"] " ops/attention"
      sees["nn"] = sees["ops/attention"] " nn"
      sees["nn/attention"] = sees["nn"] " nn/attention"
      sees["models"] = sees["nn/attention"] " models"
      sees["models/transformer"] = sees["models"] " models/transformer"
      sees["models/bigbird"] = sees["models/transformer"] " models/bigbird"
      sees["models/etc"] = sees["models"] " models/bigbird models/etc"
      sees["models/performer"] = sees["models/transformer"] " models/performer"
      sees["models/longformer"] = sees["models/transformer"] " models/longformer"
      # A family of models sees what all models see and itself, and perhaps another family (above).
      n = split(families, family, " ")
      for (i = 1; i <= n; ++i) {
        if (family[i] == "models/all") continue
        if (!(family[i] in sees)) sees[family[i]] = sees["models"] " " family[i]
        models = models " " family[i]
      }
      sees["models/all"] = sees["models"] models " models/all"
      sees["data/io"] = "core data/io"
      sees["data/unicode"] = "core data/unicode"
      sees["data/tokenizers"] = sees["data/io"] " data/unicode data/tokenizers"
      sees["data"] = sees["nn"] " data/io data/unicode data/tokenizers data"
      sees["data/scores"] = sees["data"] " data/scores"
      sees["data/labelled"] = sees["data"] " data/labelled"
      sees["train"] = sees["data"] " data/scores data/labelled core/ranks train"
      all = sees["train"] " " sees["models/all"] " hub"
      sees["hub"] = all
      backends = " cpu cpu/matmul cpu/attention cpu/edge_attention cpu/linear_attention cpu/lsh cuda cuda/attention cuda/linear_attention cuda/lsh cuda/nccl"
      sees["longspan.h"] = all
      sees["app"] = all " app app/ranks app/runs app/studies app/tasks"
      sees["app/runs"] = sees["app"]
      sees["app/studies"] = sees["app"]
      sees["app/ranks"] = all " app/ranks"
      sees["app/tasks"] = sees["app"]
      sees["examples"] = all " app examples"
      sees["examples/custom"] = all " app examples/custom"
      sees["bench"] = all backends " bench"
      sees["tests"] = all backends " app app/ranks app/runs app/studies app/tasks mpi tests"
      known = sees["tests"] " bench examples examples/custom longspan.h"
    }
    function folder_of(path, parts, n) {
      n = split(path, parts, "/")
      if (parts[1] == "tests" || parts[1] == "bench") return parts[1]
      return n > 2 ? parts[1] "/" parts[2] : parts[1]
    }
    function page_of(path) { sub(/\.(h|cc|cu|cuh)$/, "", path); return path }
    function has(list, word) { return index(" " list " ", " " word " ") > 0 }
    function say(text) { print text; bad = 1 }
    FNR == 1 {
      path = substr(FILENAME, length(root) + 1); here = folder_of(path); page = page_of(path)
      if (!has(known, here)) say(path ": the folder " here " is not in the order of tests/house/layering.sh")
      if (!(page in seen)) { seen[page] = 1; ++pages[here] }
    }
    here in sees && /^[ \t]*#[ \t]*include[ \t]*["<]/ {
      match($0, /["<][^">]*[">]/)
      target = substr($0, RSTART + 1, RLENGTH - 2)
      sub(/^longspan\//, "", target)
      if (target ~ /^\.\.?\// ) {
        say(sprintf("%s:%d: include by the path from the root, not %s", path, FNR, target)); next
      }
      there = folder_of(target)
      if (index(target, "/") == 0 || !has(known, there)) next
      if (!has(sees[here], there)) {
        say(sprintf("%s:%d: %s may not include %s (%s)", path, FNR, here, there, target))
      }
      if (here != "tests" && here != "bench" && page_of(target) != page) {
        edges[page] = edges[page] " " page_of(target)
      }
    }
    /LONGSPAN_CUDA/ && /^[ \t]*#[ \t]*(if|elif|ifdef|ifndef)/ && here !~ /^cuda/ && here in sees &&
    path != "core/backends.cc" {
      say(sprintf("%s:%d: only core/backends.cc asks for LONGSPAN_CUDA", path, FNR))
    }
    # Whether a page leads to itself, and over which others.
    function walk(p, trail, list, n, i) {
      state[p] = 1
      n = split(edges[p], list, " ")
      for (i = 1; i <= n; ++i) {
        if (!(list[i] in state)) walk(list[i], trail " " p)
        else if (state[list[i]] == 1) say("a circle:" substr(trail " " p, index(trail " " p, " " list[i])) " " list[i])
      }
      state[p] = 2
    }
    END {
      for (p in edges) if (!(p in state)) walk(p, "")
      for (f in pages) if (pages[f] > 25 && f != "tests" && f != "bench")
        say(f " has " pages[f] " pages; expected at most 25")
      exit bad
    }' -
}

list() {
  sources "$1" | xargs -r wc -l | awk -v root="$1/" '
    $2 != "total" {
      path = substr($2, length(root) + 1); folder = path; sub(/\/[^\/]*$/, "", folder)
      lines[folder, ++n[folder]] = $1
      if ($1 > longest[folder]) { longest[folder] = $1; name[folder] = path }
    }
    END {
      for (f in n) {
        for (i = 1; i <= n[f]; ++i) for (j = i; j > 1 && lines[f, j] < lines[f, j - 1]; --j) {
          t = lines[f, j]; lines[f, j] = lines[f, j - 1]; lines[f, j - 1] = t
        }
        printf "%-20s %3d files, median %4d lines, longest %4d: %s\n", f, n[f], lines[f, int((n[f] + 1) / 2)], longest[f], name[f]
      }
    }' | LC_ALL=C sort
}

case "${1:-}" in
  --list) list "${2%/}"; exit 0 ;;
  --self-test) ;;
  *) check "${1%/}"; echo "layering holds"; exit 0 ;;
esac

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/core/kernels" "$folder/cpu/lsh" "$folder/cpu/attention" "$folder/cpu/matmul" "$folder/ops/patterns" \
         "$folder/ops/attention" "$folder/models" "$folder/train" "$folder/nn" "$folder/cuda/lsh" "$folder/data/io" \
         "$folder/data/tokenizers" "$folder/app" "$folder/elsewhere" "$folder/models/one" "$folder/models/two" "$folder/models/transformer"
good() { printf '%s\n' "$2" >"$folder/$1"; check "$folder" >/dev/null || { echo "refused: $1: $2"; exit 1; }; rm "$folder/$1"; }
bad() { printf '%s\n' "$2" >"$folder/$1"; if check "$folder" >/dev/null; then echo "let through: $1: $2"; exit 1; fi; rm "$folder/$1"; }
good core/a.h '#include "core/b.h"'
good nn/a.h '#include "ops/matmul.h"'
good nn/a.h '#include "ops/attention/lsh.h"'
good cpu/a.cc '#include "core/kernels/matmul.h"'
good cpu/lsh/a.cc '#include "cpu/attention/plan.h"'
good cpu/a.cc '#include <hwy/highway.h>'
good data/a.cc '#include "data/tokenizers/tokenizer.h"'
good core/backends.cc '#if LONGSPAN_CUDA'
good cuda/a.cc '#if LONGSPAN_CUDA'
good cuda/lsh/a.cc '#if LONGSPAN_CUDA'
good core/a.h '#include "core/a.h"'
bad core/a.h '#include "autograd/node.h"'
bad core/a.h '#include "core/kernels/copy.h"'
bad core/a.h '  # include <longspan/autograd/node.h>'
bad core/kernels/a.h '#include "autograd/node.h"'
bad core/kernels/a.h '#include "ops/matmul.h"'
bad cpu/a.cc '#include "ops/matmul.h"'
bad cpu/a.cc '#include "cuda/launch.h"'
bad cpu/a.cc '#include "cpu/attention/plan.h"'
bad cpu/attention/a.cc '#include "cpu/lsh/lsh.h"'
bad cpu/matmul/a.cc '#include "cpu/attention/plan.h"'
bad ops/a.cc '#include "ops/attention/lsh.h"'
bad ops/patterns/a.cc '#include "ops/attention/lsh.h"'
good models/one/a.cc '#include "models/model.h"'
bad models/one/a.cc '#include "models/two/b.h"'
bad models/one/a.cc '#include "train/state.h"'
bad models/a.cc '#include "models/one/b.h"'
bad models/a.cc '#include "train/state.h"'
bad models/a.cc '#include "data/corpus.h"'
bad train/a.cc '#include "models/transformer/transformer.h"'
bad data/a.cc '#include "train/log.h"'
bad data/io/a.cc '#include "data/corpus.h"'
bad data/tokenizers/a.cc '#include "data/token_file.h"'
bad train/a.cc '#include "app/run.h"'
bad nn/a.cc '#include "cpu/register.h"'
bad nn/a.cc '#include "tests/harness/naive.h"'
bad nn/a.cc '#include "../ops/matmul.h"'
bad ops/a.cc '#if LONGSPAN_CUDA'
bad elsewhere/a.cc '#include "core/tensor.h"'
printf '#include "nn/b.h"\n' >"$folder/nn/a.cc"
bad nn/b.cc '#include "nn/a.h"'
rm "$folder/nn/a.cc"
for i in $(seq 26); do echo "//" >"$folder/nn/page$i.cc"; done
bad nn/page1.h '#pragma once'
rm "$folder"/nn/page*
echo "layering check finds what it should"
