#!/usr/bin/env python3
"""Writes the golden files of tests/oracles/transformer_xl (README.md says what they hold).

    transformer_xl.py           writes them all
    transformer_xl.py --check   computes them again and compares with the files

The model is written plainly, with an explicit distance of every pair. Before a file is written, the
same code is required to agree with TransfoXLLMHeadModel of transformers (before 5), outputs and
gradients; that class computes frequencies in f32, and casts scores to f32 where a mask is not empty; both are
taken out here.
"""

import sys
from dataclasses import asdict, dataclass, replace

import torch
import torch.nn.functional as F

from streams import inputs_of, main, norm, random_parameters, streams_of, with_gradients


@dataclass(frozen=True)
class XL:
    """The options of models/transformer_xl/transformer_xl.h that these files need."""
    vocab: int = 17
    n_layer: int = 2
    n_head: int = 3
    d_model: int = 12
    d_head: int = 4
    d_ff: int = 20
    mem_len: int = 6
    window: int = 0
    clamp: int = 0
    untie_biases: bool = False
    norm: str = "post"
    final_norm: bool = True
    phantom_zero_memory: bool = False
    tie_embedding: bool = True
    head_bias: bool = True
    emb_scale: bool = True


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


def sinusoid(distance, width):
    """[sin(d f_0) .. sin(d f_{D/2-1}), cos ..] for a tensor of distances."""
    f = 10000 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = distance.double()[..., None] * f
    return torch.cat([angle.sin(), angle.cos()], -1)


def attention(c, p, i, h, memory):
    """h [B, L, D] normed if pre, memory [B, M, D] likewise -> [B, L, D]."""
    at, heads, d = f"layers.{i}.attention.", c.n_head, c.d_head
    both = torch.cat([memory, h], 1)
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
    visible = (distance >= 0) & ((distance < c.window) if c.window > 0 else True)
    score = (score / d ** 0.5).masked_fill(~visible, -torch.inf)
    out = torch.einsum("bhij,bjhd->bihd", score.softmax(-1), v)
    return F.linear(out.reshape(batch, length, heads * d), p[at + "out.weight"])


def segment(c, p, tokens, memories):
    """Returns the input of the head, and the next memories."""
    x = p["embed.token.weight"][tokens] * (c.d_model ** 0.5 if c.emb_scale else 1)
    kept = []
    for i in range(c.n_layer):
        m, at, pre = memories[i], f"layers.{i}.", c.norm == "pre"
        rows = torch.cat([m, x], 1).detach()
        kept.append(rows[:, max(rows.shape[1] - c.mem_len, 0):])
        mixed = attention(c, p, i, norm(p, at + "norm1", x) if pre else x,
                          norm(p, at + "norm1", m) if pre else m)
        x = x + mixed if pre else norm(p, at + "norm1", x + mixed)
        h = norm(p, at + "norm2", x) if pre else x
        h = F.linear(F.linear(h, p[at + "ff.in.weight"], p[at + "ff.in.bias"]).relu(),
                     p[at + "ff.out.weight"], p[at + "ff.out.bias"])
        x = x + h if pre else norm(p, at + "norm2", x + h)
    if c.norm == "pre" and c.final_norm:
        x = norm(p, "final_norm", x)
    return x, kept


def start(c, batch):
    rows = c.mem_len if c.phantom_zero_memory else 0
    return [torch.zeros(batch, rows, c.d_model, dtype=torch.float64) for _ in range(c.n_layer)]


def logits(c, p, hidden):
    return F.linear(hidden, p["embed.token.weight" if c.tie_embedding else "head.weight"],
                    p.get("head.bias"))


def run(c, p, tokens, targets, cuts):
    """Hidden states and the loss of each segment, the memory passed on."""
    memories, hidden, losses = start(c, tokens.shape[0]), [], []
    for begin, end in zip([0] + cuts, cuts + [tokens.shape[1]]):
        h, memories = segment(c, p, tokens[:, begin:end], memories)
        hidden.append(h)
        losses.append(F.cross_entropy(logits(c, p, h).flatten(0, 1), targets[:, begin:end].flatten(),
                                      ignore_index=-100))
    return torch.cat(hidden, 1), losses


def package(c, p):
    """The model of transformers with these parameters, in f64 throughout."""
    from transformers import TransfoXLConfig, TransfoXLLMHeadModel
    model = TransfoXLLMHeadModel(TransfoXLConfig(
        vocab_size=c.vocab, cutoffs=[], d_model=c.d_model, d_embed=c.d_model, n_head=c.n_head,
        d_head=c.d_head, d_inner=c.d_ff, div_val=1, pre_lnorm=c.norm == "pre", n_layer=c.n_layer,
        mem_len=c.mem_len, clamp_len=c.clamp if c.clamp > 0 else -1, same_length=c.window > 0,
        attn_type=0, proj_share_all_but_first=False, dropout=0.0, dropatt=0.0,
        untie_r=c.untie_biases, tie_word_embeddings=c.tie_embedding)).double().eval()
    t = model.transformer
    # The package computes the frequencies in f32.
    t.pos_emb.inv_freq = 10000 ** (-torch.arange(0, c.d_model, 2, dtype=torch.float64) / c.d_model)
    with torch.no_grad():
        t.word_emb.emb_layers[0].weight.copy_(p["embed.token.weight"])
        model.crit.out_layers[0].weight.copy_(
            p["embed.token.weight" if c.tie_embedding else "head.weight"])
        model.crit.out_layers[0].bias.copy_(p["head.bias"])
        if not c.untie_biases:
            t.r_w_bias.copy_(p["u"])
            t.r_r_bias.copy_(p["v"])
        for i, layer in enumerate(t.layers):
            at = f"layers.{i}."
            a, ff = layer.dec_attn, layer.pos_ff
            a.qkv_net.weight.copy_(torch.cat([p[at + f"attention.{x}.weight"] for x in "qkv"]))
            a.r_net.weight.copy_(p[at + "attention.relative.weight"])
            a.o_net.weight.copy_(p[at + "attention.out.weight"])
            if c.untie_biases:
                a.r_w_bias.copy_(p[at + "attention.u"])
                a.r_r_bias.copy_(p[at + "attention.v"])
            for theirs, ours in ((a.layer_norm, "norm1"), (ff.layer_norm, "norm2"),
                                 (ff.CoreNet[0], "ff.in"), (ff.CoreNet[3], "ff.out")):
                theirs.weight.copy_(p[at + ours + ".weight"])
                theirs.bias.copy_(p[at + ours + ".bias"])
    return model


