#!/usr/bin/env python3
"""Tags, answers, endings, classes, summaries and completions beside the package transformers (Python with torch, transformers and tokenizers
needed):

    cmake --build build/dev --target longspan_program order_of_rows
    PYTHON tests/long/heads.py [--types bert,roberta,...] [--heads tags,spans,...] [--work DIR]

For each type of encoder a folder without a head is made, and for gpt2 and each type of encoder-decoder one that writes, with random weights and a tokenizer of its own, and trained on
small tables with `longspan train --from FOLDER --task HEAD`, exported, and read by the package.

1. The losses of the first steps, from the same exported weights, must differ by less than 1e-4 from those of PyTorch on
   the rows that the package makes: the same tokens, targets, global tokens and loss. Nothing is dropped out.
2. What `longspan eval --predictions` wrote must be what the package's model says of the same rows: tags and endings
   word by word, answers by the rules of its examples for SQuAD (windows of --length with a stride, the 20 best firsts
   and lasts), and what `longspan summarise` writes must be what the package generates with four beams. Of gpt2, `longspan generate
   --prompts` must write what the package does of each prompt alone: greedily, with beams, with a penalty for repeats.

Exit status 1 if one does not hold.
"""

import argparse
import csv
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

transformers.utils.logging.disable_progress_bar()
ROOT = pathlib.Path(__file__).resolve().parents[2]
LENGTH, BATCH, RATE, STEPS, STRIDE, TARGET = 48, 4, 1e-3, 40, 8, 16
ABSENT = {"gpt2": ("spans", "choice")}
WRITERS = ("bart", "mbart", "pegasus", "led", "bigbird_pegasus")

NAMES, PLACES, VERBS = ["Ann", "Bob", "Carl", "Zoë"], ["Rome", "Oslo", "Paris", "Köln"], ["sees", "likes", "leaves"]


def rows_of(r, head, count):
    for i in range(count):
        if head == "tags":
            words = [r.choice(NAMES), r.choice(VERBS), "New", r.choice(PLACES)] * r.randint(1, 2) + ["."]
            tags = (["B-PER", "O", "B-LOC", "I-LOC"] * 2)[:len(words) - 1] + ["O"]
            yield {"tokens": words, "ner_tags": tags}
        elif head == "spans":
            facts = [(name, r.choice(PLACES)) for name in r.sample(NAMES, 4)]
            text = " ".join(f"{name} came to {r.choice(VERBS)} the sea and lives in {place}." for name, place in facts)
            name, place = r.choice(facts)
            begin = text.index(place, text.index(f"{name} came"))
            asked = i % 5 != 0
            answers = {"text": [place], "answer_start": [begin]} if asked else {"text": [], "answer_start": []}
            yield {"id": str(i), "question": f"Where does {name if asked else 'Dora'} live?", "context": text, "answers": answers}
        elif head == "choice":
            name = r.choice(NAMES)
            endings = r.sample(NAMES, 4)
            yield {"sent1": f"{name} came to the sea", "sent2": "Who came?"} | {f"ending{j}": e for j, e in enumerate(endings)} | {"label": endings.index(name)}
        elif head == "completions":
            name, verb = r.choice(NAMES), r.choice(VERBS)
            yield {"prompt": f"{name} {verb}" + " and so on" * r.randint(0, 3), "completion": f" {r.choice(PLACES)} and {name}."}
        elif head == "summaries":
            name, place, verb = r.choice(NAMES), r.choice(PLACES), r.choice(VERBS)
            yield {"article": f"{name}, who {verb} the sea, has come to {place}" + " and so on" * r.randint(0, 4) + ".", "highlights": f"{name} {verb} {place}."}
        else:
            name = r.choice(NAMES)
            yield {"text": f"{r.choice(PLACES)} {r.choice(VERBS)} {name}", "label": name}


def make_data(folder, head):
    r = random.Random(3)
    folder.mkdir(parents=True)
    parts = {"train": list(rows_of(r, head, 40)), "valid": list(rows_of(r, head, 30))}
    for part, rows in parts.items():
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return parts


