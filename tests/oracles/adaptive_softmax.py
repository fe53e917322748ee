#!/usr/bin/env python3
"""Writes the files of adaptive/ (README.md): torch.nn.AdaptiveLogSoftmaxWithLoss.

    adaptive_softmax.py           writes them all
    adaptive_softmax.py --check   computes them again and compares with the files, to 1e-11
"""

import argparse
import os
import sys

import torch

import golden_file

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "adaptive")

# name -> (D, V, cutoffs, div_value, whether the first softmax has a bias, targets)
CASES = {
    "half": (8, 23, [5, 11], 2, True, [0, 22, 7, 4, 5, 11, 10, 3]),
    "quarter": (16, 40, [6, 25], 4, False, [30, 2, 9, 26, 0, 6, 24]),
    "empty_cluster": (8, 20, [4, 9, 12], 2, True, [1, 10, 0, 3, 11]),
    "one_token": (4, 9, [1], 2, True, [8]),
    "last_alone": (6, 7, [6], 4, False, [6, 0, 5, 6]),
}


def computed(name):
    d, vocab, cutoffs, div, bias, targets = CASES[name]
    torch.manual_seed(list(CASES).index(name))
    model = torch.nn.AdaptiveLogSoftmaxWithLoss(d, vocab, cutoffs, div_value=div, head_bias=bias,
                                                dtype=torch.float64)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.7)
    hidden = torch.randn(len(targets), d, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor(targets)
    output, loss = model(hidden, targets)
    loss.backward()
    tensors = {"input.hidden": hidden, "input.targets": targets,
               "input.cutoffs": torch.tensor(cutoffs), "output.losses": -output,
               "output.loss": loss, "output.log_probabilities": model.log_prob(hidden),
               "gradient.hidden": hidden.grad}
    for key, p in model.named_parameters():
        tensors["parameter." + key] = p
        tensors["gradient." + key] = torch.zeros_like(p) if p.grad is None else p.grad
    return tensors, {"vocab": vocab, "d_model": d, "div_value": div}


def check(name):
    tensors, metadata = computed(name)
    stored, said = golden_file.read(os.path.join(FOLDER, name + ".safetensors"))
    assert {k: golden_file.text(v) for k, v in metadata.items()} == said, name
    assert sorted(tensors) == sorted(stored), name
    for key, value in tensors.items():
        error = (value.detach().double() - stored[key].double()).abs().max().item()
        assert error <= 1e-11, (name, key, error)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    os.makedirs(FOLDER, exist_ok=True)
    for name in CASES:
        if options.check:
            check(name)
        else:
            golden_file.write(os.path.join(FOLDER, name + ".safetensors"), *computed(name))
    print(("agrees: " if options.check else "written: ") + ", ".join(CASES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
