#!/usr/bin/env python3
"""Writes the golden files of tests/oracles/linformer: Linformers and their gradients (README.md).

    linformer.py           writes them all
    linformer.py --check   computes them again and compares with the files, to 1e-11

package_*: the package linformer, whose attention projects keys and values by one E and one F for all
heads and has no biases of queries, keys and values. The others: a plain implementation of the
formulas, one head of one sample at a time, which cuts padding off instead of hiding it. It must
agree with the package where the package has the option.
"""

import argparse
import os
import sys

# This file has the name of the package.
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path = [p for p in sys.path if os.path.abspath(p or ".") != HERE]
from linformer import Linformer  # noqa: E402

sys.path.insert(0, HERE)
import golden_file  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

FOLDER = os.path.join(HERE, "linformer")
IGNORED = -100
DEFAULTS = {"vocab": 19, "n_layer": 2, "n_head": 2, "d_model": 8, "d_ff": 12, "n_max": 12, "norm_eps": 1e-5,
            "dropout": 0, "norm": "post", "emb_norm": True, "qkv_bias": True, "r": "4", "sharing": "headwise",
            "projection": "linear", "projection_order": "input"}

# name -> (what differs from DEFAULTS, length of the batch, lengths of its samples)
CASES = {
    "package_full": ({"norm": "pre", "emb_norm": False, "qkv_bias": False}, 12, [12, 12]),
    "package_short": ({"norm": "pre", "emb_norm": False, "qkv_bias": False, "projection_order": "key"}, 7, [7, 7, 7]),
    "input_none": ({"sharing": "none"}, 12, [12, 5]),
    "input_headwise": ({}, 11, [11, 1, 6]),
    "input_kv": ({"sharing": "kv", "norm": "pre"}, 12, [12, 7]),
    "input_layerwise": ({"sharing": "layerwise"}, 9, [9, 4]),
    "key_none": ({"sharing": "none", "projection_order": "key"}, 11, [11, 8]),
    "key_headwise": ({"projection_order": "key"}, 12, [3, 12]),
    "key_layerwise": ({"sharing": "layerwise", "projection_order": "key", "norm": "pre"}, 12, [12, 10]),
    "by_layer": ({"r": "5,2"}, 12, [12, 9]),
    "mean_input": ({"projection": "mean"}, 11, [11, 4, 5]),
    "mean_key": ({"projection": "mean", "projection_order": "key", "r": "5"}, 12, [12, 7]),
    "max_input": ({"projection": "max"}, 11, [11, 4, 5]),
    "max_key": ({"projection": "max", "projection_order": "key", "r": "5"}, 10, [10, 7]),
    "conv_none": ({"projection": "conv", "sharing": "none"}, 11, [11, 4]),
    "conv_input": ({"projection": "conv", "sharing": "kv"}, 12, [12, 8]),
    "conv_key": ({"projection": "conv", "projection_order": "key", "sharing": "layerwise", "r": "5"}, 11, [11, 8]),
}


def r_of(c, layer):
    r = [int(x) for x in c["r"].split(",")]
    return r[min(layer, len(r) - 1)]


