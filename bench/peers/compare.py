#!/usr/bin/env python3
"""Longspan and its peers on the same workloads, taking turns on the same processors.

    compare.py [--rows 1 3 11] [--rounds 7] [--seconds 0.1] [--out FILE.jsonl]

Every contestant is a process of its own that answers one request at a time and sleeps otherwise;
all are confined to the same processors, as many as the workload has threads. A workload begins with
a heat among the variants of each peer (kinds of kernel, compiled or not, thread settings), of which
the fastest goes on. Then the contestants take turns, `rounds` times, between two samples of the FMA
peak; where these differ by more than 5 % the workload is measured again. The loading probe runs
before and after every turn (phases.py): turns in a slow phase of the machine are repeated, and do
not count. The best of each contestant counts, in CPU time of its busiest thread; the wall-clock
ratio is printed beside it. `ratio` is peer / Longspan: above 1, Longspan is faster.
"""

import argparse
import json
import math
import os
import statistics
import sys

import instruction_sets
from phases import Phases, counts, marks
from worker_client import (ACTIVE, AVX2, SKYLAKEX, TUNED, Worker, WorkerError, first_cpus, lent_cpus,
                           torch_worker)

HERE = os.path.dirname(os.path.abspath(__file__))
STEADY = 0.05

# How one contestant is asked: (worker, variant). "torch" sleeps between parallel regions,
# "torch-active" spins for a while; with one thread they are the same. "openblas" is our worker with
# those kernels of OpenBLAS that are the fastest here.
OWN = ("longspan", "longspan")
EAGER = [("torch", "eager"), ("torch", "compile")]
OPENBLAS = [("openblas", "openblas")]
SDPA = [("torch", "sdpa")]


def item(row, name, request, rivals, threads=1, flops=0, elements=0, share=None, ratio=None,
         agree=2e-3, peak="fma"):
    """share: fractions of the peak, of FMA or of dot products of bf16, good and wanted; ratio: rival
    -> ratios, good and wanted; agree: how near the results must be, relatively."""
    return {"row": row, "name": name, "request": {**request, "threads": threads}, "rivals": rivals,
            "flops": flops, "elements": elements, "share": share, "ratio": ratio or {},
            "agree": agree, "peak": peak}


def gemm_items():
    torch = [("torch", "torch"), ("torch", "mkl")]
    tiles = [(32, 32, 64, "NT"), (64, 64, 64, "NN"), (128, 128, 64, "NT"), (128, 64, 128, "NN"),
             (4096, 64, 64, "NT")]
    for m, n, k, layout in tiles:
        yield item(1, f"sgemm {m}x{n}x{k} {layout}",
                   {"workload": "gemm", "shape": {"m": m, "n": n, "k": k, "layout": layout}},
                   {"openblas": OPENBLAS, "torch": torch}, flops=2 * m * n * k,
                   share=(0.85, 0.93), ratio={"openblas": (1.35, 1.6)})
    for out in (256, 1024):
        for into in (256, 1024):
            for layout, m, n, k in (("NT", 2048, out, into), ("NN", 2048, into, out),
                                    ("TN", out, into, 2048)):
                rivals = {"openblas": OPENBLAS, "torch": torch}
                if layout == "NT":
                    rivals["onednn, weight packed before"] = [("torch", "onednn")]
                yield item(2, f"linear {into}->{out}, 2048 rows: {layout}",
                           {"workload": "gemm",
                            "shape": {"m": m, "n": n, "k": k, "layout": layout}},
                           rivals, flops=2 * m * n * k,
                           share=(0.90, 0.95), ratio={"openblas": (1.0, 1.0)})


