#!/usr/bin/env python3
"""Writes the golden files of tests/oracles/adaptive_span (README.md says what they hold).

    adaptive_span.py           writes them all
    adaptive_span.py --check   computes them again and compares with the files

The model is written here from the paper (Sukhbaatar et al. 2019) in dense PyTorch, f64. The gradient
of the soft mask includes both ends of the ramp, as torch.clamp did when the paper was written; PyTorch
2.15.0 excludes them.
"""

from dataclasses import asdict, dataclass, replace

import torch
import torch.nn.functional as F

from streams import inputs_of, main, norm, random_parameters, streams_of, with_gradients


@dataclass(frozen=True)
class Spans:
    """The options of models/adaptive_span/adaptive_span.h that these files need."""
    vocab: int = 11
    n_layer: int = 2
    n_head: int = 2
    d_model: int = 8
    d_head: int = 0
    d_ff: int = 16
    span_max: int = 6
    span_ramp: float = 2
    span_offset: float = 1
    span_penalty: float = 1e-3
    span_scope: str = "head"
    dynamic: bool = False
    pre_div: float = 1
    trim: int = 1
    persistent: int = 0
    norm: str = "post"
    phantom_zero_memory: bool = False
    tie_embedding: bool = False
    emb_scale: bool = False

    @property
    def width(self):
        return self.d_head or self.d_model // self.n_head


def shapes(c):
    """name -> shape of every parameter."""
    wide = c.n_head * c.width
    all = {"embed.token.weight": (c.vocab, c.d_model), "positions": (c.span_max, c.width)}
    for i in range(c.n_layer):
        at = f"layers.{i}."
        for n in "12":
            all[at + f"norm{n}.weight"] = all[at + f"norm{n}.bias"] = (c.d_model,)
        for name in "qkv":
            all[at + f"attention.{name}.weight"] = (wide, c.d_model)
        all[at + "attention.out.weight"] = (c.d_model, wide)
        spans = c.n_head if c.span_scope == "head" else 1
        if c.dynamic:
            all[at + "attention.span.weight"], all[at + "attention.span.bias"] = (spans, c.d_model), (spans,)
        else:
            all[at + "attention.span"] = (spans,)
        if c.persistent:
            for name in ("key", "value"):
                all[at + f"attention.persistent_{name}"] = (c.n_head, c.persistent, c.width)
            del all[at + "norm2.weight"], all[at + "norm2.bias"]
            continue
        all[at + "ff.in.weight"], all[at + "ff.in.bias"] = (c.d_ff, c.d_model), (c.d_ff,)
        all[at + "ff.out.weight"], all[at + "ff.out.bias"] = (c.d_model, c.d_ff), (c.d_model,)
    if c.norm == "pre":
        all["final_norm.weight"] = all["final_norm.bias"] = (c.d_model,)
    if not c.tie_embedding:
        all["head.weight"] = (c.vocab, c.d_model)
    all["head.bias"] = (c.vocab,)
    return all


def made(c, z, seed):
    """z: the spans of each layer, in tokens."""

    def spans(name, x):
        if not name.endswith("span"):
            return x
        return torch.tensor(z[int(name.split(".")[1])], dtype=torch.float64) / c.span_max

    return random_parameters(shapes(c), seed, 0.4, spans)


class Ramp(torch.autograd.Function):
    """clamp(x, 0, 1); the gradient passes where 0 <= x <= 1."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(0, 1)

    @staticmethod
    def backward(ctx, dy):
        x, = ctx.saved_tensors
        return dy * ((x >= 0) & (x <= 1))


def attention(c, p, i, h, memory):
    """h [B, L, D] normed if pre, memory [B, M, D] likewise -> [B, L, D], and the mean span."""
    at, heads, d = f"layers.{i}.attention.", c.n_head, c.width
    both = torch.cat([memory, h], 1)
    batch, length, keys = h.shape[0], h.shape[1], both.shape[1]
    split = lambda x, w: F.linear(x, p[at + w]).view(batch, -1, heads, d)
    q, k, v = split(h, "q.weight"), split(both, "k.weight"), split(both, "v.weight")
    distance = (keys - length + torch.arange(length))[:, None] - torch.arange(keys)[None]  # [L, T]
    there = (distance >= 1) & (distance <= c.span_max)
    # The first row of the table is that of the largest distance.
    r = p["positions"][(c.span_max - distance).clamp(0, c.span_max - 1)]  # [L, T, d]
    score = torch.einsum("bihd,bjhd->bhij", q, k) + torch.einsum("bihd,ijd->bhij", q, r)
    if c.dynamic:  # [B, heads or 1, L, 1]
        z = torch.sigmoid(h @ p[at + "span.weight"].T / c.pre_div + p[at + "span.bias"])
        z = c.span_max * z.transpose(1, 2)[..., None]
    else:
        z = c.span_max * p[at + "span"].view(-1, 1, 1)
    mask = Ramp.apply((c.span_ramp + z + c.span_offset - distance) / c.span_ramp)
    if c.persistent:  # more keys at the end, whose mask is 1
        learned = torch.einsum("bihd,hjd->bhij", q, d ** 0.5 * p[at + "persistent_key"])
        score = torch.cat([score, learned], -1)
        mask = mask.expand(batch, heads, -1, -1)
        mask = torch.cat([mask, mask.new_ones(batch, heads, length, c.persistent)], -1)
        there = torch.cat([there, there.new_ones(length, c.persistent)], -1)
    # The largest score of a row that counts; a constant, which cancels.
    with torch.no_grad():
        top = (score / d ** 0.5).masked_fill(~there, -torch.inf).amax(-1, keepdim=True)
        top = torch.where(top.isfinite(), top, torch.zeros_like(top))
    weight = mask * ((score / d ** 0.5 - top).masked_fill(~there, -torch.inf)).exp()
    total = weight.sum(-1, keepdim=True)
    a = weight / torch.where(total > 0, total, torch.ones_like(total))
    out = torch.einsum("bhij,bjhd->bihd", a[..., :keys], v)
    if c.persistent:
        out = out + torch.einsum("bhij,hjd->bihd", a[..., keys:],
                                 c.persistent ** 0.5 * p[at + "persistent_value"])
    return F.linear(out.reshape(batch, length, heads * d), p[at + "out.weight"]), z.mean()


def segment(c, p, tokens, memories):
    """Returns the input of the head, the next memories, and the sum of the layers' mean spans."""
    x = p["embed.token.weight"][tokens] * (c.d_model ** 0.5 if c.emb_scale else 1)
    kept, spans = [], 0
    for i in range(c.n_layer):
        m, at, pre = memories[i], f"layers.{i}.", c.norm == "pre"
        rows = torch.cat([m, x], 1).detach()
        kept.append(rows[:, max(rows.shape[1] - c.span_max, 0):])
        mixed, mean = attention(c, p, i, norm(p, at + "norm1", x) if pre else x,
                                norm(p, at + "norm1", m) if pre else m)
        spans = spans + mean
        x = x + mixed if pre else norm(p, at + "norm1", x + mixed)
        if c.persistent:
            continue
        h = norm(p, at + "norm2", x) if pre else x
        h = F.linear(F.linear(h, p[at + "ff.in.weight"], p[at + "ff.in.bias"]).relu(),
                     p[at + "ff.out.weight"], p[at + "ff.out.bias"])
        x = x + h if pre else norm(p, at + "norm2", x + h)
    return (norm(p, "final_norm", x) if c.norm == "pre" else x), kept, spans


