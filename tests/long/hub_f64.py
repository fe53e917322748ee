#!/usr/bin/env python3
"""Runs a Python script with the package transformers whose losses stay in f64.

    PYTHON tests/long/hub_f64.py SCRIPT [ARGUMENTS...]

The package computes the loss of next tokens from `logits.float()`, also in models of f64. Folders with expected losses
that SCRIPT makes (as tests/oracles/hub_folders.py does) so agree to 1e-7 only. Here Tensor.float() leaves f64 as it is,
and tests/hub_cases can hold the same folders to 1e-10.
"""
import runpy
import sys

import torch

rounded = torch.Tensor.float


def kept(tensor, *arguments, **options):
    return tensor if tensor.dtype == torch.float64 else rounded(tensor, *arguments, **options)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    torch.Tensor.float = kept
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
