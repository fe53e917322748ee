#!/usr/bin/env python3
"""Writes the golden files of tests/oracles/long_documents (README.md says what they hold).

    long_documents.py           writes them all
    long_documents.py --check   computes them again and compares with the files
"""

import argparse
import os
import sys
import warnings
from dataclasses import asdict, replace

import torch
import torch.nn.functional as F
import transformers

import golden_file
import longformer
from generate import BART, bart, bart_inputs, bart_names, close, options_of, randomise, trained, translate

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "long_documents")

# beams, no_repeat_ngram, min_count, stop_early, count, length_penalty
SEARCHES = [
    (1, 0, 0, 1, 9, 1.0),
    (2, 0, 0, 0, 12, 1.0),
    (4, 0, 0, 0, 12, 0.0),
    (4, 2, 0, 1, 12, 2.0),
    (3, 1, 4, 0, 9, -0.5),
    (5, 3, 2, 1, 13, 0.6),
]


def golden_beams():
    """All beams of generate() of the package's BART, whose logits it takes to f32."""
    model = bart().double().eval()
    randomise(model, torch.Generator().manual_seed(542))
    with torch.no_grad():
        model.model.shared.weight *= 2.5  # not all alike
    inputs = bart_inputs(9, 541)
    mask = (torch.arange(11) < inputs["lengths"][:, None]).long()
    tensors = {"input.source": inputs["source"], "input.lengths": inputs["lengths"]}
    for name, x in translate(model, bart_names(), trained(model)).items():
        tensors[f"parameter.{name}"] = x
    for i, (beams, ngram, least, early, count, penalty) in enumerate(SEARCHES):
        out = model.generate(
            input_ids=inputs["source"], attention_mask=mask, num_beams=max(beams, 2),
            num_return_sequences=beams, no_repeat_ngram_size=ngram, min_length=least + 1,
            max_length=count + 1, length_penalty=penalty, early_stopping=bool(early),
            do_sample=False, return_dict_in_generate=True, output_scores=True) \
            if beams > 1 else model.generate(
                input_ids=inputs["source"], attention_mask=mask, num_beams=1, do_sample=False,
                max_length=count + 1, return_dict_in_generate=True)
        sequences = out.sequences.view(2, beams, -1)[:, :, 1:]  # without the start token
        tensors[f"search.{i}.options"] = torch.tensor([beams, ngram, least, early, count])
        tensors[f"search.{i}.length_penalty"] = torch.tensor(penalty, dtype=torch.float64)
        tensors[f"search.{i}.tokens"] = sequences
        if beams > 1:
            tensors[f"search.{i}.scores"] = out.sequences_scores.view(2, beams).double()
    return tensors, options_of(BART)


# name -> (configuration, lengths, global positions of each sample); the first length is the longest
tiny = longformer.Longformer()
LONGFORMERS = {
    "longformer_several_globals": (tiny, [37, 37], [[0, 5], [0, 5]]),
    "longformer_ragged": (replace(tiny, one_sided_window=(2, 4)), [29, 17, 1],
                          [[0, 3, 4, 28], [2], []]),
    "longformer_no_globals": (replace(tiny, n_head=4), [41, 26], [[], []]),
    "longformer_question": (
        replace(tiny, n_layer=1, one_sided_window=(2,)), [33, 20], [list(range(9)), [0, 1, 2]]),
    "longformer_dilated": (
        replace(tiny, n_head=4, dilation=(2, 3), one_sided_window=(2,)), [37, 24],
        [[0, 7, 20], [1]]),
    "longformer_one_token": (tiny, [1], [[0]]),
}


