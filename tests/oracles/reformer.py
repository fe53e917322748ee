#!/usr/bin/env python3
"""Writes the golden files of tests/oracles/reformer: Reformer as transformers has it (README.md).

    reformer.py           writes them all
    reformer.py --check   computes them again and compares with the files, to 1e-10
"""

import argparse
import os

import torch
import torch.nn.functional as F

from encoders import IGNORED, keep, randomise

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reformer")

PARTS = [
    ("reformer.", ""),
    ("embeddings.word_embeddings", "embed.token"),
    ("embeddings.position_embeddings.weights.", "embed.position.axes."),
    ("encoder.layers.", "layers."), ("encoder.layer_norm", "final_norm"),
    ("attention.layer_norm", "norm1"), ("feed_forward.layer_norm", "norm2"),
    ("attention.self_attention.query_key", "attention.qk"),
    ("attention.self_attention.query", "attention.q"),
    ("attention.self_attention.key", "attention.k"),
    ("attention.self_attention.value", "attention.v"),
    ("attention.output.dense", "attention.out"),
    ("feed_forward.dense.dense", "ff.in"), ("feed_forward.output.dense", "ff.out"),
    ("lm_head.decoder", "head"),
]


def our_name(theirs):
    for a, b in PARTS:
        theirs = theirs.replace(a, b)
    return theirs + ".weight" if ".axes." in theirs else theirs


def ours(theirs, parameter):
    """A table of axial positions lies along its axis; ours is [n, d]."""
    return parameter.flatten(0, -2) if ".weights." in theirs else parameter


def rotations_of(config):
    """What the package draws at every hash, for it seeds the generator each time."""
    torch.manual_seed(config.hash_seed)
    factors = config.num_buckets if isinstance(config.num_buckets, list) else [config.num_buckets]
    return torch.randn((config.num_attention_heads, config.attention_head_size, config.num_hashes,
                        sum(factors) // 2), dtype=torch.float64)  # [H, d, R, nb / 2]


def reformer(layers, lengths, length, seed, causal=True, chunk=8, local_chunk=8, buckets=4,
             rounds=2, shape=(4, 8), widths=(6, 10), after=0, local_after=0, train=True,
             padding=0):
    """Dropout 0. In train mode the length is the product of `shape` and whole chunks; else
    outputs alone, for its reversible layers have gradients in train mode only."""
    import transformers

    kind = transformers.ReformerModelWithLMHead if causal else transformers.ReformerForMaskedLM
    config = transformers.ReformerConfig(
        attn_layers=layers, axial_pos_shape=shape, axial_pos_embds_dim=widths, vocab_size=19,
        hidden_size=16, feed_forward_size=24, num_attention_heads=2, attention_head_size=6,
        is_decoder=causal, lsh_attn_chunk_length=chunk, local_attn_chunk_length=local_chunk,
        lsh_num_chunks_after=after, local_num_chunks_after=local_after, num_buckets=buckets,
        num_hashes=rounds, hash_seed=seed, hidden_dropout_prob=0.0, pad_token_id=padding,
        lsh_attention_probs_dropout_prob=0.0, local_attention_probs_dropout_prob=0.0,
        max_position_embeddings=shape[0] * shape[1], use_cache=False)
    rotations = rotations_of(config)
    model = kind(config).double().train(train)
    randomise(model, seed)

    generator = torch.Generator().manual_seed(seed + 1)
    tokens = torch.randint(1, 19, (len(lengths), length), generator=generator)
    targets = torch.randint(19, tokens.shape, generator=generator)
    lengths = torch.tensor(lengths)
    valid = torch.arange(length) < lengths[:, None]
    tokens[~valid] = padding
    targets[~valid] = IGNORED
    targets[:, ::5] = IGNORED

    hidden = []
    model.reformer.encoder.register_forward_hook(lambda m, args, out: hidden.append(out[0]))
    mask = None if valid.all() else valid.long()
    logits = model(tokens, attention_mask=mask).logits
    if not torch.equal(rotations, rotations_of(config)):
        raise RuntimeError("the rotations are not those that a seed gives")
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    tensors = {"input.tokens": tokens, "input.targets": targets, "input.lengths": lengths,
               "input.rotations": rotations, "output.loss": loss,
               "output.hidden": hidden[0][:, :length] * valid[..., None],
               "output.logits": logits * valid[..., None]}
    # The bias of the head is not used by the package.
    parameters = {n: p for n, p in model.named_parameters() if n != "lm_head.bias"}
    if train:
        loss.backward()
    for name, p in parameters.items():
        tensors[f"parameter.{our_name(name)}"] = ours(name, p)
        if train:
            tensors[f"gradient.{our_name(name)}"] = ours(name, p.grad)
    factors = buckets if isinstance(buckets, list) else [buckets]
    metadata = {
        "same_bucket": False, "duplicates": "off", "wrap": "global", "whole_chunks": True,
        "causal": causal, "vocab": 19, "n_layer": len(layers), "n_head": 2,
        "d_head": 6, "d_model": 16, "d_ff": 24, "n_max": shape[0] * shape[1],
        "layers": ",".join(layers), "rounds": rounds, "chunk": chunk, "local_chunk": local_chunk,
        "look_ahead": after, "local_ahead": local_after, "buckets": listed(factors),
        "position_shape": listed(shape), "position_widths": listed(widths), "dropout": 0,
        "norm_eps": 1e-12, "head_bias": False}
    return tensors, metadata


def listed(numbers):
    return "[" + ", ".join(str(n) for n in numbers) + "]"


GOLDENS = {
    "lsh_causal": lambda: reformer(["lsh", "lsh"], [32, 32], 32, seed=11),
    "alternating_factorised": lambda: reformer(
        ["local", "lsh", "local", "lsh"], [48, 31], 48, seed=21, chunk=8, local_chunk=6,
        buckets=[2, 4], rounds=3, shape=(6, 8)),
    "bidirectional": lambda: reformer(["lsh", "local"], [32, 25], 32, seed=31, causal=False,
                                      after=1, local_after=1, buckets=6),
    "bidirectional_back": lambda: reformer(["local", "lsh"], [40, 40], 40, seed=41, causal=False,
                                           rounds=1, shape=(5, 8)),
    # Without gradients: the package pads to whole chunks, in eval mode only.
    "odd_padded": lambda: reformer(["lsh", "local"], [29, 17], 29, seed=51, train=False),
    "odd_chunks_differ": lambda: reformer(["local", "lsh"], [35, 35], 35, seed=61, chunk=8,
                                          local_chunk=6, shape=(6, 8), rounds=3, train=False),
    # One chunk or less: full attention.
    "short": lambda: reformer(["lsh", "local"], [8, 5], 8, seed=71, shape=(2, 4)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.makedirs(FOLDER, exist_ok=True)
    for name, make in GOLDENS.items():
        tensors, metadata = make()
        keep(os.path.join(FOLDER, name + ".safetensors"), tensors, metadata, options.check)


if __name__ == "__main__":
    main()