def bf16_gemm_items():
    """Matmuls of linear layers, a Reformer's among them, in bf16 and in f32 rounded to bf16."""
    ways = (("bf16", {"dtype": "bf16"}, ["torch"]),
            ("f32 by bf16", {"precision": "bf16"}, ["torch", "autocast"]))
    for kind, how, variants in ways:
        for into, out, rows in ((256, 256, 2048), (256, 1024, 2048), (1024, 256, 2048),
                                (1024, 1024, 2048), (256, 768, 16384), (768, 256, 16384),
                                (256, 512, 16384), (512, 256, 16384)):
            for layout, m, n, k in (("NT", rows, out, into), ("NN", rows, into, out),
                                    ("TN", out, into, rows)):
                yield item(14, f"{kind}: linear {into}->{out}, {rows} rows: {layout}",
                           {"workload": "gemm", **how,
                            "shape": {"m": m, "n": n, "k": k, "layout": layout}},
                           {"torch": [("torch", v) for v in variants]}, flops=2 * m * n * k, peak="dot",
                           share=(0.80, 0.85), ratio={"torch": (1.0, 1.2)})


def attention_items():
    for width in (64, 128):
        for length in (1024, 2048, 4096, 8192):
            pairs = 8 * length * (length + 1) / 2
            for which, factor in (("forward", 4), ("backward", 10)):
                row = 3 if which == "forward" else 4
                good, want = ((0.72, 0.80), (1.4, 1.6)), ((0.74, 0.82), (1.35, 1.5))
                share, ratio = good if row == 3 else want
                yield item(row, f"causal {which} H=8 d={width} L={length}",
                           {"workload": "attention", "pass": which,
                            "shape": {"heads": 8, "length": length, "width": width}},
                           {"sdpa": SDPA}, flops=factor * pairs * width, share=share,
                           ratio={"sdpa": ratio})


def band_items():
    window = 256
    chunked = [("torch", v) for v in ("hand-64", "hand-128", "sdpa-64", "sdpa-128",
                                      "hand-64-compile", "hand-128-compile")]
    for length in (4096, 16384, 65536):
        pairs = 8 * (length * window - window * (window - 1) / 2)
        yield item(5, f"band of 256, forward and backward, H=8 d=64 L={length}",
                   {"workload": "band", "pass": "both",
                    "shape": {"heads": 8, "length": length, "width": 64, "window": window}},
                   {"sliding chunks": [("torch", "hand-256"), ("torch", "sdpa-256")],
                    "finest chunks": chunked}, flops=14 * pairs * 64,
                   share=(0.58, 0.68), ratio={"sliding chunks": (3.0, 4.0)})


def linear_items():
    variants = [("torch", v) for v in ("chunks-32", "chunks-64", "chunks-128", "once-128")]
    for features in (128, 256):
        for which, factor in (("forward", 4), ("both", 13)):
            # The recurrence: 2 d for the features of a query and a key, 2 d for sums and quotient;
            # backward, which computes both again, 4 d and 5 d. Pairs within chunks do not count.
            yield item(8, f"linear attention {which}, m={features}, H=8 d=64 L=16384",
                       {"workload": "linear_attention", "pass": which,
                        "shape": {"heads": 8, "length": 16384, "width": 64,
                                  "features": features}},
                       {"torch": variants}, flops=2 * factor * 8 * 16384 * 64 * features,
                       share=(0.65, 0.80) if which == "forward" else None,
                       ratio={"torch": (3.0, 4.0)})


def rowwise_items():
    for op in ("softmax", "layer_norm", "gelu_erf", "cross_entropy"):
        yield item(9, f"{op} 2048x256, forward and backward",
                   {"workload": "rowwise", "op": op, "pass": "both",
                    "shape": {"rows": 2048, "n": 256}}, {"torch": EAGER}, elements=2048 * 256,
                   ratio={"torch": (4.0, 4.0) if op == "cross_entropy" else (2.0, 2.5)})


def adam_items():
    yield item(10, "Adam, 8M parameters", {"workload": "adam", "shape": {"parameters": 8 << 20}},
               {"fused": [("torch", "fused")]}, elements=8 << 20, ratio={"fused": (0.95, 1.05)})


