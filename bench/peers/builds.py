#!/usr/bin/env python3
"""Compares two builds of this engine on the workloads of compare.py: has a change cost speed?

    builds.py BEFORE AFTER [--rows 3 4 9 11 12] [--rounds 7] [--match TEXT]

BEFORE and AFTER are programs bench_worker of two builds with the same preset. They take turns on the same processors;
the best turn of each counts, in CPU time of its busiest thread. Prints after / before for each workload (above 1, the
later build is slower) and the median of each row. Fails if a median is above 1.02.
"""

import argparse
import statistics
import sys

from compare import all_items
from worker_client import Worker, WorkerError, first_cpus


def best_of_turns(workers, request, options):
    best = [None, None]
    for turn in range(options.rounds):
        for i in (0, 1) if turn % 2 == 0 else (1, 0):
            reply = workers[i].ask(**request, variant="longspan", repeats=options.repeats, seconds=options.seconds)
            best[i] = reply["cpu"] if best[i] is None else min(best[i], reply["cpu"])
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--rows", type=int, nargs="*", default=[3, 4, 9, 11, 12])
    parser.add_argument("--match", default="")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.05)
    options = parser.parse_args()
    ratios = {}
    for entry in all_items():
        if entry["row"] not in options.rows or options.match not in entry["name"]:
            continue
        cpus = first_cpus(entry["request"]["threads"])
        workers = [Worker([program], cpus) for program in (options.before, options.after)]
        try:
            before, after = best_of_turns(workers, entry["request"], options)
        except WorkerError as error:
            print(f"{entry['row']:>2}  {entry['name']:<52} not measured: {error}", flush=True)
            continue
        finally:
            for worker in workers:
                worker.close()
        ratios.setdefault(entry["row"], []).append(after / before)
        print(f"{entry['row']:>2}  {entry['name']:<52} {1e3 * after:9.3f} ms  x{after / before:.3f}", flush=True)
    slow = False
    for row, values in sorted(ratios.items()):
        median = statistics.median(values)
        slow |= median > 1.02
        print(f"row {row}: {len(values)} workloads, median x{median:.3f}, worst x{max(values):.3f}")
    sys.exit(1 if slow else 0)


if __name__ == "__main__":
    main()