def longformer_names(c):
    """Theirs -> ours."""
    names = {"longformer.embeddings.word_embeddings.weight": "embed.token.weight",
             "longformer.embeddings.position_embeddings.weight": "embed.position.weight",
             "longformer.embeddings.token_type_embeddings.weight": "embed.type.weight",
             "lm_head.bias": "head.bias"}
    for kind in ("weight", "bias"):
        names[f"longformer.embeddings.LayerNorm.{kind}"] = f"embed.norm.{kind}"
        names[f"lm_head.dense.{kind}"] = f"mlm.dense.{kind}"
        names[f"lm_head.layer_norm.{kind}"] = f"mlm.norm.{kind}"
        for i in range(c.n_layer):
            theirs, ours = f"longformer.encoder.layer.{i}.", f"layers.{i}."
            for part, short in (("query", "q"), ("key", "k"), ("value", "v")):
                for end in ("", "_global"):
                    names[f"{theirs}attention.self.{part}{end}.{kind}"] = \
                        f"{ours}attention.{short}{end}.{kind}"
            names[f"{theirs}attention.output.dense.{kind}"] = f"{ours}attention.out.{kind}"
            names[f"{theirs}attention.output.LayerNorm.{kind}"] = f"{ours}norm1.{kind}"
            names[f"{theirs}intermediate.dense.{kind}"] = f"{ours}ff.in.{kind}"
            names[f"{theirs}output.dense.{kind}"] = f"{ours}ff.out.{kind}"
            names[f"{theirs}output.LayerNorm.{kind}"] = f"{ours}norm2.{kind}"
    return names


def random_values(shapes, generator):
    values = {}
    for name, shape in shapes.items():
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        norm = "norm" in name
        x = 0.1 * x + (1.0 if name.endswith(".weight") else 0.0) if norm else 0.3 * x
        values[name] = x.requires_grad_()
    return values


def package_longformer(c, parameters, inputs):
    """Hidden states, logits, loss and gradients of LongformerForMaskedLM, by our names. It runs
    in f32, for it masks with the least number of its dtype and takes that to f32 for the softmax: in
    f64 rows that see nothing become NaN. Its windows are the same for every head."""
    from transformers import LongformerConfig, LongformerForMaskedLM

    windows = [2 * longformer.of_layer(c.one_sided_window, i) for i in range(c.n_layer)]
    model = LongformerForMaskedLM(LongformerConfig(
        attention_window=windows, vocab_size=c.vocab, hidden_size=c.d_model,
        num_hidden_layers=c.n_layer, num_attention_heads=c.n_head, intermediate_size=c.d_ff,
        hidden_act="gelu", hidden_dropout_prob=0, attention_probs_dropout_prob=0,
        max_position_embeddings=c.position_offset + c.n_max, type_vocab_size=c.token_types,
        layer_norm_eps=c.norm_eps, pad_token_id=1, bos_token_id=0, eos_token_id=2))
    model = model.train()
    names = longformer_names(c)
    own = dict(model.named_parameters())
    unused = set(own) - set(names)
    if unused:
        raise RuntimeError(f"no name for {sorted(unused)}")
    with torch.no_grad():
        for theirs, ours in names.items():
            own[theirs].copy_(parameters[ours])
    length = inputs["tokens"].shape[1]
    mask = (torch.arange(length) < inputs["lengths"][:, None]).long()
    place = (torch.arange(length) + c.position_offset).expand(mask.shape)
    out = model(inputs["tokens"], attention_mask=mask, position_ids=place,
                global_attention_mask=inputs["global"].long() * mask, output_hidden_states=True)
    loss = masked_loss(out.logits, inputs["targets"])
    gradients = torch.autograd.grad(loss, [own[n] for n in names], allow_unused=True)
    result = {"output.hidden": out.hidden_states[-1], "output.logits": out.logits,
              "output.loss": loss}
    for ours, x, dx in zip(names.values(), (own[n] for n in names), gradients):
        result[f"gradient.{ours}"] = torch.zeros_like(x) if dx is None else dx
    return result


def masked_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