def step_items():
    layers, model, length, batch, vocabulary = 6, 256, 512, 4, 256
    tokens = batch * length
    forward = 2 * tokens * (12 * layers * model**2 + vocabulary * model)
    forward += 4 * batch * layers * model * length * (length + 1) / 2
    shape = {"layers": layers, "model": model, "heads": 8, "length": length, "batch": batch,
             "vocabulary": vocabulary}
    for threads in (1, 2):
        rivals = EAGER
        if threads > 1:
            rivals = EAGER + [("torch-active", "eager"), ("torch-active", "compile")]
        yield item(11, f"GPT step, {threads} thread{'s' if threads > 1 else ''}",
                   {"workload": "gpt_step", "shape": shape}, {"sdpa": rivals}, threads=threads,
                   flops=3 * forward, share=(0.68, 0.78) if threads == 2 else None,
                   ratio={"sdpa": (1.25, 1.43)} if threads == 2 else None,
                   agree=2e-2)  # first losses, from other draws of the same distribution


def long_step_items():
    layers, model, length, vocabulary, window = 6, 256, 8192, 256, 256
    pairs = length * window - window * (window - 1) / 2
    forward = 2 * length * (12 * layers * model**2 + vocabulary * model)
    forward += 4 * layers * model * pairs
    shape = {"layers": layers, "model": model, "heads": 8, "length": length, "batch": 1,
             "vocabulary": vocabulary, "window": window}
    chunked = [(peer, variant) for peer in ("torch", "torch-active")
               for variant in ("sdpa-64", "sdpa-256", "hand-64-compile")]
    yield item(12, f"GPT step, band of {window}, L={length}, 2 threads",
               {"workload": "gpt_step", "shape": shape}, {"chunks": chunked}, threads=2,
               flops=3 * forward, ratio={"chunks": (2.5, 3.5)}, agree=2e-2)


def reformer_items():
    # The sizes that transformers has unasked, longer. It inverts its blocks in any case; ours keep
    # what a policy says. With products in bf16, parameters and sums are f32 on both sides.
    shape = {"layers": 6, "model": 256, "heads": 12, "width": 64, "rounds": 1, "vocabulary": 320}
    variants = {"f32": ["eager"], "bf16": ["eager", "autocast", "autocast-both"]}
    for precision in ("f32", "bf16"):
        for memory in ("lean", "reversible"):
            for length in (4096, 16384):
                for threads in (1, 2):
                    yield item(13, f"Reformer step, {precision}, {memory}, L={length}, {threads} "
                                   f"thread{'s' if threads > 1 else ''}",
                               {"workload": "reformer_step", "precision": precision,
                                "shape": {**shape, "length": length, "memory": memory}},
                               {"transformers": [("torch", v) for v in variants[precision]]},
                               threads=threads,
                               elements=length, ratio={"transformers": (3.0, 4.0)},
                               agree=2e-2)  # first losses


def all_items():
    for make in (gemm_items, attention_items, band_items, linear_items, rowwise_items, adam_items,
                 step_items, long_step_items, reformer_items, bf16_gemm_items):
        yield from make()