def make_base(folder, kind):
    """A folder of a type without a head."""
    torch.manual_seed(5)
    r = random.Random(4)
    texts = [json.dumps(row, ensure_ascii=False) for head in ("tags", "spans", "choice", "summaries") for row in rows_of(r, head, 50)]
    roberta = kind not in ("bert", "distilbert", "electra")
    if roberta:
        t = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        t.decoder = decoders.ByteLevel()
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False,
                                                         initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        if kind in ("mbart", "pegasus", "bigbird_pegasus"):
            last = ["</s>", "<mask>"] if kind == "mbart" else ["</s>"]  # a token in the place of a language
            t.post_processor = processors.Sequence([
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(single=["$A", *last], pair=["$A", "$B", *last], special_tokens=[("</s>", 2), ("<mask>", 4)])])
        else:
            t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=True)
        names = dict(bos_token="<s>", cls_token="<s>", eos_token="</s>", sep_token="</s>", pad_token="<pad>", unk_token="<unk>", mask_token="<mask>")
        pad, bos, eos = 1, 0, 2
    else:
        t = tokenizers.BertWordPieceTokenizer(lowercase=False, strip_accents=False)
        t.train_from_iterator(texts, vocab_size=300, show_progress=False)
        t = t._tokenizer
        cls, sep = t.token_to_id("[CLS]"), t.token_to_id("[SEP]")
        t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", cls), ("[SEP]", sep)])
        names = dict(cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]")
        pad, bos, eos = t.token_to_id("[PAD]"), None, None
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=t, **names)
    fast.save_pretrained(folder)
    common = dict(vocab_size=t.get_vocab_size(), pad_token_id=pad, bos_token_id=bos, eos_token_id=eos)
    encoder = common | dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=LENGTH + 8,
                            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    sep = t.token_to_id("</s>") if roberta else None
    writer = common | dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64,
                           decoder_ffn_dim=64, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, init_std=0.3)
    short = dict(max_position_embeddings=LENGTH + 8)
    made = {
        "bert": lambda: transformers.BertModel(transformers.BertConfig(**encoder)),
        "roberta": lambda: transformers.RobertaModel(transformers.RobertaConfig(**encoder)),
        "electra": lambda: transformers.ElectraModel(transformers.ElectraConfig(**encoder, embedding_size=16)),
        "distilbert": lambda: transformers.DistilBertModel(transformers.DistilBertConfig(
            **common, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=LENGTH + 8, dropout=0.0, attention_dropout=0.0,
            qa_dropout=0.0, seq_classif_dropout=0.0)),
        "longformer": lambda: transformers.LongformerModel(transformers.LongformerConfig(**encoder, attention_window=8, sep_token_id=sep)),
        "big_bird": lambda: transformers.BigBirdModel(transformers.BigBirdConfig(
            **encoder, block_size=4, num_random_blocks=1, sep_token_id=sep, attention_type="original_full")),
        "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
            **common, n_embd=32, n_layer=2, n_head=2, n_positions=LENGTH, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.2)),
        "bart": lambda: transformers.BartForConditionalGeneration(transformers.BartConfig(
            **writer, **short, decoder_start_token_id=2, forced_bos_token_id=0, forced_eos_token_id=2)),
        "mbart": lambda: transformers.MBartForConditionalGeneration(transformers.MBartConfig(**writer, **short, decoder_start_token_id=4)),
        "pegasus": lambda: transformers.PegasusForConditionalGeneration(transformers.PegasusConfig(
            **writer, **short, decoder_start_token_id=1, forced_eos_token_id=2)),
        "led": lambda: transformers.LEDForConditionalGeneration(transformers.LEDConfig(
            **writer, max_encoder_position_embeddings=64, max_decoder_position_embeddings=LENGTH, attention_window=8, decoder_start_token_id=2)),
        "bigbird_pegasus": lambda: transformers.BigBirdPegasusForConditionalGeneration(transformers.BigBirdPegasusConfig(
            **writer, **short, decoder_start_token_id=0, attention_type="original_full", block_size=4)),
    }[kind]()
    made.save_pretrained(folder)


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr}")
    return done.stdout


CLASSES = {"completions": transformers.AutoModelForCausalLM, "tags": transformers.AutoModelForTokenClassification, "spans": transformers.AutoModelForQuestionAnswering,
           "summaries": transformers.AutoModelForSeq2SeqLM, "choice": transformers.AutoModelForMultipleChoice, "classes": transformers.AutoModelForSequenceClassification}


def padded(rows, pad):
    longest = max(len(row["input_ids"]) for row in rows)
    batch = {}
    for key in rows[0]:
        fill = {"input_ids": pad, "labels": -100}.get(key, 0)
        batch[key] = torch.tensor([row[key] + [fill] * (longest - len(row[key])) for row in rows])
    return batch


def kind_of(model):
    return model.config.model_type


