#!/usr/bin/env python3
"""Reads the event files of a run with TensorBoard's own reader, and compares every figure with metrics.jsonl.

    tests/long/event_files.py [--program build/dev/longspan]

Trains a small model with --tensorboard, stops it, goes on from an earlier checkpoint, and expects what TensorBoard shows to
be the rows of metrics.jsonl: figures after the step that the run went on from, and none that the later start replaced. Needs
the package `tensorboard`.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator, SCALARS


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/dev/longspan")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run, text = os.path.join(folder, "run"), os.path.join(folder, "text")
        with open(text, "w") as f:
            f.write("".join(f"line {i * i % 97}\n" for i in range(3000)))
        train = [options.program, "train", "--out", run]
        first = ["--model", "transformer:tiny", "--data", f"bytes={text}", "--steps", "30", "--log-every", "1", "--eval-every", "5",
                 "--save-every", "10", "--tensorboard"]
        subprocess.run(train + first, check=True, capture_output=True)
        subprocess.run(train + ["--resume", "--step", "10", "--lr", "0.01"], check=True, capture_output=True)
        events = EventAccumulator(os.path.join(run, "tensorboard"), size_guidance={SCALARS: 0})
        events.Reload()
        shown = {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
        compared = 0
        with open(os.path.join(run, "metrics.jsonl")) as f:
            for row in map(json.loads, f):
                for name, value in row.items():
                    if name == "step" or not isinstance(value, (int, float)):
                        continue
                    tag = "valid/" + name[6:] if name.startswith("valid_") else "train/" + name
                    found = shown[tag].pop(row["step"])
                    if not math.isclose(found, value, rel_tol=1e-6):
                        sys.exit(f"{tag} of step {row['step']} is {found}, and {value} in metrics.jsonl")
                    compared += 1
        left = {tag: sorted(rows) for tag, rows in shown.items() if rows}
        if left:
            sys.exit(f"TensorBoard shows more than metrics.jsonl has: {left}")
        print(f"{compared} figures of {len(shown)} curves are equal, over two starts")


if __name__ == "__main__":
    main()
