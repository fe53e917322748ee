#!/usr/bin/env python3
"""Longspan's CUDA backend and PyTorch on the same GPU, taking turns.

    gpu.py --worker build/gpu/bench/bench_worker [--rounds 5] [--seconds 0.1] [--out FILE.jsonl]

For each workload the two are timed `rounds` times in turn, each turn as many calls as fill
`seconds`, between two synchronisations; the best turn counts. `share` is of the device's measured
bf16 matrix product (8192^3), sampled before and after each workload; where the two samples differ
by more than 5 % the workload is measured again. Sparse workloads count attended pairs only. `ratio`
is PyTorch / Longspan: above 1, Longspan is faster. PyTorch runs its fastest kind that works: SDPA,
or FlexAttention with the same mask, compiled; training steps eager and compiled.
"""

import argparse
import json
import math
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

from worker_client import Worker, WorkerError, first_cpus

STEADY = 0.05
SYNC = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None


def timed(run, seconds):
    """Seconds of a call, from as many as fill `seconds`."""
    run()
    SYNC()
    start = time.perf_counter()
    run()
    SYNC()
    once = time.perf_counter() - start
    calls = max(1, round(seconds / max(once, 1e-6)))
    start = time.perf_counter()
    for _ in range(calls):
        run()
    SYNC()
    return (time.perf_counter() - start) / calls


def both_ways(forward, inputs, which):
    """forward(*inputs), its backward, or both."""
    if which == "forward":
        def run():
            with torch.no_grad():
                forward(*inputs)
        return run
    leaves = [x.requires_grad_() for x in inputs if x.is_floating_point()]
    y = forward(*inputs)
    dy = torch.rand_like(y)
    if which == "backward":
        return lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)
    return lambda: torch.autograd.grad(forward(*inputs), leaves, dy)


