#!/usr/bin/env python3
"""Folders of the package transformers, and what they compute: one or more for each type of model that
Longspan reads (hub/). Writes hub_folders/NAME with config.json, model.safetensors (f32, random) and

    expected.safetensors   in/*: the arguments of forward(); outputs, the loss and grad/*: its gradients, f64

    hub_folders.py [NAME...]      those of these names; without any, all
"""

import os
import shutil
import sys

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import torch
import transformers as t
from safetensors.torch import save_file

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hub_folders")
torch.set_num_threads(1)
t.logging.set_verbosity_error()

# The package computes some losses and softmaxes in f32 whatever the model is; here they stay in f64.
narrow = torch.Tensor.float
softmax = torch.nn.functional.softmax
torch.nn.functional.softmax = lambda x, dim=None, _stacklevel=3, dtype=None: softmax(
    x, dim=dim, dtype=None if x.dtype == torch.float64 else dtype)

BERT = dict(vocab_size=23, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=11,
            max_position_embeddings=40, type_vocab_size=2, hidden_act="gelu")
SEQUENCE = dict(vocab_size=23, d_model=8, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2,
                decoder_attention_heads=4, encoder_ffn_dim=9, decoder_ffn_dim=7, max_position_embeddings=40)
GPT2 = dict(vocab_size=23, n_embd=8, n_layer=2, n_head=2, n_positions=30, bos_token_id=2, eos_token_id=2)
REFORMER = dict(attn_layers=["local", "lsh"], vocab_size=23, hidden_size=8, feed_forward_size=9,
                num_attention_heads=2, attention_head_size=3, axial_pos_shape=[4, 8], axial_pos_embds_dim=[3, 5],
                max_position_embeddings=32, num_buckets=4, lsh_attn_chunk_length=8, local_attn_chunk_length=8,
                hidden_dropout_prob=0.0, local_attention_probs_dropout_prob=0.0, hash_seed=7)


