#!/usr/bin/env bash
# Installs the peers (current PyTorch and transformers) into their own virtual environment beside this script.
# LONGSPAN_PEERS_VENV names another folder for it; PYTHON another interpreter.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${LONGSPAN_PEERS_VENV:-$here/.venv}

if [ ! -x "$venv/bin/python" ]; then
  "${PYTHON:-python3}" -m venv "$venv"
fi
"$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"

mkdir -p "$here/build"
"${CC:-cc}" -O2 -shared -fPIC -o "$here/build/gemm_loop.so" "$here/gemm_loop.c"
"$venv/bin/python" -c 'import torch; print("torch", torch.__version__, torch.backends.cpu.get_cpu_capability())'
