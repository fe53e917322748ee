#!/usr/bin/env python3
"""Writes the golden files of tests/oracles/bigbird_pegasus: the encoder-decoder (README.md).

    bigbird_pegasus.py           writes them all
    bigbird_pegasus.py --check   computes them again and compares with the files, to 1e-10
"""

import argparse
import os

import torch
import torch.nn.functional as F

import encoders
import golden_file

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bigbird_pegasus")
IGNORED = -100

# What stands for what, in their names and in ours; the rest of a name stays.
PARTS = [
    ("model.shared", "embed.token"), ("final_logits_bias", "head.bias"),
    ("model.encoder.embed_positions", "embed.source_position"),
    ("model.decoder.embed_positions", "embed.position"),
    ("model.encoder.layernorm_embedding", "encoder.final_norm"),
    ("model.decoder.layernorm_embedding", "decoder.final_norm"),
    ("model.", ""),
    ("self_attn.self.query", "attention.q"), ("self_attn.self.key", "attention.k"),
    ("self_attn.self.value", "attention.v"), ("self_attn.output", "attention.out"),
    ("self_attn_layer_norm", "norm1"), ("encoder_attn_layer_norm", "norm2"),
    ("self_attn.q_proj", "attention.q"), ("self_attn.k_proj", "attention.k"),
    ("self_attn.v_proj", "attention.v"), ("self_attn.out_proj", "attention.out"),
    ("encoder_attn.q_proj", "cross.q"), ("encoder_attn.k_proj", "cross.k"),
    ("encoder_attn.v_proj", "cross.v"), ("encoder_attn.out_proj", "cross.out"),
    ("fc1", "ff.in"), ("fc2", "ff.out"),
]


def our_name(theirs):
    ours = theirs
    for a, b in PARTS:
        ours = ours.replace(a, b)
    return ours.replace("final_layer_norm", "norm2" if ours.startswith("encoder") else "norm3")


def draw(batch, length, vocab, generator):
    return torch.randint(3, vocab, (batch, length), generator=generator)


def golden(lengths, length, target, block, random, seed, layers=2, heads=2, width=16, inner=32,
           vocab=23, n_max=64, bias=False, scale=True, activation=("gelu_tanh", "gelu_new"),
           train=True):
    """In eval mode the package sets every random block to 0, which then counts 1 + r times."""
    from transformers import BigBirdPegasusConfig, BigBirdPegasusForConditionalGeneration

    ours = {"vocab": vocab, "n_layer": layers, "n_head": heads, "d_model": width, "d_ff": inner,
            "n_max": n_max, "n_max_target": n_max, "block": block, "n_random": random,
            "random": "given", "global_last": "padded", "bias": bias, "emb_scale": scale,
            "activation": activation[0], "count_repeats": not train, "dropout": 0,
            "label_smoothing": 0}
    model = BigBirdPegasusForConditionalGeneration(BigBirdPegasusConfig(
        vocab_size=vocab, d_model=width, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=inner,
        decoder_ffn_dim=inner, max_position_embeddings=n_max, block_size=block,
        num_random_blocks=random, attention_type="block_sparse", use_bias=bias,
        scale_embedding=scale, activation_function=activation[1], dropout=0.0,
        attention_dropout=0.0, activation_dropout=0.0)).double().train(train)
    logits_bias = model.final_logits_bias
    del model.final_logits_bias
    model.final_logits_bias = torch.nn.Parameter(logits_bias.double())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            norm = "norm" in name
            p.copy_(0.1 * x + (1.0 if name.endswith("weight") else 0.0) if norm else 0.3 * x)

    batch = len(lengths)
    lengths = torch.tensor(lengths)
    valid = torch.arange(length) < lengths[:, None]
    inputs = {"source": torch.where(valid, draw(batch, length, vocab, generator), 0),
              "lengths": lengths, "tokens": draw(batch, target, vocab, generator),
              "targets": draw(batch, target, vocab, generator)}
    inputs["targets"][-1, -2:] = IGNORED
    drawn = []
    for layer in model.model.encoder.layers:
        attention = layer.self_attn.self
        draw_blocks = attention._bigbird_block_rand_mask_with_head

        def record(*args, _draw=draw_blocks, **kwargs):
            blocks = _draw(*args, **kwargs)
            drawn.append(torch.stack([torch.as_tensor(b).long() for b in blocks]))
            return blocks

        attention._bigbird_block_rand_mask_with_head = record
    context = model.model.encoder(inputs["source"], attention_mask=valid.double())[0]
    if len(drawn) != layers:
        raise RuntimeError("the package has fallen back to dense attention")
    inputs["random_blocks"] = torch.stack(drawn)  # [layers, H, n - 2, r]
    out = model(inputs["source"], attention_mask=valid.double(), use_cache=False,
                decoder_input_ids=inputs["tokens"], output_hidden_states=True)
    loss = F.cross_entropy(out.logits.flatten(0, 1), inputs["targets"].flatten(),
                           ignore_index=IGNORED)
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    tensors = {f"input.{k}": v for k, v in inputs.items()}
    tensors |= {"output.context": torch.where(valid[..., None], context, 0.0),
                "output.hidden": out.decoder_hidden_states[-1], "output.logits": out.logits,
                "output.loss": loss}
    for (name, x), dx in zip(parameters.items(), gradients):
        shape = x.shape[1:] if name == "final_logits_bias" else x.shape
        tensors[f"parameter.{our_name(name)}"] = x.reshape(shape)
        tensors[f"gradient.{our_name(name)}"] = dx.reshape(shape)
    return tensors, ours


RELU = ("relu", "relu")
GOLDENS = {
    "whole_blocks": lambda: golden([48, 48], 48, 11, block=4, random=2, seed=11),
    "odd_padded": lambda: golden([45, 31, 38], 45, 7, block=4, random=2, seed=21, layers=1),
    "wide_bias_relu": lambda: golden([97, 70], 97, 9, block=8, random=3, seed=31, layers=1, heads=3,
                                     width=12, n_max=104, bias=True, scale=False, activation=RELU),
    "eval_repeats": lambda: golden([45, 9], 45, 5, block=4, random=2, seed=41, layers=1,
                                   train=False),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.makedirs(FOLDER, exist_ok=True)
    for name, make in GOLDENS.items():
        tensors, metadata = make()
        path = os.path.join(FOLDER, name + ".safetensors")
        encoders.keep(path, tensors, metadata, options.check)


if __name__ == "__main__":
    main()
