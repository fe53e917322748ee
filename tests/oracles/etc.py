#!/usr/bin/env python3
"""Writes the golden files of tests/oracles/etc: the ETC encoder (README.md).

    etc.py           writes them all
    etc.py --check   computes them again and compares with the files, to 1e-10

No package implements ETC in PyTorch. This is its definition with every pair spelled out: tables of
labels [B, n, keys], masked pairs at -inf, one softmax over the keys of both pieces.
"""

import argparse
import math
import os
import sys

import torch
import torch.nn.functional as F

import golden_file

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "etc")
IGNORED = -100

DEFAULTS = dict(
    vocab=23, n_layer=2, n_head=2, d_model=16, d_ff=32, d_embed=0, n_long=29, n_global=5, radius=4,
    max_distance=3, relations=0, token_types=16, mask_id=22, global_id=21, labels=True,
    rel_bias=True, hard_g2l=True, hard_l2g=False, share_kv=False, share_qkv=False, share_out=False,
    share_ff=True, norm="post", norm_eps=1e-12, activation="gelu_tanh", cpc=False,
    cpc_score="bilinear", dropout=0, n_positions=0, global_positions=False, final_norm=True,
)


def parameters_of(c, generator):
    D, F_, H = c["d_model"], c["d_ff"], c["n_head"]
    E = c["d_embed"] or D
    R = c["relations"] or 2 * c["max_distance"] + 4
    shapes = {"embed.token.weight": (c["vocab"], E)}
    if c["token_types"]:
        shapes["embed.type.weight"] = (c["token_types"], D)

    def linear(name, i, o):
        shapes[name + ".weight"] = (o, i)
        shapes[name + ".bias"] = (o,)

    def norm(name):
        shapes[name + ".weight"] = (D,)
        shapes[name + ".bias"] = (D,)

    if c["d_embed"]:
        linear("embed.projection", E, D)
        linear("head.projection", D, E)
    if c["n_positions"]:
        shapes["embed.position.weight"] = (c["n_positions"], D)
    if c["global_positions"]:
        shapes["embed.global_position.weight"] = (c["n_positions"], D)
    norm("embed.norm_long")
    norm("embed.norm_global")
    for layer in range(c["n_layer"]):
        at = f"layers.{layer}."
        for side in ("long", "global"):
            if side == "long" or not c["share_qkv"]:
                linear(at + f"attention.{side}.q", D, D)
            if side == "long" or not c["share_out"]:
                linear(at + f"attention.{side}.out", D, D)
            if c["labels"]:
                shapes[at + f"attention.{side}.relation_key"] = (R, H, D // H)
                if c["rel_bias"]:
                    shapes[at + f"attention.{side}.relation_bias"] = (R, H)
        kept = ["l2l"] if c["share_qkv"] else ["l2l", "g2g"] if c["share_kv"] else \
            ["l2l", "l2g", "g2g", "g2l"]
        for piece in kept:
            linear(at + f"attention.{piece}.k", D, D)
            linear(at + f"attention.{piece}.v", D, D)
        norm(at + "norm_long")
        norm(at + "norm_global")
        for ff in [""] if c["share_ff"] else ["long_", "global_"]:
            linear(at + ff + "feed_forward.ff.in", D, F_)
            linear(at + ff + "feed_forward.ff.out", F_, D)
            norm(at + ff + "feed_forward.norm1")
    if c["norm"] == "pre" and c["final_norm"]:
        norm("final_norm")
    linear("mlm.dense", D, D)
    norm("mlm.norm")
    shapes["head.bias"] = (c["vocab"],)
    if c["cpc"] and c["cpc_score"] == "bilinear":
        shapes["cpc.weight"] = (D, D)
    parameters = {}
    for name, shape in shapes.items():
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        gain = "norm" in name and name.endswith("weight")
        scale = 0.1 if "norm" in name else 0.3
        parameters[name] = (scale * x + (1.0 if gain else 0.0)).requires_grad_()
    return parameters


def at_least_one(x, n, otherwise):
    return torch.full((1, n), otherwise) if x is None else x


def labels(c, s, piece, batch, n, keys):
    """[B, n, keys]: label of each pair, -1: hidden."""
    k = c["max_distance"]
    i, j = torch.arange(n)[:, None], torch.arange(keys)[None, :]
    delta = j - i
    distance = torch.where(delta >= 0, delta.clamp(max=k), k + (-delta).clamp(max=k))
    long_of = lambda name, otherwise: at_least_one(s.get(name), s["n_l"], otherwise)
    global_of = lambda name, otherwise: at_least_one(s.get(name), s["n_g"], otherwise)
    q_of, k_of = (long_of if piece[0] == "l" else global_of), (
        long_of if piece[2] == "l" else global_of)
    name = lambda of: "example" if of is long_of else "global_example"
    qe, ke = q_of(name(q_of), 0)[:, :, None], k_of(name(k_of), 0)[:, None, :]
    visible = (qe == ke) & (qe >= 0)
    if piece == "l2l":
        context = long_of("context", 0)
        visible = visible & (delta.abs() <= c["radius"])
        visible = visible & (context[:, :, None] == context[:, None, :])
        label = distance[None]
    elif piece == "g2g":
        context = global_of("global_context", -1)
        x, y = context[:, :, None], context[:, None, :]
        label = torch.where((x >= 0) & (y >= 0) & (x != y), 2 * k + 3, distance[None])
        if "global_labels" in s:
            label = s["global_labels"]
    else:
        owner = long_of("owner", -1)
        owner = owner[:, :, None] if owner.dim() == 2 else owner  # [B, n_l, owners]
        owned = (owner[..., None] == torch.arange(s["n_g"])).any(2)  # [B, n_l, n_g]
        label = torch.where(owned, 2 * k + 2, 2 * k + 1)
        if "link_labels" in s:
            table = s["link_labels"].expand(len(s["link_class"]), -1, -1)
            label = torch.stack([t[cls] for t, cls in zip(table, s["link_class"])])
        if piece == "l2g":
            if c["hard_l2g"]:
                visible = visible & (owned | (long_of("l2g_all", 0)[:, :, None] != 0))
        else:
            label, owned = label.transpose(1, 2), owned.transpose(1, 2)
            if c["hard_g2l"]:
                visible = visible & (owned | (global_of("g2l_all", 0)[:, :, None] != 0))
    label = label.expand(batch, n, keys)
    return torch.where(visible & (label >= 0), label, torch.tensor(-1))


class Encoder:
    def __init__(self, c, parameters):
        self.c, self.p = c, parameters

    def linear(self, name, x):
        return F.linear(x, self.p[name + ".weight"], self.p[name + ".bias"])

    def norm(self, name, x):
        return F.layer_norm(x, x.shape[-1:], self.p[name + ".weight"], self.p[name + ".bias"],
                            self.c["norm_eps"])

    def heads(self, x):
        return x.unflatten(-1, (self.c["n_head"], -1)).transpose(1, 2)

    def stored(self, piece):
        if self.c["share_qkv"]:
            return "l2l"
        if self.c["share_kv"]:
            return "l2l" if piece[0] == "l" else "g2g"
        return piece

    def side(self, at, side, x, l, g, s):
        c, first = self.c, side[0]
        q = self.heads(self.linear(at + ("long" if c["share_qkv"] else side) + ".q", x))
        k, v = [], []
        for stream, source in (("l", l), ("g", g)):
            piece = at + self.stored(f"{first}2{stream}")
            k.append(self.heads(self.linear(piece + ".k", source)))
            v.append(self.heads(self.linear(piece + ".v", source)))
        k, v = torch.cat(k, 2), torch.cat(v, 2)
        batch, n = x.shape[:2]
        ids = torch.cat([labels(c, s, f"{first}2l", batch, n, l.shape[1]),
                         labels(c, s, f"{first}2g", batch, n, g.shape[1])], 2)[:, None]
        score = q @ k.transpose(2, 3)
        if c["labels"]:
            qa = torch.einsum("bhnd,rhd->bhnr", q, self.p[at + side + ".relation_key"])
            if c["rel_bias"]:
                qa = qa + self.p[at + side + ".relation_bias"].T[None, :, None, :]
            score = score + qa.gather(3, ids.clamp(min=0).expand_as(score))
        score = score / math.sqrt(q.shape[-1])
        hidden = ids < 0
        nothing = hidden.all(-1, keepdim=True)  # such rows are zero
        score = score.masked_fill(hidden & ~nothing, -math.inf)
        weights = score.softmax(-1).masked_fill(nothing, 0.0)
        y = (weights @ v).transpose(1, 2).flatten(2)
        return self.linear(at + ("long" if c["share_out"] else side) + ".out", y)

    def feed_forward(self, at, x):
        pre = self.c["norm"] == "pre"
        h = self.norm(at + "norm1", x) if pre else x
        kind = "tanh" if self.c["activation"] == "gelu_tanh" else "none"
        y = x + self.linear(at + "ff.out", F.gelu(self.linear(at + "ff.in", h), approximate=kind))
        return y if pre else self.norm(at + "norm1", y)

    def embed(self, ids, kind, norm, positions):
        x = self.p["embed.token.weight"][ids]
        if self.c["d_embed"]:
            x = self.linear("embed.projection", x)
        if self.c["token_types"]:
            x = x + self.p["embed.type.weight"][kind]
        if positions in self.p:
            x = x + self.p[positions][: ids.shape[1]]
        return self.norm(norm, x)

    def __call__(self, tokens, global_tokens, s):
        c = self.c
        pre = c["norm"] == "pre"
        l = self.embed(tokens, 1, "embed.norm_long", "embed.position.weight")
        g = self.embed(global_tokens, 0, "embed.norm_global", "embed.global_position.weight")
        for layer in range(c["n_layer"]):
            at = f"layers.{layer}."
            nl, ng = at + "norm_long", at + "norm_global"
            hl, hg = (self.norm(nl, l), self.norm(ng, g)) if pre else (l, g)
            l, g = (l + self.side(at + "attention.", "long", hl, hl, hg, s),
                    g + self.side(at + "attention.", "global", hg, hl, hg, s))
            if not pre:
                l, g = self.norm(nl, l), self.norm(ng, g)
            own = not c["share_ff"]
            l = self.feed_forward(at + ("long_" if own else "") + "feed_forward.", l)
            g = self.feed_forward(at + ("global_" if own else "") + "feed_forward.", g)
        if pre and c["final_norm"]:
            l, g = self.norm("final_norm", l), self.norm("final_norm", g)
        return l, g

    def logits(self, l):
        kind = "tanh" if self.c["activation"] == "gelu_tanh" else "none"
        h = self.norm("mlm.norm", F.gelu(self.linear("mlm.dense", l), approximate=kind))
        if self.c["d_embed"]:
            h = self.linear("head.projection", h)
        return F.linear(h, self.p["embed.token.weight"], self.p["head.bias"])


def sentences(lengths, n_l):
    owner = torch.full((len(lengths), n_l), -1)
    for b, row in enumerate(lengths):
        at = 0
        for m, n in enumerate(row):
            owner[b, at : at + n] = m
            at += n
    return owner


def one(name, change, structure, n_l, n_g, seed, cpc=None):
    c = DEFAULTS | change
    generator = torch.Generator().manual_seed(seed)
    parameters = parameters_of(c, generator)
    batch = 2
    tokens = torch.randint(c["vocab"], (batch, n_l), generator=generator)
    globals_ = torch.randint(c["vocab"], (batch, n_g), generator=generator)
    targets = torch.randint(c["vocab"], (batch, n_l), generator=generator)
    targets[:, ::3] = IGNORED
    if "example" in structure:
        targets[structure["example"] < 0] = IGNORED
    s = structure | {"n_l": n_l, "n_g": n_g}
    encoder = Encoder(c, parameters)
    l, g = encoder(tokens, globals_, s)
    logits = encoder.logits(l)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    waves = torch.cos(torch.arange(g.numel()).double().reshape(g.shape))
    loss = 0.8 * loss + 0.2 * (g * waves).sum()
    tensors = {"input.tokens": tokens, "input.globals": globals_, "input.targets": targets,
               "output.long": l, "output.global": g, "output.logits": logits}
    if cpc:
        places, sentence_tokens, valid = cpc
        alone = {"n_l": sentence_tokens.shape[1], "n_g": 1, "owner": valid - 1,
                 "example": valid - 1, "global_example": torch.zeros(len(places), 1).long()}
        t = encoder(sentence_tokens, torch.full((len(places), 1), c["global_id"]), alone)[1][:, 0]
        h = g.flatten(0, 1)[places]
        score = h @ (t + t @ parameters["cpc.weight"].T).T / math.sqrt(c["d_model"])
        term = F.cross_entropy(score, torch.arange(len(places)))
        loss = loss + 0.5 * term
        tensors |= {"input.places": places, "input.sentences": sentence_tokens,
                    "input.valid": valid, "output.cpc": term}
    tensors |= {"output.loss": loss}
    tensors |= {f"structure.{k}": v for k, v in structure.items()}
    used = {n: p for n, p in parameters.items()}
    gradients = torch.autograd.grad(loss, list(used.values()))
    tensors |= {f"parameter.{n}": p for n, p in used.items()}
    tensors |= {f"gradient.{n}": x for n, x in zip(used, gradients)}
    return name, tensors, c


def examples():
    owner = sentences([[5, 1, 9, 2, 12], [1, 4, 4, 8]], 29)
    yield one("hard_padded", {}, {
        "owner": owner,
        "example": torch.where(owner < 0, -1, 0),
        "global_example": torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 0, -1]]),
    }, 29, 5, 1)
    owner = sentences([[3, 6, 2, 7, 5], [8, 1, 3, 2, 6]], 23)
    yield one("packed_shared_pre", dict(share_qkv=True, share_out=True, norm="pre", hard_g2l=False,
                                        d_embed=6, activation="gelu_erf", rel_bias=False), {
        "owner": owner,
        "example": torch.tensor([7, 7, 3, 3, -1, -1])[owner],
        "global_example": torch.tensor([[7, 7, 3, 3, -1]] * 2),
    }, 23, 5, 2)
    owner = sentences([[4, 3, 3, 6, 1], [2, 5, 3, 3, 4]], 17)
    contexts = torch.tensor([-1, 0, 0, 1, 1])
    yield one("contexts", dict(share_kv=True, share_ff=False, relations=12, n_head=4), {
        "owner": owner, "context": contexts[owner], "global_context": contexts[None],
        "g2l_all": torch.tensor([[1, 0, 0, 0, 0], [1, 0, 0, 1, 0]]),
    }, 17, 5, 3)
    cls = torch.arange(2 * 21).reshape(2, 21) ** 2 % 3
    labels_ = torch.arange(2 * 49).reshape(2, 7, 7) * 5 % 11 - 1
    yield one("edges", dict(hard_g2l=False, radius=0, n_layer=1), {
        "link_class": cls, "link_labels": (torch.arange(3 * 7) * 7 % 11 - 1).reshape(1, 3, 7),
        "global_labels": labels_,
    }, 21, 7, 4)
    owner = sentences([[5, 2, 6], [4, 4, 5]], 13)
    valid = (torch.arange(6) < torch.tensor([5, 2, 6, 4])[:, None]).long()
    places = torch.tensor([0, 1, 2, 4])
    yield one("hidden_sentences", dict(cpc=True, hard_l2g=True), {"owner": owner}, 13, 3, 5,
              (places, torch.arange(24).reshape(4, 6) * 5 % 21, valid))


    # Questions over paragraphs, with the published code's sharing: globals are [CLS], one for each
    # token of the question, and each paragraph's followed by its sentences'. A token of a paragraph
    # has two owners, one of a title only the paragraph, and the question sees every global.
    yield one("paragraphs", dict(share_qkv=True, hard_l2g=True, norm="pre", final_norm=False,
                                 n_positions=26, global_positions=True),
              paragraphs([[(2, [3, 4]), (1, [2, 5, 1])], [(1, [4]), (2, [1, 6])]], 3, 26, 11),
              26, 11, 6)
    # Lists of any length and order, with and without repetition, and edges of their own.
    at = torch.arange(2 * 19 * 4).reshape(2, 19, 4)
    lists = torch.where(at % 3 == 1, -1, at * at % 7)
    lists[:, 5] = -1
    lists[1, 11] = torch.tensor([6, 2, 6, 2])
    yield one("owner_lists", dict(hard_l2g=True, n_layer=1, share_kv=True), {
        "owner": lists, "link_class": torch.arange(2 * 19).reshape(2, 19) % 3,
        "link_labels": (torch.arange(2 * 3 * 7) * 5 % 11 - 1).reshape(2, 3, 7),
        "l2g_all": torch.tensor([[0, 0, 1, 0, 0, 1] * 3 + [0]]),
        "g2l_all": torch.tensor([[0, 0, 0, 1, 0, 0, 0], [0] * 7]),
    }, 19, 7, 7)