class Contest:
    def __init__(self, options):
        self.options = options
        self.limits = AVX2 if options.avx2 else {}
        self.log = open(options.log, "w") if options.log else None
        self.workers = {}
        self.phases = Phases(lambda threads: self.peak(threads, "loading", "probe"))
        self.blas = "openblas-own"

    def worker(self, name, threads):
        """The process of that name, confined to as many processors as it has threads."""
        if (name, threads) not in self.workers:
            cpus = first_cpus(threads)
            if "torch" in name:
                settings = ACTIVE if "active" in name else TUNED
                made = torch_worker(cpus, {**settings, **self.limits}, self.log)
            else:
                more = SKYLAKEX if "skylakex" in name else {}
                made = Worker([self.options.worker], cpus, {**self.limits, **more}, self.log)
            self.workers[name, threads] = made
        return self.workers[name, threads]

    def ask(self, contestant, request, repeats):
        name, variant = contestant
        worker = self.worker(self.blas if name == "openblas" else name, request["threads"])
        return worker.ask(**request, variant=variant, repeats=repeats, seconds=self.options.seconds)

    def peak(self, threads, kind="fma", how="peak"):
        """FLOPs per second of that loop, in a process that does nothing else."""
        return self.worker("probe", threads).ask(workload=f"{kind}_{how}", threads=threads)["flops"]

    def choose_openblas(self, capability):
        """Chooses the kernels of OpenBLAS for all workloads and returns what is stored of them."""
        environment = {**os.environ, **self.limits}
        names, rates = ["openblas-own"], {}
        if instruction_sets.may_set_coretype(capability, environment):
            names.append("openblas-skylakex")
            ask = lambda name, request: self.worker(name, 1).ask(**request)
            self.blas, rates = instruction_sets.choose_openblas(ask, names)
        kernels = {n: self.worker(n, 1).ask(workload="describe")["openblas"] for n in names}
        chosen = SKYLAKEX if self.blas == "openblas-skylakex" else environment
        return {"kernel": kernels[self.blas], "coretype": chosen.get("OPENBLAS_CORETYPE"),
                "own_choice": kernels["openblas-own"], "rates": {kernels[n]: r for n, r in rates.items()}}

    def machine(self):
        """The `machine` line: versions, instruction sets and peaks."""
        torch = self.worker("torch", 1).ask(workload="describe")
        own = self.worker("longspan", 1).ask(workload="describe")
        head = {"peer": torch["peer"], "peer_capability": torch["capability"],
                "peer_libraries": instruction_sets.of_torch({**TUNED, **self.limits}, first_cpus(1)),
                "capability": own["capability"], "peak_instructions": own["peak_instructions"],
                "openblas": self.choose_openblas(own["capability"]), "processors": min(2, len(lent_cpus())),
                "settings": {**TUNED, **self.limits}}
        self.blas_text = head["openblas"]["kernel"]
        if head["openblas"]["coretype"]:
            self.blas_text += f", OPENBLAS_CORETYPE={head['openblas']['coretype']}"
        for n in range(1, head["processors"] + 1):
            head |= {f"peak_{n}": self.peak(n), f"dot_peak_{n}": self.peak(n, "dot"),
                     f"loading_peak_{n}": self.phases.settle(n),
                     f"triad_{n}": self.worker("probe", n).ask(workload="triad", threads=n)}
        return head

    def named(self, contestant):
        """What a line calls a contestant: its worker and variant, or OpenBLAS and its kernels."""
        return f"OpenBLAS {self.blas_text}" if contestant[0] == "openblas" else " ".join(contestant)

    def heat(self, candidates, request):
        """The fastest candidate that can run the workload."""
        able = []
        for candidate in candidates:
            try:
                self.ask(candidate, request, 1)
                able.append(candidate)
            except WorkerError as error:
                print(f"  {candidate[0]} {candidate[1]}: {error}", file=sys.stderr)
        if len(able) < 2:
            return able[0] if able else None
        outcome = self.phases.take_turns(able, lambda c: self.ask(c, request, 2)["cpu"], 1, 2,
                                         request["threads"])
        return min(able, key=lambda c: min(turn.answer for turn in outcome.turns[c]))

    def turns(self, contestants, request, threads, peak):
        """label -> answers, best of the turns that count, the phases, and the peak before and after."""
        before = self.peak(threads, peak)
        outcome = self.phases.take_turns(
            list(contestants),
            lambda label: self.ask(contestants[label], request, self.options.repeats),
            self.options.rounds, self.options.repeat_slow, threads)
        after = self.peak(threads, peak)
        best = {}
        for label, taken in outcome.turns.items():
            got = [turn.answer for turn in taken]
            best[label] = {k: min(a[k] for a in got) for k in ("cpu", "cpu_total", "wall")}
            best[label] |= {"wall_median": statistics.median(a["wall_median"] for a in got),
                            "check": got[0]["check"]}
            best[label] |= {k: got[0][k] for k in ("peak_bytes",) if k in got[0]}
        return best, self.phases.fields(outcome, threads), before, after

    def run(self, entry):
        request, threads = entry["request"], entry["request"]["threads"]
        contestants = {}
        for label, candidates in {"longspan": [OWN], **entry["rivals"]}.items():
            fastest = self.heat(candidates, request)
            if fastest:
                contestants[label] = fastest
        if not contestants:
            raise WorkerError("no contestant runs it")
        for attempt in range(1, self.options.attempts + 1):
            best, phases, before, after = self.turns(contestants, request, threads, entry["peak"])
            steady = abs(before - after) <= STEADY * max(before, after)
            if steady:
                break
        result = {k: entry[k] for k in ("row", "name", "request")}
        result |= {"rounds": self.options.rounds, "steady": steady, "attempt": attempt,
                   "peak_before": before, "peak_after": after, **phases,
                   "variants": {k: self.named(v) for k, v in contestants.items()}, "best": best}
        peak = max(before, after)
        if entry["flops"]:
            result["share"] = {k: entry["flops"] / b["cpu"] / peak for k, b in best.items()}
            result["share_wall"] = {k: entry["flops"] / b["wall"] / peak for k, b in best.items()}
        if entry["flops"] and entry["peak"] == "fma":
            result["share_of_loading"] = {k: entry["flops"] / b["cpu"] / phases["loading_peak"]
                                          for k, b in best.items()}
        own = best.get("longspan")
        if not own:
            return result
        result["ratio"] = {k: b["cpu"] / own["cpu"] for k, b in best.items() if k != "longspan"}
        result["ratio_wall"] = {k: b["wall"] / own["wall"] for k, b in best.items()
                                if k != "longspan"}
        result["goal"] = {"share": entry["share"], "ratio": entry["ratio"]}
        result["agree"] = all(math.isclose(b["check"], own["check"], rel_tol=entry["agree"])
                              for b in best.values())
        return result


