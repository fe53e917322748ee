"""Starts a worker process and exchanges JSON lines with it."""

import json
import os
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))

# The fastest settings found for PyTorch (README.md says what was tried and how to try again).
# ACTIVE lets its threads spin for a while at the end of a parallel region.
ACTIVE = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
TUNED = {**ACTIVE, "OMP_WAIT_POLICY": "PASSIVE", "OMP_PROC_BIND": "true"}

# OpenBLAS's kernels for AVX-512, where its own choice for a processor has narrower vectors.
SKYLAKEX = {"OPENBLAS_CORETYPE": "SKYLAKEX"}

# No vectors wider than 256 bits, in any library that one of the workers calls.
AVX2 = {"LONGSPAN_SIMD": "avx2", "OPENBLAS_CORETYPE": "Haswell", "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}


class WorkerError(Exception):
    pass


class Worker:
    """A worker that answers one request at a time; all its threads are confined to `cpus`."""

    def __init__(self, command, cpus, environment=None, log=None):
        self.name = os.path.basename(command[-1])
        self.process = subprocess.Popen(
            ["taskset", "--cpu-list", ",".join(str(c) for c in cpus)] + command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log or subprocess.DEVNULL,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    def ask(self, **request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self.process.wait()
            raise WorkerError(f"{self.name}: ended with code {code} while asked {request}")
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(f"{self.name}: {reply['error']}")
        return reply

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def python_of_peers():
    """The interpreter with PyTorch: in the folder that LONGSPAN_PEERS_VENV names, or else in setup.sh's."""
    return os.path.join(os.environ.get("LONGSPAN_PEERS_VENV", os.path.join(HERE, ".venv")), "bin", "python")


def torch_worker(cpus, environment=None, log=None):
    python = python_of_peers()
    settings = TUNED if environment is None else environment
    return Worker([python, os.path.join(HERE, "worker.py")], cpus, settings, log)


def lent_cpus():
    return sorted(os.sched_getaffinity(0))


def first_cpus(count):
    cpus = lent_cpus()
    if len(cpus) < count:
        raise SystemExit(f"this machine lends {len(cpus)} processors, {count} are needed")
    return cpus[:count]