def cases():
    """name -> (class, configuration, tokens, options)."""
    roberta = BERT | dict(pad_token_id=1)
    return {
        "bert_masked_left": (t.BertForMaskedLM, t.BertConfig(**BERT), 13, dict(mask="left")),
        "bert_untied": (t.BertForMaskedLM, t.BertConfig(**BERT, tie_word_embeddings=False), 11, {}),
        "bert_classes": (t.BertForSequenceClassification, t.BertConfig(**BERT, id2label={0: "no", 1: "so-so", 2: "yes"}),
                         11, {}),
        "bert_choice": (t.BertForMultipleChoice, t.BertConfig(**BERT), 9, {}),
        "bert_headless": (t.BertModel, t.BertConfig(**BERT), 9, dict(mask="right")),
        "roberta_padding_inside": (t.RobertaForMaskedLM, t.RobertaConfig(**roberta | dict(pad_token_id=3)), 12,
                                   dict(inside=True)),
        "roberta_labels": (t.RobertaForSequenceClassification,
                           t.RobertaConfig(**roberta, num_labels=3, problem_type="multi_label_classification"), 11, {}),
        "distilbert_inner": (t.DistilBertForTokenClassification,
                             t.DistilBertConfig(vocab_size=23, dim=8, n_layers=2, n_heads=2, hidden_dim=9, num_labels=3,
                                                max_position_embeddings=30), 12, dict(mask="inner")),
        "electra_classes": (t.ElectraForSequenceClassification,
                            t.ElectraConfig(**BERT, embedding_size=5, num_labels=1), 10, {}),
        "longformer_spans": (t.LongformerForQuestionAnswering,
                             t.LongformerConfig(**roberta, attention_window=[4, 8], sep_token_id=2), 16,
                             dict(separators=3)),
        "longformer_inner": (t.LongformerForMaskedLM, t.LongformerConfig(**roberta, attention_window=4), 15,
                             dict(mask="inner", some_global=True)),
        "big_bird_sparse": (t.BigBirdForMaskedLM,
                            t.BigBirdConfig(**BERT | dict(max_position_embeddings=48), block_size=4, num_random_blocks=1),
                            34, dict(mask="right")),
        "big_bird_spans": (t.BigBirdForQuestionAnswering,
                           t.BigBirdConfig(**BERT, block_size=4, num_random_blocks=1, sep_token_id=6), 12,
                           dict(separators=1)),
        "gpt2_types": (t.GPT2LMHeadModel, t.GPT2Config(**GPT2, scale_attn_by_inverse_layer_idx=True), 13,
                       dict(mask="left", types=True)),
        "gpt2_classes": (t.GPT2ForSequenceClassification, t.GPT2Config(**GPT2, num_labels=3, pad_token_id=1), 11,
                         dict(mask="right")),
        "bart_untied": (t.BartForConditionalGeneration, t.BartConfig(**SEQUENCE, tie_word_embeddings=False), 12,
                        dict(mask="inner")),
        "mbart": (t.MBartForConditionalGeneration, t.MBartConfig(**SEQUENCE, scale_embedding=True), 11,
                  dict(mask="left")),
        "pegasus": (t.PegasusForConditionalGeneration, t.PegasusConfig(**SEQUENCE), 12, {}),
        "led": (t.LEDForConditionalGeneration,
                t.LEDConfig(**{k: v for k, v in SEQUENCE.items() if k != "max_position_embeddings"},
                            max_encoder_position_embeddings=40, max_decoder_position_embeddings=20,
                            attention_window=[4, 8]), 14, dict(mask="right", some_global=True)),
        "bigbird_pegasus_sparse": (t.BigBirdPegasusForConditionalGeneration,
                                   t.BigBirdPegasusConfig(**SEQUENCE, block_size=4, num_random_blocks=1), 32, {}),
        "reformer_hashed": (t.ReformerModelWithLMHead, t.ReformerConfig(**REFORMER, is_decoder=True), 32, {}),
        "reformer_classes": (t.ReformerForSequenceClassification,
                             t.ReformerConfig(**REFORMER, is_decoder=False, num_labels=3), 32, {}),
    }


def randomise(model, g):
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn(p.shape, generator=g)
            norm = ("norm" in name.lower() or ".ln_" in name) and name.endswith("weight")
            if model.config.model_type != "pegasus" or "embed_positions" not in name:
                p.copy_((1 + 0.1 * x if norm else 0.3 * x).float())
        for name, b in model.named_buffers():
            if name.endswith("final_logits_bias"):
                b.copy_(0.3 * torch.randn(b.shape, generator=g))
    return model.eval()


def mask_of(style, batch, length):
    mask = torch.ones(batch, length, dtype=torch.long)
    for row in range(batch):
        if style == "right" and row > 0:
            mask[row, length - 2 - row:] = 0
        if style == "left" and row > 0:
            mask[row, :2 + row] = 0
        if style == "inner":
            mask[row, 2 + row::4] = 0
    return mask