def agree_with_package(c, p, tokens, targets, cuts):
    """Requires outputs and gradients to be those of transformers."""
    plain, type_as = torch.Tensor.float, torch.Tensor.type_as
    torch.Tensor.float = lambda x, *a, **k: x if x.dtype == torch.float64 else plain(x, *a, **k)
    # Releases since 4.50 call it with a dtype, which torch does not have.
    torch.Tensor.type_as = lambda x, other=None, dtype=None: (
        x.to(dtype) if dtype is not None else type_as(x, other))
    try:
        model = package(c, p)
        mems, losses, hidden = None, [], []
        for begin, end in zip([0] + cuts, cuts + [tokens.shape[1]]):
            out = model.transformer(tokens[:, begin:end], mems=mems)
            mems = out.mems
            hidden.append(out.last_hidden_state)
            scores = F.linear(out.last_hidden_state, model.crit.out_layers[0].weight,
                              model.crit.out_layers[0].bias)
            losses.append(F.cross_entropy(scores.flatten(0, 1), targets[:, begin:end].flatten(),
                                          ignore_index=-100))
        sum(losses).backward()
        ours, our_losses = run(c, p, tokens, targets, cuts)
        grads = torch.autograd.grad(sum(our_losses), [p[n] for n in sorted(p)])
    finally:
        torch.Tensor.float, torch.Tensor.type_as = plain, type_as
    close(torch.cat(hidden, 1), ours, "hidden")
    grad = dict(zip(sorted(p), grads))
    a = model.transformer.layers[1].dec_attn
    close(a.qkv_net.weight.grad, torch.cat([grad[f"layers.1.attention.{x}.weight"] for x in "qkv"]), "qkv")
    close(a.r_net.weight.grad, grad["layers.1.attention.relative.weight"], "relative")
    if c.untie_biases:
        close(a.r_w_bias.grad, grad["layers.1.attention.u"], "u")
        close(a.r_r_bias.grad, grad["layers.1.attention.v"], "v")
    else:
        close(model.transformer.r_w_bias.grad, grad["u"], "u")
        close(model.transformer.r_r_bias.grad, grad["v"], "v")
    close(model.transformer.word_emb.emb_layers[0].weight.grad, grad["embed.token.weight"], "embedding")


def close(a, b, what):
    error = (a - b).abs().max().item()
    if not error < 1e-12:
        sys.exit(f"{what}: differs by {error}")


tiny = XL()
# name -> (configuration, where the tokens are cut into segments, whether transformers has it)
CASES = {
    "post": (tiny, [6, 12], False),
    "no_memory": (replace(tiny, mem_len=0), [6, 12], False),
    "short_memory": (replace(tiny, mem_len=2), [5, 6, 13], False),
    "long_memory": (replace(tiny, mem_len=40), [5, 6, 13], False),
    "window": (replace(tiny, window=4, mem_len=9), [7, 8], False),
    "clamp": (replace(tiny, clamp=3), [6, 12], False),
    "pre": (replace(tiny, norm="pre", untie_biases=True), [6, 12], False),
    "untied": (replace(tiny, tie_embedding=False, head_bias=False, emb_scale=False, d_head=7,
                       n_head=2), [6, 12], False),
    "package_post": (replace(tiny, phantom_zero_memory=True), [6, 12], True),
    "package_pre": (replace(tiny, phantom_zero_memory=True, norm="pre", final_norm=False,
                            untie_biases=True), [6, 12], True),
    "package_window": (replace(tiny, phantom_zero_memory=True, window=6, clamp=4,
                               untie_biases=True), [6, 12], True),
}


def golden(name):
    c, cuts, known = CASES[name]
    tokens, targets = streams_of(name, c.vocab, 2, 17, [(0, 3), (1, 16)])
    p = made(c, sum(map(ord, name)))
    if known:
        agree_with_package(c, p, tokens, targets, cuts)
    hidden, losses = run(c, p, tokens, targets, cuts)
    tensors = {**inputs_of(tokens, targets, cuts),
               "output.hidden": hidden, "output.logits": logits(c, p, hidden),
               "output.losses": torch.stack(losses)}
    return with_gradients(tensors, p, sum(losses)), asdict(c)


if __name__ == "__main__":
    main(__doc__, "transformer_xl", CASES, golden)
