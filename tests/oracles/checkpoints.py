#!/usr/bin/env python3
"""Checkpoints of the transformers package, and those that this engine writes.

    checkpoints.py                 writes checkpoints/NAME: small models with random weights, saved by
                                   the package, and expected.safetensors: what they compute
    checkpoints.py --load FOLDER   loads a checkpoint that this engine has saved in FOLDER/NAME for
                                   every NAME, strictly, and compares what it computes
"""

import argparse
import copy
import os
import sys

import torch

import golden_file

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "checkpoints")
SIZES = {"vocab_size": 19, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 12, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
         "bos_token_id": None, "eos_token_id": None}


def models():
    """name -> (class, configuration, lengths, pad, which output)."""
    import transformers as t

    roberta = t.RobertaConfig(**SIZES, max_position_embeddings=34, type_vocab_size=1,
                              pad_token_id=1, layer_norm_eps=1e-5)
    bert = t.BertConfig(**SIZES, max_position_embeddings=32, type_vocab_size=2, pad_token_id=0,
                        hidden_act="relu")
    bigbird = t.BigBirdConfig(**SIZES, max_position_embeddings=64, type_vocab_size=2,
                              pad_token_id=0, sep_token_id=None, block_size=4,
                              num_random_blocks=1, rescale_embeddings=True)
    longformer = t.LongformerConfig(**(SIZES | {"eos_token_id": 2}), max_position_embeddings=34,
                                    type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5,
                                    attention_window=[4, 8])
    sequence = {"vocab_size": 19, "d_model": 8, "encoder_layers": 2, "decoder_layers": 2,
                "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 12,
                "decoder_ffn_dim": 12, "dropout": 0.0}
    bart = t.BartConfig(**sequence, max_position_embeddings=32, activation_function="relu")
    led = t.LEDConfig(**sequence, max_encoder_position_embeddings=32,
                      max_decoder_position_embeddings=24, attention_window=[4, 8])
    pegasus = t.BigBirdPegasusConfig(**sequence, max_position_embeddings=64, block_size=4,
                                     num_random_blocks=1)
    reformer = t.ReformerConfig(
        attn_layers=["local", "lsh"], vocab_size=19, hidden_size=8, feed_forward_size=12,
        num_attention_heads=2, attention_head_size=4, axial_pos_shape=[6, 8],
        axial_pos_embds_dim=[3, 5], max_position_embeddings=48, is_decoder=True, num_buckets=4,
        lsh_attn_chunk_length=32, local_attn_chunk_length=32, hidden_dropout_prob=0.0,
        local_attention_probs_dropout_prob=0.0)
    return {
        "roberta": (t.RobertaForMaskedLM, roberta, [21, 13], 1),
        "roberta_classes": (t.RobertaForSequenceClassification, roberta, [21, 13], 1),
        "roberta_spans": (t.RobertaForQuestionAnswering, roberta, [21, 21], 1),
        "roberta_tags": (t.RobertaForTokenClassification, roberta, [21, 13], 1),
        "bert": (t.BertForMaskedLM, bert, [21, 13], 0),
        # Short enough for dense attention on both sides: random blocks are not in checkpoints.
        "bigbird": (t.BigBirdForMaskedLM, bigbird, [19, 9], 0),
        # Without global tokens.
        "longformer": (t.LongformerForMaskedLM, longformer, [21, 13], 1),
        "bigbird_pegasus": (t.BigBirdPegasusForConditionalGeneration, pegasus, [19, 9], 0),
        "bart": (t.BartForConditionalGeneration, bart, [21, 13], 1),
        # The first token is global.
        "led": (t.LEDForConditionalGeneration, led, [21, 13], 1),
        # Short enough for dense attention: rotations are not in checkpoints.
        "reformer": (t.ReformerModelWithLMHead, reformer, [21, 13], 0),
        # Heads with a table and a bias of their own. What the package calls the bias of the head is
        # dead beside that of its decoder. In Reformer so since release 5.24.
        "roberta_untied": (t.RobertaForMaskedLM, untied(roberta), [21, 13], 1),
        "bert_untied": (t.BertForMaskedLM, untied(bert), [21, 13], 0),
        "bigbird_untied": (t.BigBirdForMaskedLM, untied(bigbird), [19, 9], 0),
        "longformer_untied": (t.LongformerForMaskedLM, untied(longformer), [21, 13], 1),
        "reformer_two_biases": (t.ReformerModelWithLMHead, reformer, [21, 13], 0),
    }


def untied(config):
    config = copy.deepcopy(config)
    config.tie_word_embeddings = False
    return config


def run(model, tokens, lengths):
    """What a model says, [B, ...]; of padding it means nothing and is zero."""
    mask = (torch.arange(tokens.shape[1]) < lengths[:, None]).long()
    with torch.no_grad():
        if model.config.is_encoder_decoder:  # what is read is also what is written
            more = {}
            if model.config.model_type == "led":
                more["global_attention_mask"] = (torch.arange(tokens.shape[1]) == 0).long() * mask
            return model.eval()(tokens, attention_mask=mask, decoder_input_ids=tokens, **more).logits
        out = model.eval()(tokens, attention_mask=mask)
    if hasattr(out, "start_logits"):
        return torch.stack([out.start_logits, out.end_logits], -1)
    return out.logits if out.logits.dim() == 2 else out.logits * mask[..., None]


def randomise(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn(p.shape, generator=generator)
            norm = "norm" in name.lower() and name.endswith("weight")
            p.copy_(1 + 0.1 * x if norm else 0.3 * x)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(0.3 * torch.randn(model.final_logits_bias.shape,
                                                            generator=generator))


def write(only):
    for seed, (name, (kind, config, lengths, pad)) in enumerate(models().items()):
        if only and name != only:
            continue
        model = kind(config)
        randomise(model, seed)
        model.save_pretrained(os.path.join(FOLDER, name))
        if model.can_generate():
            os.remove(os.path.join(FOLDER, name, "generation_config.json"))
        lengths = torch.tensor(lengths)
        length = int(lengths.max())
        generator = torch.Generator().manual_seed(100 + seed)
        tokens = torch.randint(2, config.vocab_size, (len(lengths), length), generator=generator)
        tokens[torch.arange(length) >= lengths[:, None]] = pad
        tensors = {"tokens": tokens, "lengths": lengths, "logits": run(model, tokens, lengths)}
        golden_file.write(os.path.join(FOLDER, name, "expected.safetensors"), tensors, {})
        print(name)


def load(folder):
    for name, (kind, _, _, _) in models().items():
        model, info = kind.from_pretrained(os.path.join(folder, name), output_loading_info=True)
        left = {key: [x for x in names if "pooler" not in x]  # unused by these heads
                for key, names in info.items() if names}
        left = {key: names for key, names in left.items() if names}
        if left:
            sys.exit(f"{name}: {left}")
        expected, _ = golden_file.read(os.path.join(FOLDER, name, "expected.safetensors"))
        y = run(model, expected["tokens"], expected["lengths"])
        worst = (y - expected["logits"]).abs().max().item()
        if not worst <= 1e-5:
            sys.exit(f"{name}: outputs are {worst:.3g} away")
        print(f"{name}: loads strictly, outputs within {worst:.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--load", metavar="FOLDER")
    parser.add_argument("--only", metavar="NAME", help="writes that one alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    load(options.load) if options.load else write(options.only)


if __name__ == "__main__":
    main()