def golden_longformer(name, seed):
    """`output` and `gradient`: the dense oracle in f64; `package`: what transformers makes of it,
    which must be near, where it can do the same."""
    c, lengths, positions = LONGFORMERS[name]
    generator = torch.Generator().manual_seed(seed)
    parameters = random_values(longformer.parameter_shapes(c), generator)
    batch, length = len(lengths), max(lengths)
    lengths = torch.tensor(lengths)
    valid = torch.arange(length) < lengths[:, None]
    draw = lambda: torch.randint(2, c.vocab, (batch, length), generator=generator)
    inputs = {"tokens": torch.where(valid, draw(), 1), "lengths": lengths,
              "targets": torch.where(valid, draw(), -100),
              "global": torch.zeros(batch, length, dtype=torch.int32)}
    for b, own in enumerate(positions):
        inputs["global"][b, own] = 1
    hidden, logits = longformer.longformer(c, parameters, inputs["tokens"], lengths,
                                           inputs["global"] != 0)
    loss = masked_loss(logits, inputs["targets"])
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    tensors = {f"input.{k}": v for k, v in inputs.items()}
    keep = lambda x: torch.where(valid[..., None], x, 0)
    tensors |= {"output.hidden": keep(hidden), "output.logits": keep(logits), "output.loss": loss}
    for (key, x), dx in zip(parameters.items(), gradients):
        tensors[f"parameter.{key}"], tensors[f"gradient.{key}"] = x, dx
    if c.dilation == (1,):
        for key, x in package_longformer(c, parameters, inputs).items():
            x = keep(x) if key in ("output.hidden", "output.logits") else x
            close(f"{name}: {key} of the package", tensors[key], x.double(), 5e-6)  # f32 rounding
            tensors[f"package.{key}"] = x.double()
    metadata = {k: ",".join(map(str, v)) if isinstance(v, tuple) else v
                for k, v in asdict(c).items()}
    return tensors, metadata


# name -> (configuration, lengths of the sources, length of the targets, global positions)
led_tiny = longformer.Led()
LEDS = {
    "led_first_token": (led_tiny, [29, 29], 11, [[0], [0]]),
    "led_ragged": (replace(led_tiny, one_sided_window=(2, 4), n_head=4), [37, 19, 5], 7,
                   [[0, 9, 30], [0, 4], [0]]),
    "led_no_globals": (replace(led_tiny, n_layer=1), [31, 17], 12, [[], []]),
}


def led_names(c):
    """Theirs -> ours."""
    names = {"led.shared.weight": "embed.token.weight", "final_logits_bias": "head.bias"}
    for where, side in (("encoder", "source_"), ("decoder", "")):
        names[f"led.{where}.embed_positions.weight"] = f"embed.{side}position.weight"
        for kind in ("weight", "bias"):
            names[f"led.{where}.layernorm_embedding.{kind}"] = f"embed.{side}norm.{kind}"
            for i in range(c.n_layer):
                theirs, ours = f"led.{where}.layers.{i}.", f"{where}.layers.{i}."
                if where == "encoder":
                    own = f"{theirs}self_attn.longformer_self_attn."
                    for part, short in (("query", "q"), ("key", "k"), ("value", "v")):
                        for end in ("", "_global"):
                            names[f"{own}{part}{end}.{kind}"] = \
                                f"{ours}attention.{short}{end}.{kind}"
                    names[f"{theirs}self_attn.output.{kind}"] = f"{ours}attention.out.{kind}"
                else:
                    for part, short in (("self_attn", "attention"), ("encoder_attn", "cross")):
                        for x in ("q", "k", "v", "out"):
                            names[f"{theirs}{part}.{x}_proj.{kind}"] = f"{ours}{short}.{x}.{kind}"
                    names[f"{theirs}encoder_attn_layer_norm.{kind}"] = f"{ours}norm2.{kind}"
                last = "norm2" if where == "encoder" else "norm3"
                names[f"{theirs}self_attn_layer_norm.{kind}"] = f"{ours}norm1.{kind}"
                names[f"{theirs}final_layer_norm.{kind}"] = f"{ours}{last}.{kind}"
                names[f"{theirs}fc1.{kind}"] = f"{ours}ff.in.{kind}"
                names[f"{theirs}fc2.{kind}"] = f"{ours}ff.out.{kind}"
    return names