def verdict(value, goal):
    """'+' where wanted is reached, '=' where good is, '-' below."""
    if goal is None:
        return " "
    return "+" if value >= goal[1] else "=" if value >= goal[0] else "-"


def show(result, elements):
    own = result["best"].get("longspan")
    line = f"{result['row']:>2}  {result['name']:<52} "
    if not own:
        for rival, best in result["best"].items():
            line += f" | {rival}"
            if "share" in result:
                line += f" {100 * result['share'][rival]:.1f} %"
            else:
                line += f" {1e9 * best['cpu'] / elements:.3f} ns/element"
            line += f" ({result['variants'][rival]})"
        print(line + marks(result), flush=True)
        return
    if "share" in result:
        share = result["share"]["longspan"]
        line += f"{1e3 * own['cpu']:9.3f} ms {100 * share:5.1f} %{verdict(share, result['goal']['share'])}"
        if "share_of_loading" in result:
            line += f" ({100 * result['share_of_loading']['longspan']:.1f} % of loading)"
    else:
        line += f"{1e9 * own['cpu'] / elements:9.3f} ns/element"
    for rival, ratio in result["ratio"].items():
        line += f" | {rival}"
        if "share" in result:
            line += f" {100 * result['share'][rival]:.1f} %"
        line += f" x{ratio:.2f}{verdict(ratio, result['goal']['ratio'].get(rival))}"
        line += f" (wall x{result['ratio_wall'][rival]:.2f}; {result['variants'][rival]})"
    if "peak_bytes" in own:
        peaks = [f"{k} {b['peak_bytes'] / 2**20:.0f}" for k, b in result["best"].items()]
        line += f" | peak MiB: {', '.join(peaks)}"
    line += (f" | probes {result['probe_lowest'] / 1e9:.0f} to {result['probe_highest'] / 1e9:.0f} GF/s, "
             f"{result['repeated_turns']} repeated" + marks(result))
    if not result["agree"]:
        line += "  RESULTS DIFFER"
    print(line, flush=True)