class Theirs:
    """The package's model, and rows as its examples make them."""

    def __init__(self, folder, head):
        self.head = head
        self.t = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = CLASSES[head].from_pretrained(folder)
        for name, p in self.model.named_parameters():
            if kind_of(self.model) == "pegasus" and "embed_positions" in name:
                p.requires_grad_(False)  # sines, which transformers 5 trains
        self.types = getattr(self.model.config, "type_vocab_size", 0) > 1
        if kind_of(self.model) == "gpt2" and head == "tags":
            self.model.dropout = torch.nn.Identity()  # 0.1 unless the file says classifier_dropout
        if head == "choice" and hasattr(self.model, "sequence_summary"):
            self.model.sequence_summary.last_dropout = torch.nn.Identity()  # 0.1 whatever the file says

    def keep(self, row):
        typed = self.types and any(row.get("token_type_ids", []))  # where all are 0, models may have types of their own
        names = ["input_ids", "attention_mask"] + (["token_type_ids"] if typed else [])
        return {name: list(row[name]) for name in names}

    def windows(self, row):
        e = self.t(row["question"], row["context"], truncation="only_second", max_length=LENGTH, stride=STRIDE, return_overflowing_tokens=True,
                   return_offsets_mapping=True, return_token_type_ids=True)
        made = []
        for w in range(len(e["input_ids"])):
            one = {k: e[k][w] for k in ("input_ids", "attention_mask", "token_type_ids", "offset_mapping")}
            made.append((self.keep(one), one["offset_mapping"], e.sequence_ids(w)))
        return made

    def rows(self, row):
        """The rows of an example, with their targets."""
        c = self.model.config
        if self.head == "tags":
            e = self.t(row["tokens"], is_split_into_words=True, truncation=True, max_length=LENGTH, return_token_type_ids=True)
            labels, before = [], None
            for word in e.word_ids():
                labels.append(-100 if word is None or word == before else c.label2id[row["ner_tags"][word]])
                before = word
            return [self.keep(e) | {"labels": labels}]
        if self.head == "classes":
            return [self.keep(self.t(row["text"], truncation=True, max_length=LENGTH, return_token_type_ids=True)) | {"labels": [c.label2id[row["label"]]]}]
        if self.head == "completions":
            asked = self.t(row["prompt"], add_special_tokens=False)["input_ids"]
            ids = self.t(row["prompt"] + row["completion"], add_special_tokens=False)["input_ids"] + [self.t.eos_token_id]
            labels = [-100] * len(asked) + ids[len(asked):]
            return [{"input_ids": ids[:LENGTH + 1], "attention_mask": [1] * len(ids[:LENGTH + 1]), "labels": labels[:LENGTH + 1]}]
        if self.head == "summaries":
            e = self.t(row["article"], truncation=True, max_length=LENGTH)
            return [self.keep(e) | {"labels": list(self.t(text_target=row["highlights"], truncation=True, max_length=TARGET)["input_ids"])}]
        if self.head == "choice":
            made = []
            for j in range(4):
                e = self.t(row["sent1"], row["sent2"] + " " + row[f"ending{j}"], truncation=True, max_length=LENGTH, return_token_type_ids=True)
                made.append(self.keep(e) | {"labels": [row["label"]]})
            return [made]
        made = []
        for one, offsets, sequences in self.windows(row):
            start = end = 0
            if row["answers"]["text"]:
                first, last = row["answers"]["answer_start"][0], row["answers"]["answer_start"][0] + len(row["answers"]["text"][0])
                inside = [i for i, s in enumerate(sequences) if s == 1 and offsets[i][1] > first and offsets[i][0] < last]
                text = [i for i, s in enumerate(sequences) if s == 1]
                if offsets[text[0]][0] <= first and offsets[text[-1]][1] >= last:
                    start, end = inside[0], inside[-1]
            made.append(one | {"start_positions": [start], "end_positions": [end]})
        return made

    def loss(self, rows):
        pad = self.t.pad_token_id
        if self.head == "choice":
            flat = padded([{k: v for k, v in one.items() if k != "labels"} for row in rows for one in row], pad)
            batch = {k: v.view(len(rows), 4, -1) for k, v in flat.items()}
            return self.model(**batch, labels=torch.tensor([row[0]["labels"][0] for row in rows])).loss
        if self.head == "summaries":
            sources = padded([{k: v for k, v in row.items() if k != "labels"} for row in rows], pad)
            labels = padded([{"labels": row["labels"], "input_ids": row["labels"]} for row in rows], pad)["labels"]
            return self.model(**self.seen(sources), labels=labels).loss
        batch = padded(rows, pad)
        for name in ("start_positions", "end_positions"):
            if name in batch:
                batch[name] = batch[name][:, 0]
        if self.head == "classes":
            batch["labels"] = batch["labels"][:, 0]
        if self.head == "spans":
            # The package's own loss has padding among the places of an answer, so that it depends on the longest row.
            starts, ends = batch.pop("start_positions"), batch.pop("end_positions")
            out = self.model(**batch)
            padding = (batch["attention_mask"] == 0) * -1e30
            return sum(torch.nn.functional.cross_entropy(z + padding, at) for z, at in ((out.start_logits, starts), (out.end_logits, ends))) / 2
        return self.model(**batch).loss

    def seen(self, batch):
        if kind_of(self.model) != "led":
            return batch
        first = torch.zeros_like(batch["input_ids"])
        first[:, 0] = 1
        return batch | {"global_attention_mask": first}

    @torch.no_grad()
    def continued(self, prompt, **how):
        self.model.eval()
        ids = torch.tensor([self.t(prompt, add_special_tokens=False)["input_ids"]])
        out = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TARGET, do_sample=False, pad_token_id=self.t.eos_token_id, **how)
        return self.t.decode(out[0, ids.shape[1]:], skip_special_tokens=True)

    @torch.no_grad()
    def written(self, text):
        self.model.eval()
        e = self.keep(self.t(text, truncation=True, max_length=LENGTH))
        batch = self.seen({k: torch.tensor([v]) for k, v in e.items()})
        out = self.model.generate(**batch, num_beams=4, max_length=TARGET + 1, early_stopping=False, length_penalty=1.0)
        return self.t.decode(out[0], skip_special_tokens=True)

    @torch.no_grad()
    def answer(self, row):
        self.model.eval()
        found, none = [], None
        windows = self.windows(row)

        def context_of(w, token):
            """As squad_metrics has it: an answer begins in the window with most context around its first token."""
            _, offsets, sequences = windows[w]
            own = [i for i, s in enumerate(sequences) if s == 1]
            at = next((i for i in own if offsets[i] == token), None)
            return -1 if at is None else min(at - own[0], own[-1] - at) + 0.01 * len(own)

        for w, (one, offsets, sequences) in enumerate(windows):
            out = self.model(**{k: torch.tensor([v]) for k, v in one.items()})
            starts, ends = out.start_logits[0], out.end_logits[0]
            score = float(starts[0] + ends[0])
            none = score if none is None else min(none, score)
            for i in torch.argsort(starts, descending=True)[:20].tolist():
                for j in torch.argsort(ends, descending=True)[:20].tolist():
                    if sequences[i] == 1 and sequences[j] == 1 and i <= j < i + 30:
                        contexts = [context_of(v, offsets[i]) for v in range(len(windows))]
                        if contexts.index(max(contexts)) != w:
                            continue
                        found.append((float(starts[i] + ends[j]), row["context"][offsets[i][0]:offsets[j][1]]))
        best = max(found, default=(float("-inf"), ""))
        return "" if none - best[0] > 0 else best[1], none - best[0], best[0]

    @torch.no_grad()
    def predictions(self, row):
        self.model.eval()
        if self.head == "tags":
            one = self.rows(row)[0]
            z = self.model(**{k: torch.tensor([v]) for k, v in one.items() if k != "labels"}).logits[0]
            return [self.model.config.id2label[int(z[i].argmax())] for i, label in enumerate(one["labels"]) if label != -100]
        if self.head == "choice":
            z = [float(self.model(**{k: torch.tensor([[v]]) for k, v in one.items() if k != "labels"}).logits[0, 0]) for one in self.rows(row)[0]]
            return [str(max(range(4), key=lambda j: z[j]))]
        one = self.rows(row)[0]
        z = self.model(**{k: torch.tensor([v]) for k, v in one.items() if k != "labels"}).logits[0]
        return [self.model.config.id2label[int(z.argmax())]]


