#!/usr/bin/env python3
"""Compares two processes of one thread each with one process of two threads that computes as many batches, in turns.

    bench/ranks.py FILE [--turns 3] [--build build/dev]     FILE: a text of some megabytes

A decoder of 6 layers and 256 columns on 2 x 8 x 512 bytes a step. Prints the tokens per second of steps 4 to 12 of each
turn, the seconds of waiting for the other process in them, with and without overlap, and the ratios of the medians.
"""
import argparse, json, os, pathlib, statistics, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
SHAPE = ["--model", "transformer", "--length", "512", "--batch", "8", "--steps", "12", "--split", "99/1/0", "--eval-every", "0",
         "--save-every", "0", "--log-every", "1", "--set", "model.d_model=256", "--set", "model.n_layer=6", "--set", "model.n_head=8",
         "--set", "model.d_ff=1024", "--set", "model.dropout=0"]
LAUNCH = ["mpirun", "-np", "2", "--bind-to", "none"]
KINDS = {"one process, two threads": ([], ["--threads", "2", "--set", "accumulate=2"]),
         "two processes": (LAUNCH, []),
         "two processes, no overlap": (LAUNCH, ["--set", "ranks.overlap=false"])}


def measured(program, text, launch, options):
    """Tokens per second, and the seconds of waiting."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*launch, str(program), "train", "--data", f"bytes={text}", "--out", f"{folder}/run", *SHAPE, *options]
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            sys.exit(done.stderr)
        rows = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
    first, *_, last = [row for row in rows if "tokens" in row and row["step"] >= 3]
    seconds = last["seconds"] - first["seconds"]
    return (last["tokens"] - first["tokens"]) / seconds, last.get("exposed_seconds", 0) - first.get("exposed_seconds", 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--build", default=str(ROOT / "build/dev"))
    options = parser.parse_args()
    found = {kind: [] for kind in KINDS}
    for _ in range(options.turns):
        for kind, (launch, more) in KINDS.items():
            found[kind].append(measured(pathlib.Path(options.build) / "longspan", options.text, launch, more))
    middle = {kind: statistics.median(rate for rate, _ in all) for kind, all in found.items()}
    for kind, all in found.items():
        print(f"{kind}: {[round(rate) for rate, _ in all]} tokens/s, waiting {[round(wait, 3) for _, wait in all]} s,"
              f" {middle[kind] / middle['one process, two threads']:.2f} times the first")


if __name__ == "__main__":
    main()