def summarise(results, best):
    """Prints means by row. `best`: threads -> the best loading probe of the whole session, by which
    slow phases are told once more."""
    print("\nrow: geometric means of share and ratio, over steady workloads in fast phases")
    mean = lambda x: math.exp(statistics.fmean(math.log(v) for v in x))
    for row in sorted({r["row"] for r in results}):
        measured = [r for r in results if r["row"] == row and "ratio" in r]
        kept = [r for r in measured if counts(r, best[r["request"]["threads"]])]
        line = f"{row:>3}: {len(kept)} workloads"
        if len(kept) < len(measured):
            line += f" (left out: {len(measured) - len(kept)})"
        if kept and "share" in kept[0]:
            line += f", {100 * mean(r['share']['longspan'] for r in kept):.1f} % of peak"
        if kept and "share_of_loading" in kept[0]:
            line += f", {100 * mean(r['share_of_loading']['longspan'] for r in kept):.1f} % of loading peak"
        for rival in kept[0]["ratio"] if kept else ():
            line += f", x{mean(r['ratio'][rival] for r in kept if rival in r['ratio']):.2f} {rival}"
        print(line)


def print_head(head):
    print(f"{head['peer']}; {instruction_sets.describe(head)}")
    for n in range(1, head["processors"] + 1):
        print(f"{n} thread{'s' if n > 1 else ''}: FMA peak {head[f'peak_{n}'] / 1e9:.1f}, loading peak "
              f"{head[f'loading_peak_{n}'] / 1e9:.1f}, dot products of bf16 {head[f'dot_peak_{n}'] / 1e9:.1f} "
              f"GF/s ({head['peak_instructions']})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="*", help="rows of the goal table; all by default")
    parser.add_argument("--match", default="", help="only workloads whose name holds this text")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=2, help="samples per turn")
    parser.add_argument("--seconds", type=float, default=0.05, help="least length of a sample")
    parser.add_argument("--attempts", type=int, default=3, help="while the peak is unsteady")
    parser.add_argument("--repeat-slow", type=int, default=7,
                        help="turns of a contestant that are repeated at most, where the machine was slow")
    parser.add_argument("--worker", default=os.path.join(HERE, "../../build/release/bench/bench_worker"))
    parser.add_argument("--avx2", action="store_true",
                        help="limit all contestants to AVX2 (ours must be of the release preset)")
    parser.add_argument("--out", help="append JSON lines here")
    parser.add_argument("--log", help="what the workers print on standard error")
    options = parser.parse_args()

    contest = Contest(options)
    head = contest.machine()
    print_head(head)
    out = open(options.out, "a") if options.out else None
    if out:
        out.write(json.dumps({"machine": head}) + "\n")

    results = []
    for entry in all_items():
        if options.rows and entry["row"] not in options.rows or options.match not in entry["name"]:
            continue
        try:
            if entry["request"]["threads"] > head["processors"]:
                raise WorkerError("this machine lends fewer processors than it has threads")
            result = contest.run(entry)
        except WorkerError as error:
            print(f"{entry['row']:>2}  {entry['name']:<52} not measured: {error}", flush=True)
            continue
        show(result, entry["elements"])
        results.append(result)
        if out:
            out.write(json.dumps(result) + "\n")
            out.flush()
    summarise(results, contest.phases.best)
    for worker in contest.workers.values():
        worker.close()


if __name__ == "__main__":
    main()
