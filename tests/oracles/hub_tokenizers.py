#!/usr/bin/env python3
"""Writes golden/hub/: small tokenizers as tokenizer.json, and what the package tokenizers makes of texts
with them: ids, token types, sources, rows of pairs, windows, truncated rows and decoded texts; what its
normalizers make of every code point; and what folders with settings give.

    .venv/bin/python hub_tokenizers.py            # writes everything again
    .venv/bin/python hub_tokenizers.py --check    # computes the expected values again and compares

Tokenizers are trained on the texts in tokenizers_golden.py; a text is nothing else that one would miss.
"""

import json
import os
import pathlib
import shutil
import struct
import sys
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders as D
from tokenizers import models as M
from tokenizers import normalizers as N
from tokenizers import pre_tokenizers as P
from tokenizers import processors as R
from tokenizers import trainers as T

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "golden" / "hub"


def texts_of_other_goldens():
    source = (HERE / "tokenizers_golden.py").read_text(encoding="utf-8")
    begin = source.index("TEXTS = [")
    scope = {}
    exec(source[begin:source.index("\n]\n", begin) + 3], scope)
    return scope["TEXTS"]


TEXTS = [t for t in texts_of_other_goldens() if len(t) < 1000] + [
    "newword Capital capital CAPITAL whole wholes a whole.", "x  left  right  y", "[MASK]s and [MASK] [ENT]",
    "a<mask>b  <mask> <mask>", "<s>a</s> b", "\u2581a \u2581 b\u2581", "Tie\u0302\u0301ng Vie\u0323\u0302t", "\r\n\r",
    "\u0600A\u0301 \u1100\u1161\u11a8 \uac00\u11a8 \ud55c\uae00 \u0958", "\u00a9\u200d\u00a9\u0301 \u0915\u094d\u0915\u0301 \U0001f1e9\U0001f1ea\u0301",
    "A\u0301B\u0301 \ufb01 \u00bd \u2460 \u33a5 \u0344 \u0f73\u0323", "1a22b333 \u0663\u0664 IX \u2168"]
PAIRS = [("Speak, speak.", "What does he say?"), ("", "b"), ("a", ""), ("one two three four five six", "I'll go"),
         ("short", "a second text that is much longer than the first one, by far")]


def rules(pairs):
    """Rules of the normalizer Precompiled, as a double array: each key, in bytes, leads to its text."""
    tree = {}
    for key, text in pairs.items():
        node = tree
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[0] = text
    units, texts, bases = {0: 0}, b"", set()

    def place(at, node):
        nonlocal texts
        base = next(b for b in range(1, 1 << 16) if b not in bases and not any(b ^ byte in units for byte in node)
                    and 0 not in (b ^ byte for byte in node))
        bases.add(base)
        units[at] |= (base ^ at) << 10
        for byte in node:
            units[base ^ byte] = byte
        for byte, child in node.items():
            if byte == 0:
                units[at] |= 1 << 8
                units[base] = len(texts)
                texts += child.encode() + b"\0"
            else:
                place(base ^ byte, child)

    place(0, tree)
    size = max(units) + 256
    return struct.pack("<I", 4 * size) + struct.pack(f"<{size}I", *(units.get(i, 0) for i in range(size))) + texts


