#!/usr/bin/env python3
"""Compares models of streams with their authors' PyTorch code, in turns: training steps and evaluation
with a memory, in seconds per token.

  streams.py [--rounds 5] [--threads 1] [--bench build/dev/bench] [--adaptive-span DIR] [transformer_xl/train/small ...]

transformer_xl: TransfoXLLMHeadModel of transformers (before 5), the authors' code; needs that package beside
torch. adaptive_span: a checkout of the authors' repository at DIR; without one, its rows are left out.
Each round starts bench_streams or bench_spans for one turn, and takes one turn here. Prints JSON lines:
the best of both over the rounds, and their ratios. PyTorch has the settings of worker_client.py.
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

cross_entropy = torch.nn.functional.cross_entropy


class TransformerXL:
    bench = "bench_streams"
    # layers, heads, head width, width, inner width; memory and batch in training; memory in evaluation
    shapes = {"small": (4, 4, 32, 128, 512, 128, 16, 512), "base": (12, 8, 64, 512, 2048, 512, 2, 2100)}

    def __init__(self, train, shape, _arguments, _own):
        from transformers import TransfoXLConfig, TransfoXLLMHeadModel

        # Releases of transformers since 4.50 call it with a dtype, which torch does not have.
        type_as = torch.Tensor.type_as
        torch.Tensor.type_as = lambda x, other=None, dtype=None: (
            x.to(dtype) if dtype is not None else type_as(x, other))
        n, heads, head, d, f, rows, batch, long = self.shapes[shape]
        self.rows = rows if train else long
        self.batch, self.length = (batch, rows) if train else (1, 128)
        self.model = TransfoXLLMHeadModel(TransfoXLConfig(
            vocab_size=256, cutoffs=[], d_model=d, d_embed=d, n_head=heads, d_head=head, d_inner=f,
            div_val=1, n_layer=n, mem_len=self.rows, clamp_len=-1, same_length=False, attn_type=0,
            proj_share_all_but_first=False, dropout=0.0, dropatt=0.0, untie_r=False))
        self.memory = None

    def loss(self, tokens):
        out = self.model.transformer(tokens, mems=self.memory)
        self.memory = out.mems
        head = self.model.crit.out_layers[0]
        scores = torch.nn.functional.linear(out.last_hidden_state, head.weight, head.bias)
        return cross_entropy(scores.flatten(0, 1), tokens.flatten())


class AdaptiveSpan:
    bench = "bench_spans"
    # layers, heads, width, inner width; S; segment and batch in training
    shapes = {"small": (4, 4, 128, 512, 512, 128, 16), "base": (12, 8, 512, 2048, 1024, 512, 2)}

    def __init__(self, train, shape, arguments, own):
        sys.path.insert(0, arguments.adaptive_span)
        from models import TransformerSeq

        n, heads, d, f, self.rows, length, batch = self.shapes[shape]
        self.batch, self.length = (batch, length) if train else (1, 128)
        self.model = TransformerSeq(
            vocab_size=256, hidden_size=d, nb_heads=heads, nb_layers=n, attn_span=self.rows, emb_dropout=0,
            inner_hidden_size=f, dropout=0, adapt_io_params={"adapt_io_enabled": False},
            pers_mem_params={"pers_mem_size": 0, "pers_mem_init": ""},
            adapt_span_params={"adapt_span_enabled": True, "adapt_span_loss": 2e-6, "adapt_span_ramp": 32,
                               "adapt_span_init": 0, "adapt_span_cache": True})
        self.spans = [layer.attn.attn.adaptive_span for layer in self.model.layers]
        with torch.no_grad():
            for mine, z in zip(self.spans, own["spans"], strict=True):
                mine._mask.current_val.copy_(torch.tensor(z).view(-1, 1, 1) / self.rows)
        self.memory = [torch.zeros(self.batch, x.get_cache_size(), d) for x in self.spans]
        self.train = train

    def loss(self, tokens):
        out, self.memory, _ = self.model(tokens, self.memory)
        loss = torch.nn.functional.nll_loss(out.flatten(0, 1), tokens.flatten())
        return loss + sum(x.get_loss() for x in self.spans) if self.train else loss


MODELS = {"transformer_xl": TransformerXL, "adaptive_span": AdaptiveSpan}


class Peer:
    """The authors' model, its memory filled."""

    def __init__(self, name, arguments, own):
        model, what, shape = name.split("/")
        self.train = what == "train"
        self.peer = MODELS[model](self.train, shape, arguments, own)
        self.parameters = list(self.peer.model.parameters())
        self.peer.model.train(self.train)
        # Learned spans stay where they are, as in bench_spans.
        self.adam = torch.optim.Adam(self.parameters, lr=1e-9 if model == "adaptive_span" else 1e-4, fused=True)
        length = self.peer.length
        self.tokens = (torch.arange(length) * 7919 % 251).expand(self.peer.batch, -1).contiguous()
        for _ in range(0, self.peer.rows + 1, length):
            self.next()

    def next(self):
        with torch.set_grad_enabled(self.train):
            loss = self.peer.loss(self.tokens)
        if self.train:
            self.adam.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.parameters, 0.25)
            self.adam.step()

    def turn(self):
        best = {"cpu": float("inf"), "wall": float("inf")}
        for _ in range(3):
            cpu, wall = time.process_time(), time.perf_counter()
            self.next()
            best["cpu"] = min(best["cpu"], time.process_time() - cpu)
            best["wall"] = min(best["wall"], time.perf_counter() - wall)
        return {k: v / self.tokens.numel() for k, v in best.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bench", default="build/dev/bench")
    parser.add_argument("--adaptive-span")
    parser.add_argument("which", nargs="*")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    environment = dict(os.environ, LONGSPAN_THREADS=str(a.threads))
    rows = a.which or [f"{m}/{w}/{s}" for m in MODELS for s in MODELS[m].shapes for w in ("train", "evaluation")
                       if m != "adaptive_span" or a.adaptive_span]
    for name in rows:
        model, what, shape = name.split("/")
        if model == "adaptive_span" and not a.adaptive_span:
            parser.error(f"{name}: --adaptive-span names no checkout")

        def turn():
            done = subprocess.run([f"{a.bench}/{MODELS[model].bench}", "turn", what, shape], env=environment,
                                  check=True, stdout=subprocess.PIPE, text=True)
            return json.loads(done.stdout)

        ours, theirs = [turn()], []
        peer = Peer(name, a, ours[0])
        theirs.append(peer.turn())
        for _ in range(a.rounds - 1):
            ours.append(turn())
            theirs.append(peer.turn())
        row = {"workload": name, "threads": a.threads, "torch": torch.__version__}
        for clock in ("cpu", "wall"):
            own, other = min(x[clock] for x in ours), min(x[clock] for x in theirs)
            row |= {f"ours_{clock}": own, f"theirs_{clock}": other, f"ratio_{clock}": other / own}
        if "share_of_peak" in ours[0]:
            row["ours_share_of_peak"] = max(x["share_of_peak"] for x in ours)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
