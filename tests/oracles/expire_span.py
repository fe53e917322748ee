#!/usr/bin/env python3
"""Writes the golden files of tests/oracles/expire_span (README.md says what they hold).

    expire_span.py           writes them all
    expire_span.py --check   computes them again and compares with the files

The model is written here from the paper (Sukhbaatar et al. 2021) in dense PyTorch, f64, in one pass over
the whole stream: every pair has its distance, and nothing is deleted. Segments matter for gradients alone:
keys of an earlier segment are constants of their layer's input.
"""

from dataclasses import asdict, dataclass, replace

import torch
import torch.nn.functional as F

from streams import inputs_of, main, norm, random_parameters, streams_of, with_gradients

NU = 0.35676896572113037  # the share of span_max that the generator of the test draws


@dataclass(frozen=True)
class Expire:
    """The options of models/expire_span/expire_span.h that these files need."""
    vocab: int = 11
    n_layer: int = 2
    n_head: int = 2
    d_model: int = 8
    d_head: int = 0
    d_ff: int = 16
    span_max: int = 12
    span_ramp: float = 3
    span_init: float = 0.3
    span_penalty: float = 1
    span_loss: str = "ramp"
    pre_div: float = 1
    shorten: bool = False
    always_keep: int = 0
    positions: int = 4
    norm: str = "post"
    phantom_zero_memory: int = 0

    @property
    def width(self):
        return self.d_head or self.d_model // self.n_head


def shapes(c):
    """name -> shape of every parameter."""
    wide = c.n_head * c.width
    all = {"embed.token.weight": (c.vocab, c.d_model)}
    if c.positions:
        all["positions"] = (c.positions, c.width)
    for i in range(c.n_layer):
        at = f"layers.{i}."
        for n in "12":
            all[at + f"norm{n}.weight"] = all[at + f"norm{n}.bias"] = (c.d_model,)
        for name in "qkv":
            all[at + f"attention.{name}.weight"] = (wide, c.d_model)
        all[at + "attention.out.weight"] = (c.d_model, wide)
        all[at + "attention.span.weight"], all[at + "attention.span.bias"] = (1, c.d_model), (1,)
        all[at + "ff.in.weight"], all[at + "ff.in.bias"] = (c.d_ff, c.d_model), (c.d_ff,)
        all[at + "ff.out.weight"], all[at + "ff.out.bias"] = (c.d_model, c.d_ff), (c.d_model,)
    if c.norm == "pre":
        all["final_norm.weight"] = all["final_norm.bias"] = (c.d_model,)
    all["head.weight"], all["head.bias"] = (c.vocab, c.d_model), (c.vocab,)
    return all


def made(c, seed):
    wide = lambda name, x: x * c.pre_div if name.endswith("span.weight") else x
    return random_parameters(shapes(c), seed, 0.4, wide)


def attention(c, p, i, h, of):
    """h [B, T, D], of [T]: the segment of each row, -1 for phantom rows -> [B, T, D], penalties by segment."""
    at, heads, d, size = f"layers.{i}.attention.", c.n_head, c.width, h.shape[1]
    read = (lambda x: norm(p, f"layers.{i}.norm1", x)) if c.norm == "pre" else (lambda x: x)
    live, constant = read(h), read(h.detach())
    split = lambda x, w: F.linear(x, p[at + w]).view(x.shape[0], size, heads, d)
    span = lambda x: c.span_max * torch.sigmoid(F.linear(x, p[at + "span.weight"])[..., 0] / c.pre_div
                                                + p[at + "span.bias"])
    t = torch.arange(size)
    distance = t[:, None] - t[None]  # [T, T]: of query i and key j
    same = of[:, None] == of[None]  # whether the key is of the query's segment
    either = lambda f: torch.where(same, f(live), f(constant))  # [B, .., T, T]

    e = either(lambda x: span(x)[:, None, :])
    seen = e.clamp(max=NU * c.span_max) if c.shorten else e
    raw = 1 + (seen - distance) / c.span_ramp
    kept = distance <= c.always_keep
    m = torch.where(kept, torch.ones_like(raw), raw.clamp(0, 1))
    there = distance >= 1

    q = split(live, "q.weight")
    score = either(lambda x: torch.einsum("bihd,bjhd->bhij", q, split(x, "k.weight")))
    if c.positions:
        # The first row of the table is that of the largest distance.
        r = p["positions"][(c.positions - distance).clamp(0, c.positions - 1)]
        r = r * (there & (distance <= c.positions))[..., None]
        score = score + torch.einsum("bihd,ijd->bhij", q, r)
    score = score / d ** 0.5
    with torch.no_grad():  # a constant, which cancels
        top = score.masked_fill(~there, -torch.inf).amax(-1, keepdim=True)
        top = torch.where(top.isfinite(), top, torch.zeros_like(top))
    weight = m[:, None] * (score - top).masked_fill(~there, -torch.inf).exp()
    total = weight.sum(-1, keepdim=True)
    a = weight / torch.where(total > 0, total, torch.ones_like(total))
    out = torch.einsum("bhij,bjhd->bihd", a * same, split(live, "v.weight")) \
        + torch.einsum("bhij,bjhd->bihd", a * ~same, split(constant, "v.weight"))
    y = F.linear(out.reshape(h.shape[0], size, heads * d), p[at + "out.weight"])

    penalties = []
    for s in range(int(of.max()) + 1):
        rows = of == s
        scale = c.span_penalty / (int(rows.sum()) * h.shape[0])
        if c.span_loss == "direct":
            own = span(live).clamp(max=NU * c.span_max) if c.shorten else span(live)
            penalties.append(scale * own[:, rows].sum())
        else:
            ramp = there & ~kept & (raw > 0) & (raw < 1) & rows[:, None]
            penalties.append(scale / c.span_ramp * ((seen - distance) * ramp).sum())
    return y, penalties


