#!/usr/bin/env python3
"""How close attention is to low rank, and what random projections lose, in a trained encoder.

  linformer_rank.py CHECKPOINT TEXT [--length 512] [--texts 4] [--seed 1]

CHECKPOINT: the folder of a checkpoint of a BERT-shaped encoder with full attention and post-norm (blockbert with
one block); TEXT: a file of bytes, read from its last tenth on. Prints JSON lines:
  spectrum    share of the squared singular values of softmax(Q K^T / sqrt(d)), and of the sum of the singular
              values, in the largest r of them; a mean over heads and texts for each layer
  projection  relative errors of three ways to use r random rows R of N(0, 1 / r) on the Q, K and V of all heads:
              values  P R^T R V for P V (theorem 1 of Linformer)
              slots   softmax(Q (R K)^T / sqrt(d)) R V for P V, the layer as it is computed, untrained
              mean    softmax over the means of windows of length / r keys and values, for comparison
"""

import argparse
import json
import math
import os
import struct

import numpy as np

RANKS = [4, 8, 16, 32, 64, 128, 256]


def read(folder):
    """The parameters of a checkpoint, by name."""
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = (8 + size + o for o in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], np.float32).reshape(entry["shape"]).astype(np.float64)
    return tensors


def norm(p, name, x, eps=1e-12):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * p[name + ".weight"] + p[name + ".bias"]


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def linear(p, name, x):
    return x @ p[name + ".weight"].T + p[name + ".bias"]


erf = np.vectorize(math.erf)


def layers_of(p, tokens, heads):
    """Yields Q, K and V [H, L, d] of each layer."""
    x = norm(p, "embed.norm", p["embed.token.weight"][tokens] + p["embed.position.weight"][:len(tokens)])
    i = 0
    while f"layers.{i}.attention.q.weight" in p:
        here = f"layers.{i}."
        q, k, v = (linear(p, f"{here}attention.{n}", x).reshape(len(tokens), heads, -1).transpose(1, 0, 2)
                   for n in "qkv")
        yield q, k, v
        y = softmax(q @ k.transpose(0, 2, 1) / q.shape[2] ** 0.5) @ v
        x = norm(p, here + "norm1", x + linear(p, here + "attention.out", y.transpose(1, 0, 2).reshape(x.shape)))
        h = linear(p, here + "ff.in", x)
        x = norm(p, here + "norm2", x + linear(p, here + "ff.out", 0.5 * h * (1 + erf(h / 2 ** 0.5))))
        i += 1


def relative(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("text")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    ranks = [r for r in RANKS if r <= a.length]
    p = read(a.checkpoint)
    data = np.frombuffer(open(a.text, "rb").read(), np.uint8)
    data = data[len(data) - len(data) // 10:]
    random = np.random.default_rng(a.seed)
    spectra, mass, errors = {}, {}, {}
    for text in range(a.texts):
        tokens = data[text * a.length:(text + 1) * a.length].astype(np.int64)
        for layer, (q, k, v) in enumerate(layers_of(p, tokens, a.heads)):
            for h in range(a.heads):
                scale = q.shape[2] ** -0.5
                attention = softmax(q[h] @ k[h].T * scale)
                exact = attention @ v[h]
                s = np.linalg.svd(attention, compute_uv=False)
                squares, sums = np.cumsum(s * s) / (s * s).sum(), np.cumsum(s) / s.sum()
                for r in ranks:
                    spectra.setdefault((layer, r), []).append(squares[r - 1])
                    mass.setdefault((layer, r), []).append(sums[r - 1])
                    e = random.normal(0, r ** -0.5, (r, a.length))
                    pooled = a.length // r
                    k_mean, v_mean = (t[h].reshape(r, pooled, -1).mean(1) for t in (k, v))
                    for name, y in (("values", attention @ e.T @ (e @ v[h])),
                                    ("slots", softmax(q[h] @ (e @ k[h]).T * scale) @ (e @ v[h])),
                                    ("mean", softmax(q[h] @ k_mean.T * scale) @ v_mean)):
                        errors.setdefault((name, r), []).append(relative(y, exact))
    for layer in sorted({layer for layer, _ in spectra}):
        print(json.dumps({"what": "spectrum", "layer": layer, "length": a.length,
                          "squares": {r: round(float(np.mean(spectra[layer, r])), 4) for r in ranks},
                          "sums": {r: round(float(np.mean(mass[layer, r])), 4) for r in ranks}}))
    for name in ("values", "slots", "mean"):
        print(json.dumps({"what": "projection", "form": name, "length": a.length,
                          "relative_error": {r: round(float(np.median(errors[name, r])), 4) for r in ranks}}))


if __name__ == "__main__":
    main()
