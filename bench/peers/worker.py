"""Times workloads in PyTorch for bench/peers/compare.py.

Reads one JSON request per line on standard input and answers with one JSON line each:

    {"workload": "attention", "shape": {"length": 1024, "width": 64, "heads": 8}, "pass": "forward",
     "threads": 1, "variant": "sdpa", "repeats": 5, "seconds": 0.1}

Every repeat runs the workload as often as fills `seconds`. The answer gives seconds per call, best
and median over the repeats: `cpu` is the CPU time of the busiest thread, `cpu_total` that of all
threads, `wall` the wall-clock time. `check` is the mean magnitude of the results, to be compared
with the other worker's; `peak_bytes`, where a workload has it, is its peak memory. bench/worker.cc
speaks the same protocol.
"""

import ctypes
import gc
import importlib.metadata
import json
import math
import os
import statistics
import sys
import time

import torch
import torch._inductor.config
import torch.nn.functional as F

import reformer
import sparse
from inputs import differentiable, magnitude, values

HERE = os.path.dirname(os.path.abspath(__file__))


def compiled(function, variant):
    """`variant` may ask for compilation: "compile" or "compile-max"."""
    if "compile" not in variant:
        return function
    if os.environ.get("ATEN_CPU_CAPABILITY") == "avx2":
        torch._inductor.config.cpp.simdlen = 256
    mode = "max-autotune-no-cudagraphs" if "max" in variant else None
    return torch.compile(function, mode=mode, dynamic=False)


def gemm(shape, variant, dtype="f32", **_):
    """c = a b with layouts as in y = x W^T (NT), dx = dy W (NN) and dW = dy^T x (TN)."""
    of = torch.bfloat16 if dtype == "bf16" else torch.float32
    m, n, k, layout = shape["m"], shape["n"], shape["k"], shape["layout"]
    a = values((k, m) if layout[0] == "T" else (m, k), 1).to(of)
    b = values((n, k) if layout[1] == "T" else (k, n), 2).to(of)
    left = a.t() if layout[0] == "T" else a
    right = b.t() if layout[1] == "T" else b
    c = torch.empty(m, n, dtype=of)

    if variant == "torch":
        run = lambda: torch.mm(left, right, out=c)
    elif variant == "autocast":  # what autocast does to operands in f32
        c = c.bfloat16()
        run = lambda: torch.mm(left.bfloat16(), right.bfloat16(), out=c)
    elif variant == "onednn":
        packed = torch.ops.mkldnn._reorder_linear_weight(right.t().contiguous(), m)
        rows = left.contiguous()

        def run():
            c.set_(torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], ""))

    else:  # "mkl", or the path of a shared library with sgemm_
        library = ctypes.CDLL(torch_library() if variant == "mkl" else variant)
        if variant != "mkl":
            set_blas_threads(library, torch.get_num_threads())
        loop = ctypes.CDLL(os.path.join(HERE, "build", "gemm_loop.so")).gemm_loop
        sgemm = ctypes.cast(library.sgemm_, ctypes.c_void_p)
        args = [ctypes.c_int(int(layout[0] == "T")), ctypes.c_int(int(layout[1] == "T"))]
        args += [ctypes.c_int(s) for s in (m, n, k)]
        args += [ctypes.c_void_p(t.data_ptr()) for t in (a, b, c)]
        run = lambda calls=1: loop(sgemm, ctypes.c_long(calls), *args)
        run.many = True
        run.keep = (a, b, c)
    run()
    return run, magnitude([c])


def torch_library():
    return os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")


def set_blas_threads(library, threads):
    if hasattr(library, "openblas_set_num_threads"):
        library.openblas_set_num_threads(ctypes.c_int(threads))


