"""Asks what the libraries of the peers really use: instruction sets of oneDNN and MKL within PyTorch, and the kernels
of OpenBLAS that are fastest on this processor."""

import os
import re
import subprocess

from worker_client import python_of_peers

# A product for each library: MKL, oneDNN in f32 and oneDNN in bf16.
TINY = """
import torch
torch.set_num_threads(1)
x = torch.ones(32, 32)
torch.mm(x, x)
torch.mm(x.bfloat16(), x.bfloat16())
packed = torch.ops.mkldnn._reorder_linear_weight(x, 32)
torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
"""


def parse_onednn(text):
    """From what ONEDNN_VERBOSE=1 prints: {"isa": ..., "kernels": [...]}; None for what it does not say."""
    isa = re.search(r"^(?:onednn|dnnl)_verbose,(?:v\d+,)?info,cpu,isa:([^\n]+)", text, re.M)
    kernels = re.findall(r"^(?:onednn|dnnl)_verbose,(?:[^,\n]*,)*?exec,cpu,(?:matmul|inner_product),([^,\n]+)", text,
                         re.M)
    return {"isa": isa.group(1).strip() if isa else None, "kernels": sorted(set(kernels)) or None}


def parse_mkl(text):
    """From what MKL_VERBOSE=1 prints: {"version": ..., "isa": ...}; None for what it does not say."""
    head = re.search(r"^MKL_VERBOSE (?:oneMKL|Intel\(R\) MKL) (.*?) Product build .*? architecture ([^\n]*?)"
                     r"(?: enabled processors)?, (?:Lnx|Win|Mac)", text, re.M)
    if not head:
        return {"version": None, "isa": None}
    return {"version": head.group(1), "isa": head.group(2).replace("(R)", "").replace("Intel ", "").strip()}


def of_torch(settings, cpus):
    """{"onednn": ..., "mkl": ...} of a PyTorch with these variables, from a process of its own;
    with "error" too if a matmul did not run."""
    environment = {**os.environ, **settings, "ONEDNN_VERBOSE": "1", "MKL_VERBOSE": "1"}
    done = subprocess.run(["taskset", "--cpu-list", ",".join(map(str, cpus)), python_of_peers(), "-c", TINY],
                          env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    found = {"onednn": parse_onednn(done.stdout), "mkl": parse_mkl(done.stdout)}
    if done.returncode != 0:
        found["error"] = done.stdout.strip().splitlines()[-1][:300] if done.stdout.strip() else "no output"
    return found


def may_set_coretype(capability, environment):
    """Whether a benchmark may set OPENBLAS_CORETYPE: the engine uses AVX-512, and nobody has set it."""
    return capability.startswith("avx512") and not environment.get("OPENBLAS_CORETYPE")


def faster(seconds):
    """The name with the fewest seconds of {name: seconds}, the first of equals."""
    return min(seconds, key=seconds.get)


def choose_openblas(ask, names, rounds=3):
    """Measures matmuls of 512 x 512 x 512 with each of the workers `names` in turns, through
    ask(name, request); returns (the fastest name, {name: FLOPs per second})."""
    size = 512
    request = {"workload": "gemm", "shape": {"m": size, "n": size, "k": size, "layout": "NN"}, "threads": 1,
               "variant": "openblas", "repeats": 2, "seconds": 0.02}
    seconds = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            seconds[name].append(ask(name, request)["cpu"])
    best = {name: min(taken) for name, taken in seconds.items()}
    return faster(best), {name: 2 * size**3 / s for name, s in best.items()}


def describe(head):
    """The instruction sets of a `machine` line, for people."""
    own, torch, blas = head["capability"], head["peer_libraries"], head["openblas"]
    vectors = f"longspan {own}; PyTorch {head['peer_capability']}"
    for key, name in (("onednn", "oneDNN"), ("mkl", "MKL")):
        vectors += f", {name} {torch[key]['isa'] or 'unknown'}"
    if "error" in torch:
        vectors += f" ({torch['error']})"
    how = f"OPENBLAS_CORETYPE={blas['coretype']}" if blas["coretype"] else "its own choice"
    rates = ", ".join(f"{kernel} {rate / 1e9:.1f} GF/s" for kernel, rate in blas["rates"].items())
    return f"{vectors}; OpenBLAS {blas['kernel']} ({how}{'; ' + rates if rates else ''})"