def package_led(c, parameters, inputs):
    """Hidden states, logits, loss and gradients of LEDForConditionalGeneration, by our names."""
    from transformers import LEDConfig, LEDForConditionalGeneration

    windows = [2 * longformer.of_layer(c.one_sided_window, i) for i in range(c.n_layer)]
    model = LEDForConditionalGeneration(LEDConfig(
        vocab_size=c.vocab, max_encoder_position_embeddings=c.n_max,
        max_decoder_position_embeddings=c.n_max_target, encoder_layers=c.n_layer,
        decoder_layers=c.n_layer, encoder_attention_heads=c.n_head,
        decoder_attention_heads=c.n_head, encoder_ffn_dim=c.d_ff, decoder_ffn_dim=c.d_ff,
        d_model=c.d_model, activation_function="gelu", dropout=0, attention_dropout=0,
        activation_dropout=0, attention_window=windows, pad_token_id=1, bos_token_id=0,
        eos_token_id=2, decoder_start_token_id=2)).train()
    bias = model.final_logits_bias
    del model.final_logits_bias
    model.final_logits_bias = torch.nn.Parameter(bias)
    names, own = led_names(c), dict(model.named_parameters())
    unused = set(own) - set(names)
    if unused:
        raise RuntimeError(f"no name for {sorted(unused)}")
    with torch.no_grad():
        for theirs, ours in names.items():
            own[theirs].copy_(parameters[ours].view(own[theirs].shape))
    length = inputs["source"].shape[1]
    mask = (torch.arange(length) < inputs["lengths"][:, None]).long()
    out = model(inputs["source"], attention_mask=mask, decoder_input_ids=inputs["tokens"],
                global_attention_mask=inputs["global"].long() * mask, output_hidden_states=True,
                use_cache=False)
    loss = masked_loss(out.logits, inputs["targets"])
    gradients = torch.autograd.grad(loss, [own[n] for n in names], allow_unused=True)
    result = {"output.hidden": out.decoder_hidden_states[-1], "output.logits": out.logits,
              "output.loss": loss}
    for ours, x, dx in zip(names.values(), (own[n] for n in names), gradients):
        result[f"gradient.{ours}"] = torch.zeros_like(parameters[ours]) if dx is None \
            else dx.view(parameters[ours].shape)
    return result


def golden_led(name, seed):
    """As golden_longformer."""
    c, lengths, target, positions = LEDS[name]
    generator = torch.Generator().manual_seed(seed)
    parameters = random_values(longformer.led_shapes(c), generator)
    batch, length = len(lengths), max(lengths)
    lengths = torch.tensor(lengths)
    valid = torch.arange(length) < lengths[:, None]
    draw = lambda n: torch.randint(3, c.vocab, (batch, n), generator=generator)
    inputs = {"source": torch.where(valid, draw(length), 1), "lengths": lengths,
              "tokens": draw(target), "targets": draw(target),
              "global": torch.zeros(batch, length, dtype=torch.int32)}
    inputs["targets"][0, -1] = -100
    for b, own in enumerate(positions):
        inputs["global"][b, own] = 1
    hidden, logits = longformer.led(c, parameters, inputs["source"], lengths,
                                    inputs["global"] != 0, inputs["tokens"])
    loss = masked_loss(logits, inputs["targets"])
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    tensors = {f"input.{k}": v for k, v in inputs.items()}
    tensors |= {"output.hidden": hidden, "output.logits": logits, "output.loss": loss}
    for (key, x), dx in zip(parameters.items(), gradients):
        tensors[f"parameter.{key}"] = x
        tensors[f"gradient.{key}"] = torch.zeros_like(x) if dx is None else dx
    for key, x in package_led(c, parameters, inputs).items():
        close(f"{name}: {key} of the package", tensors[key], x.double(), 1e-5)  # f32 rounding
        tensors[f"package.{key}"] = x.double()
    metadata = {k: ",".join(map(str, v)) if isinstance(v, tuple) else v
                for k, v in asdict(c).items()}
    return tensors, metadata


FILES = {"beams_bart": golden_beams}
FILES |= {name: (lambda name=name, i=i: golden_led(name, 700 + i)) for i, name in enumerate(LEDS)}
FILES |= {name: (lambda name=name, i=i: golden_longformer(name, 600 + i))
          for i, name in enumerate(LONGFORMERS)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    os.makedirs(FOLDER, exist_ok=True)
    for name, make in FILES.items():
        tensors, metadata = make()
        path = os.path.join(FOLDER, name + ".safetensors")
        if options.check:
            kept, kept_metadata = golden_file.read(path)
            if kept.keys() != tensors.keys():
                sys.exit(f"{name}: other tensors than in the file")
            if kept_metadata != {k: golden_file.text(v) for k, v in metadata.items()}:
                sys.exit(f"{name}: other metadata than in the file")
            for key, x in tensors.items():
                if (kept[key].double() - x.detach().double()).abs().max() > 1e-6:
                    sys.exit(f"{name}: {key} differs from the file")
        else:
            golden_file.write(path, tensors, metadata)
        print(f"{name}: {os.path.getsize(path) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
