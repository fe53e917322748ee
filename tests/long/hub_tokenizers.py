#!/usr/bin/env python3
"""Compares tokenizers of hub folders with the package tokenizers (Python with `tokenizers` needed):

    cmake --build build/dev --target hub_ids
    PYTHON tests/long/hub_tokenizers.py [--lines N] [--seed N] [--variants N] [FOLDER...]

For each folder, the golden ones if none is given: ids, token types, sources in code points, words and
decoded texts of N lines (10,000) of mixed scripts, marks, names of added tokens and white space, of all
assigned characters, and of pairs. Then of `--variants` tokenizers (40) whose components are drawn at
random. Prints what differs and how many lines; exit status 1 if any does.

    PYTHON tests/long/hub_tokenizers.py --speed TEXT

trains WordPiece, byte-level BPE and Unigram (NFKC) with 20,000 tokens on a text, plain or gzip, and prints MB/s of its
lines here and in the package, the best of five passes of each in turn.
"""

import argparse
import gzip
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "dev" / "tests" / "hub_ids"
BLOCKS = [(0x21, 0x7E), (0x41, 0x7A), (0xA1, 0x24F), (0x250, 0x2FF), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x58F), (0x591, 0x5F4), (0x600, 0x6FF),
          (0x900, 0x97F), (0x980, 0x9FE), (0xB80, 0xBFA), (0xE01, 0xE5B), (0xF00, 0xFDA), (0x1000, 0x109F), (0x10A0, 0x11FF), (0x1200, 0x139F),
          (0x1780, 0x17F9), (0x1E00, 0x1FFE), (0x2000, 0x206F), (0x2070, 0x218B), (0x2190, 0x23FF), (0x2460, 0x27BF), (0x3000, 0x30FF), (0x3130, 0x33FF),
          (0x3400, 0x3500), (0x4E00, 0x9FFF), (0xA640, 0xA7FF), (0xAC00, 0xD7FF), (0xF900, 0xFFFD), (0x10000, 0x101FF), (0x10A00, 0x10AFF),
          (0x11000, 0x116FF), (0x1D400, 0x1D7FF), (0x1E900, 0x1E95F), (0x1F100, 0x1FAFF), (0x20000, 0x20100), (0x2F800, 0x2FA1D), (0xE0000, 0xE01EF)]
SPACES = [" ", " ", " ", "  ", "   ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2028", "\u0085", "\u200b", ""]
WORDS = "the a of and in to is was don't I'll it's e-mail 3.14 x=1 (y) [z] don''t \u2581 \u2581a ## <0x41> naïve Ünder ǅ ﬁn ½ IJ".split(" ")


def lines_of(r, count, names):
    lines = []
    for i in range(count):
        parts = []
        for _ in range(r.randint(0, 14)):
            kind = r.random()
            low, high = r.choice(BLOCKS)
            if kind < 0.35:
                parts.append(r.choice(WORDS))
            elif kind < 0.55:
                parts.append("".join(chr(r.randint(low, high)) for _ in range(r.randint(1, 7))))
            elif kind < 0.7:
                parts.append("".join(chr(r.choice([r.randint(low, high), r.randint(0x20, 0x7E), r.randint(0x300, 0x36F)])) for _ in range(r.randint(1, 6))))
            elif kind < 0.85:
                parts.append("".join(r.choice("abcdefghijklmnopqrstuvwxyzABCDEF0123456789.,!?'") for _ in range(r.randint(1, 12))))
            elif names and kind < 0.95:
                parts.append(r.choice(["", "x", ""]) + r.choice(names) + r.choice(["", "y", "", "9"]))
            else:
                c = r.randint(1, 0x10FFFF)
                parts.append(chr(c) if not 0xD800 <= c < 0xE000 else "?")
        lines.append("".join(p + r.choice(SPACES) for p in parts))
    return lines


def assigned(r):
    points = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) not in ("Cn", "Co")]
    points = [c for c in points if not (0x3500 <= c <= 0x9F00 or 0xAC80 <= c <= 0xD700 or 0x17100 <= c <= 0x18C00 or c >= 0x20100) or c % 29 == 0]
    return ["".join(f"a{chr(c)}b " if i % 2 else f"{chr(c)}1{chr(c)}" for i, c in enumerate(points[at:at + 20])) for at in range(0, len(points), 20)]


