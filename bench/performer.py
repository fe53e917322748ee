#!/usr/bin/env python3
"""Draws what bench_performer and the runs of bench/results/performer say: error.png, growth.png, transfer.png.

  bench/performer.py [BENCH_PLOT]     build/dev/bench/bench_plot without it
"""
import json
import math
import pathlib
import subprocess
import sys

root = pathlib.Path(__file__).parent / "results" / "performer"
plot = sys.argv[1] if len(sys.argv) > 1 else "build/dev/bench/bench_plot"


def rows(file):
    return [json.loads(line) for line in (root / file).read_text().splitlines()]


def errors():
    series = {}
    for r in rows("error.jsonl"):
        if r["rows"] == "gram_schmidt":
            name = f"{r['features']}, deviation {r['deviation']}"
            series.setdefault(name, []).append((r["M"], r["median"]))
    return {"path": str(root / "error.png"), "log": True,
            "title": "error of the output, 256 tokens of width 16, orthogonal rows",
            "x_label": "features M", "y_label": "|out - exact| / |exact|",
            "series": [{"name": n, "x": [m for m, _ in s], "y": [e for _, e in s]}
                       for n, s in series.items()]}


def slope(points, least):
    chosen = [(math.log(a), math.log(b)) for a, b in points if a >= least]
    x, y = (sum(c) / len(chosen) for c in zip(*chosen))
    return sum((a - x) * (b - y) for a, b in chosen) / sum((a - x) ** 2 for a, _ in chosen)


def growth():
    series = {}
    for r in rows("steps.jsonl"):
        series.setdefault(r["model"], []).append((r["length"], r["seconds"], r["peak_bytes"]))
    series = {n: s for n, s in series.items() if len(s) > 1}
    for name, s in series.items():
        least = 2048 if name == "transformer" else 1024
        print(name, "time L^%.3f" % slope([(n, t) for n, t, _ in s], least),
              "bytes L^%.3f" % slope([(n, b) for n, _, b in s], least))
    return {"path": str(root / "growth.png"), "log": True, "title": "a training step of the small preset",
            "x_label": "tokens", "y_label": "processor seconds",
            "series": [{"name": n, "x": [p[0] for p in s], "y": [p[1] for p in s]} for n, s in series.items()]}


def transfer():
    before = [r for r in rows("transfer.jsonl") if r["model"] == "transformer"]
    after = [r for r in rows("transfer.jsonl") if r["model"] == "performer"]
    last = before[-1]["step"]
    return {"path": str(root / "transfer.png"), "title": "a Transformer that goes on as a Performer",
            "x_label": "step", "y_label": "bits per byte, validation",
            "series": [{"name": "transformer", "x": [r["step"] for r in before],
                        "y": [r["valid_bpb"] for r in before]},
                       {"name": "performer", "x": [last + r["step"] for r in after],
                        "y": [r["valid_bpb"] for r in after]}]}


for make in (errors, growth, transfer):
    try:
        picture = make()
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        continue
    subprocess.run([plot], input=json.dumps(picture) + "\n", text=True, check=True)
