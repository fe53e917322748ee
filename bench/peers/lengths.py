#!/usr/bin/env python3
"""From which length on sparse attention is faster: than our own dense attention, than PyTorch's,
and than the implementations that exist. Forward and backward of one layer's attention.

    lengths.py [--groups dense bigbird ...] [--lengths 256 ...] [--rounds 7] [--out FILE.jsonl]

Groups:

    dense     the attention itself, queries, keys and values given: every family of bench/family.h,
              our dense kernel, PyTorch's scaled_dot_product_attention, causal and not; and the
              dense oracle under a mask for families that no package implements
    performer attention by 64, 128 and 266 positive features beside our exact attention and PyTorch's,
              causal and not
    tree      attention over a binary tree of the tokens, with 4, 16 and 64 neighbours on each level,
              beside our exact attention and PyTorch's, causal and not
    longformer, longformer_globals, led, bigbird
              the layer with its projections, in transformers and in Longspan

Every contestant is a process of its own with one thread; they take turns, `rounds` times, or fewer
where a round takes long, between two samples of the FMA peak. Where these differ by more than 5 %
the length is measured again. One JSON line for each group and length: the best of each contestant
in CPU time. With --out, lengths that stand there already are left out. LONGSPAN_PEERS_VENV names
the virtual environment of PyTorch and transformers.
"""

import argparse
import json
import math
import os

from compare import HERE, STEADY
from phases import Phases
from worker_client import TUNED, Worker, WorkerError, first_cpus, torch_worker

FAMILIES = ("fixed", "strided", "blockbert", "bigbird", "longformer", "longformer_globals", "led",
            "etc")
ORACLES = ("fixed", "strided", "blockbert", "longformer", "etc")
LONGEST_ORACLE = 2048  # which keeps several matrices of length by length
FEATURES = (64, 128, 266)
NEIGHBOURS = (4, 16, 64)
LAYERS = ("longformer", "longformer_globals", "led", "bigbird")
LENGTHS = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192)
BUDGET, LEAST_ROUNDS = 45, 3  # seconds of a length's turns


def contestants(group, length):
    """label -> (worker, workload, family). Labels tell whose it is."""
    if group in ("performer", "tree"):
        found = {f"{kind} {f}": (whose, workload, f) for kind, whose, workload in
                 (("longspan", "longspan", "family"), ("torch", "torch", "oracle"))
                 for f in ("dense", "causal")}
        name, workload, numbers = (("features", "linear_attention", FEATURES)
                                   if group == "performer" else ("neighbours", "tree", NEIGHBOURS))
        return found | {f"longspan {m} {name} {f}": ("longspan", workload, (m, f))
                        for m in numbers for f in ("dense", "causal")}
    if group in LAYERS:
        return {"longspan": ("longspan", "layer", group),
                "transformers": ("torch", "layer", group)}
    found = {f"longspan {f}": ("longspan", "family", f) for f in ("dense", "causal", *FAMILIES)}
    found |= {f"torch {f}": ("torch", "oracle", f) for f in ("dense", "causal")}
    if length <= LONGEST_ORACLE:
        found |= {f"oracle {f}": ("torch", "oracle", f) for f in ORACLES}
    return found


