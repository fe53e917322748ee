#!/usr/bin/env python3
"""Writes the golden files of tests/oracles/golden (README.md says what they hold).

    generate.py           writes them all
    generate.py --check   computes them again and compares with the files, to 1e-11
"""

import argparse
import os
import sys
import warnings
from dataclasses import asdict, replace

import torch
import torch.nn.functional as F

import golden_file
from reference import IGNORED, Config, losses_of, parameter_shapes, random_parameters, run, sinusoid

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden")

tiny = Config()
lm = replace(tiny, emb_scale=True)
encoder = replace(tiny, wiring="encoder", positions="learned", norm="post", activation="gelu_erf",
                  qkv_bias=True, out_bias=True, head_bias=True, tie_embedding=True)
pair = replace(tiny, wiring="encoder_decoder", positions="sinusoid", emb_scale=True, norm="post",
               d_model=12, d_head=6, d_ff=24, tie_embedding=True)
shaw = replace(tiny, positions="shaw")

# name -> (configuration, batch, length), and "padded" where a decoder is given lengths
MODELS = {
    "decoder_none_pre_relu": (tiny, 2, 12),
    "decoder_sinusoid_interleaved_post_relu": (
        replace(lm, positions="sinusoid", norm="post", tie_embedding=True), 2, 12),
    "decoder_sinusoid_halves_pre_gelu_erf": (
        replace(lm, positions="sinusoid", sinusoid="halves", activation="gelu_erf"), 2, 12),
    "decoder_learned_pre_gelu_tanh_tied": (
        replace(tiny, positions="learned", activation="gelu_tanh", tie_embedding=True,
                qkv_bias=True, out_bias=True), 2, 11),
    "decoder_learned_per_layer_post_gelu_sigmoid": (
        replace(tiny, positions="learned_per_layer", norm="post", activation="gelu_sigmoid"), 2, 7),
    "decoder_shaw_pre_geglu": (replace(shaw, activation="geglu"), 2, 13),
    "decoder_shaw_keys_only_post": (replace(shaw, shaw_values=False, norm="post"), 2, 12),
    "decoder_shaw_shared_layers_per_head": (
        replace(shaw, shaw_share_layers=True, shaw_per_head=True), 2, 9),
    "decoder_narrow_heads": (replace(tiny, n_head=3, d_head=4, tie_embedding=True), 2, 7),
    "decoder_wide_heads_label_smoothing": (
        replace(shaw, d_head=12, label_smoothing=0.1, head_bias=True), 1, 12),
    "decoder_shared_qk": (replace(tiny, share_qk=True, positions="learned"), 2, 12),
    "decoder_one_token": (replace(shaw, shaw_clip=2), 1, 1),
    "local_exact_shaw": (replace(shaw, local="exact", window=5), 2, 13),
    "local_exact_learned_one_key": (
        replace(tiny, positions="learned", local="exact", window=1), 1, 6),
    "local_block_shaw_geglu": (
        replace(shaw, local="block", window=4, activation="geglu"), 2, 14),
    "local_block_sinusoid_post": (
        replace(lm, positions="sinusoid", local="block", window=4, norm="post"), 2, 11),
    "encoder_bert": (
        replace(encoder, emb_norm=True, token_types=2, mlm_head=True, norm_eps=1e-12), 3, 12),
    "encoder_pre_shaw": (
        replace(encoder, norm="pre", positions="shaw", qkv_bias=False, out_bias=False), 3, 12),
    "encoder_local_exact": (replace(encoder, local="exact", window=4), 2, 12),
    "encoder_decoder_post": (pair, 3, 9),
    "encoder_decoder_pre_learned": (
        replace(pair, norm="pre", positions="learned", emb_scale=False, tie_embedding=False,
                qkv_bias=True, label_smoothing=0.1), 2, 10),
    "encoder_decoder_tables_of_their_own": (
        replace(pair, norm="pre", positions="shaw", source_vocab=23, tie_embedding=True), 3, 7),
    "encoder_shaw_long": (replace(encoder, positions="shaw", norm="pre", d_model=8, d_head=4,
                                  d_ff=8), 3, 67),
    "decoder_padded": (replace(tiny, positions="sinusoid", d_embed=6, half_loss=True), 3, 13,
                       "padded"),
    "decoder_auxiliary_pre": (
        replace(tiny, positions="learned_per_layer", layer_loss=True, n_target=3, n_layer=3,
                d_model=12, d_head=6, d_ff=16), 2, 11),
    "decoder_auxiliary_post": (
        replace(shaw, norm="post", layer_loss=True, n_target=2, target_weight=0.25, head_bias=True,
                d_model=12, d_head=6, d_ff=16), 1, 7),
    "local_exact_padded": (
        replace(shaw, local="exact", window=6, d_model=8, d_head=4, d_ff=8), 3, 37, "padded"),
    "local_block_padded": (
        replace(shaw, local="block", window=5, share_qk=True, activation="geglu", d_embed=4,
                d_model=8, d_head=4, d_ff=8), 3, 33, "padded"),
}


