"""Inputs and passes of all workloads in PyTorch. The inputs equal Longspan's."""

import math
import statistics

import numpy as np
import torch


def values(shape, seed, scale=1.0):
    """Uniform values in scale * [-0.5, 0.5), the same in both workers."""
    h = np.arange(math.prod(shape), dtype=np.uint32)
    h = h * np.uint32(2654435761) + np.uint32((seed * 0x9E3779B9) % 2**32)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    u = (h >> np.uint32(8)).astype(np.float32) / np.float32(2**24) - np.float32(0.5)
    return torch.from_numpy((u * np.float32(scale)).reshape(shape))


def magnitude(tensors):
    return statistics.fmean(t.detach().abs().double().mean().item() for t in tensors)


def differentiable(forward, inputs, which, seed=90):
    """A workload from `forward(*inputs)`: its forward, its backward, or both."""
    if which == "forward":
        with torch.no_grad():
            check = magnitude([forward(*inputs)])

        def run():
            with torch.no_grad():
                forward(*inputs)

        return run, check

    leaves = [x.requires_grad_() for x in inputs if x.is_floating_point()]
    y = forward(*inputs)
    dy = values(tuple(y.shape), seed) if y.dim() else torch.ones(())
    check = magnitude(torch.autograd.grad(y, leaves, dy, retain_graph=True))
    if which == "backward":
        return lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True), check
    return lambda: torch.autograd.grad(forward(*inputs), leaves, dy), check
