#!/usr/bin/env python3
"""Writes the golden files of tests/oracles/compressive (README.md says what they hold).

    compressive.py           writes them all
    compressive.py --check   computes them again and compares with the files

There is no official code of the Compressive Transformer. The model is written plainly: memories are
lists of rows that grow, every distance is explicit, convolutions are torch's, and what a loss takes
as constant is detached by hand. Attention is that of transformer_xl.py, which agrees with a package.
"""

from dataclasses import asdict, dataclass, replace

import torch
import torch.nn.functional as F

from streams import inputs_of, main, norm, random_parameters, streams_of, with_gradients
from transformer_xl import sinusoid


@dataclass(frozen=True)
class Compressive:
    """The options of models/compressive/compressive.h that these files need."""
    vocab: int = 17
    n_layer: int = 2
    n_head: int = 3
    d_model: int = 12
    d_head: int = 4
    d_ff: int = 20
    mem_len: int = 4
    compressed_len: int = 4
    rate: int = 2
    memory_layers: tuple = ()
    segment: int = 4
    eviction: str = "carry"
    start: str = "grow"
    compression: str = "conv"
    dilation: int = 2
    loss: str = "attention"
    loss_norm: str = "mse"
    history: bool = False
    clamp: int = 0
    untie_biases: bool = False
    norm: str = "post"
    final_norm: bool = True
    tie_embedding: bool = True
    head_bias: bool = True
    emb_scale: bool = True

    def remembers(self, i):
        return not self.memory_layers or i in self.memory_layers


def shapes(c):
    """name -> shape of every parameter."""
    wide = c.n_head * c.d_head
    all = {"embed.token.weight": (c.vocab, c.d_model)}
    if not c.untie_biases:
        all["u"] = all["v"] = (c.n_head, c.d_head)
    for i in range(c.n_layer):
        at = f"layers.{i}."
        for n in "12":
            all[at + f"norm{n}.weight"] = all[at + f"norm{n}.bias"] = (c.d_model,)
        for name in ("q", "k", "v", "relative"):
            all[at + f"attention.{name}.weight"] = (wide, c.d_model)
        all[at + "attention.out.weight"] = (c.d_model, wide)
        if c.untie_biases:
            all[at + "attention.u"] = all[at + "attention.v"] = (c.n_head, c.d_head)
        made = []
        if c.compressed_len > 0 and c.remembers(i):
            made += ["compressor"] * (c.compression in ("conv", "dilated"))
            made += ["restorer"] * (c.loss == "autoencode")
        for name in made:
            all[at + f"attention.{name}.weight"] = (c.d_model, c.rate, c.d_model)
            all[at + f"attention.{name}.bias"] = (c.d_model,)
        all[at + "ff.in.weight"], all[at + "ff.in.bias"] = (c.d_ff, c.d_model), (c.d_ff,)
        all[at + "ff.out.weight"], all[at + "ff.out.bias"] = (c.d_model, c.d_ff), (c.d_model,)
    if c.norm == "pre" and c.final_norm:
        all["final_norm.weight"] = all["final_norm.bias"] = (c.d_model,)
    if not c.tie_embedding:
        all["head.weight"] = (c.vocab, c.d_model)
    if c.head_bias:
        all["head.bias"] = (c.vocab,)
    return all


def made(c, seed):
    return random_parameters(shapes(c), seed, 0.3)


