#!/usr/bin/env python3
"""Writes the golden files of tests/oracles/encoders: encoders in BERT's shape (README.md).

    encoders.py           writes them all
    encoders.py --check   computes them again and compares with the files, to 1e-10
"""

import argparse
import os
import sys

import torch
import torch.nn.functional as F

import golden_file

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "encoders")
IGNORED = -100

# What stands for what, in their names and in ours; the rest of a name stays.
PARTS = [
    ("bert.", ""), ("roberta.", ""),
    ("embeddings.word_embeddings", "embed.token"),
    ("embeddings.position_embeddings", "embed.position"),
    ("embeddings.token_type_embeddings", "embed.type"),
    ("embeddings.LayerNorm", "embed.norm"),
    ("encoder.layer.", "layers."),
    ("attention.self.query", "attention.q"), ("attention.self.key", "attention.k"),
    ("attention.self.value", "attention.v"), ("attention.output.dense", "attention.out"),
    ("attention.output.LayerNorm", "norm1"), ("intermediate.dense", "ff.in"),
    ("output.dense", "ff.out"), ("output.LayerNorm", "norm2"),
    ("cls.predictions.transform.dense", "mlm.dense"),
    ("cls.predictions.transform.LayerNorm", "mlm.norm"), ("cls.predictions.bias", "head.bias"),
    ("lm_head.dense", "mlm.dense"), ("lm_head.layer_norm", "mlm.norm"),
    ("lm_head.bias", "head.bias"),
]


def our_name(theirs):
    for a, b in PARTS:
        theirs = theirs.replace(a, b)
    return theirs


