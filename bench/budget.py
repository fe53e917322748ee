#!/usr/bin/env python3
"""The deepest and the longest model that really trains within a fixed number of bytes.

    bench/budget.py [--gib 4] [--out FILE] [CASE...]

For each case (`--list`: an axis and a strategy) `longspan memory` predicts the largest depth or
length, and `longspan train` takes steps of it with memory_limit, beyond which every allocation
fails; 2 MiB of it are left to the layouts of attention, which predictions count apart. Then one
layer or 64 tokens more than is predicted to fit without them: `train --budget` refuses it before
the first step, and with the limit alone it runs out of memory. "best" is the strategy, and the number of chunks of 1 and 16,
with the largest prediction; of equal ones the one that runs the least again. The last case is a
length that has to fit. One JSON line each, in bytes, which depend neither on the load nor on the
processor; lines that are in FILE already stay. Ends with status 1 where training disagrees.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

LOCAL = ("--model local_transformer --batch 1 --set model.d_model=128 --set model.d_ff=512 "
         "--set model.window=128 --set model.n_max=4194304").split()
REFORMER = "--model reformer --batch 1 --set model.n_max=65536".split()
AXES = {"depth": ("layers", "deepest", 1), "length": ("length", "longest", 64)}
SHAPES = {"depth": {"layers": 8, "length": 4096}, "length": {"layers": 8, "length": 65536}}
CASES = [f"{axis}-{of}" for axis in AXES for of in ("standard", "best")] + ["reformer"]
GIB = 1 << 30
LAYOUTS = 2 << 20


def run(arguments):
    done = subprocess.run(arguments, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def shape_flags(shape):
    return [word for name, value in shape.items() for word in (f"--{name}", str(value))]


def process_bytes(program):
    """What a budget has for the process itself."""
    code, out, err = run([program, "memory", "--model", "transformer:tiny", "--json"])
    if code != 0:
        sys.exit(err)
    return json.loads(out.splitlines()[0])["process"]


def predictions(program, model, shape, budget):
    """The rows of `longspan memory`, without chunks and with 16, for so many bytes of tensors."""
    rows = []
    budget += process_bytes(program)
    for chunks in (1, 16):
        command = [program, "memory", *model, *shape_flags(shape), "--chunks", str(chunks)]
        code, out, err = run([*command, "--budget", str(budget), "--json"])
        if code != 0:
            sys.exit(err)
        rows += [json.loads(line) for line in out.splitlines()]
    return [row for row in rows if "refused" not in row]


def choose(rows, axis, of):
    _, most, _ = AXES[axis]
    if of == "standard":
        return next(row for row in rows if row["memory"] == "standard" and row["chunks"] == 1)
    return max(rows, key=lambda row: (row[most], -row["macs_again"]))


class Trainer:
    """Takes training steps in folders that are gone at the end."""

    def __init__(self, program, steps, limit):
        self.program, self.steps, self.limit = program, steps, limit

    def __call__(self, model, flags, *more):
        with tempfile.TemporaryDirectory() as folder:
            data = os.path.join(folder, "bytes")
            with open(data, "wb") as f:
                f.write(random.Random(1).randbytes(1 << 22))
            command = [self.program, "train", "--json", *model, *flags, *more, "--steps", str(self.steps)]
            return run([*command, "--data", f"bytes={data}", "--split", "100/0/0", "--out",
                        os.path.join(folder, "run")])

    def within_limit(self, model, flags):
        return self(model, flags, "--set", f"memory_limit={self.limit}")


def last_line(text):
    return text.strip().splitlines()[-1] if text.strip() else ""


def trained(trainer, model, flags):
    """What a run within the limit says of itself; ends the program where it fails."""
    code, out, err = trainer.within_limit(model, flags)
    if code != 0:
        sys.exit(f"{' '.join(flags)} did not train:\n{err}")
    return json.loads(last_line(out))["peak_bytes"]


def largest(options, trainer, axis, of):
    part, most, unit = AXES[axis]
    shape = dict(SHAPES[axis])
    row = choose(predictions(options.program, LOCAL, shape, trainer.limit - LAYOUTS), axis, of)
    policy = ["--memory", row["memory"], "--chunks", str(row["chunks"])]
    shape[part] = row[most]
    peak = trained(trainer, LOCAL, policy + shape_flags(shape))
    result = {"case": f"{axis}-{of}", "memory": row["memory"], "chunks": row["chunks"], **shape,
              "limit": trainer.limit, "steps": trainer.steps, "peak": peak["total"],
              "parameter": peak["parameter"], "saved_at_peak": peak["saved"],
              "command": " ".join(["longspan train", *LOCAL, *policy, *shape_flags(shape), "--set",
                                   f"memory_limit={trainer.limit}"])}
    rows = predictions(options.program, LOCAL, SHAPES[axis], trainer.limit)
    same = [r for r in rows if (r["memory"], r["chunks"]) == (row["memory"], row["chunks"])]
    shape[part] = same[0][most] + unit
    code, _, err = trainer(LOCAL, policy + shape_flags(shape), "--budget", options.budget)
    refused = code == 1 and "a step needs" in err
    code, _, said = trainer.within_limit(LOCAL, policy + shape_flags(shape))
    failed = code == 1 and "out of memory" in said
    result["next"] = {part: shape[part], "refused_before_the_first_step": refused,
                      "out_of_memory_with_the_limit": failed, "message": err.split(";")[0]}
    if not refused or not failed:
        sys.exit(f"{part} {shape[part]} is not refused:\n{err}\n{said}")
    return result


def reformer(_, trainer):
    flags = shape_flags({"length": 65536}) + ["--memory", "reversible", "--chunks", "8"]
    peak = trained(trainer, REFORMER, flags)
    return {"case": "reformer", "length": 65536, "memory": "reversible", "chunks": 8,
            "limit": trainer.limit, "steps": trainer.steps, "peak": peak["total"],
            "parameter": peak["parameter"], "saved_at_peak": peak["saved"],
            "command": " ".join(["longspan train", *REFORMER, *flags, "--set",
                                 f"memory_limit={trainer.limit}"])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="without one: all")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--program", default=os.environ.get("LONGSPAN", "build/dev/longspan"))
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--out", default="bench/results/budget.jsonl")
    options = parser.parse_args()
    if options.list:
        return print("\n".join(CASES))
    options.budget = str(options.gib * GIB + process_bytes(options.program))
    trainer = Trainer(options.program, options.steps, options.gib * GIB)
    there = set()
    if os.path.exists(options.out):
        with open(options.out) as f:
            there = {json.loads(line)["case"] for line in f}
    for case in options.cases or CASES:
        if case not in CASES:
            parser.error(f"no case {case}; expected {', '.join(CASES)}")
        if case in there:
            continue
        axis, _, of = case.partition("-")
        result = largest(options, trainer, axis, of) if of else reformer(options, trainer)
        with open(options.out, "a") as f:
            print(json.dumps(result), file=f)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