def attention(c, p, i, h, before):
    """h [B, L, D], before [B, C + M, D] -> [B, L, D], and the probabilities [B, H, L, T]."""
    at, heads, d = f"layers.{i}.attention.", c.n_head, c.d_head
    both = torch.cat([before, h], 1)
    batch, length, keys = h.shape[0], h.shape[1], both.shape[1]
    split = lambda x, w: F.linear(x, p[at + w]).view(batch, -1, heads, d)
    q, k, v = split(h, "q.weight"), split(both, "k.weight"), split(both, "v.weight")
    u, w = (p[at + "u"], p[at + "v"]) if c.untie_biases else (p["u"], p["v"])
    distance = (keys - length + torch.arange(length))[:, None] - torch.arange(keys)[None]  # [L, T]
    told = distance.clamp(min=0)
    if c.clamp > 0:
        told = told.clamp(max=c.clamp)
    r = F.linear(sinusoid(told, c.d_model), p[at + "relative.weight"]).view(length, keys, heads, d)
    score = torch.einsum("bihd,bjhd->bhij", q + u, k) + torch.einsum("bihd,ijhd->bhij", q + w, r)
    probability = (score / d ** 0.5).masked_fill(distance < 0, -torch.inf).softmax(-1)
    out = torch.einsum("bhij,bjhd->bihd", probability, v)
    return F.linear(out.reshape(batch, length, heads * d), p[at + "out.weight"]), probability


