#!/usr/bin/env python3
"""Compares two builds of this engine on the workloads of compare.py: has a change cost speed?

    builds.py BEFORE AFTER [--rows 3 4 9 11 12] [--rounds 7] [--match TEXT]

BEFORE and AFTER are programs bench_worker of two builds with the same preset. They take turns on the same processors;
the best turn of each counts, in CPU time of its busiest thread. The loading probe of AFTER runs before and after every
turn: turns in a slow phase of the machine are repeated, and do not count (phases.py). Prints after / before for each
workload (above 1, the later build is slower) and the median of each row, without workloads of slow phases. Fails if a
median is above 1.02.
"""

import argparse
import json
import statistics
import sys

from compare import all_items
from phases import Phases, is_slow
from worker_client import Worker, WorkerError, first_cpus


class Builds:
    def __init__(self, options):
        self.options = options
        self.probes = {}
        self.phases = Phases(self.probe)

    def probe(self, threads):
        if threads not in self.probes:
            self.probes[threads] = Worker([self.options.after], first_cpus(threads))
        return self.probes[threads].ask(workload="loading_probe", threads=threads)["flops"]

    def run(self, entry):
        """What both builds need for a workload: a JSON line."""
        options, request = self.options, entry["request"]
        threads = request["threads"]
        if threads not in self.phases.best:
            self.phases.settle(threads)
        workers = {build: Worker([program], first_cpus(threads))
                   for build, program in (("before", options.before), ("after", options.after))}
        try:
            def take(build):
                return workers[build].ask(**request, variant="longspan", repeats=options.repeats,
                                          seconds=options.seconds)["cpu"]

            outcome = self.phases.take_turns(list(workers), take, options.rounds, options.repeat_slow, threads)
        finally:
            for worker in workers.values():
                worker.close()
        before, after = (min(turn.answer for turn in outcome.turns[build]) for build in workers)
        result = {"row": entry["row"], "name": entry["name"], "request": request, "rounds": options.rounds,
                  "before": before, "after": after, "ratio": after / before,
                  **self.phases.fields(outcome, threads)}
        if entry["flops"] and entry["peak"] == "fma":
            result["share_of_loading"] = entry["flops"] / after / result["loading_peak"]
        return result

    def close(self):
        for worker in self.probes.values():
            worker.close()


def show(result):
    line = f"{result['row']:>2}  {result['name']:<52} {1e3 * result['after']:9.3f} ms  x{result['ratio']:.3f}"
    if "share_of_loading" in result:
        line += f"  {100 * result['share_of_loading']:.1f} % of loading"
    line += (f" | probes {result['probe_lowest'] / 1e9:.0f} to {result['probe_highest'] / 1e9:.0f} GF/s, "
             f"{result['repeated_turns']} repeated")
    print(line + ("" if result["phase"] == "fast" else "  SLOW PHASE"), flush=True)


def summarise(results, best):
    """Prints the median of each row; `best`: threads -> the best probe of the session. Whether one is above 1.02."""
    slow = False
    for row in sorted({r["row"] for r in results}):
        measured = [r for r in results if r["row"] == row]
        ratios = [r["ratio"] for r in measured if not is_slow(r["turn_probe"], best[r["request"]["threads"]])]
        line = f"row {row}: {len(ratios)} workloads"
        if len(ratios) < len(measured):
            line += f" (left out: {len(measured) - len(ratios)})"
        if ratios:
            median = statistics.median(ratios)
            slow |= median > 1.02
            line += f", median x{median:.3f}, worst x{max(ratios):.3f}"
        print(line)
    return slow


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--rows", type=int, nargs="*", default=[3, 4, 9, 11, 12])
    parser.add_argument("--match", default="")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--repeat-slow", type=int, default=7,
                        help="turns of a build that are repeated at most, where the machine was slow")
    parser.add_argument("--out", help="append JSON lines here")
    options = parser.parse_args()
    builds, results = Builds(options), []
    for entry in all_items():
        if entry["row"] not in options.rows or options.match not in entry["name"]:
            continue
        try:
            result = builds.run(entry)
        except WorkerError as error:
            print(f"{entry['row']:>2}  {entry['name']:<52} not measured: {error}", flush=True)
            continue
        show(result)
        results.append(result)
        if options.out:
            with open(options.out, "a") as out:
                out.write(json.dumps(result) + "\n")
    slow = summarise(results, builds.phases.best)
    builds.close()
    sys.exit(1 if slow else 0)


if __name__ == "__main__":
    main()