def model_inputs(c, batch, length, generator, padded=False):
    """Tokens, and for padded ones lengths: the first sample full, the last one short."""
    def tokens(count, vocab=c.vocab):
        return torch.randint(vocab, (batch, count), generator=generator)

    inputs = {"tokens": tokens(length), "targets": tokens(length)}
    inputs["targets"][0, 0] = IGNORED if length > 1 else inputs["targets"][0, 0]
    if c.wiring == "encoder" or padded:
        inputs["lengths"] = torch.tensor([length, 7, 1][:batch])
        hidden = torch.arange(length) >= inputs["lengths"][:, None]
        inputs["targets"][hidden] = IGNORED
    if c.wiring == "encoder_decoder":
        source = length + 2  # cross-attention is rectangular
        inputs["source"] = tokens(source, c.source_vocab or c.vocab)
        inputs["lengths"] = torch.tensor([source, 5, 0][:batch])
    if c.token_types:
        inputs["types"] = torch.randint(c.token_types, (batch, length), generator=generator)
    return inputs


def without_padding(c, inputs, x):
    """[B, L, ...] with zeros where a sample has ended."""
    if c.wiring == "encoder_decoder" or "lengths" not in inputs:
        return x
    return x * (torch.arange(x.shape[1]) < inputs["lengths"][:, None])[..., None]


def collect(c, inputs, parameters):
    """One file: inputs, parameters, outputs, gradients. Outputs of padding are written as zero."""
    hidden, logits, layers = run(c, parameters, inputs)
    loss, auxiliary = losses_of(c, parameters, logits, layers, hidden, inputs["targets"])
    total = loss if auxiliary is None else loss + auxiliary
    gradients = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    tensors = {f"input.{k}": v for k, v in inputs.items()}
    tensors |= {"output.hidden": without_padding(c, inputs, hidden),
                "output.logits": without_padding(c, inputs, logits), "output.loss": loss}
    if auxiliary is not None:
        tensors["output.auxiliary"] = auxiliary
    for (name, x), dx in zip(parameters.items(), gradients):
        tensors[f"parameter.{name}"] = x
        tensors[f"gradient.{name}"] = torch.zeros_like(x) if dx is None else dx
    return tensors


def options_of(c):
    """The metadata of a file: the options, of the rarer ones those that are set."""
    rare = ("position_offset", "source_tables")
    return {k: v for k, v in asdict(c).items() if v or k not in rare}


def golden_model(name, seed):
    c, batch, length, *padded = MODELS[name]
    generator = torch.Generator().manual_seed(seed)
    parameters = random_parameters(c, generator)
    inputs = model_inputs(c, batch, length, generator, bool(padded))
    return collect(c, inputs, parameters), options_of(c)


# GPT-2, BERT and Marian as the transformers package computes them, with random parameters. --------

GPT2 = replace(tiny, positions="learned", activation="gelu_tanh", tie_embedding=True, qkv_bias=True,
               out_bias=True)
BERT = MODELS["encoder_bert"][0]
MARIAN = replace(pair, sinusoid="halves", activation="gelu_erf", qkv_bias=True, out_bias=True)


BART = replace(pair, positions="learned", position_offset=2, source_tables=True, emb_norm=True,
               emb_scale=False, activation="gelu_erf", qkv_bias=True, out_bias=True, head_bias=True)


