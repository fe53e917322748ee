#!/usr/bin/env python3
"""Fine-tunes a classifier beside the package transformers (Python with torch, transformers and tokenizers needed):

    cmake --build build/dev --target longspan_program order_of_rows
    PYTHON tests/long/fine_tuning.py --other FILE [--work DIR] [--steps N] [--seeds N]

Which of two books is a line from? 4,000 lines of the bundled tinyshakespeare.txt.gz and of FILE (plain or gzip) to
train on, 1,000 to score. A BERT folder with random weights and a tokenizer of its own is made, and trained with the
commands of docs/fine-tuning.md and with PyTorch: the same weights, batches, AdamW and schedule.

1. Without dropout: the losses of the first 50 steps must differ by less than 1e-4.
2. With dropout, `--seeds` runs of each (3): the mean accuracies may differ by twice the larger standard deviation, or
   by one point, whichever is more.
3. The exported folder must give the same labels in the package as `longspan predict`, and the same probabilities to
   1e-4.

Exit status 1 if one does not hold.
"""

import argparse
import csv
import gzip
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import torch
import transformers
from tokenizers import BertWordPieceTokenizer

transformers.utils.logging.disable_progress_bar()

ROOT = pathlib.Path(__file__).resolve().parents[2]
LENGTH, BATCH, RATE = 64, 8, 5e-4


def lines_of(path):
    text = (gzip.open(path, "rt") if str(path).endswith(".gz") else open(path)).read()
    return sorted({line.strip() for line in text.splitlines() if 25 <= len(line.strip()) <= 300})


def make_data(folder, other):
    r = random.Random(1)
    books = {"shakespeare": lines_of(ROOT / "data/samples/tinyshakespeare.txt.gz"), "other": lines_of(other)}
    rows = [(text, label) for label, lines in books.items() for text in r.sample(lines, 2500)]
    r.shuffle(rows)
    folder.mkdir(parents=True)
    parts = {"train": rows[:4000], "valid": rows[4000:]}
    for part, some in parts.items():
        with open(folder / f"{part}.csv", "w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *some])
    return parts


def make_folder(folder, texts, dropout):
    """A classifier of three layers with random weights; the same weights whatever the dropout."""
    torch.manual_seed(1)
    folder.mkdir(parents=True)
    tokenizer = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(texts, vocab_size=3000, show_progress=False)
    transformers.BertTokenizerFast(tokenizer_object=tokenizer._tokenizer, do_lower_case=True).save_pretrained(folder)
    config = transformers.BertConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=128, num_hidden_layers=3, num_attention_heads=4,
                                     intermediate_size=512, max_position_embeddings=LENGTH, hidden_dropout_prob=dropout,
                                     attention_probs_dropout_prob=dropout, id2label={0: "other", 1: "shakespeare"},
                                     label2id={"other": 0, "shakespeare": 1})
    model = transformers.BertForSequenceClassification(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.mul_(3)  # larger than a fresh model's, so that losses differ from step to step
    model.save_pretrained(folder)


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr}")
    return done.stdout


def ours(program, folder, data, out, steps, seed):
    """The losses of all steps and the accuracy."""
    run(program, "train", "--from", folder, "--task", "classes", "--data", f"classes={data}", "--length", LENGTH, "--batch", BATCH, "--lr", RATE,
        "--steps", steps, "--seed", seed, "--log-every", 1, "--out", out)
    rows = [json.loads(line) for line in open(out / "metrics.jsonl")]
    losses = {row["step"]: row["loss"] for row in rows if "loss" in row}
    return losses, json.loads(run(program, "eval", "--json", "--out", out).splitlines()[-1])["valid_accuracy"]