def compress(c, p, i, old, usage):
    """f_c: old [B, n, D] without history -> [B, n / c, D]. usage [B, n] for most_used."""
    at = f"layers.{i}.attention.compressor."
    rows = old.transpose(1, 2)  # [B, D, n]
    if c.compression == "mean":
        return F.avg_pool1d(rows, c.rate, c.rate).transpose(1, 2)
    if c.compression == "max":
        return F.max_pool1d(rows, c.rate, c.rate).transpose(1, 2)
    if c.compression == "most_used":
        kept = []
        for b in range(old.shape[0]):
            # The largest first, of equal ones the newer.
            order = sorted(range(old.shape[1]), key=lambda j: (-usage[b, j].item(), -j))
            kept.append(old[b, sorted(order[:old.shape[1] // c.rate])])
        return torch.stack(kept)
    dilation = c.dilation if c.compression == "dilated" else 1
    zeros = (dilation - 1) * (c.rate - 1)
    rows = F.pad(rows, ((zeros + 1) // 2, zeros // 2))
    weight = p[at + "weight"].permute(0, 2, 1)  # torch: [out, in, taps]
    return F.conv1d(rows, weight, p[at + "bias"], c.rate, dilation=dilation).transpose(1, 2)


def lost(c, difference):
    if c.loss_norm == "mse":
        return difference.square().mean()
    return difference.flatten(1).norm(dim=1).mean()


def compression_loss(c, p, i, h, old, new):
    """h, old, new as they are in the residual stream."""
    at = f"layers.{i}.attention."
    const = {name: x.detach() for name, x in p.items()}
    if c.loss == "autoencode":
        weight = p[at + "restorer.weight"].permute(0, 2, 1)  # torch: [in, out, taps]
        again = F.conv_transpose1d(new.transpose(1, 2), weight, p[at + "restorer.bias"], c.rate)
        return lost(c, again.transpose(1, 2) - old)
    h, old = h.detach(), old.detach()
    if c.norm == "pre":
        h, old, new = (norm(const, f"layers.{i}.norm1", x) for x in (h, old, new))
    split = lambda x, w: F.linear(x, const[at + w]).view(x.shape[0], -1, c.n_head, c.d_head)

    def of(z):
        score = torch.einsum("bihd,bjhd->bhij", split(h, "q.weight"), split(z, "k.weight"))
        p = (score / c.d_head ** 0.5).softmax(-1)
        return torch.einsum("bhij,bjhd->bhid", p, split(z, "v.weight"))

    return lost(c, of(new) - of(old).detach())


@dataclass
class Memory:
    """Of one layer: cm [B, C, D], m [B, M, D], and for each row of m its mass and queries."""
    cm: torch.Tensor
    m: torch.Tensor
    mass: torch.Tensor
    asked: torch.Tensor


def moved_on(c, p, i, memory, x, probability):
    """Returns the memory after the segment x [B, L, D], and the loss or None."""
    x, width = x if c.history else x.detach(), memory.cm.shape[1]
    none = torch.zeros(x.shape[:2], dtype=torch.float64)
    here = slice(width, width + memory.m.shape[1])  # m among the keys
    mass = torch.cat([memory.mass + probability.detach().sum((1, 2))[:, here], none], 1)
    asked = torch.cat([memory.asked + c.n_head * x.shape[1], none], 1)
    queue = torch.cat([memory.m, x], 1)
    gone = max(0, queue.shape[1] - c.mem_len)
    groups = gone // c.rate
    if c.compressed_len > 0 and c.eviction == "carry":
        gone = groups * c.rate
    after = Memory(memory.cm, queue[:, gone:], mass[:, gone:], asked[:, gone:])
    if c.compressed_len == 0 or groups == 0:
        return after, None
    old = queue[:, :groups * c.rate]
    usage = (mass / asked.clamp(min=1))[:, :groups * c.rate]
    new = compress(c, p, i, old, usage)
    both = torch.cat([memory.cm, new if c.history else new.detach()], 1)
    after.cm = both[:, max(0, both.shape[1] - c.compressed_len):]
    return after, None if c.loss == "none" else compression_loss(c, p, i, x, old, new)


def segment(c, p, tokens, memories):
    """Returns the input of the head, the next memories and the sum of the losses of compression."""
    x = p["embed.token.weight"][tokens] * (c.d_model ** 0.5 if c.emb_scale else 1)
    after, auxiliary = [], torch.zeros((), dtype=torch.float64)
    for i in range(c.n_layer):
        at, pre = f"layers.{i}.", c.norm == "pre"
        normed = lambda z: norm(p, at + "norm1", z) if pre else z
        before = torch.cat([memories[i].cm, memories[i].m], 1)
        mixed, probability = attention(c, p, i, normed(x), normed(before))
        memory, loss = memories[i], None
        if c.remembers(i):
            memory, loss = moved_on(c, p, i, memory, x, probability)
        after.append(memory)
        auxiliary = auxiliary if loss is None else auxiliary + loss
        x = x + mixed if pre else norm(p, at + "norm1", x + mixed)
        h = norm(p, at + "norm2", x) if pre else x
        h = F.linear(F.linear(h, p[at + "ff.in.weight"], p[at + "ff.in.bias"]).relu(),
                     p[at + "ff.out.weight"], p[at + "ff.out.bias"])
        x = x + h if pre else norm(p, at + "norm2", x + h)
    if c.norm == "pre" and c.final_norm:
        x = norm(p, "final_norm", x)
    return x, after, auxiliary


def start(c, batch):
    zeros = lambda *shape: torch.zeros(batch, *shape, dtype=torch.float64)
    all = []
    for i in range(c.n_layer):
        full = c.start == "zeros" and c.remembers(i)
        rows, compressed = (c.mem_len, c.compressed_len) if full else (0, 0)
        all.append(Memory(zeros(compressed, c.d_model), zeros(rows, c.d_model), zeros(rows),
                          zeros(rows)))
    return all


def logits(c, p, hidden):
    return F.linear(hidden, p["embed.token.weight" if c.tie_embedding else "head.weight"],
                    p.get("head.bias"))


def run(c, p, tokens, targets, cuts):
    memories, hidden, losses, auxiliary = start(c, tokens.shape[0]), [], [], []
    for begin, end in zip([0] + cuts, cuts + [tokens.shape[1]]):
        h, memories, more = segment(c, p, tokens[:, begin:end], memories)
        hidden.append(h)
        auxiliary.append(more)
        losses.append(F.cross_entropy(logits(c, p, h).flatten(0, 1), targets[:, begin:end].flatten(),
                                      ignore_index=-100))
    return torch.cat(hidden, 1), losses, auxiliary, memories


tiny = Compressive()
even, odd = [4, 8, 12, 16, 20], [5, 6, 11, 13, 20]
# name -> (configuration, where the 23 tokens are cut into segments)
CASES = {
    "conv": (tiny, even),
    "conv_odd": (replace(tiny, rate=3), odd),
    "conv_floor": (replace(tiny, rate=3, eviction="floor"), odd),
    "conv_pre": (replace(tiny, norm="pre", untie_biases=True), even),
    "conv_l2": (replace(tiny, loss_norm="l2", rate=3), even),
    "conv_zeros": (replace(tiny, start="zeros", rate=3, mem_len=5), even),
    "conv_autoencode": (replace(tiny, loss="autoencode", rate=3), odd),
    "conv_autoencode_l2": (replace(tiny, loss="autoencode", loss_norm="l2", norm="pre"), even),
    "conv_alone": (replace(tiny, loss="none"), even),
    "conv_history": (replace(tiny, loss="none", history=True), even),
    "dilated_history": (replace(tiny, compression="dilated", loss="none", history=True, rate=3,
                                norm="pre"), odd),
    "max_history": (replace(tiny, compression="max", loss="none", history=True), odd),
    "most_used_history": (replace(tiny, compression="most_used", loss="none", history=True), even),
    "mean": (replace(tiny, compression="mean"), odd),
    "mean_pre_l2": (replace(tiny, compression="mean", norm="pre", loss_norm="l2"), even),
    "max": (replace(tiny, compression="max", loss="none", rate=3), odd),
    "max_attention": (replace(tiny, compression="max"), even),
    "dilated": (replace(tiny, compression="dilated", rate=3, mem_len=2), [7, 8, 16, 17]),
    "dilated_pre": (replace(tiny, compression="dilated", dilation=3, norm="pre"), odd),
    "dilated_autoencode": (replace(tiny, compression="dilated", loss="autoencode"), even),
    "most_used": (replace(tiny, compression="most_used", loss="none"), even),
    "most_used_odd": (replace(tiny, compression="most_used", loss="none", rate=3, norm="pre"), odd),
    "most_used_autoencode": (replace(tiny, compression="most_used", loss="autoencode"), odd),
    "wide_rate": (replace(tiny, rate=5), even),
    "wide_rate_floor": (replace(tiny, rate=5, eviction="floor"), even),
    "some_layers": (replace(tiny, n_layer=3, memory_layers=(0, 2), rate=3), odd),
    "some_layers_zeros": (replace(tiny, n_layer=3, memory_layers=(1,), start="zeros", norm="pre",
                                  loss="autoencode"), even),
    "some_layers_most_used": (replace(tiny, compression="most_used", loss="none",
                                      memory_layers=(1,)), odd),
    "some_layers_no_compressed": (replace(tiny, compressed_len=0, memory_layers=(0,)), odd),
    "no_compressed": (replace(tiny, compressed_len=0), odd),
    "untied": (replace(tiny, tie_embedding=False, head_bias=False, emb_scale=False, d_head=7,
                       n_head=2, clamp=3), odd),
}


def golden(name):
    c, cuts = CASES[name]
    tokens, targets = streams_of(name, c.vocab, 2, 23, [(0, 3), (1, 16)])
    p = made(c, sum(map(ord, name)))
    hidden, losses, auxiliary, memories = run(c, p, tokens, targets, cuts)
    tensors = {**inputs_of(tokens, targets, cuts),
               "output.hidden": hidden, "output.logits": logits(c, p, hidden),
               "output.losses": torch.stack(losses), "output.auxiliary": torch.stack(auxiliary)}
    for i, memory in enumerate(memories):
        if not c.remembers(i):
            continue
        tensors[f"output.memory.{i}"] = torch.cat([memory.cm, memory.m], 1)
        tensors[f"output.fine.{i}"] = torch.tensor(memory.m.shape[1])
    options = asdict(c)
    del options["history"]  # the name of the file says it
    options["memory_layers"] = ",".join(map(str, c.memory_layers))
    if not c.memory_layers:
        del options["memory_layers"]
    return with_gradients(tensors, p, sum(losses) + sum(auxiliary)), options


if __name__ == "__main__":
    main(__doc__, "compressive", CASES, golden)
