#!/usr/bin/env python3
"""Writes performer/*.safetensors (README.md): Transformers of reference.py whose self-attention is
that of the package performer-pytorch.

    performer.py           writes them all
    performer.py --check   computes them again and compares with the files, to 1e-11

The package adds constants to features and sums by default; those of softmax features are set to 0
here, and padding is zeroed in the features of keys as in the values (the package leaves it in the
denominators).
"""

import argparse
import os
import sys
from dataclasses import replace

import torch
from performer_pytorch.performer_pytorch import (causal_linear_attention_noncuda, generalized_kernel,
                                                 linear_attention, softmax_kernel)

import golden_file
import reference
from generate import collect, encoder, lm, model_inputs, options_of, pair, tiny
from reference import linear, random_parameters

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "performer")
EPSILON = 1e-3  # of the package's ReLU features, which it does not divide by sqrt(m)

small = replace(tiny, n_layer=1)
# name -> (configuration, batch, length, features, rows of the projection)
MODELS = {
    "decoder_positive": (replace(lm, positions="sinusoid"), 2, 13, "positive", 9),
    "decoder_relu_post": (replace(small, positions="learned", norm="post"), 2, 12, "relu", 5),
    "encoder_positive_padded": (encoder, 3, 12, "positive", 8),
    "encoder_relu_padded": (replace(encoder, norm="pre", n_layer=1), 3, 11, "relu", 12),
    "encoder_without_projection": (replace(encoder, n_layer=1), 3, 12, "relu", 0),
    "encoder_decoder_positive": (pair, 2, 9, "positive", 7),
}


def package_attention(c, features, projections):
    """Returns reference.attention() with the package's for self-attention."""
    exact = reference.attention

    def attention(config, p, name, x, z, seen, relative):
        if name.endswith(".cross"):
            return exact(config, p, name, x, z, seen, relative)
        batch, length, _ = x.shape
        w = projections.get(name)

        def heads(y):
            return y.view(batch, -1, c.n_head, c.d_head).transpose(1, 2)

        q, k, v = (heads(linear(p, f"{name}.{part}", x)) for part in "qkv")
        if features == "positive":
            q = softmax_kernel(q, projection_matrix=w, is_query=True, eps=0)
            k = softmax_kernel(k, projection_matrix=w, is_query=False, eps=0)
        else:
            q, k = (generalized_kernel(y, projection_matrix=w, kernel_epsilon=EPSILON) for y in (q, k))
        if c.wiring != "encoder" and not name.startswith("encoder."):
            out = causal_linear_attention_noncuda(q, k, v, chunk_size=1, eps=0)
        else:
            there = seen.any(-2)[..., None].expand(batch, 1, length, 1).double()
            k, v = k * there, v * there
            out = linear_attention(q, k, v) if bool(there.any()) else torch.zeros_like(v)
        return linear(p, name + ".out", out.transpose(1, 2).reshape(batch, length, -1))

    return attention


def golden_model(name, seed):
    c, batch, length, features, m = MODELS[name]
    generator = torch.Generator().manual_seed(seed)
    parameters = random_parameters(c, generator)
    inputs = model_inputs(c, batch, length, generator)
    if "lengths" in inputs:  # a sample without any key is not one for the package
        inputs["lengths"] = inputs["lengths"].clamp(min=1)
    layers = [n[: -len(".q.weight")] for n in parameters if n.endswith(".attention.q.weight")]
    projections = {n: torch.randn(m, c.d_head, generator=generator, dtype=torch.float64)
                   for n in layers} if m else {}
    exact, reference.attention = reference.attention, package_attention(c, features, projections)
    try:
        tensors = collect(c, inputs, parameters)
    finally:
        reference.attention = exact
    tensors |= {f"buffer.{n}.projection": w for n, w in projections.items()}
    options = options_of(c) | {"features": features, "n_features": m, "projected": m > 0}
    if features == "relu":
        options |= {"feature_epsilon": EPSILON / (m or 1) ** 0.5,
                    "feature_scale": c.d_head ** -0.25}
    return tensors, options


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    os.makedirs(FOLDER, exist_ok=True)
    for seed, name in enumerate(MODELS):
        path = os.path.join(FOLDER, name + ".safetensors")
        tensors, metadata = golden_model(name, seed)
        if not options.check:
            golden_file.write(path, tensors, metadata)
            continue
        stored, _ = golden_file.read(path)
        assert sorted(tensors) == sorted(stored), name
        for key, value in tensors.items():
            error = (value.detach().double() - stored[key].double()).abs().max().item()
            assert error <= 1e-11, (name, key, error)
    print(f"{len(MODELS)} files {'agree' if options.check else 'written'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