class Torch:
    """The peers' workloads, by the names of bench/worker.cc."""

    def __init__(self, device):
        self.device = device

    def tensor(self, *shape, dtype):
        return torch.rand(*shape, device=self.device, dtype=dtype) - 0.5

    def heads(self, shape, dtype):
        size = (shape.get("batch", 1), shape["heads"], shape["length"], shape["width"])
        return [self.tensor(*size, dtype=dtype) for _ in range(3)]

    def gemm(self, request, dtype, _):
        m, n, k = (request["shape"][x] for x in "mnk")
        layout = request["shape"]["layout"]
        a = self.tensor(k, m, dtype=dtype).t() if layout[0] == "T" else self.tensor(m, k, dtype=dtype)
        b = self.tensor(n, k, dtype=dtype).t() if layout[1] == "T" else self.tensor(k, n, dtype=dtype)
        c = torch.empty(m, n, device=self.device, dtype=dtype)
        return lambda: torch.mm(a, b, out=c)

    def attention(self, request, dtype, _):
        return both_ways(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
                         self.heads(request["shape"], dtype), request["pass"])

    def band(self, request, dtype, _):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        length, window = request["shape"]["length"], request["shape"]["window"]
        mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < window), None, None, length,
                                 length, device=self.device)
        flex = torch.compile(flex_attention, dynamic=False)
        return both_ways(lambda q, k, v: flex(q, k, v, block_mask=mask),
                         self.heads(request["shape"], dtype), request["pass"])

    def lsh(self, request, dtype, variant):
        shape = request["shape"]
        rounds, chunk, length, width = (shape[x] for x in ("rounds", "chunk", "length", "width"))
        rotations = torch.randn(shape["heads"], rounds, width, length // chunk, device=self.device,
                                dtype=dtype)
        qk, v, _ = self.heads(shape, dtype)

        def forward(qk, v):
            """Each round sorts tokens by bucket and sees two chunks; rounds join by their lse."""
            with torch.no_grad():
                p = torch.einsum("bhld,hrdk->bhrlk", qk, rotations)
                order = torch.cat([p, -p], -1).argmax(-1).argsort(dim=-1, stable=True)
                back = order.argsort(-1)
            def chunks(x):
                x = x.unsqueeze(2).expand(-1, -1, rounds, -1, -1)
                x = x.gather(3, order.unsqueeze(-1).expand(*order.shape, x.shape[-1]))
                return x.unflatten(3, (-1, chunk))
            def window(x):
                return torch.cat([x.roll(1, 3), x], 4)
            q, key = chunks(qk), chunks(F.normalize(qk.float(), dim=-1).to(dtype))
            places = order.unflatten(3, (-1, chunk))
            s = (q @ window(key).transpose(-1, -2)).float()
            s = s.masked_fill(places.unsqueeze(-1) == window(places.unsqueeze(-1)).transpose(-1, -2), -1e5)
            lse = s.logsumexp(-1, keepdim=True)
            y = (s - lse).exp().to(dtype) @ window(chunks(v))
            y, lse = y.flatten(3, 4), lse.flatten(3, 4)
            y = y.gather(3, back.unsqueeze(-1).expand(*back.shape, y.shape[-1]))
            share = lse.gather(3, back.unsqueeze(-1)).softmax(2)
            return (y * share.to(dtype)).sum(2)
        return both_ways(torch.compile(forward) if variant == "compile" else forward, [qk, v],
                         request["pass"])

    def rowwise(self, request, dtype, variant):
        rows, n, op = request["shape"]["rows"], request["shape"]["n"], request["op"]
        x = self.tensor(rows, n, dtype=dtype)
        if op == "layer_norm":
            w, b = (self.tensor(n, dtype=dtype) for _ in range(2))
            forward, inputs = (lambda x, w, b: F.layer_norm(x, (n,), w, b)), [x, w, b]
        elif op == "cross_entropy":
            t = torch.arange(rows, device=self.device) * 7919 % n
            forward, inputs = F.cross_entropy, [x, t]
        elif op == "gelu_erf":
            forward, inputs = F.gelu, [x]
        else:
            forward, inputs = (lambda x: torch.softmax(x, -1)), [x]
        return both_ways(torch.compile(forward) if variant == "compile" else forward, inputs,
                         request["pass"])

    def adam(self, request, dtype, _):
        p = nn.Parameter(self.tensor(request["shape"]["parameters"], dtype=dtype))
        p.grad = torch.rand_like(p)
        optimizer = torch.optim.Adam([p], lr=1e-3, fused=True)
        return optimizer.step

    def gpt_step(self, request, dtype, variant):
        shape = request["shape"]
        torch.manual_seed(0)
        model = Gpt(shape).to(self.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        forward = torch.compile(model) if variant == "compile" else model
        tokens = torch.randint(shape["vocabulary"], (shape["batch"], shape["length"]),
                               device=self.device)
        targets = tokens.roll(-1, 1)

        def step():
            with torch.autocast(self.device, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
                loss = forward(tokens, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return step


class Block(nn.Module):
    def __init__(self, model, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(model), nn.LayerNorm(model)
        self.qkv, self.out = nn.Linear(model, 3 * model), nn.Linear(model, model)
        self.up, self.down = nn.Linear(model, 4 * model), nn.Linear(4 * model, model)

    def forward(self, x):
        b, l, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, l, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, l, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, shape):
        super().__init__()
        d, v = shape["model"], shape["vocabulary"]
        self.token, self.position = nn.Embedding(v, d), nn.Embedding(shape["length"], d)
        self.blocks = nn.ModuleList(Block(d, shape["heads"]) for _ in range(shape["layers"]))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, v)

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


def item(name, request, dtype="bf16", flops=0, variants=("",), goal=None):
    return {"name": name, "request": {**request, "dtype": dtype}, "flops": flops,
            "variants": variants, "goal": goal}


def all_items(small):
    for m, n, k, layout in ((8192, 8192, 8192, "NT"), (8192, 3072, 768, "NT"), (768, 3072, 8192, "TN")):
        if small:
            m, n, k = 64, 48, 32
        yield item(f"product {m}x{n}x{k} {layout}",
                   {"workload": "gemm", "shape": {"m": m, "n": n, "k": k, "layout": layout}},
                   flops=2 * m * n * k)
    for width in (64, 128):
        for length in (100,) if small else (4096, 8192, 16384):
            pairs = 16 * length * (length + 1) / 2
            for which, factor in (("forward", 4), ("backward", 10)):
                yield item(f"causal {which}, 16 heads of {width}, L={length}",
                           {"workload": "attention", "pass": which,
                            "shape": {"heads": 16, "length": length, "width": width}},
                           flops=factor * pairs * width, goal=0.45 if which == "forward" else 0.25)
    for length in (100,) if small else (8192, 65536):
        window = 32 if small else 512
        pairs = 16 * (length * window - window * (window - 1) / 2)
        yield item(f"band of {window}, both ways, 16 heads of 64, L={length}",
                   {"workload": "band", "pass": "both",
                    "shape": {"heads": 16, "length": length, "width": 64, "window": window}},
                   flops=14 * pairs * 64)
    for rule, rounds in (("windows", 1), ("windows", 4), ("paper", 4)):
        length, chunk, heads = (96, 16, 2) if small else (16384, 64, 16)
        shape = {"heads": heads, "length": length, "width": 64, "chunk": chunk, "rounds": rounds}
        pairs = heads * rounds * length * 2 * chunk if rule == "windows" else 0
        yield item(f"LSH {rule}, {rounds} rounds of {chunk}, both ways, {heads} heads of 64, L={length}",
                   {"workload": "lsh", "rule": rule, "pass": "both", "shape": shape},
                   flops=14 * pairs * 64, variants=("eager", "compile") if rule == "windows" else ())
    rows, n = (32, 48) if small else (16384, 1024)
    for op in ("softmax", "layer_norm", "gelu_erf", "cross_entropy"):
        classes = n if small or op != "cross_entropy" else 32000
        yield item(f"{op} {rows}x{classes}, both ways",
                   {"workload": "rowwise", "op": op, "pass": "both", "shape": {"rows": rows, "n": classes}},
                   variants=("eager", "compile"))
    count = 1000 if small else 128 << 20
    yield item(f"Adam, {count} parameters", {"workload": "adam", "shape": {"parameters": count}}, "f32")
    shape = {"layers": 12, "model": 768, "heads": 12, "length": 1024, "batch": 16, "vocabulary": 32000}
    if small:
        shape = {"layers": 1, "model": 32, "heads": 2, "length": 20, "batch": 2, "vocabulary": 50}
    tokens = shape["batch"] * shape["length"]
    forward = 2 * tokens * (12 * shape["layers"] * shape["model"]**2 + shape["vocabulary"] * shape["model"])
    forward += 2 * tokens * shape["layers"] * shape["model"] * (shape["length"] + 1)
    for dtype in ("bf16", "f32"):
        yield item(f"GPT step {shape['layers']}x{shape['model']}, {dtype}",
                   {"workload": "gpt_step", "shape": shape}, dtype, flops=3 * forward,
                   variants=("eager", "compile"))


def peak(device, small):
    """bf16 products per second of the device, times two."""
    n = 256 if small else 8192
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * n**3 / timed(lambda: a @ b, 0.05)


def measure(entry, own, torch_side, options):
    request, dtype = entry["request"], entry["request"]["dtype"]
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    peers = {}
    for variant in entry["variants"]:
        try:
            run = getattr(torch_side, request["workload"])(request, kind, variant)
            peers[variant or "torch"] = (timed(run, options.seconds), run)
        except Exception as error:  # a kind that this PyTorch cannot run is out
            print(f"  {entry['name']}: PyTorch {variant}: {str(error).splitlines()[0]}", flush=True)
    for attempt in range(3):
        before = peak(options.device, options.small)
        times = {"longspan": [], **{p: [] for p in peers}}
        for _ in range(options.rounds):
            times["longspan"].append(own.ask(**request, device=options.device, variant="longspan",
                                             threads=options.threads, repeats=1,
                                             seconds=options.seconds)["wall"])
            for name, (_, run) in peers.items():
                times[name].append(timed(run, options.seconds))
        after = peak(options.device, options.small)
        steady = abs(before - after) <= STEADY * max(before, after)
        if steady:
            break
    best = {k: min(v) for k, v in times.items()}
    result = {"name": entry["name"], "request": request, "rounds": options.rounds, "steady": steady,
              "peak_before": before, "peak_after": after, "best": best,
              "median": {k: statistics.median(v) for k, v in times.items()},
              "ratio": {k: v / best["longspan"] for k, v in best.items() if k != "longspan"}}
    if entry["flops"]:
        result["share"] = {k: entry["flops"] / v / max(before, after) for k, v in best.items()}
        result["goal"] = entry["goal"]
    return result


def show(result):
    line = f"{result['name']:<52} {1e3 * result['best']['longspan']:10.3f} ms"
    if "share" in result:
        line += f" {100 * result['share']['longspan']:5.1f} % of peak"
    for name, ratio in result["ratio"].items():
        line += f" | x{ratio:.2f} {name}"
        if "share" in result:
            line += f" ({100 * result['share'][name]:.1f} %)"
    print(line + ("" if result["steady"] else "  UNSTEADY"), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", required=True, help="the bench_worker of a build with CUDA")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1, help="length of a turn")
    parser.add_argument("--match", default="", help="only workloads whose name holds this text")
    parser.add_argument("--device", default="cuda", help="cpu tries the script out")
    parser.add_argument("--small", action="store_true", help="shapes that try the script out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", help="append JSON lines here")
    options = parser.parse_args()

    torch.backends.cuda.matmul.allow_tf32 = False
    own = Worker([options.worker], first_cpus(options.threads))
    own.ask(workload="describe")
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    head = {"device": name, "torch": torch.__version__, "peak": peak(options.device, options.small)}
    print(f"{name}, PyTorch {torch.__version__}, bf16 product {head['peak'] / 1e12:.1f} TF/s", flush=True)
    out = open(options.out, "a") if options.out else None
    if out:
        out.write(json.dumps({"machine": head}) + "\n")
    failed = 0
    ratios = []
    for entry in all_items(options.small):
        if options.match not in entry["name"]:
            continue
        try:
            result = measure(entry, own, Torch(options.device), options)
        except WorkerError as error:
            print(f"{entry['name']:<52} not measured: {error}", flush=True)
            failed += 1
            continue
        show(result)
        if result["ratio"]:
            ratios.append(min(result["ratio"].values()))
        if out:
            out.write(json.dumps(result) + "\n")
            out.flush()
    if ratios:
        print(f"geometric mean of the ratios to the fastest: x{math.exp(statistics.fmean(map(math.log, ratios))):.2f}")
    own.close()
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