def projections(c):
    """Names and shapes of E and F of all layers."""
    heads, width, n = c["n_head"], c["d_model"], c["n_max"]
    d = width // heads
    for i in range(c["n_layer"]):
        r = r_of(c, i)
        window = -(-n // r)
        if c["projection"] in ("mean", "max") or (c["sharing"] == "layerwise" and i > 0):
            continue
        for which in ("e", "f") if c["sharing"] in ("none", "headwise") else ("e",):
            if c["projection"] == "linear":
                shape = (heads, r, n) if c["sharing"] == "none" else (r, n)
            elif c["sharing"] == "none":
                shape = (heads, d, window, d)
            else:
                w = width if c["projection_order"] == "input" else d
                shape = (w, window, w)
            yield f"layers.{i}.attention.{which}.weight", shape


def shapes(c):
    width, inner, vocab = c["d_model"], c["d_ff"], c["vocab"]
    all = {"embed.token.weight": (vocab, width), "embed.position.weight": (c["n_max"], width),
           "mlm.dense.weight": (width, width), "mlm.dense.bias": (width,), "head.bias": (vocab,)}
    norms = ["mlm.norm"] + (["embed.norm"] if c["emb_norm"] else []) + (["final_norm"] if c["norm"] == "pre" else [])
    for i in range(c["n_layer"]):
        here = f"layers.{i}."
        norms += [here + "norm1", here + "norm2"]
        for name in "qkv":
            all[f"{here}attention.{name}.weight"] = (width, width)
            if c["qkv_bias"]:
                all[f"{here}attention.{name}.bias"] = (width,)
        all |= {f"{here}attention.out.weight": (width, width), f"{here}attention.out.bias": (width,),
                f"{here}ff.in.weight": (inner, width), f"{here}ff.in.bias": (inner,),
                f"{here}ff.out.weight": (width, inner), f"{here}ff.out.bias": (width,)}
    for norm in norms:
        all |= {norm + ".weight": (width,), norm + ".bias": (width,)}
    return all | dict(projections(c))


def draw(c, seed):
    generator = torch.Generator().manual_seed(seed)
    parameters = {}
    for name, shape in shapes(c).items():
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        gain = "norm" in name and name.endswith("weight")
        parameters[name] = (0.1 * x + 1 if gain else 0.4 * x).requires_grad_()
    return parameters


def norm(p, name, x, c):
    return F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], c["norm_eps"])