def randomise(model, seed):
    """Every parameter N(0, 0.3^2), gains of norms about 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            norm = "LayerNorm" in name or "layer_norm" in name
            p.copy_(0.1 * x + (1.0 if name.endswith("weight") else 0.0) if norm else 0.3 * x)


def draw_inputs(vocab, lengths, length, types, seed, padding=None):
    generator = torch.Generator().manual_seed(seed)
    batch = len(lengths)
    tokens = torch.randint(2, vocab, (batch, length), generator=generator)
    targets = torch.randint(vocab, (batch, length), generator=generator)
    lengths = torch.tensor(lengths)
    beyond = torch.arange(length) >= lengths[:, None]
    targets[beyond] = IGNORED
    targets[:, ::3] = IGNORED
    if padding is not None:
        tokens[beyond] = padding
    inputs = {"tokens": tokens, "targets": targets, "lengths": lengths}
    if types:
        inputs["types"] = torch.randint(types, (batch, length), generator=generator)
    return inputs


def collect(model, inputs, out):
    """One file: inputs, parameters, outputs, gradients. Outputs of padding are written as zero."""
    valid = (torch.arange(inputs["tokens"].shape[1]) < inputs["lengths"][:, None])[..., None]
    loss = F.cross_entropy(out.logits.flatten(0, 1), inputs["targets"].flatten(),
                           ignore_index=IGNORED)
    parameters = {name: p for name, p in model.named_parameters() if "pooler" not in name}
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    tensors = {f"input.{k}": v for k, v in inputs.items()}
    tensors |= {"output.hidden": out.hidden_states[-1] * valid, "output.logits": out.logits * valid,
                "output.loss": loss}
    for (name, x), dx in zip(parameters.items(), gradients):
        tensors[f"parameter.{our_name(name)}"] = x
        tensors[f"gradient.{our_name(name)}"] = dx
    return tensors


def sizes(layers=2, heads=2, width=16, inner=32, vocab=23, n_max=64):
    ours = {"n_layer": layers, "n_head": heads, "d_model": width, "d_ff": inner, "vocab": vocab,
            "n_max": n_max, "dropout": 0}
    theirs = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": width,
              "intermediate_size": inner, "vocab_size": vocab, "max_position_embeddings": n_max,
              "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return ours, theirs


# BigBird as the transformers package computes it, with the random blocks that it draws. ------------


def bigbird(lengths, length, block, random, seed, types=2, bias=True, scale=False, train=True,
            **size):
    """In eval mode the package sets every random block to 0, which then counts 1 + r times."""
    from transformers import BigBirdConfig, BigBirdForMaskedLM

    ours, theirs = sizes(**size)
    ours |= {"model": "bigbird", "block": block, "n_random": random, "random": "given",
             "global_last": "padded", "token_types": types, "activation": "gelu_tanh",
             "emb_dropout_first": True, "qkv_bias": bias, "emb_scale": scale}
    if not train:
        ours["count_repeats"] = True
    model = BigBirdForMaskedLM(BigBirdConfig(
        **theirs, block_size=block, num_random_blocks=random, attention_type="block_sparse",
        type_vocab_size=types, use_bias=bias, rescale_embeddings=scale, hidden_act="gelu_new",
        pad_token_id=0, bos_token_id=None, eos_token_id=None, sep_token_id=None)).double().train(train)
    randomise(model, seed)
    inputs = draw_inputs(ours["vocab"], lengths, length, types, seed + 1, padding=0)
    drawn = []
    for layer in model.bert.encoder.layer:
        attention = layer.attention.self
        draw = attention._bigbird_block_rand_mask_with_head

        def record(*args, _draw=draw, **kwargs):
            blocks = _draw(*args, **kwargs)
            drawn.append(torch.stack([torch.as_tensor(b).long() for b in blocks]))
            return blocks

        attention._bigbird_block_rand_mask_with_head = record
    mask = (torch.arange(length) < inputs["lengths"][:, None]).double()
    out = model(inputs["tokens"], attention_mask=mask, token_type_ids=inputs["types"],
                output_hidden_states=True)
    if len(drawn) != ours["n_layer"]:
        raise RuntimeError("the package has fallen back to dense attention")
    inputs["random_blocks"] = torch.stack(drawn)  # [layers, H, n - 2, r]
    return collect(model, inputs, out), ours


# BlockBERT: no package has it. BERT as the transformers package computes it, with a mask for each
# head, is an independent dense oracle. ------------------------------------------------------------


def blockbert(lengths, length, permutations, seed, types=0, **size):
    from transformers import BertConfig, BertForMaskedLM

    ours, theirs = sizes(heads=len(permutations), **size)
    n = len(permutations[0])
    ours |= {"model": "blockbert", "n_block": n, "token_types": types,
             "permutations": "[" + ", ".join(str(k) for pi in permutations for k in pi) + "]"}
    model = BertForMaskedLM(BertConfig(**theirs, type_vocab_size=max(types, 1), hidden_act="gelu",
                                       pad_token_id=None, attn_implementation="eager"))
    model = model.double().train()
    randomise(model, seed)
    if not types:
        model.bert.embeddings.token_type_embeddings = NoTypes()
    inputs = draw_inputs(ours["vocab"], lengths, length, types, seed + 1)
    block = torch.arange(length) * n // length
    pi = torch.tensor(permutations)
    sees = pi[:, block][:, :, None] == block[None, None, :]  # [A, N, N]
    valid = torch.arange(length) < inputs["lengths"][:, None]
    sees = sees[None] & valid[:, None, None, :]
    if not sees.any(-1).all():
        raise RuntimeError("a row sees no key: the package makes that NaN")
    mask = torch.zeros(sees.shape, dtype=torch.float64).masked_fill(~sees, float("-inf"))
    out = model(inputs["tokens"], attention_mask=mask, token_type_ids=inputs.get("types"),
                output_hidden_states=True)
    return collect(model, inputs, out), ours


class NoTypes(torch.nn.Module):
    def forward(self, ids):
        return 0.0


# RoBERTa: rows of the position table before the first one. -----------------------------------------


def roberta(lengths, length, seed, **size):
    from transformers import RobertaConfig, RobertaForMaskedLM

    ours, theirs = sizes(**size)
    ours |= {"model": "blockbert", "n_block": 1, "heads_per_shift": f"[{ours['n_head']}]",
             "token_types": 1, "position_offset": 2, "norm_eps": 1e-5}
    theirs["max_position_embeddings"] += 2
    model = RobertaForMaskedLM(RobertaConfig(
        **theirs, type_vocab_size=1, hidden_act="gelu", layer_norm_eps=1e-5, pad_token_id=1,
        bos_token_id=None, eos_token_id=None, attn_implementation="eager")).double().train()
    randomise(model, seed)
    inputs = draw_inputs(ours["vocab"], lengths, length, 0, seed + 1, padding=1)
    mask = (torch.arange(length) < inputs["lengths"][:, None]).long()
    out = model(inputs["tokens"], attention_mask=mask, output_hidden_states=True)
    return collect(model, inputs, out), ours


GOLDENS = {
    "bigbird_whole_blocks": lambda: bigbird([48, 48], 48, block=4, random=2, seed=11),
    "bigbird_odd_padded": lambda: bigbird([45, 31, 38], 45, block=4, random=2, seed=21),
    "bigbird_short_sample": lambda: bigbird([41, 9, 1], 41, block=4, random=1, seed=31, layers=1),
    "bigbird_wide_no_bias": lambda: bigbird([97, 70], 97, block=8, random=3, seed=41, bias=False,
                                            scale=True, heads=3, width=12, n_max=104),
    "bigbird_eval_repeats": lambda: bigbird([45, 38], 45, block=4, random=2, seed=46, layers=1,
                                            train=False),
    "blockbert_two_blocks": lambda: blockbert([22, 22], 22, [[0, 1], [0, 1], [1, 0]], seed=51,
                                              width=12),
    "blockbert_three_odd": lambda: blockbert([22, 19], 22, [[0, 1, 2], [1, 2, 0], [2, 0, 1]],
                                             seed=61, width=12, types=2),
    "blockbert_five_permuted": lambda: blockbert([33, 30, 28], 33, [[2, 4, 1, 0, 3], [1, 2, 3, 4, 0]],
                                                 seed=71, types=2),
    "roberta_padded": lambda: roberta([21, 13, 1], 21, seed=81),
}


def keep(path, tensors, metadata, check):
    """Writes the file, or compares with it to 1e-10."""
    name = os.path.splitext(os.path.basename(path))[0]
    if check:
        kept, kept_metadata = golden_file.read(path)
        if kept.keys() != tensors.keys():
            sys.exit(f"{name}: other tensors than in the file")
        if kept_metadata != {k: golden_file.text(v) for k, v in metadata.items()}:
            sys.exit(f"{name}: other metadata than in the file")
        for key, x in tensors.items():
            if (kept[key].double() - x.detach().double()).abs().max() > 1e-10:
                sys.exit(f"{name}: {key} differs from the file")
    else:
        golden_file.write(path, tensors, metadata)
    print(f"{name}: {os.path.getsize(path) / 1024:.0f} KiB")


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
