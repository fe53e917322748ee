#!/usr/bin/env python3
"""Checkpoints of Transformer-XL in the transformers package (before 5), and those that this engine writes.

    transformer_xl_checkpoints.py                 writes checkpoints/transfo_xl_NAME: small models with
                                                  random weights, and expected.safetensors: what they
                                                  compute
    transformer_xl_checkpoints.py --load FOLDER   loads a checkpoint that this engine has saved in
                                                  FOLDER/transfo_xl_NAME for every NAME, strictly, and
                                                  compares what it computes

The package computes frequencies in f32, and casts scores to f32 where a mask is not empty; both are
taken out here, so that `scores` (logarithms of probabilities) and `losses` are in f64.
"""

import argparse
import os
import sys

import torch
from safetensors.torch import save_file

import golden_file

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "checkpoints")
SIZES = {"vocab_size": 19, "d_model": 16, "d_embed": 16, "n_head": 2, "d_head": 5, "d_inner": 12,
         "n_layer": 2, "mem_len": 6, "dropout": 0.0, "dropatt": 0.0, "clamp_len": -1}
PLAIN = {"cutoffs": [], "div_val": 1, "adaptive": False}
CASES = {
    # One softmax; a window, clamped distances, biases of each layer.
    "plain": PLAIN | {"clamp_len": 4, "layer_norm_epsilon": 1e-3},
    # Norms before the branches, biases that the layers share, a softmax of its own.
    "shared": PLAIN | {"same_length": False, "pre_lnorm": True, "untie_r": False,
                       "tie_word_embeddings": False},
    # Three clusters of one width: their tables are one tensor.
    "clusters": {"cutoffs": [5, 11], "div_val": 1},
    "clusters_untied": {"cutoffs": [5, 11], "div_val": 1, "tie_word_embeddings": False},
    # Clusters of widths 16, 4 and 1.
    "widths": {"cutoffs": [5, 11], "div_val": 4, "same_length": False},
    "widths_untied": {"cutoffs": [5, 11], "div_val": 4, "tie_word_embeddings": False,
                      "proj_share_all_but_first": False},
    # The first projection is shared as well.
    "widths_all_shared": {"cutoffs": [7], "div_val": 2, "tie_projs": [True, True]},
    "no_memory": PLAIN | {"mem_len": 0, "same_length": False, "n_layer": 1},
}
LENGTHS = [8, 5]  # of segments


def package():
    """Returns the classes, in a package that keeps f64."""
    plain, type_as = torch.Tensor.float, torch.Tensor.type_as
    torch.Tensor.float = lambda x, *a, **k: x if x.dtype == torch.float64 else plain(x, *a, **k)
    # Releases since 4.50 call it with a dtype, which torch does not have.
    torch.Tensor.type_as = lambda x, other=None, dtype=None: (
        x.to(dtype) if dtype is not None else type_as(x, other))
    from transformers.models.deprecated.transfo_xl import TransfoXLConfig, TransfoXLLMHeadModel
    return TransfoXLConfig, TransfoXLLMHeadModel


def randomise(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn(p.shape, generator=generator)
            p.copy_(1 + 0.1 * x if name.endswith("norm.weight") else 0.3 * x)


def run(model, tokens):
    """The scores [B, L, V] and the losses of the segments, the memory passed on."""
    model = model.double().eval()
    d = model.config.d_model
    model.transformer.pos_emb.inv_freq = 10000 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    scores, losses, mems = [], [], None
    with torch.no_grad():
        for part in tokens.split(LENGTHS, 1):
            losses.append(model(part, mems=mems, labels=part.clone()).loss)
            out = model(part, mems=mems)
            scores.append(out.prediction_scores)
            mems = out.mems
    return torch.cat(scores, 1), torch.stack(losses)


def save(model, path):
    """Saves a model. The package does not write what the layers share; here they all have it."""
    if model.config.untie_r:
        model.save_pretrained(path)
    else:
        tensors = {name: x.clone() for name, x in model.state_dict().items()}
        save_file(tensors, os.path.join(path, "model.safetensors"), {"format": "pt"})
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(path)
    generation = os.path.join(path, "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)


def write():
    config, kind = package()
    for seed, (name, options) in enumerate(CASES.items()):
        model = kind(config(**SIZES | options))
        randomise(model, seed)
        model.tie_weights()
        path = os.path.join(FOLDER, "transfo_xl_" + name)
        os.makedirs(path, exist_ok=True)
        save(model, path)
        generator = torch.Generator().manual_seed(100 + seed)
        tokens = torch.randint(model.config.vocab_size, (2, sum(LENGTHS)), generator=generator)
        scores, losses = run(model, tokens)
        golden_file.write(os.path.join(path, "expected.safetensors"),
                          {"tokens": tokens, "lengths": torch.tensor(LENGTHS), "scores": scores,
                           "losses": losses}, {})
        print(name)


def load(folder):
    _, kind = package()
    for name in CASES:
        path = os.path.join(folder, "transfo_xl_" + name)
        model, info = kind.from_pretrained(path, output_loading_info=True)
        left = {key: [x for x in names if x != "transformer.pos_emb.inv_freq"]  # which it computes
                for key, names in info.items() if names}
        left = {key: names for key, names in left.items() if names}
        if left:
            sys.exit(f"{name}: {left}")
        expected, _ = golden_file.read(os.path.join(FOLDER, "transfo_xl_" + name,
                                                    "expected.safetensors"))
        scores, losses = run(model, expected["tokens"])
        worst = max((scores - expected["scores"]).abs().max().item(),
                    (losses - expected["losses"]).abs().max().item())
        if not worst <= 1e-12:
            sys.exit(f"{name}: outputs are {worst:.3g} away")
        print(f"{name}: loads strictly, outputs within {worst:.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--load", metavar="FOLDER")
    options = parser.parse_args()
    torch.set_num_threads(1)
    load(options.load) if options.load else write()


if __name__ == "__main__":
    main()