def project(p, c, layer, which, rows, head):
    """E_i or F_i applied to rows [L, W] that head i sees."""
    L, n, r = rows.shape[0], c["n_max"], r_of(c, layer)
    if c["sharing"] in ("kv", "layerwise"):
        which = "e"
    if c["sharing"] == "layerwise":
        layer = 0
    weight = p.get(f"layers.{layer}.attention.{which}.weight")
    if weight is not None and c["sharing"] == "none":
        weight = weight[head]
    if c["projection"] == "linear":
        return weight[:, :L] @ rows
    window, out = -(-n // r), []
    for start in range(0, L, window):
        piece = rows[start:start + window]
        if c["projection"] == "mean":
            out.append(piece.mean(0))
        elif c["projection"] == "max":
            out.append(piece.max(0).values)
        else:
            out.append(sum(weight[:, s] @ piece[s] for s in range(piece.shape[0])))
    return torch.stack(out)


def attention(p, c, layer, x):
    """One sample [L, D] without padding."""
    here, d = f"layers.{layer}.attention.", c["d_model"] // c["n_head"]
    outs = []
    for head in range(c["n_head"]):
        own = slice(head * d, (head + 1) * d)

        def of(name, rows):
            bias = p[f"{here}{name}.bias"][own] if c["qkv_bias"] else 0
            return rows @ p[f"{here}{name}.weight"][own].T + bias

        q = of("q", x)
        if c["projection_order"] == "key":
            k, v = project(p, c, layer, "e", of("k", x), head), project(p, c, layer, "f", of("v", x), head)
        elif c["projection"] == "conv" and c["sharing"] == "none":
            # The convolution of a head has the width of a head, so it stands behind the weights; biases come last.
            k, v = (project(p, c, layer, e, x @ p[f"{here}{name}.weight"][own].T, head) + p[f"{here}{name}.bias"][own]
                    for e, name in (("e", "k"), ("f", "v")))
        else:
            k, v = of("k", project(p, c, layer, "e", x, head)), of("v", project(p, c, layer, "f", x, head))
        outs.append(torch.softmax(q @ k.T / d ** 0.5, -1) @ v)
    return torch.cat(outs, -1) @ p[here + "out.weight"].T + p[here + "out.bias"]


def feed_forward(p, layer, x):
    here = f"layers.{layer}.ff."
    return F.gelu(x @ p[here + "in.weight"].T + p[here + "in.bias"]) @ p[here + "out.weight"].T + p[here + "out.bias"]


def hidden_of(p, c, tokens):
    """One sample of tokens [L] to [L, D]."""
    x = embedded(p, c, tokens)
    for i in range(c["n_layer"]):
        for branch, f in (("norm1", attention), ("norm2", lambda p, c, i, x: feed_forward(p, i, x))):
            name = f"layers.{i}.{branch}"
            x = x + f(p, c, i, norm(p, name, x, c)) if c["norm"] == "pre" else norm(p, name, x + f(p, c, i, x), c)
    return norm(p, "final_norm", x, c) if c["norm"] == "pre" else x


def embedded(p, c, tokens):
    x = p["embed.token.weight"][tokens] + p["embed.position.weight"][:tokens.shape[-1]]
    return norm(p, "embed.norm", x, c) if c["emb_norm"] else x


def package_hidden(p, c, tokens):
    """The layers of the package, with these parameters; tokens [B, L]."""
    net = Linformer(dim=c["d_model"], seq_len=c["n_max"], depth=c["n_layer"], k=int(c["r"]), heads=c["n_head"]).double()
    theirs = {}
    for i in range(c["n_layer"]):
        names = {"0.norm": "norm1", "1.norm": "norm2", "0.fn.to_q": "attention.q", "0.fn.to_k": "attention.k",
                 "0.fn.to_v": "attention.v", "0.fn.to_out": "attention.out", "1.fn.w1": "ff.in", "1.fn.w2": "ff.out"}
        for a, b in names.items():
            for kind in ("weight", "bias"):
                if f"layers.{i}.{b}.{kind}" in p:
                    theirs[f"net.layers.{i}.{a}.{kind}"] = p[f"layers.{i}.{b}.{kind}"]
        theirs[f"net.layers.{i}.0.fn.proj_k"] = p[f"layers.{i}.attention.e.weight"].T
        theirs[f"net.layers.{i}.0.fn.proj_v"] = p[f"layers.{i}.attention.f.weight"].T
    assert set(theirs) == {name for name, _ in net.named_parameters()}, \
        set(theirs) ^ {name for name, _ in net.named_parameters()}
    return norm(p, "final_norm", torch.func.functional_call(net, theirs, (embedded(p, c, tokens),)), c)


def computed(name, seed):
    change, length, lengths = CASES[name]
    c = DEFAULTS | change
    p = draw(c, seed)
    generator = torch.Generator().manual_seed(seed + 100)
    batch = len(lengths)
    tokens = torch.randint(c["vocab"], (batch, length), generator=generator)
    targets = torch.randint(c["vocab"], (batch, length), generator=generator)
    valid = torch.arange(length) < torch.tensor(lengths)[:, None]
    targets[~valid] = IGNORED
    targets[:, 2::3] = IGNORED
    hidden = torch.stack([F.pad(hidden_of(p, c, t[:n]), (0, 0, 0, length - n)) for t, n in zip(tokens, lengths)])
    if name.startswith("package"):
        theirs = package_hidden(p, c, tokens)
        assert (theirs - hidden).abs().max() < 1e-12, name
        hidden = theirs
    h = norm(p, "mlm.norm", F.gelu(hidden @ p["mlm.dense.weight"].T + p["mlm.dense.bias"]), c)
    logits = (h @ p["embed.token.weight"].T + p["head.bias"]) * valid[..., None]
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    gradients = torch.autograd.grad(loss, list(p.values()))
    tensors = {"input.tokens": tokens, "input.targets": targets, "output.hidden": hidden, "output.logits": logits,
               "output.loss": loss}
    if min(lengths) < length:
        tensors["input.lengths"] = torch.tensor(lengths)
    for (key, x), dx in zip(p.items(), gradients):
        tensors |= {f"parameter.{key}": x, f"gradient.{key}": dx}
    return tensors, {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in c.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    os.makedirs(FOLDER, exist_ok=True)
    for seed, name in enumerate(CASES):
        tensors, metadata = computed(name, seed)
        path = os.path.join(FOLDER, name + ".safetensors")
        if options.check:
            stored, _ = golden_file.read(path)
            assert sorted(tensors) == sorted(stored), name
            for key, value in tensors.items():
                error = (value.detach().double() - stored[key].double()).abs().max().item()
                assert error <= 1e-11, (name, key, error)
        else:
            golden_file.write(path, tensors, metadata)
        print(name, "agrees" if options.check else "written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