def theirs(orders, folder, parts, steps, seed):
    torch.manual_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, steps)
    order = [int(x) for x in run(orders, len(parts["train"]), steps * BATCH, seed).split()]

    def batch_of(rows):
        e = tokenizer([text for text, _ in rows], truncation=True, max_length=LENGTH, padding=True, return_tensors="pt")
        return e | {"labels": torch.tensor([model.config.label2id[label] for _, label in rows])}

    losses = {}
    model.train()
    for step in range(steps):
        rows = [parts["train"][i] for i in order[step * BATCH:(step + 1) * BATCH]]
        loss = model(**batch_of(rows)).loss
        losses[step + 1] = loss.item()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()
    right = 0
    with torch.no_grad():
        for at in range(0, len(parts["valid"]), 100):
            batch = batch_of(parts["valid"][at:at + 100])
            right += int((model(**batch).logits.argmax(1) == batch["labels"]).sum())
    return losses, 100 * right / len(parts["valid"])


def compare_export(program, out, parts, work):
    run(program, "export", out, "--out", work / "classifier")
    lines = [text for text, _ in parts["valid"]]
    (work / "lines.txt").write_text("\n".join(lines) + "\n")
    rows = [line.split("\t") for line in run(program, "predict", "--out", out, work / "lines.txt").splitlines()]
    tokenizer = transformers.AutoTokenizer.from_pretrained(work / "classifier")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(work / "classifier").eval()
    labels = differences = 0
    worst = 0.0
    with torch.no_grad():
        for line, (label, p) in zip(lines, rows, strict=True):
            e = tokenizer(line, truncation=True, max_length=LENGTH, return_tensors="pt")
            q = torch.softmax(model(**e).logits[0], 0)
            labels += 1
            differences += model.config.id2label[int(q.argmax())] != label and abs(float(q.max()) - 0.5) > 1e-4
            worst = max(worst, abs(float(q.max()) - float(p)))
    return labels, differences, worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", required=True, help="the other book")
    parser.add_argument("--work", help="an empty folder to keep everything in")
    parser.add_argument("--steps", type=int, default=500, help="steps of the runs with dropout (500: one epoch)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--build", default=str(ROOT / "build/dev"))
    options = parser.parse_args()
    build = pathlib.Path(options.build)
    program, orders = build / "longspan", build / "tests/order_of_rows"
    work = pathlib.Path(options.work or tempfile.mkdtemp(prefix="fine-tuning-"))
    parts = make_data(work / "books", options.other)
    texts = [text for text, _ in parts["train"]]
    held = True

    make_folder(work / "plain", texts, 0.0)
    a, _ = ours(program, work / "plain", work / "books", work / "run-plain", 50, 1)
    b, _ = theirs(orders, work / "plain", parts, 50, 1)
    gaps = {step: abs(a[step] - b[step]) for step in b}
    worst = max(gaps, key=gaps.get)
    print(f"without dropout: losses of {len(gaps)} steps from {a[1]:.4f} to {a[50]:.4f} differ by at most {gaps[worst]:.1e} (step {worst})", flush=True)
    held &= len(gaps) == 50 and gaps[worst] < 1e-4

    make_folder(work / "dropped", texts, 0.1)
    mine = [ours(program, work / "dropped", work / "books", work / f"run-{seed}", options.steps, seed)[1] for seed in range(1, options.seeds + 1)]
    peers = [theirs(orders, work / "dropped", parts, options.steps, seed)[1] for seed in range(1, options.seeds + 1)]
    gap = abs(statistics.mean(mine) - statistics.mean(peers))
    bound = max(1.0, 2 * max(statistics.stdev(mine), statistics.stdev(peers))) if options.seeds > 1 else 1.0
    print(f"with dropout, {options.steps} steps: accuracies {mine} here, {peers} there; means differ by {gap:.2f}, bound {bound:.2f}", flush=True)
    held &= gap <= bound

    labels, differences, probability = compare_export(program, work / "run-1", parts, work)
    print(f"exported: {differences} of {labels} labels differ, probabilities by at most {probability:.1e}", flush=True)
    held &= differences == 0 and probability < 1e-4
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