def compare(program, orders, work, kind, head):
    base, data = work / kind / "base", work / "data" / head
    options = ["--task", head, "--data", f"{head}={data}", "--length", LENGTH, "--batch", BATCH, "--lr", RATE, "--log-every", 1]
    if head == "spans":
        options = ["--set", f"labelled.stride={STRIDE}", *options]
    if head == "summaries":
        options = ["--target-length", TARGET, *options]
    parts = {part: [json.loads(line) for line in open(data / f"{part}.jsonl")] for part in ("train", "valid")}
    place = work / kind / head
    # One step with a rate of 0 gives a folder with the new head's weights.
    run(program, "train", "--from", base, *options[:-4], "--lr", 0, "--log-every", 1, "--steps", 1, "--out", place / "first")
    run(program, "export", place / "first", "--out", place / "begin")
    run(program, "train", "--from", place / "begin", *options, "--steps", STEPS, "--out", place / "run")
    losses = [row["loss"] for row in map(json.loads, open(place / "run/metrics.jsonl")) if "loss" in row]
    theirs = Theirs(place / "begin", head)
    rows = [one for row in parts["train"] for one in theirs.rows(row)]
    order = [int(x) for x in run(orders, len(rows), STEPS * BATCH, 1).split()]
    optimizer = torch.optim.AdamW(theirs.model.parameters(), lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, STEPS)
    theirs.model.train()
    worst = 0.0
    for step in range(STEPS):
        loss = theirs.loss([rows[i] for i in order[step * BATCH:(step + 1) * BATCH]])
        worst = max(worst, abs(loss.item() - losses[step]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    run(program, "export", place / "run", "--out", place / "out")
    if head in ("summaries", "completions"):
        figures = json.loads(run(program, "eval", "--json", "--out", place / "run").splitlines()[-1])
    else:
        figures = json.loads(run(program, "eval", "--json", "--out", place / "run", "--predictions", place / "p.csv").splitlines()[-1])
        given = list(csv.DictReader(open(place / "p.csv", newline="")))
    trained = Theirs(place / "out", head)
    differences, count = 0, 0
    if head == "completions":
        prompts = place / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": row["prompt"]}) + "\n" for row in parts["valid"]))
        for options, how in (
            (["--temperature", 0], {}),
            (["--beams", 3], {"num_beams": 3, "length_penalty": 1.0}),
            (["--temperature", 0, "--repetition-penalty", 1.7], {"repetition_penalty": 1.7}),
            (["--beams", 3, "--repetition-penalty", 1.7, "--no-repeat-ngram", 2],
             {"num_beams": 3, "repetition_penalty": 1.7, "no_repeat_ngram_size": 2}),
        ):
            lines = run(program, "generate", "--out", place / "run", "--prompts", prompts, "--json", "--tokens", TARGET, *options).splitlines()
            for line, row in zip(lines, parts["valid"], strict=True):
                count += 1
                differences += json.loads(line)["text"] != trained.continued(row["prompt"], **how)
        figures["valid_f1"] = figures["valid_perplexity"]
    elif head == "summaries":
        for i, row in enumerate(parts["valid"]):
            (place / f"{i}.txt").write_text(row["article"])
        files = [place / f"{i}.txt" for i in range(len(parts["valid"]))]
        mine = [json.loads(line)["summary"] for line in run(program, "summarise", "--out", place / "run", "--beams", 4, "--json", *files).splitlines()]
        want = [trained.written(row["article"]) for row in parts["valid"]]
        count = len(want)
        for a, b in zip(mine, want, strict=True):
            differences += [line for line in a.split("\n") if line] != [line for line in b.split("\n") if line]
            if differences == 1 and a != b:
                print(repr(a), repr(b))
        figures["valid_f1"] = figures["valid_rouge"]["rouge1"]
    elif head == "spans":
        for row, mine in zip(parts["valid"], given, strict=True):
            text, difference, _ = trained.answer(row)
            count += 1
            if mine["predicted"] != text or abs(float(mine["no_answer"]) - difference) > 1e-3:
                differences += abs(difference) > 1e-3
    else:
        mine = [row["predicted"] for row in given]
        want = [p for row in parts["valid"] for p in trained.predictions(row)]
        count = len(want)
        differences = sum(a != b for a, b in zip(mine, want, strict=True))
    score = figures.get("valid_f1", figures.get("valid_accuracy"))
    good = worst < 1e-4 and differences == 0
    print(f"{kind:<11} {head:<8} losses {losses[0]:.4f} to {losses[-1]:.4f}, furthest {worst:.1e}; {differences} of {count} predictions differ; "
          f"score {score:.2f}{'' if good else '   NOT EQUAL'}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "build/dev/longspan", type=pathlib.Path)
    parser.add_argument("--types", default="bert,distilbert,electra,roberta,longformer,big_bird,gpt2," + ",".join(WRITERS))
    parser.add_argument("--heads", default="classes,tags,spans,choice,summaries,completions")
    parser.add_argument("--work", type=pathlib.Path, help="an empty folder that stays")
    o = parser.parse_args()
    work = o.work or pathlib.Path(tempfile.mkdtemp())
    orders = o.program.parent / "tests/order_of_rows"
    good = True
    for head in o.heads.split(","):
        make_data(work / "data" / head, head)
    for kind in o.types.split(","):
        make_base(work / kind / "base", kind)
        for head in o.heads.split(","):
            if (head == "summaries") != (kind in WRITERS) or head in ABSENT.get(kind, ("completions",)):
                continue
            try:
                good = compare(o.program, orders, work, kind, head) and good
            except RuntimeError as error:
                good = False
                print(f"{kind:<11} {head:<8} {error}", flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
