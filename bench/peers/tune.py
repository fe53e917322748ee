#!/usr/bin/env python3
"""Finds the fastest PyTorch configuration for a training step.

Every configuration runs in a worker of its own; the workers take turns, so that a disturbance
meets all of them. Prints milliseconds per step, best of all rounds: wall clock, and CPU time of
the busiest thread.

    tune.py [--threads 2] [--rounds 7] [--only NAME ...] [--variants eager compile]
"""

import argparse
import glob
import json

from worker_client import WorkerError, first_cpus, torch_worker

MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
BIND = {"OMP_PROC_BIND": "true"}
HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def preload(name):
    found = glob.glob(f"/usr/lib/*/{name}")
    return {"LD_PRELOAD": found[0]} if found else None


def configurations():
    jemalloc, tcmalloc = preload("libjemalloc.so.2"), preload("libtcmalloc_minimal.so.4")
    libomp, openblas = preload("libomp.so.5"), preload("libopenblas.so.0")
    table = {
        "untouched": {},
        "malloc": MALLOC,
        "malloc passive": MALLOC | PASSIVE,
        "malloc bind": MALLOC | BIND,
        "malloc passive bind": MALLOC | PASSIVE | BIND,
        "malloc short spin bind": MALLOC | BIND | {"GOMP_SPINCOUNT": "20000"},
        "malloc huge passive bind": MALLOC | HUGE | PASSIVE | BIND,
    }
    if jemalloc:
        settings = {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1,metadata_thp:auto"}
        table["jemalloc passive bind"] = jemalloc | settings | PASSIVE | BIND
        settings = {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always"}
        table["jemalloc huge passive bind"] = jemalloc | settings | PASSIVE | BIND
    if tcmalloc:
        settings = {"TCMALLOC_RELEASE_RATE": "0"}
        table["tcmalloc passive bind"] = tcmalloc | settings | PASSIVE | BIND
        table["tcmalloc"] = tcmalloc | settings
    if libomp:
        table["malloc libomp"] = MALLOC | libomp | {"KMP_BLOCKTIME": "1"}
    if openblas:
        table["malloc openblas passive bind"] = MALLOC | openblas | PASSIVE | BIND
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--variants", nargs="*", default=["eager"])
    options = parser.parse_args()

    shape = {"layers": 6, "model": 256, "heads": 8, "length": 512, "batch": 4, "vocabulary": 256}
    cpus = first_cpus(options.threads)
    workers = {}
    for name, environment in configurations().items():
        if options.only is None or name in options.only:
            for variant in options.variants:
                workers[name, variant] = torch_worker(cpus, environment)

    samples = {key: [] for key in workers}
    for _ in range(options.rounds):
        for key, worker in list(workers.items()):
            try:
                samples[key].append(
                    worker.ask(workload="gpt_step", shape=shape, threads=options.threads,
                               variant=key[1], repeats=2, seconds=0.5)
                )
            except WorkerError as error:
                print(json.dumps({"configuration": key[0], "variant": key[1], "error": str(error)}))
                del workers[key]

    for (name, variant), answers in samples.items():
        if answers:
            best = {k: 1e3 * min(a[k] for a in answers) for k in ("wall", "cpu", "cpu_total")}
            print(json.dumps({"configuration": name, "variant": variant, "threads": options.threads,
                              **{k + "_ms": round(v, 1) for k, v in best.items()}}))
    for worker in workers.values():
        worker.close()


if __name__ == "__main__":
    main()
