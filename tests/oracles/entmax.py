#!/usr/bin/env python3
"""Writes entmax/entmax.safetensors (README.md): probabilities and gradients of the package entmax.

    entmax.py           writes it
    entmax.py --check   computes it again and compares with the file, to 1e-11

The package bisects, with an alpha for each row; for 1.5 and 2 its exact functions must agree.
"""

import argparse
import os
import sys

# This file has the name of the package.
sys.path = [p for p in sys.path if os.path.abspath(p or ".") != os.path.dirname(os.path.abspath(__file__))]
from entmax import entmax15, entmax15_loss, entmax_bisect, sparsemax, sparsemax_loss  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import golden_file  # noqa: E402
import torch  # noqa: E402

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "entmax", "entmax.safetensors")
ALPHAS = [1.05, 1.3, 1.5, 1.8, 2.0]
WIDTHS = [0.3, 1, 4]  # standard deviations of the scores


def computed():
    torch.manual_seed(5)
    rows = len(ALPHAS) * len(WIDTHS)
    alpha = torch.tensor(ALPHAS, dtype=torch.float64).repeat_interleave(len(WIDTHS)).requires_grad_()
    width = torch.tensor(WIDTHS, dtype=torch.float64).repeat(len(ALPHAS))
    x = (torch.randn(rows, 37, dtype=torch.float64) * width[:, None]).requires_grad_()
    dy = torch.randn(rows, 37, dtype=torch.float64)
    y = entmax_bisect(x, alpha[:, None], n_iter=100)
    y.backward(dy)
    targets = torch.arange(rows) * 5 % 37
    for a, exact, loss in ((1.5, entmax15, entmax15_loss), (2.0, sparsemax, sparsemax_loss)):
        of = alpha.detach() == a
        assert (exact(x.detach()[of]) - y.detach()[of]).abs().max() < 1e-12, a
    return {"x": x, "alpha": alpha, "dy": dy, "y": y, "dx": x.grad, "dalpha": alpha.grad,
            "targets": targets,
            "losses_1_5": entmax15_loss(x.detach(), targets),
            "losses_2": sparsemax_loss(x.detach(), targets)}, {}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    tensors, metadata = computed()
    if options.check:
        stored, _ = golden_file.read(FILE)
        assert sorted(tensors) == sorted(stored)
        for key, value in tensors.items():
            error = (value.detach().double() - stored[key].double()).abs().max().item()
            assert error <= 1e-11, (key, error)
    else:
        os.makedirs(os.path.dirname(FILE), exist_ok=True)
        golden_file.write(FILE, tensors, metadata)
    print("agrees" if options.check else "written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