def trained(model):
    """Parameters but not Marian's sinusoids."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def randomise(model, generator):
    with torch.no_grad():
        for name, p in trained(model).items():
            x = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            is_norm = any(x in name for x in ("ln_", "LayerNorm", "layer_norm", "layernorm"))
            p.copy_(0.1 * x + (1.0 if name.endswith("weight") else 0.0) if is_norm else 0.3 * x)


def gpt2_names():
    """Theirs -> ours; Conv1D keeps [in, out] and packs q, k and v into one matrix."""
    names = {"transformer.wte.weight": "embed.token.weight",
             "transformer.wpe.weight": "embed.position.weight"}
    for kind in ("weight", "bias"):
        names[f"transformer.ln_f.{kind}"] = f"final_norm.{kind}"
        for i in range(GPT2.n_layer):
            theirs, ours = f"transformer.h.{i}.", f"layers.{i}."
            names[f"{theirs}ln_1.{kind}"] = f"{ours}norm1.{kind}"
            names[f"{theirs}ln_2.{kind}"] = f"{ours}norm2.{kind}"
            names[f"{theirs}attn.c_attn.{kind}"] = [f"{ours}attention.{x}.{kind}" for x in "qkv"]
            names[f"{theirs}attn.c_proj.{kind}"] = f"{ours}attention.out.{kind}"
            names[f"{theirs}mlp.c_fc.{kind}"] = f"{ours}ff.in.{kind}"
            names[f"{theirs}mlp.c_proj.{kind}"] = f"{ours}ff.out.{kind}"
    return names


def bert_names():
    names = {"bert.embeddings.word_embeddings.weight": "embed.token.weight",
             "bert.embeddings.position_embeddings.weight": "embed.position.weight",
             "bert.embeddings.token_type_embeddings.weight": "embed.type.weight",
             "cls.predictions.bias": "head.bias"}
    for kind in ("weight", "bias"):
        names[f"bert.embeddings.LayerNorm.{kind}"] = f"embed.norm.{kind}"
        names[f"cls.predictions.transform.dense.{kind}"] = f"mlm.dense.{kind}"
        names[f"cls.predictions.transform.LayerNorm.{kind}"] = f"mlm.norm.{kind}"
        for i in range(BERT.n_layer):
            theirs, ours = f"bert.encoder.layer.{i}.", f"layers.{i}."
            for part, short in (("query", "q"), ("key", "k"), ("value", "v")):
                names[f"{theirs}attention.self.{part}.{kind}"] = f"{ours}attention.{short}.{kind}"
            names[f"{theirs}attention.output.dense.{kind}"] = f"{ours}attention.out.{kind}"
            names[f"{theirs}attention.output.LayerNorm.{kind}"] = f"{ours}norm1.{kind}"
            names[f"{theirs}intermediate.dense.{kind}"] = f"{ours}ff.in.{kind}"
            names[f"{theirs}output.dense.{kind}"] = f"{ours}ff.out.{kind}"
            names[f"{theirs}output.LayerNorm.{kind}"] = f"{ours}norm2.{kind}"
    return names


def seq2seq_names(n_layer):
    """The blocks of Marian and BART."""
    names = {"model.shared.weight": "embed.token.weight"}
    for kind in ("weight", "bias"):
        for i in range(n_layer):
            for where in ("encoder", "decoder"):
                theirs, ours = f"model.{where}.layers.{i}.", f"{where}.layers.{i}."
                last = "norm3" if where == "decoder" else "norm2"
                parts = {"self_attn": "attention"}
                parts |= {"encoder_attn": "cross"} if where == "decoder" else {}
                for part, short in parts.items():
                    for x in ("q", "k", "v", "out"):
                        names[f"{theirs}{part}.{x}_proj.{kind}"] = f"{ours}{short}.{x}.{kind}"
                names[f"{theirs}self_attn_layer_norm.{kind}"] = f"{ours}norm1.{kind}"
                if where == "decoder":
                    names[f"{theirs}encoder_attn_layer_norm.{kind}"] = f"{ours}norm2.{kind}"
                names[f"{theirs}final_layer_norm.{kind}"] = f"{ours}{last}.{kind}"
                names[f"{theirs}fc1.{kind}"] = f"{ours}ff.in.{kind}"
                names[f"{theirs}fc2.{kind}"] = f"{ours}ff.out.{kind}"
    return names


def bart_names():
    names = seq2seq_names(BART.n_layer) | {"final_logits_bias": "head.bias"}
    for where, side in (("encoder", "source_"), ("decoder", "")):
        names[f"model.{where}.embed_positions.weight"] = f"embed.{side}position.weight"
        for kind in ("weight", "bias"):
            names[f"model.{where}.layernorm_embedding.{kind}"] = f"embed.{side}norm.{kind}"
    return names


def translate(model, names, values):
    """`values` maps their parameter names to tensors; returns ours, unpacked and transposed."""
    ours = {}
    unused = set(trained(model)) - set(names)
    if unused:
        raise RuntimeError(f"no name for {sorted(unused)}")
    for theirs, name in names.items():
        x = values[theirs].detach()
        is_conv1d = ".c_" in theirs and x.dim() == 2
        x = x.T if is_conv1d else x
        if isinstance(name, list):
            ours |= dict(zip(name, x.chunk(3, 0)))
        else:
            ours[name] = x[0] if theirs == "final_logits_bias" else x  # [1, V]
    return {name: x.contiguous().clone() for name, x in ours.items()}


def package_model(c, names, model, inputs, call, seed):
    """A golden of the package's model, after holding our re-derivation against it."""
    model = model.double().train()
    randomise(model, torch.Generator().manual_seed(seed))
    hidden, logits = call(model)
    loss = F.cross_entropy(logits.flatten(0, 1), inputs["targets"].flatten(), ignore_index=IGNORED)
    gradients = dict(zip(trained(model), torch.autograd.grad(loss, list(trained(model).values()))))
    parameters = translate(model, names, trained(model))
    gradients = translate(model, names, gradients)

    shapes = parameter_shapes(c)
    assert {k: tuple(v.shape) for k, v in parameters.items()} == shapes
    own = {name: parameters[name].requires_grad_() for name in shapes}
    tensors = collect(c, inputs, own)
    for name, expected in (("hidden", without_padding(c, inputs, hidden)),
                           ("logits", without_padding(c, inputs, logits)), ("loss", loss)):
        close(f"{name} of the package", tensors[f"output.{name}"], expected)
        tensors[f"output.{name}"] = expected
    for name, expected in gradients.items():
        close(f"gradient of {name}", tensors[f"gradient.{name}"], expected)
        tensors[f"gradient.{name}"] = expected
    return tensors, options_of(c)