def expected(t, line):
    e = t.encode(*line) if isinstance(line, list) else t.encode(line)
    return e, t.decode(e.ids, skip_special_tokens=False)


def code_points(text, spans):
    """Spans in bytes as spans in code points."""
    data = text.encode()
    return [(len(data[:a].decode(errors="ignore")), len(data[:b].decode(errors="ignore"))) for a, b in spans]


def compare(folder, lines, folder_name):
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "lines.json")
        pathlib.Path(path).write_text(json.dumps(lines, ensure_ascii=False), encoding="utf-8")
        run = subprocess.run([PROGRAM, folder, path, "special"], capture_output=True)
        if run.returncode != 0:
            print(f"{folder_name}: exit status {run.returncode}: {run.stderr.decode(errors='replace')[-2000:]}")
            return 1
    ours = [json.loads(line) for line in run.stdout.decode().split("\n") if line]
    assert len(ours) == len(lines)
    t = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    t.no_truncation()
    t.no_padding()
    bad = 0
    for line, made in zip(lines, ours):
        e, decoded = expected(t, line)
        wanted = {"ids": e.ids, "types": e.type_ids, "text": decoded, "words": [-1 if w is None else w for w in e.word_ids]}
        texts = line if isinstance(line, list) else [line]
        spans = []
        for i, span in enumerate(made["spans"]):
            sequence = e.sequence_ids[i] if i < len(e.sequence_ids) else None
            spans.append([0, 0] if sequence is None else list(code_points(texts[sequence], [span])[0]))
        made["spans"] = spans
        wanted["spans"] = [list(x) for x in e.offsets]
        wrong = [k for k in wanted if made[k] != wanted[k]]
        if wrong:
            bad += 1
            if bad <= 3:
                k = wrong[0]
                at = next((i for i, (a, b) in enumerate(zip(made[k], wanted[k])) if a != b), min(len(made[k]), len(wanted[k])))
                print(f"{folder_name}: {wrong} of {line!r}, first at {at}:\n  ours    {made[k][max(0, at - 3):at + 8]}\n"
                      f"  package {wanted[k][max(0, at - 3):at + 8]}\n  tokens  {e.tokens[max(0, at - 3):at + 8]}")
    print(f"{folder_name}: {len(lines)} lines, {bad} differ", flush=True)
    return bad