def paragraphs(samples, question, n_l, n_g):
    """The structure of questions over paragraphs: (tokens of the title, tokens of sentences)."""
    owner = torch.full((len(samples), n_l, 2), -1)
    long = {name: torch.full((len(samples), n_l), -1) for name in ("example", "context")}
    g = {name: torch.full((len(samples), n_g), -1) for name in ("example", "context")}
    for b, sample in enumerate(samples):
        j, m = question, 1 + question
        owner[b, :j, 0] = torch.arange(1, m)
        long["context"][b, :j] = g["context"][b, :m] = 0
        for context, (title, lengths) in enumerate(sample, 1):
            first, paragraph = j, m
            for length in [title] + lengths:
                owner[b, j : j + length, 1] = paragraph
                if m > paragraph:
                    owner[b, j : j + length, 0] = m
                j, m = j + length, m + 1
            long["context"][b, first:j] = g["context"][b, paragraph:m] = context
        long["example"][b, :j] = g["example"][b, :m] = 0
    number = torch.arange(n_l)
    return {"owner": owner, "example": long["example"], "context": long["context"],
            "global_example": g["example"], "global_context": g["context"],
            "g2l_all": (torch.arange(n_g) == 0).long()[None],
            "l2g_all": (number < question).long()[None]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    worst = 0.0
    for name, tensors, configuration in examples():
        path = os.path.join(FOLDER, name + ".safetensors")
        if not check:
            golden_file.write(path, tensors, configuration)
            continue
        stored, _ = golden_file.read(path)
        assert stored.keys() == tensors.keys(), name
        for key, value in tensors.items():
            worst = max(worst, (stored[key] - value.detach()).abs().max().item())
    if check:
        print(f"largest difference {worst:.1e}")
        sys.exit(worst > 1e-10)


if __name__ == "__main__":
    main()