class Group:
    """The processes of one group, started when first asked."""

    def __init__(self, name, options):
        self.name = name
        self.options = options
        self.cpus = first_cpus(1)
        self.workers = {}
        self.peak_worker = self.start("longspan")
        self.phases = Phases(lambda threads: self.peak("loading_probe", threads))
        self.phases.settle(1)

    def start(self, kind):
        if kind == "torch":
            return torch_worker(self.cpus, TUNED)
        return Worker([self.options.worker], self.cpus)

    def ask(self, label, contestant, length):
        kind, workload, family = contestant
        if label not in self.workers:
            self.workers[label] = self.start(kind)
        shape = {"heads": self.options.heads, "length": length, "width": self.options.width}
        more = {"family": family}
        if workload in ("linear_attention", "tree"):
            shape["features" if workload == "linear_attention" else "k"] = family[0]
            more = {"pass": "both", "causal": family[1] == "causal"}
        return self.workers[label].ask(workload=workload, shape=shape, variant=kind, threads=1,
                                       repeats=1, seconds=self.options.seconds, **more)

    def peak(self, workload="fma_peak", threads=1):
        return self.peak_worker.ask(workload=workload, threads=threads)["flops"]

    def turns(self, found, length, rounds):
        before = self.peak()
        outcome = self.phases.take_turns(list(found), lambda label: self.ask(label, found[label], length),
                                         rounds, self.options.repeat_slow, 1)
        after = self.peak()
        answers = {label: [turn.answer for turn in taken] for label, taken in outcome.turns.items()}
        return answers, self.phases.fields(outcome, 1), before, after

    def measure(self, length):
        found, first = contestants(self.name, length), {}
        for label, contestant in list(found.items()):
            try:  # the first turn prepares, and does not count
                first[label] = self.ask(label, contestant, length)
            except WorkerError as error:
                print(json.dumps({"group": self.name, "length": length, "error": str(error)}),
                      flush=True)
                del found[label], self.workers[label]
        round_seconds = sum(a["cpu"] * a["calls"] for a in first.values())
        rounds = max(LEAST_ROUNDS, min(self.options.rounds, int(BUDGET / round_seconds)))
        for attempt in range(1, self.options.attempts + 1):
            answers, phases, before, after = self.turns(found, length, rounds)
            steady = abs(before - after) <= STEADY * max(before, after)
            if steady:
                break
        return {"part": "lengths", "group": self.name, "length": length,
                "heads": self.options.heads, "width": self.options.width, "rounds": rounds,
                "seconds": {k: min(a["cpu"] for a in v) for k, v in answers.items()},
                "check": {k: v[0]["check"] for k, v in answers.items()},
                "peak_before": before, "peak_after": after, "steady": steady, "attempt": attempt, **phases}

    def close(self):
        for worker in [self.peak_worker, *self.workers.values()]:
            worker.close()


def differing(result):
    """Contestants whose gradients differ from Longspan's in mean magnitude."""
    check = result["check"]
    # BigBird's random blocks are drawn in other ways, so that only the distribution is the same.
    near = 5e-2 if result["group"] == "bigbird" else 2e-3
    pairs = [(label, "longspan" if label == "transformers" else
              "longspan " + label.split()[1]) for label in check if not label.startswith("longspan")]
    return [label for label, own in pairs if not math.isclose(check[label], check[own], rel_tol=near)]


def describe():
    worker = torch_worker(first_cpus(1))
    peer = worker.ask(workload="describe")
    worker.close()
    return {**peer, "settings": TUNED}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", nargs="*", default=["dense", *LAYERS])
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--attempts", type=int, default=2, help="while the peak is unsteady")
    parser.add_argument("--repeat-slow", type=int, default=3,
                        help="turns of a contestant that are repeated at most, where the machine was slow")
    parser.add_argument("--seconds", type=float, default=0.05, help="least length of a sample")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--worker",
                        default=os.path.join(HERE, "../../build/release/bench/bench_worker"))
    parser.add_argument("--out", help="append JSON lines here")
    options = parser.parse_args()

    done = set()
    if options.out and os.path.exists(options.out):
        with open(options.out) as lines:
            done = {(r["group"], r["length"]) for r in map(json.loads, lines) if "group" in r}
    out = open(options.out, "a") if options.out else None
    if out and not done:
        out.write(json.dumps({"machine": describe()}) + "\n")
    for name in options.groups:
        left = [n for n in options.lengths if (name, n) not in done]
        if not left:
            continue
        group = Group(name, options)
        for length in left:
            result = group.measure(length)
            result["differ"] = differing(result)
            line = json.dumps(result)
            print(line, flush=True)
            if out:
                out.write(line + "\n")
                out.flush()
        group.close()


if __name__ == "__main__":
    main()
