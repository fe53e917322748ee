#!/bin/sh
# budgets.sh FOLDER: what ptxas said of every kernel compiled below FOLDER. Fails where a kernel keeps
# arrays in local memory or spills: attention not a byte, others at most 8. Two kinds may have 64:
# f64, which serves checks of gradients, and functions of elements (linear attention among them, but
# without spills), since sinf and cosf bring an array of 28 bytes for large angles. Fails too where
# static shared memory is beyond what a block gets.
set -eu
reports=$(find "$1" -name '*.ptxas')
[ -n "$reports" ] || { echo "skipped: no CUDA kernels were compiled here"; exit 77; }
# shellcheck disable=SC2086
awk '
  /Compiling entry function/ {
    match($0, /'"'"'[^'"'"']*'"'"'/); name = substr($0, RSTART + 1, RLENGTH - 2)
    match($0, /sm_[0-9a-z]*/); arch = substr($0, RSTART, RLENGTH)
    ++kernels[arch]
  }
  /bytes stack frame/ {
    frame = $1; spilled = $5
    limit = name ~ /(Id|Ed|dL|dE|ddE)/ || name ~ /strided_kernel|contiguous_kernel|update_kernel/ ? 64 : 8
    if (name ~ /ttention|LshTensor/) limit = 0
    most_spilled = 2 * limit
    if (name ~ /linear_attention_kernel/) limit = 64
    if (frame > limit || spilled > most_spilled) {
      printf "%s (%s): %d bytes of local memory, %d spilled\n", name, arch, frame, spilled; bad = 1
    }
  }
  /Used [0-9]+ registers/ {
    match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5) + 0
    if (registers > most[arch]) most[arch] = registers
    if (match($0, /[0-9]+ bytes smem/) && substr($0, RSTART, RLENGTH - 11) + 0 > 49152) {
      printf "%s (%s): %s\n", name, arch, substr($0, RSTART, RLENGTH); bad = 1
    }
  }
  END {
    for (a in kernels) printf "%s: %d kernels, at most %d registers\n", a, kernels[a], most[a]
    exit bad
  }' $reports