def attention(shape, variant, **request):
    """Causal attention, q k v [B, H, L, d]."""
    size = (shape.get("batch", 1), shape["heads"], shape["length"], shape["width"])
    inputs = [values(size, s, 2.0) for s in (1, 2, 3)]

    def sdpa(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def by_hand(q, k, v):
        length = q.shape[-2]
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v

    forward = by_hand if variant.startswith("hand") else sdpa
    return differentiable(compiled(forward, variant), inputs, request["pass"])


def band_by_chunks(window, chunk, fused):
    """Causal band of `window` keys, self included, over chunks of queries; [B, H, L, d].

    The first `window` queries are a small causal problem of their own; every later chunk sees
    window + chunk keys under one shared mask.
    """
    row = torch.arange(chunk)[:, None] + window
    column = torch.arange(window + chunk)[None, :]
    visible = (column <= row) & (column > row - window)
    bias = torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)
    pieces = window // chunk + 1

    def gather(x, chunks):  # [B, H, L, d] -> [B * chunks, H, window + chunk, d]
        batch, heads, _, width = x.shape
        blocks = x.view(batch, heads, -1, chunk, width).transpose(1, 2)
        parts = [blocks[:, i : i + chunks] for i in range(pieces)]
        return torch.cat(parts, 3).view(batch * chunks, heads, window + chunk, width)

    def attend(q, k, v, bias):
        if fused:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return (scores + bias).softmax(-1) @ v

    def forward(q, k, v):
        batch, heads, length, width = q.shape
        head = F.scaled_dot_product_attention(
            q[:, :, :window], k[:, :, :window], v[:, :, :window], is_causal=True
        )
        chunks = (length - window) // chunk
        rest = q[:, :, window:].reshape(batch, heads, chunks, chunk, width).transpose(1, 2)
        rest = rest.reshape(batch * chunks, heads, chunk, width)
        out = attend(rest, gather(k, chunks), gather(v, chunks), bias)
        out = out.view(batch, chunks, heads, chunk, width).transpose(1, 2)
        return torch.cat([head, out.reshape(batch, heads, length - window, width)], 2)

    return forward


def band(shape, variant, **request):
    """variant: "sdpa-64", "hand-256", ...: how one chunk is attended, and its queries."""
    size = (shape.get("batch", 1), shape["heads"], shape["length"], shape["width"])
    inputs = [values(size, s, 2.0) for s in (1, 2, 3)]
    how, chunk = variant.split("-")[:2]
    forward = band_by_chunks(shape["window"], int(chunk), how == "sdpa")
    return differentiable(compiled(forward, variant), inputs, request["pass"])


def positive_features(x, weights, norms):
    """e^(W x - |x|^2 / 2), of queries relative to the largest, which cancels."""
    u = x @ weights
    if norms:
        return (u - (x * x).sum(-1, keepdim=True) * (0.5 / math.sqrt(x.shape[-1]))).exp()
    return (u - u.amax(-1, keepdim=True).detach()).exp()


def linear_by_chunks(weights, chunk):
    """Causal linear attention, chunk by chunk: what stays in the caches; [B, H, L, d]."""

    def forward(q, k, v):
        batch, heads, length, width = q.shape
        q, k, v = (x.reshape(batch * heads, length, -1) for x in (q, k, v))
        sums = q.new_zeros(batch * heads, weights.shape[1], v.shape[-1])
        total = q.new_zeros(batch * heads, weights.shape[1], 1)
        out = []
        for i in range(0, length, chunk):
            one = v[:, i : i + chunk]
            left = positive_features(q[:, i : i + chunk], weights, False)
            right = positive_features(k[:, i : i + chunk], weights, True)
            scores = torch.bmm(left, right.transpose(1, 2)).tril()
            above = torch.baddbmm(torch.bmm(scores, one), left, sums)
            below = torch.bmm(left, total) + scores.sum(-1, keepdim=True)
            out.append(above / below)
            sums = torch.baddbmm(sums, right.transpose(1, 2), one)
            total = total + right.sum(1).unsqueeze(-1)
        return torch.cat(out, 1).view(batch, heads, length, -1)

    return forward