def close(what, ours, theirs, tolerance=1e-11):
    worst = (ours - theirs).abs().max().item()
    if not worst <= tolerance * max(1.0, theirs.abs().max().item()):
        raise RuntimeError(f"{what}: the re-derivation is {worst:.3g} away")


def golden_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    c = GPT2
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=c.vocab, n_positions=c.n_max, n_embd=c.d_model, n_layer=c.n_layer,
        n_head=c.n_head, n_inner=c.d_ff, activation_function="gelu_new", resid_pdrop=0,
        embd_pdrop=0, attn_pdrop=0, layer_norm_epsilon=c.norm_eps, bos_token_id=None,
        eos_token_id=None, attn_implementation="eager"))
    inputs = model_inputs(c, 2, 12, torch.Generator().manual_seed(501))

    def call(model):
        out = model(inputs["tokens"], output_hidden_states=True)
        return out.hidden_states[-1], out.logits

    return package_model(c, gpt2_names(), model, inputs, call, 502)


def golden_bert():
    from transformers import BertConfig, BertForMaskedLM

    c = BERT
    model = BertForMaskedLM(BertConfig(
        vocab_size=c.vocab, hidden_size=c.d_model, num_hidden_layers=c.n_layer,
        num_attention_heads=c.n_head, intermediate_size=c.d_ff, hidden_act="gelu",
        hidden_dropout_prob=0, attention_probs_dropout_prob=0, type_vocab_size=c.token_types,
        max_position_embeddings=c.n_max, layer_norm_eps=c.norm_eps, pad_token_id=None,
        attn_implementation="eager"))
    inputs = model_inputs(c, 3, 12, torch.Generator().manual_seed(511))
    mask = (torch.arange(12) < inputs["lengths"][:, None]).long()

    def call(model):
        out = model(inputs["tokens"], attention_mask=mask, token_type_ids=inputs["types"],
                    output_hidden_states=True)
        return out.hidden_states[-1], out.logits

    return package_model(c, bert_names(), model, inputs, call, 512)