def tokenizers():
    """name -> tokenizer."""
    lines = TEXTS * 2
    out = {}

    def word_piece(**options):
        t = Tokenizer(M.WordPiece(unk_token="[UNK]"))
        t.normalizer = N.BertNormalizer(**options)
        t.pre_tokenizer = P.BertPreTokenizer()
        t.train_from_iterator(lines, T.WordPieceTrainer(vocab_size=420, limit_alphabet=110, show_progress=False,
                                                        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
        t.post_processor = R.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
        t.decoder = D.WordPiece()
        return t

    t = word_piece()
    t.add_tokens([AddedToken("newword"), AddedToken("Capital", normalized=True), AddedToken("whole", single_word=True),
                  AddedToken("left", lstrip=True), AddedToken("right", rstrip=True, normalized=False)])
    t.add_special_tokens(["[ENT]"])
    out["wordpiece"] = t
    t = word_piece(lowercase=False)
    t.post_processor = R.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    out["wordpiece_cased"] = t

    def byte_level(prefix):
        t = Tokenizer(M.BPE())
        t.pre_tokenizer = P.ByteLevel(add_prefix_space=prefix)
        t.decoder = D.ByteLevel()
        t.train_from_iterator(lines, T.BpeTrainer(vocab_size=360, initial_alphabet=sorted(P.ByteLevel.alphabet()),
                                                  special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False))
        t.add_special_tokens([AddedToken("<mask>", lstrip=True)])
        t.post_processor = R.RobertaProcessing(("</s>", 2), ("<s>", 0), True, prefix)
        return t

    out["roberta"], out["roberta_prefix"] = byte_level(False), byte_level(True)
    t = byte_level(False)
    t.pre_tokenizer = P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False), P.Punctuation("contiguous")])
    t.post_processor = R.Sequence([R.ByteLevel(trim_offsets=False), R.TemplateProcessing(
        single="<s> $A", pair="<s> $A </s> $B:2", special_tokens=[("<s>", 0), ("</s>", 2)])])
    out["sequence"] = t

    t = Tokenizer(M.BPE(unk_token="<unk>", end_of_word_suffix="</w>", fuse_unk=True))
    t.normalizer = N.Sequence([N.NFD(), N.Lowercase(), N.StripAccents(), N.Strip(right=False), N.Replace("e", "\u00e9!")])
    t.pre_tokenizer = P.Whitespace()
    t.train_from_iterator(lines, T.BpeTrainer(vocab_size=130, special_tokens=["<unk>"], end_of_word_suffix="</w>",
                                              show_progress=False, limit_alphabet=50))
    t.decoder = D.BPEDecoder()
    out["suffix"] = t

    pieces = ["<unk>"] + [f"<0x{b:02X}>" for b in range(256)] + ["\u2581", "a", "b", "\u2581a", "e", "\u2581e", "t", "h", "th", "he", "the", "\u2581the", "\u00e9"]
    merges = [("\u2581", "a"), ("t", "h"), ("\u2581", "e"), ("h", "e"), ("th", "e"), ("\u2581", "the")]
    t = Tokenizer(M.BPE({p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True, ignore_merges=True))
    t.normalizer = N.Sequence([N.Prepend("\u2581"), N.Replace(" ", "\u2581")])
    t.decoder = D.Sequence([D.Replace("\u2581", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])
    out["byte_fallback"] = t

    def scored(words):
        return [("<unk>", 0.0)] + [(w, -1.5 - 0.37 * i - 0.01 * (i * i % 7)) for i, w in enumerate(words)]

    words = ["\u2581", "\u2581a", "a", "b", "e", "\u2581the", "th", "he", "t", "h", "s", "\u2581s", "er", "r", "n", "in", "\u2581in", "o", "on",
             "l", "ll", "\u2581w", "i", "\u00e9", "\u2581sp", "eak", "ea", "k", ",", ".", "!", "d", "u", "c", "m", "y", "1", "2", "I", "S", "\u0301", "x", "xx", "-"]
    changes = {"A": "a", "\u00c9": "e", "e\u0301": "e", "\u00a0": " ", "\u3000": " ", "\ufb01": "fi", "\u00ad": "", "\t": " ", "\r": " ", "\n": " ",
               "\u2126": "\u03c9", "\u1100\u1161": "\uac00", "\u0600": "b", "\u00a9": "cc"}
    t = Tokenizer(M.Unigram(scored(words), unk_id=0, byte_fallback=False))
    t.normalizer = N.Sequence([N.Precompiled(rules(changes)), N.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = P.Sequence([P.WhitespaceSplit(), P.Metaspace(prepend_scheme="always")])
    t.decoder = D.Metaspace()
    t.add_special_tokens(["<s>", "</s>", "<pad>", "<mask>"])
    t.post_processor = R.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
                                            special_tokens=[("<s>", 45), ("</s>", 46)])
    out["unigram"] = t
    assert t.token_to_id("<s>") == 45 and t.token_to_id("</s>") == 46
    t = Tokenizer(M.Unigram(scored(words)[:1] + [(f"<0x{b:02X}>", -20.0) for b in range(256)] + scored(words)[1:], unk_id=0, byte_fallback=True))
    t.pre_tokenizer = P.Metaspace(prepend_scheme="first")
    t.decoder = D.Sequence([D.Replace("\u2581", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])
    t.add_special_tokens(["<sep>"])
    out["unigram_bytes"] = t
    t = Tokenizer(M.Unigram(scored(words), unk_id=0))
    t.normalizer = N.Sequence([N.NFKC(), N.Strip()])
    t.pre_tokenizer = P.Sequence([P.Punctuation("merged_with_previous"), P.Digits(), P.Metaspace(prepend_scheme="never", split=False)])
    out["unigram_nfkc"] = t
    return out


def fnv(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def numbers(values):
    return " ".join(str(v) for v in values)


def shown(e, types=True):
    """A row as text: ids, types, sources in code points, words."""
    spans = [x for span in e.offsets for x in span]
    return ";".join(numbers(x) for x in (e.ids, e.type_ids if types else [], spans, [-1 if w is None else w for w in e.word_ids]))


def expected(t):
    """Hashes of what a tokenizer makes of the texts."""
    out = {name: [] for name in ("texts", "template", "decoded", "skipped", "words", "pairs", "truncated", "windows")}
    for text in TEXTS:
        e = t.encode(text)
        out["texts"].append(fnv(shown(t.encode(text, add_special_tokens=False))))
        out["template"].append(fnv(shown(e)))
        out["decoded"].append(fnv(t.decode(e.ids, skip_special_tokens=False)))
        out["skipped"].append(fnv(t.decode(e.ids)))
        out["words"].append(fnv(shown(t.encode(text.split(" "), is_pretokenized=True))))
    out["pairs"] = [fnv(shown(t.encode(a, b))) for a, b in PAIRS]
    for length in (8, 9, 10, 12):
        for a, b in PAIRS[3:]:
            t.enable_truncation(length)
            t.enable_padding(length=14, pad_id=1, direction="left")
            out["truncated"].append(fnv(numbers(t.encode(a, b).ids)))
            t.no_truncation()
            t.no_padding()
    for direction in ("right", "left"):
        t.enable_truncation(60, stride=3, strategy="only_second", direction=direction)
        e = t.encode("short", " ".join(TEXTS[5:9]))
        # The package forgets the types of the template in all windows but the first.
        out["windows"].append([fnv(shown(x, types=False)) for x in [e] + e.overflowing])
        t.no_truncation()
    return out


def every_byte(units=None):
    units = [256 << 10] + [0] * 767
    for byte in range(1, 256):
        at = 256 ^ byte
        units[at] = byte | 1 << 8 | (at ^ 512) << 10
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + b"b\0"


def every_code_point():
    """A hash of what each normalizer makes of 4,096 code points, each between others."""
    clusters = N.Precompiled(every_byte())
    level = {"NFC": N.NFC(), "NFD": N.NFD(), "NFKC": N.NFKC(), "NFKD": N.NFKD(), "Lowercase": N.Lowercase(), "StripAccents": N.StripAccents(),
             "Strip": N.Strip(), "clusters": clusters}
    out = {name: [] for name in list(level) + ["Whitespace", "Digits"]}
    for begin in range(0, 0x110000, 4096):
        points = [c for c in range(begin, begin + 4096) if not 0xD800 <= c < 0xE000]
        if not points:
            continue
        for name, normalizer in level.items():
            mark = "\u1161" if name == "clusters" else "\u0327"
            made = "".join(normalizer.normalize_str(chr(c) + "a\u0301" + chr(c) + mark + "\u0301" + chr(c) + chr(c)) + "\n" for c in points)
            out[name].append(fnv(made))
        for name, p in (("Whitespace", P.Whitespace()), ("Digits", P.Digits(individual_digits=False))):
            made = ""
            for c in points:
                made += " ".join(f"{a}-{b}" for _, (a, b) in p.pre_tokenize_str("a" + chr(c) * 2 + "b!" + chr(c))) + "\n"
            out[name].append(fnv(made))
    return out


def make(check):
    found = tokenizers()
    if check:
        found = {name: Tokenizer.from_file(str(OUT / name / "tokenizer.json")) for name in found}
    else:
        shutil.rmtree(OUT, ignore_errors=True)
        for name, t in found.items():
            (OUT / name).mkdir(parents=True)
            t.save(str(OUT / name / "tokenizer.json"), pretty=False)
    return {"texts": TEXTS, "pairs": PAIRS, "expected": {name: expected(t) for name, t in found.items()}, "every": every_code_point()}


def main():
    check = "--check" in sys.argv
    made = json.dumps(make(check), ensure_ascii=False, separators=(",", ":")) + "\n"
    path = OUT / "cases.json"
    if check:
        assert path.read_text(encoding="utf-8") == made, f"{path} differs"
    else:
        path.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