def drawn(r, models):
    """A tokenizer.json whose components are drawn."""
    def one(choices):
        return r.choice(choices)()
    flag = lambda: r.random() < 0.5  # noqa: E731
    charsmaps = [n for m in models for n in parts_of(m["normalizer"], "normalizers") if n["type"] == "Precompiled"]
    normalizer = [lambda: {"type": "BertNormalizer", "clean_text": flag(), "handle_chinese_chars": flag(), "strip_accents": r.choice([None, True, False]), "lowercase": flag()},
                  lambda: r.choice(charsmaps), lambda: {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": r.choice([" ", "\u2581", "", "ab"])},
                  lambda: {"type": "Replace", "pattern": {"String": r.choice(["e", "a\u0301", " ", "th"])}, "content": r.choice(["", "xy", "\u00e9"])},
                  lambda: {"type": r.choice(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"])},
                  lambda: {"type": "Strip", "strip_left": flag(), "strip_right": flag()}, lambda: {"type": "Prepend", "prepend": r.choice(["\u2581", "ab"])}]
    pre = [lambda: {"type": r.choice(["BertPreTokenizer", "WhitespaceSplit", "Whitespace"])},
           lambda: {"type": "ByteLevel", "add_prefix_space": flag(), "trim_offsets": flag(), "use_regex": r.random() < 0.8},
           lambda: {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": r.choice(["always", "first", "never"]), "split": flag()},
           lambda: {"type": "Punctuation", "behavior": r.choice(["Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"])},
           lambda: {"type": "Digits", "individual_digits": flag()}]
    out = json.loads(json.dumps(r.choice(models)))
    out["normalizer"] = r.choice([None, {"type": "Sequence", "normalizers": [one(normalizer) for _ in range(r.randint(1, 3))]}])
    out["pre_tokenizer"] = r.choice([None, one(pre), {"type": "Sequence", "pretokenizers": [one(pre) for _ in range(r.randint(1, 3))]}])
    if r.random() < 0.3:
        out["post_processor"] = {"type": "ByteLevel", "add_prefix_space": flag(), "trim_offsets": flag(), "use_regex": True}
    for token in out["added_tokens"]:
        token |= {k: r.random() < 0.3 for k in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    return out


def speed(path):
    text = (gzip.open(path, "rt") if path.endswith(".gz") else open(path)).read()
    lines = [line for line in text.splitlines() if line.strip()]
    size, vocabulary = sum(len(line.encode()) for line in lines), 20000
    kinds = {"WordPiece": (models.WordPiece(unk_token="[UNK]"), normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(),
                           trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=["[UNK]"], show_progress=False)),
             "BPE": (models.BPE(), None, pre_tokenizers.ByteLevel(add_prefix_space=False), trainers.BpeTrainer(
                 vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)),
             "Unigram": (models.Unigram(), normalizers.NFKC(), pre_tokenizers.Metaspace(), trainers.UnigramTrainer(
                 vocab_size=vocabulary, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False))}
    for name, (model, normalizer, pre_tokenizer, trainer) in kinds.items():
        t = Tokenizer(model)
        if normalizer is not None:
            t.normalizer = normalizer
        t.pre_tokenizer = pre_tokenizer
        t.train_from_iterator(lines, trainer)
        with tempfile.TemporaryDirectory() as place:
            t.save(os.path.join(place, "tokenizer.json"))
            t = Tokenizer.from_file(os.path.join(place, "tokenizer.json"))
            path = os.path.join(place, "lines.json")
            pathlib.Path(path).write_text(json.dumps(lines, ensure_ascii=False), encoding="utf-8")
            seconds = []
            ours = subprocess.run([PROGRAM, place, path, "speed"], capture_output=True, text=True, check=True).stdout.strip()
            for _ in range(5):
                begin = time.perf_counter()
                t.encode_batch_fast(lines, add_special_tokens=False)
                seconds.append(time.perf_counter() - begin)
        print(f"{name}: {ours}; the package: {size * 1e-6 / min(seconds):.1f} MB/s", flush=True)


def parts_of(component, name):
    if component is None:
        return []
    return component.get(name, [component])


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--lines", type=int, default=10000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--variants", type=int, default=40)
    options.add_argument("--speed", help="a text")
    options.add_argument("folders", nargs="*")
    o = options.parse_args()
    if o.speed:
        return speed(o.speed)
    folders = o.folders or sorted(str(p.parent) for p in (ROOT / "tests/oracles/golden/hub").glob("*/tokenizer.json"))
    r = random.Random(o.seed)
    bad, models = 0, []
    for folder in folders:
        file = json.loads(pathlib.Path(folder, "tokenizer.json").read_text(encoding="utf-8"))
        models.append(file)
        names = [t["content"] for t in file["added_tokens"]]
        lines = lines_of(r, o.lines, names)
        bad += compare(folder, lines, os.path.basename(folder))
        bad += compare(folder, [[a, b] for a, b in zip(lines[:200], lines[200:400])], os.path.basename(folder) + ", pairs")
        bad += compare(folder, assigned(r), os.path.basename(folder) + ", assigned characters")
    for i in range(o.variants):
        with tempfile.TemporaryDirectory() as place:
            file = drawn(r, models)
            pathlib.Path(place, "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
            found = compare(place, lines_of(r, o.lines // 20, [t["content"] for t in file["added_tokens"]]), f"variant {i}")
            if found:
                print(json.dumps({k: file[k] for k in ("normalizer", "pre_tokenizer", "post_processor")})[:1500], [
                    {k: v for k, v in t.items() if v} for t in file["added_tokens"]], file["model"].get("type"))
            bad += found
    sys.exit(1 if bad else 0)


main()