def run(c, p, tokens, targets, cuts):
    """Logits, and the loss of each segment with the penalty."""
    n, ends = c.phantom_zero_memory, cuts + [tokens.shape[1]]
    of = torch.cat([torch.full((n,), -1)] + [torch.full((b - a,), s)
                                             for s, (a, b) in enumerate(zip([0] + cuts, ends))])
    losses = [0] * len(ends)
    h = p["embed.token.weight"][tokens]
    for i in range(c.n_layer):
        at, pre = f"layers.{i}.", c.norm == "pre"
        x = torch.cat([torch.zeros(h.shape[0], n, c.d_model, dtype=h.dtype), h], 1)
        mixed, penalties = attention(c, p, i, x, of)
        mixed = mixed[:, n:]
        losses = [a + b for a, b in zip(losses, penalties)]
        h = h + mixed if pre else norm(p, at + "norm1", h + mixed)
        f = norm(p, at + "norm2", h) if pre else h
        f = F.linear(F.linear(f, p[at + "ff.in.weight"], p[at + "ff.in.bias"]).relu(),
                     p[at + "ff.out.weight"], p[at + "ff.out.bias"])
        h = h + f if pre else norm(p, at + "norm2", h + f)
    if c.norm == "pre":
        h = norm(p, "final_norm", h)
    logits = F.linear(h, p["head.weight"], p["head.bias"])
    for s, (begin, end) in enumerate(zip([0] + cuts, ends)):
        losses[s] = losses[s] + F.cross_entropy(logits[:, begin:end].flatten(0, 1),
                                                targets[:, begin:end].flatten(), ignore_index=-100)
    return logits, losses


tiny = Expire()
pre = replace(tiny, norm="pre")
# name -> (configuration, where the 33 tokens are cut into segments)
CASES = {
    "post": (tiny, [4, 8, 12, 16, 20, 24, 28]),
    "pre": (pre, [4, 8, 12, 16, 20, 24, 28]),
    "direct": (replace(tiny, span_loss="direct"), [6, 12, 19, 20, 21]),
    "direct_pre": (replace(pre, span_loss="direct"), [6, 12, 19, 20, 21]),
    "shorten": (replace(tiny, shorten=True), [5, 10, 17, 25]),
    "shorten_pre": (replace(pre, shorten=True), [5, 10, 17, 25]),
    "shorten_direct": (replace(tiny, shorten=True, span_loss="direct"), [5, 10, 17, 25]),
    "phantom": (replace(tiny, phantom_zero_memory=4), [4, 8, 12, 20]),
    "phantom_pre": (replace(pre, phantom_zero_memory=4), [4, 8, 12, 20]),
    "always_keep": (replace(tiny, always_keep=5), [7, 8, 15, 24]),
    "always_keep_direct": (replace(pre, always_keep=5, span_loss="direct"), [7, 8, 15, 24]),
    "divided": (replace(tiny, pre_div=64), [6, 12, 18, 24, 30]),
    "ramp_of_one": (replace(tiny, span_ramp=1), [6, 12, 18, 24, 30]),
    "broken_ramp": (replace(tiny, span_ramp=2.5), [6, 12, 18, 24, 30]),
    "many_positions": (replace(pre, positions=9), [4, 8, 11, 24]),
    "one_position": (replace(tiny, positions=1), [6, 12, 18, 24, 30]),
    "no_positions": (replace(tiny, positions=0), [6, 12, 18, 24, 30]),
    "wide_heads": (replace(pre, d_head=7), [1, 2, 3, 30]),
}


def golden(name):
    c, cuts = CASES[name]
    tokens, targets = streams_of(name, c.vocab, 3, 33, [(0, 3), (1, 32)])
    p = made(c, sum(map(ord, name)))
    logits, losses = run(c, p, tokens, targets, cuts)
    tensors = {**inputs_of(tokens, targets, cuts),
               "output.losses": torch.stack(losses)}
    if c.shorten:
        tensors["input.share"] = torch.tensor([NU], dtype=torch.float64)
    else:
        tensors["output.logits"] = logits
    return with_gradients(tensors, p, sum(losses)), asdict(c)


if __name__ == "__main__":
    main(__doc__, "expire_span", CASES, golden)