def golden_marian():
    from transformers import MarianConfig, MarianMTModel

    c = MARIAN
    padding = c.vocab - 1  # its vector gets no gradient, so it stands nowhere
    model = MarianMTModel(MarianConfig(
        vocab_size=c.vocab, d_model=c.d_model, encoder_layers=c.n_layer, decoder_layers=c.n_layer,
        encoder_attention_heads=c.n_head, decoder_attention_heads=c.n_head,
        encoder_ffn_dim=c.d_ff, decoder_ffn_dim=c.d_ff, max_position_embeddings=c.n_max,
        activation_function="gelu", dropout=0, attention_dropout=0, activation_dropout=0,
        scale_embedding=True, pad_token_id=padding, eos_token_id=None, bos_token_id=None,
        forced_eos_token_id=None, decoder_start_token_id=padding, attn_implementation="eager"))
    exact = sinusoid(c, c.n_max)  # theirs are rounded to f32, and that is all they differ by
    for part in (model.model.encoder, model.model.decoder):
        close("sinusoids of the package", part.embed_positions.weight.double(), exact, 1e-7)
    model.double()
    for part in (model.model.encoder, model.model.decoder):
        part.embed_positions.weight.data = exact.clone()
    inputs = model_inputs(replace(c, vocab=padding), 2, 9, torch.Generator().manual_seed(521))
    mask = (torch.arange(11) < inputs["lengths"][:, None]).long()

    def call(model):
        out = model(input_ids=inputs["source"], attention_mask=mask,
                    decoder_input_ids=inputs["tokens"], output_hidden_states=True)
        return out.decoder_hidden_states[-1], out.logits

    return package_model(c, seq2seq_names(c.n_layer), model, inputs, call, 522)


def bart():
    """The package's model; its bias of the logits made a parameter, so that it has a gradient."""
    from transformers import BartConfig, BartForConditionalGeneration

    c = BART
    padding = c.vocab - 1  # its vector gets no gradient, so it stands nowhere
    model = BartForConditionalGeneration(BartConfig(
        vocab_size=c.vocab, d_model=c.d_model, encoder_layers=c.n_layer, decoder_layers=c.n_layer,
        encoder_attention_heads=c.n_head, decoder_attention_heads=c.n_head,
        encoder_ffn_dim=c.d_ff, decoder_ffn_dim=c.d_ff, max_position_embeddings=c.n_max,
        activation_function="gelu", dropout=0, attention_dropout=0, activation_dropout=0,
        pad_token_id=padding, eos_token_id=2, bos_token_id=0, forced_eos_token_id=None,
        decoder_start_token_id=2, attn_implementation="eager"))
    bias = model.final_logits_bias
    del model.final_logits_bias
    model.final_logits_bias = torch.nn.Parameter(bias)
    return model


def bart_inputs(length, seed):
    return model_inputs(replace(BART, vocab=BART.vocab - 1), 2, length,
                        torch.Generator().manual_seed(seed))


def golden_bart():
    inputs = bart_inputs(9, 531)
    mask = (torch.arange(11) < inputs["lengths"][:, None]).long()

    def call(model):
        out = model(input_ids=inputs["source"], attention_mask=mask,
                    decoder_input_ids=inputs["tokens"], output_hidden_states=True)
        return out.decoder_hidden_states[-1], out.logits

    return package_model(BART, bart_names(), bart(), inputs, call, 532)


# PyTorch's own layers, as a second opinion on the re-derivation. ----------------------------------


def check_against_torch_layers():
    for norm in ("pre", "post"):
        c = replace(tiny, wiring="encoder_decoder", norm=norm, qkv_bias=True, out_bias=True)
        generator = torch.Generator().manual_seed(7)
        p = random_parameters(c, generator)
        theirs = torch.nn.Transformer(
            c.d_model, c.n_head, c.n_layer, c.n_layer, c.d_ff, dropout=0.0, batch_first=True,
            norm_first=norm == "pre", dtype=torch.float64).train()
        if norm == "post":  # it adds final norms even here
            theirs.encoder.norm = theirs.decoder.norm = None
        state = {}
        for name in theirs.state_dict():
            where, rest = name.split(".", 1)
            index, part, kind = name.split(".")[2], rest.split(".", 2)[-1], name.split(".")[-1]
            kind = kind.replace("in_proj_", "")
            ours = f"{where}.layers.{index}."
            if rest.startswith("norm."):
                state[name] = p[f"{where}.final_norm.{kind}"]
            elif "in_proj" in part:
                into = "cross" if "multihead" in part else "attention"
                state[name] = torch.cat([p[f"{ours}{into}.{x}.{kind}"] for x in "qkv"])
            elif "out_proj" in part:
                into = "cross" if "multihead" in part else "attention"
                state[name] = p[f"{ours}{into}.out.{kind}"]
            else:
                part = part.replace("linear1", "ff.in").replace("linear2", "ff.out")
                state[name] = p[ours + part]
        inputs = model_inputs(c, 2, 9, generator)
        embedded = [p["embed.token.weight"][inputs[k]] for k in ("source", "tokens")]
        padding = torch.arange(11) >= inputs["lengths"][:, None]
        masks = {"tgt_mask": torch.ones(9, 9, dtype=torch.bool).triu(1),
                 "src_key_padding_mask": padding, "memory_key_padding_mask": padding}
        expected = torch.func.functional_call(theirs, state, tuple(embedded), masks)
        hidden = run(c, p, inputs)[0]
        close(f"torch.nn.Transformer, {norm}-norm", hidden, expected)
        dy = torch.randn(hidden.shape, generator=generator, dtype=torch.float64)
        used = [x for name, x in p.items() if not name.startswith("head.")]
        pairs = zip(torch.autograd.grad(hidden, used, dy), torch.autograd.grad(expected, used, dy))
        for ours, same in pairs:
            close(f"gradients of torch.nn.Transformer, {norm}-norm", ours, same)