def arguments(cls, config, length, options, g):
    batch = 2
    draw = lambda low, high, shape: torch.randint(low, high, shape, generator=g)
    name, vocab = cls.__name__, config.vocab_size
    if name.endswith("MultipleChoice"):
        tokens = draw(8, vocab, (batch, 3, length))
        return {"input_ids": tokens, "token_type_ids": draw(0, 2, tokens.shape), "labels": draw(0, 3, (batch,))}
    args = {"input_ids": draw(8, vocab, (batch, length))}
    valid = torch.ones(batch, length, dtype=torch.long)
    if "mask" in options:
        valid = args["attention_mask"] = mask_of(options["mask"], batch, length)
        if options["mask"] != "inner" and config.pad_token_id is not None:
            args["input_ids"][valid == 0] = config.pad_token_id
    if options.get("inside"):
        args["input_ids"][0, 3] = args["input_ids"][1, 5] = config.pad_token_id
    if "separators" in options:
        for row in range(batch):
            for place in (3 + row, 4 + row)[:options["separators"]]:
                args["input_ids"][row, place] = config.sep_token_id
            if options["separators"] == 3:
                args["input_ids"][row, -1] = config.sep_token_id
    if options.get("types"):
        args["token_type_ids"] = draw(0, vocab, (batch, length))
    elif getattr(config, "type_vocab_size", 0) > 1 and "separators" not in options:
        args["token_type_ids"] = draw(0, 2, (batch, length))
    if options.get("some_global"):
        marks = torch.zeros(batch, length, dtype=torch.long)
        marks[:, 0] = marks[1, 4] = 1
        args["global_attention_mask"] = marks * valid
    if name.endswith("Model") and "LM" not in name:
        return args
    if "LM" in name:
        args["labels"] = torch.where(valid > 0, args["input_ids"], -100)
    elif name.endswith("SequenceClassification"):
        n = config.num_labels
        args["labels"] = (torch.randn(batch, generator=g).double() if n == 1 else draw(0, n, (batch,))
                          if config.problem_type is None else draw(0, 2, (batch, n)).double())
    elif name.endswith("TokenClassification"):
        args["labels"] = torch.where(valid > 0, draw(0, config.num_labels, (batch, length)), -100)
    elif name.endswith("QuestionAnswering"):
        args |= {"start_positions": torch.tensor([7, 8]), "end_positions": torch.tensor([9, 8])}
    else:
        args["labels"] = draw(8, vocab, (batch, 6))
        args["labels"][1, 4:] = -100
    return args


def compute(model, args, g):
    cached = model.config.is_encoder_decoder or model.config.model_type == "gpt2"
    model.train(model.config.model_type == "reformer")  # the only mode in which it has gradients
    out = model(**args, **({"use_cache": False} if cached else {}))
    expected = {}
    for name in ("logits", "start_logits", "end_logits", "last_hidden_state"):
        value = getattr(out, name, None)
        if value is not None:
            mask = args.get("attention_mask")
            if mask is not None and value.dim() >= 2 and value.shape[:2] == mask.shape:
                value = value * mask.view(*mask.shape, *[1] * (value.dim() - 2))
            expected[name] = value.detach()
    loss = getattr(out, "loss", None)
    if loss is None:
        expected["loss_weight"] = torch.randn(out[0].shape, generator=g).double() * args["attention_mask"][..., None]
        loss = (out[0] * expected["loss_weight"]).sum()
    loss.backward()
    expected["loss"] = loss.detach().reshape(())
    expected |= {"grad/" + n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    if "labels" in args and model.config.is_encoder_decoder:
        expected["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(args["labels"])
    return expected


def rotations(config):
    torch.manual_seed(config.hash_seed)
    return torch.randn((config.num_attention_heads, config.attention_head_size, config.num_hashes,
                        config.num_buckets // 2), dtype=torch.float64)


def write(name, cls, config, length, options):
    folder = os.path.join(FOLDER, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    g = torch.Generator().manual_seed(sum(map(ord, name)))
    torch.manual_seed(1)
    model = randomise(cls(config), g)
    model.save_pretrained(folder)
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))
    args = arguments(cls, config, length, options, g)
    torch.Tensor.float = lambda x, *a, **k: x if x.dtype == torch.float64 else narrow(x, *a, **k)
    expected = compute(model.double(), args, g)
    torch.Tensor.float = narrow
    if config.model_type == "reformer":
        expected["rotations"] = rotations(config)
    tensors = {"in/" + k: v for k, v in args.items()} | expected
    save_file({k: v.detach().contiguous().clone() for k, v in sorted(tensors.items())},
              os.path.join(folder, "expected.safetensors"))


if __name__ == "__main__":
    for name, case in cases().items():
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            write(name, *case)
            print(name)
