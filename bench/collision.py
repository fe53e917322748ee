#!/usr/bin/env python3
"""Draws the errors of object collision by the longest span, from bench/results/expire_span/collision.

  bench/collision.py [BENCH_PLOT]     build/dev/bench/bench_plot without it
"""
import json
import pathlib
import subprocess
import sys

root = pathlib.Path(__file__).parent / "results" / "expire_span" / "collision"
plot = sys.argv[1] if len(sys.argv) > 1 else "build/dev/bench/bench_plot"


def curve(name, file):
    spans = sorted(int(p.name) for p in root.iterdir() if p.is_dir())
    rows = [json.loads((root / str(span) / file).read_text().splitlines()[-1]) for span in spans]
    return {"name": name, "x": spans, "y": [100 - row["test_accuracy"] for row in rows]}


picture = {
    "path": str(root / "error.png"),
    "title": "object collision, 4,500 steps of one seed",
    "x_label": "longest span L",
    "y_label": "% of questions wrong",
    "series": [curve("spans of 16 at first", "evals.jsonl"),
               curve("spans of L / 4 at first", "quarter/evals.jsonl")],
}
subprocess.run([plot], input=json.dumps(picture) + "\n", text=True, check=True)
