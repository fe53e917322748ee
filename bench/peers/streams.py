#!/usr/bin/env python3
"""Compares Transformer-XL with TransfoXLLMHeadModel of transformers (before 5), which is the authors'
PyTorch code, in turns: training steps and evaluation with a memory, in seconds per token.

  streams.py [--rounds 5] [--threads 1] [--bench build/dev/bench/bench_streams] [train/small ...]

Each round starts bench_streams for one turn, and takes one turn here. Prints JSON lines: the best of
both over the rounds, and their ratios. Needs torch and transformers<5 in one environment; PyTorch
has the settings of worker_client.py.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings

from worker_client import TUNED

if any(os.environ.get(k) != v for k, v in TUNED.items()):  # read when a process starts
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **TUNED})

warnings.filterwarnings("ignore")

import torch
from transformers import TransfoXLConfig, TransfoXLLMHeadModel

# layers, heads, head width, width, inner width; memory and batch in training; memory in evaluation
SHAPES = {"small": (4, 4, 32, 128, 512, 128, 16, 512), "base": (12, 8, 64, 512, 2048, 512, 2, 2100)}

# Releases of transformers since 4.50 call it with a dtype, which torch does not have.
type_as = torch.Tensor.type_as
torch.Tensor.type_as = lambda x, other=None, dtype=None: (
    x.to(dtype) if dtype is not None else type_as(x, other))


class Peer:
    def __init__(self, what, shape):
        n, heads, head, d, f, rows, batch, long = SHAPES[shape]
        self.train = what == "train"
        self.rows = rows if self.train else long
        self.batch, self.length = (batch, rows) if self.train else (1, 128)
        self.model = TransfoXLLMHeadModel(TransfoXLConfig(
            vocab_size=256, cutoffs=[], d_model=d, d_embed=d, n_head=heads, d_head=head, d_inner=f,
            div_val=1, n_layer=n, mem_len=self.rows, clamp_len=-1, same_length=False, attn_type=0,
            proj_share_all_but_first=False, dropout=0.0, dropatt=0.0, untie_r=False))
        self.model.train(self.train)
        self.adam = torch.optim.Adam(self.model.parameters(), lr=1e-4, fused=True)
        self.tokens = (torch.arange(self.length) * 7919 % 251).expand(self.batch, -1).contiguous()
        self.mems = None
        for _ in range(0, self.rows + 1, self.length):
            self.next()

    def next(self):
        with torch.set_grad_enabled(self.train):
            out = self.model.transformer(self.tokens, mems=self.mems)
            self.mems = out.mems
            head = self.model.crit.out_layers[0]
            scores = torch.nn.functional.linear(out.last_hidden_state, head.weight, head.bias)
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), self.tokens.flatten())
        if self.train:
            self.adam.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.25)
            self.adam.step()

    def turn(self):
        best = {"cpu": float("inf"), "wall": float("inf")}
        for _ in range(3):
            cpu, wall = time.process_time(), time.perf_counter()
            self.next()
            best["cpu"] = min(best["cpu"], time.process_time() - cpu)
            best["wall"] = min(best["wall"], time.perf_counter() - wall)
        return {k: v / (self.batch * self.length) for k, v in best.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bench", default="build/dev/bench/bench_streams")
    parser.add_argument("which", nargs="*",
                        default=[f"{w}/{s}" for s in SHAPES for w in ("train", "evaluation")])
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    environment = dict(os.environ, LONGSPAN_THREADS=str(a.threads))
    for name in a.which:
        what, shape = name.split("/")
        peer = Peer(what, shape)
        ours, theirs = [], []
        for _ in range(a.rounds):
            done = subprocess.run([a.bench, "turn", what, shape], env=environment, check=True,
                                  stdout=subprocess.PIPE, text=True)
            ours.append(json.loads(done.stdout))
            theirs.append(peer.turn())
        row = {"workload": name, "threads": a.threads, "torch": torch.__version__}
        for clock in ("cpu", "wall"):
            own, other = min(x[clock] for x in ours), min(x[clock] for x in theirs)
            row |= {f"ours_{clock}": own, f"theirs_{clock}": other, f"ratio_{clock}": other / own}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
