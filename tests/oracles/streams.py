"""What the oracles of models with a memory have in common: random parameters, streams of tokens, and
the golden files that are made of them."""

import argparse
import os
import sys

import torch
import torch.nn.functional as F

import golden_file


def random_parameters(shapes, seed, scale, change=lambda name, x: x):
    """name -> parameter, of the sizes name -> shape. Gains are near 1; change(name, x) has the last word."""
    gen = torch.Generator().manual_seed(seed)
    p = {}
    for name, shape in sorted(shapes.items()):
        x = change(name, torch.randn(shape, generator=gen, dtype=torch.float64) * scale)
        p[name] = (x + 1 if "norm" in name and name.endswith("weight") else x).requires_grad_()
    return p


def norm(p, name, x):
    return F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], 1e-5)


def streams_of(name, vocab, batch, length, ignored):
    """Tokens and targets [batch, length] of the case `name`; the targets at `ignored` do not count."""
    gen = torch.Generator().manual_seed(len(name) * 31 + 7)
    tokens = torch.randint(vocab, (batch, length), generator=gen)
    targets = torch.randint(vocab, (batch, length), generator=gen)
    for row, column in ignored:
        targets[row, column] = -100
    return tokens, targets


def inputs_of(tokens, targets, cuts):
    return {"input.tokens": tokens, "input.targets": targets, "input.cuts": torch.tensor(cuts)}


def with_gradients(tensors, p, loss):
    """Adds the parameters and their gradients; one that no loss depends on has a gradient of zeros."""
    gradients = torch.autograd.grad(loss, [p[n] for n in sorted(p)], allow_unused=True)
    for n, g in zip(sorted(p), gradients):
        tensors["parameter." + n] = p[n]
        tensors["gradient." + n] = torch.zeros_like(p[n]) if g is None else g
    return tensors


def main(doc, folder, cases, golden):
    """Writes golden(name), tensors and options, to the folder for each case; --check compares instead."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), folder)
    os.makedirs(folder, exist_ok=True)
    for name in cases:
        path = os.path.join(folder, name + ".safetensors")
        tensors, metadata = golden(name)
        if not check:
            golden_file.write(path, tensors, metadata)
            print(path)
            continue
        before, _ = golden_file.read(path)
        if sorted(before) != sorted(tensors):
            sys.exit(f"{name}: other tensors")
        for key, x in tensors.items():
            if (before[key].double() - x.double()).abs().max().item() > 1e-11:
                sys.exit(f"{name}: {key} differs")
        print(name, "agrees")