def linear_at_once(weights, chunk):
    """The same with the sums of all chunks in one tensor, and all features."""

    def forward(q, k, v):
        batch, heads, length, width = q.shape
        size = (batch * heads, length // chunk, chunk, -1)
        left = positive_features(q, weights, False).reshape(size)
        right = positive_features(k, weights, True).reshape(size)
        values = v.reshape(size)
        each = right.transpose(-1, -2) @ values
        total = right.sum(2)
        scores = (left @ right.transpose(-1, -2)).tril()
        above = left @ (each.cumsum(1) - each) + scores @ values
        below = left @ (total.cumsum(1) - total).unsqueeze(-1) + scores.sum(-1, keepdim=True)
        return (above / below).view(batch, heads, length, -1)

    return forward


def linear_attention(shape, variant, **request):
    """Causal attention by positive random features. variant: "chunks-64", "once-128", ..."""
    size = (shape.get("batch", 1), shape["heads"], shape["length"], shape["width"])
    inputs = [values(size, s, 2.0) for s in (1, 2, 3)]
    weights = values((shape["features"], size[3]), 4, 3.5).T.contiguous() * size[3] ** -0.25
    how, chunk = variant.split("-")[:2]
    make = linear_by_chunks if how == "chunks" else linear_at_once
    forward = make(weights, int(chunk))
    return differentiable(compiled(forward, variant), inputs, request["pass"])


def rowwise(shape, variant, op, **request):
    """softmax, layer_norm, gelu and cross_entropy on [rows, n]."""
    rows, n = shape["rows"], shape["n"]
    x = values((rows, n), 1, 4.0)
    inputs = [x]
    if op == "softmax":
        forward = lambda x: F.softmax(x, -1)
    elif op == "layer_norm":
        inputs += [1.0 + values((n,), 2), values((n,), 3)]
        forward = lambda x, w, b: F.layer_norm(x, (n,), w, b)
    elif op == "gelu_erf":
        forward = lambda x: F.gelu(x)
    elif op == "gelu_tanh":
        forward = lambda x: F.gelu(x, approximate="tanh")
    else:
        target = (torch.arange(rows) * 7919) % n
        forward = lambda x: F.cross_entropy(x, target)
    return differentiable(compiled(forward, variant), inputs, request["pass"])


def adam(shape, variant, **_):
    w = values((shape["parameters"],), 1).requires_grad_()
    w.grad = values((shape["parameters"],), 2, 0.1)
    how = {"fused": {"fused": True}, "foreach": {"foreach": True}, "single": {"foreach": False}}
    optimizer = torch.optim.Adam([w], lr=1e-3, **how[variant.replace("-compile", "")])
    step = compiled(optimizer.step, variant)
    step()
    check = magnitude([w])
    return step, check


class Block(torch.nn.Module):
    def __init__(self, model, heads, inner):
        super().__init__()
        self.heads = heads
        self.norm1 = torch.nn.LayerNorm(model)
        self.qkv = torch.nn.Linear(model, 3 * model)
        self.out = torch.nn.Linear(model, model)
        self.norm2 = torch.nn.LayerNorm(model)
        self.up = torch.nn.Linear(model, inner)
        self.down = torch.nn.Linear(inner, model)

    def forward(self, x, attend):
        batch, length, model = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        a = attend(q, k, v).transpose(1, 2).reshape(batch, length, model)
        x = x + self.out(a)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(torch.nn.Module):
    """Pre-norm causal language model with learned positions and an untied head."""

    def __init__(self, layers, model, heads, length, vocabulary, attend):
        super().__init__()
        self.token = torch.nn.Embedding(vocabulary, model)
        self.position = torch.nn.Parameter(torch.zeros(length, model))
        self.blocks = torch.nn.ModuleList(Block(model, heads, 4 * model) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(model)
        self.head = torch.nn.Linear(model, vocabulary)
        self.attend = attend
        for p in self.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.position
        for block in self.blocks:
            x = block(x, self.attend)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def gpt_step(shape, variant, **_):
    """One training step: forward, backward, AdamW. A positive `window` attends a causal band."""
    torch.manual_seed(0)
    batch, length, vocabulary = shape["batch"], shape["length"], shape["vocabulary"]
    if shape.get("window"):
        chunk = int(next((s for s in variant.split("-") if s.isdigit()), 256))
        attend = band_by_chunks(shape["window"], chunk, "hand" not in variant)
    else:
        attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    model = Gpt(shape["layers"], shape["model"], shape["heads"], length, vocabulary, attend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    tokens = (torch.arange(batch * length) * 7919 % vocabulary).view(batch, length)
    targets = (tokens + 7919) % vocabulary
    loss_of = compiled(model, variant)

    def run():
        loss = loss_of(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return run, run().item()


WORKLOADS = {
    "gemm": gemm,
    "attention": attention,
    "band": band,
    "linear_attention": linear_attention,
    "rowwise": rowwise,
    "adam": adam,
    "gpt_step": gpt_step,
    **sparse.WORKLOADS,
    **reformer.WORKLOADS,
}


def thread_times():
    """CPU seconds of every thread of this process."""
    times = {}
    for name in os.listdir("/proc/self/task"):
        tid = int(name)
        try:
            times[tid] = time.clock_gettime((~tid << 3) | 6)  # the per-thread CPU clock of tid
        except OSError:
            pass  # ended meanwhile
    return times


def measure(run, calls):
    before = thread_times()
    wall = time.perf_counter()
    if getattr(run, "many", False):
        run(calls)
    else:
        for _ in range(calls):
            run()
    wall = time.perf_counter() - wall
    spent = [t - before.get(tid, 0.0) for tid, t in thread_times().items()]
    return {"cpu": max(spent) / calls, "cpu_total": sum(spent) / calls, "wall": wall / calls}


def answer(request, cache):
    torch.set_num_threads(request["threads"])
    # With autocast, the tensors themselves are in bf16 where products take them.
    rounds = request.get("precision") == "bf16" and not request["variant"].startswith("autocast")
    torch.backends.mkldnn.matmul.fp32_precision = "bf16" if rounds else "ieee"
    keys = ("workload", "op", "shape", "pass", "variant", "threads", "dtype", "precision")
    key = json.dumps([request.get(k) for k in keys])
    if key not in cache:
        cache.clear()
        gc.collect()
        arguments = {k: v for k, v in request.items() if k != "workload"}
        run, check = WORKLOADS[request["workload"]](**arguments)
        run()
        calls = 1
        while (once := measure(run, calls))["cpu_total"] * calls < request["seconds"] / 4:
            calls *= 2
        calls = max(1, round(request["seconds"] / max(once["wall"], 1e-9)))
        cache[key] = run, check, calls
    run, check, calls = cache[key]
    samples = [measure(run, calls) for _ in range(request["repeats"])]
    result = {"check": check, "calls": calls}
    if hasattr(run, "peak_bytes"):
        result["peak_bytes"] = run.peak_bytes
    for name in ("cpu", "cpu_total", "wall"):
        result[name] = min(s[name] for s in samples)
        result[name + "_median"] = statistics.median(s[name] for s in samples)
    return result


def transformers_version():
    try:
        return importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return None  # only the layers of sparse.py need it


def main():
    gc.disable()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print must not mix with the answers
    cache = {}
    for line in sys.stdin:
        try:
            request = json.loads(line)
            if request["workload"] == "describe":
                reply = {
                    "peer": "torch " + torch.__version__,
                    "transformers": transformers_version(),
                    "capability": torch.backends.cpu.get_cpu_capability(),
                }
            else:
                reply = answer(request, cache)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
