#!/usr/bin/env python3
"""Compares two builds of a program that measures sparse attention beside dense attention in one process:
bench_attention_share, `bench_lsh share`, `bench_routing share`. Has a change cost speed?

    shares.py BEFORE AFTER [--rounds 3] [--out FILE] [-- ARGUMENT ...]

BEFORE and AFTER are the programs; both get the arguments, such as `share --turns 3`. They run in turns on one
processor; the best of each counts. Prints after / before of the seconds of each case, forward and backward (above 1,
the later build is slower), and the share of the dense rate of both, of the run in which it was highest. With --out it
appends a JSON line for each case.
"""

import argparse
import json
import statistics
import subprocess
import sys

from worker_client import first_cpus


def lines_of(program, arguments, cpu):
    """What a run of the program says: (name, length) -> a line."""
    run = subprocess.run(["taskset", "-c", str(cpu), program, *arguments], stdout=subprocess.PIPE, text=True)
    if run.returncode != 0:
        sys.exit(f"shares.py: {program} ended with {run.returncode}")
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    return {(line["name"], line["length"]): line for line in lines}


def best_of(runs):
    """The best seconds and the highest share of each case over several runs."""
    result = {}
    for case in runs[0]:
        lines = [run[case] for run in runs]
        result[case] = {key: min(line[key] for line in lines) for key in ("forward_seconds", "backward_seconds")}
        result[case]["share"] = max(line["share_of_dense"]["both"] for line in lines)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", help="append JSON lines here")
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    options, arguments = parser.parse_args(given[:end]), given[end + 1:]
    cpu = first_cpus(1)[0]
    runs = {"before": [], "after": []}
    for _ in range(options.rounds):
        for build in runs:
            runs[build].append(lines_of(getattr(options, build), arguments, cpu))
    before, after = best_of(runs["before"]), best_of(runs["after"])
    ratios = {"forward": [], "backward": []}
    for case, new in after.items():
        if case not in before:
            continue
        old, (name, length) = before[case], case
        both = {pass_: new[f"{pass_}_seconds"] / old[f"{pass_}_seconds"] for pass_ in ratios}
        for pass_, ratio in both.items():
            ratios[pass_].append(ratio)
        print(f"{name:<44} {length:>6}  forward x{both['forward']:.3f}  backward x{both['backward']:.3f}  "
              f"of dense {old['share']:.2f} -> {new['share']:.2f}", flush=True)
        if options.out:
            with open(options.out, "a") as out:
                line = {"name": name, "length": length, "rounds": options.rounds, "before": old, "after": new,
                        "ratio": both}
                out.write(json.dumps(line) + "\n")
    for pass_, of in ratios.items():
        print(f"{pass_}: median x{statistics.median(of):.3f}, worst x{max(of):.3f}")


if __name__ == "__main__":
    main()