def run(c, p, tokens, targets, cuts):
    """Logits, and the loss of each segment with the penalty, the memory passed on."""
    rows = c.span_max if c.phantom_zero_memory else 0
    memories = [torch.zeros(tokens.shape[0], rows, c.d_model, dtype=torch.float64)] * c.n_layer
    logits, losses = [], []
    for begin, end in zip([0] + cuts, cuts + [tokens.shape[1]]):
        h, memories, spans = segment(c, p, tokens[:, begin:end], memories)
        logits.append(F.linear(h, p["embed.token.weight" if c.tie_embedding else "head.weight"],
                               p["head.bias"]))
        nats = F.cross_entropy(logits[-1].flatten(0, 1), targets[:, begin:end].flatten(),
                               ignore_index=-100)
        losses.append(nats + c.span_penalty * spans)
    return torch.cat(logits, 1), losses


tiny = Spans()
between = [[0.7, 2.6], [1.3, 0.2]]
# name -> (configuration, z of each layer, where the tokens are cut into segments)
CASES = {
    "post": (tiny, between, [6, 12]),
    "kinks": (tiny, [[0, 1], [3, 6]], [5, 6, 13]),
    "beyond_the_ends": (tiny, [[-0.5, 6.5], [0, 4]], [6, 12]),
    "long": (replace(tiny, span_max=15, span_ramp=4), [[0.5, 8], [12.3, 0]], [7, 8]),
    "paper_formula": (replace(tiny, span_offset=0), [[0, 2], [1.5, 6]], [6, 12]),
    "layer": (replace(tiny, span_scope="layer"), [[2], [0.6]], [6, 12]),
    "ramp_of_one": (replace(tiny, span_ramp=1), [[0.5, 3.2], [1, 0]], [6, 12]),
    "pre": (replace(tiny, norm="pre", tie_embedding=True, emb_scale=True), between, [6, 12]),
    "wide_heads": (replace(tiny, d_head=7), between, [1, 2]),
    "persistent": (replace(tiny, persistent=3), [[0, 2.6], [1.3, 0.2]], [6, 12]),
    "dynamic": (replace(tiny, dynamic=True), None, [6, 12]),
    "dynamic_long": (replace(tiny, dynamic=True, span_max=15, span_ramp=4, pre_div=2.5), None, [7, 8]),
    "dynamic_layer": (replace(tiny, dynamic=True, span_scope="layer", norm="pre", span_ramp=1), None,
                      [6, 12]),
    "dynamic_persistent": (replace(tiny, dynamic=True, persistent=3, span_offset=0), None, [6, 12]),
    "phantom": (replace(tiny, phantom_zero_memory=True), [[0.7, 3], [1.3, 0]], [6, 12]),
}


def golden(name):
    c, z, cuts = CASES[name]
    tokens, targets = streams_of(name, c.vocab, 2, 17, [(0, 3), (1, 16)])
    p = made(c, z, sum(map(ord, name)))
    logits, losses = run(c, p, tokens, targets, cuts)
    tensors = {**inputs_of(tokens, targets, cuts),
               "output.logits": logits, "output.losses": torch.stack(losses)}
    return with_gradients(tensors, p, sum(losses)), asdict(c)


if __name__ == "__main__":
    main(__doc__, "adaptive_span", CASES, golden)
