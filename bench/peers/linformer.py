#!/usr/bin/env python3
"""Compares attention layers with PyTorch in turns: seconds of a forward and backward pass.

  linformer.py [--rounds 3] [--bench build/dev/bench] [--lengths 1024 ...]

Four contestants: Longspan's layer of Linformer (headwise) and its full attention (bench_linformer), PyTorch's
full attention (projections around scaled_dot_product_attention) and LinformerSelfAttention of the package
linformer, all 256 wide with 4 heads, on one thread; keys are projected to 128 rows. Prints JSON lines: the best
CPU seconds of each, and ratios. PyTorch has the settings of worker_client.py.
"""

import argparse
import json
import os
import subprocess
import sys
import time

from worker_client import TUNED

if any(os.environ.get(k) != v for k, v in TUNED.items()):  # read when a process starts
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **TUNED})

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path = [p for p in sys.path if os.path.abspath(p or ".") != HERE]  # this file has the name of the package
from linformer import LinformerSelfAttention  # noqa: E402
import torch  # noqa: E402

WIDTH, HEADS, ROWS = 256, 4, 128


class Dense(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (t.unflatten(2, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, 2))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


def best_of(layer, x, dy, times):
    best = float("inf")
    for _ in range(times):
        begin = time.process_time()
        layer(x).backward(dy)
        best = min(best, time.process_time() - begin)
        for p in [x, *layer.parameters()]:
            p.grad = None
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bench", default="build/dev/bench")
    parser.add_argument("--lengths", type=int, nargs="*", default=[256, 512, 1024, 2048, 4096, 8192])
    a = parser.parse_args()
    torch.set_num_threads(1)
    environment = dict(os.environ, LONGSPAN_THREADS="1")
    for length in a.lengths:
        def ours(name):
            done = subprocess.run([f"{a.bench}/bench_linformer", "turn", name, str(length)], env=environment,
                                  check=True, stdout=subprocess.PIPE, text=True)
            return json.loads(done.stdout)["cpu"]

        x = torch.rand(1, length, WIDTH, requires_grad=True)
        dy = torch.rand(1, length, WIDTH)
        dense, theirs = Dense(), LinformerSelfAttention(WIDTH, length, k=ROWS, heads=HEADS)
        best_of(dense, x, dy, 1)
        best_of(theirs, x, dy, 1)
        times = {"ours": [], "ours_dense": [], "torch_dense": [], "package": []}
        for _ in range(a.rounds):
            times["ours"].append(ours("headwise"))
            times["ours_dense"].append(ours("dense"))
            times["torch_dense"].append(best_of(dense, x, dy, 3))
            times["package"].append(best_of(theirs, x, dy, 3))
        row = {"length": length, "torch": torch.__version__} | {k: min(v) for k, v in times.items()}
        for k in ("ours_dense", "torch_dense", "package"):
            row[f"{k}_over_ours"] = round(row[k] / row["ours"], 3)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