# Optimisers. --------------------------------------------------------------------------------------


def adafactor(parameters, **options):
    from transformers.optimization import Adafactor

    return Adafactor(parameters, **options)


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd_momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "sgd_nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-10, "initial_accumulator_value": 0.1}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-9}),
    "adam_l2": (torch.optim.Adam, {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8,
                                   "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8,
                                  "weight_decay": 0.1}),
    "adafactor": (adafactor, {"lr": 0.01, "eps": (1e-30, 1e-3), "clip_threshold": 1.0,
                              "decay_rate": -0.8, "scale_parameter": False,
                              "relative_step": False}),
    "adafactor_relative": (adafactor, {"eps": (1e-30, 1e-3), "clip_threshold": 1.0,
                                       "decay_rate": -0.8, "scale_parameter": True,
                                       "relative_step": True, "warmup_init": True,
                                       "weight_decay": 0.01, "beta1": 0.9}),
}


def golden_optimizer(name, seed):
    make, options = OPTIMIZERS[name]
    generator = torch.Generator().manual_seed(seed)
    shapes = {"matrix": (5, 3), "vector": (7,), "batch": (2, 3, 4), "scalar": (1,)}
    draw = lambda shape: torch.randn(shape, generator=generator, dtype=torch.float64)
    parameters = {k: torch.nn.Parameter(draw(shape)) for k, shape in shapes.items()}
    optimizer = make(list(parameters.values()), **options)
    tensors = {f"before.{k}": v.detach().clone() for k, v in parameters.items()}
    for step in range(1, 7):
        for k, v in parameters.items():
            v.grad = draw(v.shape) * (3.0 if step == 4 else 1.0)  # a jump that clipping notices
            tensors[f"step{step}.gradient.{k}"] = v.grad.clone()
        optimizer.step()
        for k, v in parameters.items():
            tensors[f"step{step}.after.{k}"] = v.detach().clone()
    metadata = {}
    for key, value in options.items():
        if isinstance(value, tuple):
            metadata |= {f"{key}.{i}": x for i, x in enumerate(value)}
        else:
            metadata[key] = value
    return tensors, metadata


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="enable_nested_tensor")
    check_against_torch_layers()

    files = {name: golden_model(name, 100 + i) for i, name in enumerate(MODELS)}
    files |= {"package_gpt2": golden_gpt2(), "package_bert": golden_bert(),
              "package_marian": golden_marian(), "package_bart": golden_bart()}
    files |= {f"optimizer_{name}": golden_optimizer(name, 300 + i)
              for i, name in enumerate(OPTIMIZERS)}

    os.makedirs(GOLDEN, exist_ok=True)
    for name, (tensors, metadata) in files.items():
        path = os.path.join(GOLDEN, name + ".safetensors")
        if options.check:
            kept, kept_metadata = golden_file.read(path)
            if kept.keys() != tensors.keys():
                sys.exit(f"{name}: other tensors than in the file")
            if kept_metadata != {k: golden_file.text(v) for k, v in metadata.items()}:
                sys.exit(f"{name}: other metadata than in the file")
            for key, x in tensors.items():
                if (kept[key].double() - x.detach().double()).abs().max() > 1e-11:
                    sys.exit(f"{name}: {key} differs from the file")
        else:
            golden_file.write(path, tensors, metadata)
        print(f"{name}: {os.path.getsize(path) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
