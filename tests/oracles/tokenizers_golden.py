"""Writes golden/text/: small vocabularies, and what the reference tokenizers make of texts with them.

    .venv/bin/python tokenizers_golden.py            # all but the vocabularies again
    .venv/bin/python tokenizers_golden.py --train    # the vocabularies too
    .venv/bin/python tokenizers_golden.py --check    # computes everything again and compares
"""

import gzip
import json
import pathlib
import random
import sys
import unicodedata

import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "golden" / "text"
CORPUS = HERE.parent.parent / "data" / "samples" / "tinyshakespeare.txt.gz"

TEXTS = [
    "",
    " ",
    "\n",
    "   \n\n\t  ",
    "a",
    "Hello, world!",
    "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n",
    "I'll say it's what they've done; he'd go, we're here, I'm not, can't.",
    "I'LL SAY IT'S'S 'tis 's 'S ''s",
    "two  spaces,   three, and at the end   ",
    "  leading spaces",
    "tab\there\nline \n line\r\ncarriage\rreturn",
    "1,234.56 + 7e-8 = x2y3 4th ½ ² Ⅷ ٣٤",
    "naïve café Ünïcödé ÀÉÎÕÜ ß ẞ Å Ǆ ﬁ ŉ",
    "e\u0301 a\u0308\u0323 n\u0303o \u0301alone",
    "İstanbul ıI ΑΣ ΣΑΣ Σ. ΌΣΟΣ",
    "Привет, мир! Ёлка й",
    "Ελληνικά ἀρχή ᾧ ῴ",
    "中文字符和English混合。日本語のテキスト 한국어 텍스트",
    "\uf900\u2f00\U00020000\U0002f800 兀",
    "שָׁלוֹם مَرحَبًا नमस्ते สวัสดี",
    "emoji 😀👍🏽👩‍👩‍👧 flags 🇩🇪",
    "zero\u200bwidth\u200djoin\ufeffbom soft\u00adhyphen",
    "nbsp\u00a0em\u2003ideographic\u3000line\u2028para\u2029nel\u0085vt\x0bff\x0c",
    "nul\x00bell\x07esc\x1b[0m del\x7f c1\x80\x9f",
    "replacement\ufffdcharacter private\ue000use",
    "“quoted” ‘single’ — dash – en … ¿qué? «guillemets» ·middot ´acute `grave` ^ ~ $ € ©",
    "x" * 100,
    "x" * 101,
    "the" * 400,
    "don't-stop_me.now/or\\never @user #tag http://a.b/c?d=e&f=g",
    "[CLS] [SEP] [MASK] <s> </s> <mask> <unk> ## ##ing #hash",
    "camelCase PascalCase SHOUTING",
    "\u0344 \u1fef \u037e \u0387 \u212b \u2126",
    "math 𝔄𝔟𝟙 ∑∫√ ≤≥ ←→",
]

# Text that is no UTF-8, in hexadecimal digits: WordPiece leaves out what is damaged.
DAMAGED = ["ff", "61ff62", "c3", "74686520c3", "e282", "f09f98", "c0af", "eda080", "f4908080",
           "80818283", "6b696e67ff2071756565 6e".replace(" ", "")]


SENTENCES = ("unigram", "bpe", "prefix")


def corpus():
    return gzip.decompress(CORPUS.read_bytes()).decode()


def random_text():
    """Characters of common scripts, which Unicode has had since version 3.2."""
    draw = random.Random(7)
    old = unicodedata.ucd_3_2_0
    blocks = [(0x20, 0x7F)] * 6 + [(0xA0, 0x250), (0x300, 0x370), (0x370, 0x400), (0x400, 0x460),
                                   (0x5D0, 0x5EB), (0x620, 0x660), (0x904, 0x940), (0xE01, 0xE50),
                                   (0x1E00, 0x2000), (0x2000, 0x2070), (0x2100, 0x2200),
                                   (0x3000, 0x3100), (0x4E00, 0x5000), (0xAC00, 0xAD00)]
    lines = []
    for _ in range(150):
        line = ""
        while len(line) < 40:
            c = chr(draw.randrange(*draw.choice(blocks)))
            if old.category(c) == unicodedata.category(c) and old.category(c) != "Cn":
                line += c
        lines.append(line)
    return "\n".join(lines) + "\n"


POINTS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def everywhere_text():
    """Any code points, assigned or not: alone, and letters with marks of every combining class. U+2581,
    which lossless SentencePiece models spell in bytes here, and line ends are left out."""
    draw = random.Random(8)
    marks = [c for c in POINTS if unicodedata.combining(c)]
    lines = []
    for _ in range(250):
        lines.append("".join(draw.choice(POINTS) + draw.choice(("", "", " ", "a"))
                             for _ in range(30)))
        lines.append(" ".join(draw.choice("aÅçÉ") + "".join(draw.choices(marks, k=draw.randrange(1, 5)))
                              for _ in range(12)))
    return "\n".join(lines).replace("\r", "").replace("\u2581", "") + "\n"


def folds():
    """A vocabulary with everything that an uncased BERT makes of another character, and all marks that it
    keeps in an order, so that ids show what became of a character."""
    uncased = normalizers.BertNormalizer(lowercase=True, handle_chinese_chars=False).normalize_str
    made = {part for c in POINTS if (text := uncased(c)) != c for part in text if part != " "}
    kept = {c for c in POINTS if unicodedata.combining(c) and uncased("a" + c) != "a"}
    tokens = ["[UNK]", "a", "b", "##a", "##b", "ab"]
    for c in sorted(made | kept):
        tokens += [token for token in (c, "##" + c) if token not in ("a", "b", "##a", "##b")]
    return "".join(t + "\n" for t in tokens)


def blocks():
    """Every code point, 4,096 at a time."""
    for begin in range(0, 0x110000, 4096):
        if points := [chr(c) for c in range(begin, begin + 4096) if not 0xD800 <= c < 0xE000]:
            yield points


def every_code_point():
    """Hashes for each block. Of byte pairs, also where words begin, which the merges alone do not show."""
    out = {}
    for name, lower_case in (("wordpiece", True), ("wordpiece_cased", False)):
        encode = fast(word_pieces(lower_case, "folds.txt"))
        out[name] = [fnv(encode(" ".join(f"a{c}b" for c in block))) for block in blocks()]
    pairs = byte_pairs(False)
    out["byte_pairs"] = []
    for block in blocks():
        e = pairs.encode("".join(f"a{c}a1{c}1!{c}! {c}\n" for c in block), add_special_tokens=False)
        words = [None] + e.word_ids
        out["byte_pairs"].append(fnv([2 * i + (a != b) for i, a, b in zip(e.ids, words, words[1:])]))
    return out


def word_pieces(lower_case, name="wordpiece.txt"):
    vocab = (OUT / name).read_text(encoding="utf-8").split("\n")[:-1]
    t = Tokenizer(models.WordPiece({w: i for i, w in enumerate(vocab)}, unk_token="[UNK]",
                                   max_input_chars_per_word=100))
    t.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece(cleanup=False)
    return t


def byte_pairs(prefix_space):
    t = Tokenizer(models.BPE.from_file(str(OUT / "vocab.json"), str(OUT / "merges.txt")))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, trim_offsets=False)
    t.decoder = decoders.ByteLevel()
    return t


def train():
    OUT.mkdir(parents=True, exist_ok=True)
    texts = [corpus()[:300_000]] + TEXTS * 3
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (OUT / "wordpiece.txt").write_text("\n".join(special) + "\n", encoding="utf-8")
    t = word_pieces(True)
    t.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=1200, special_tokens=special))
    vocab = sorted(t.get_vocab().items(), key=lambda item: item[1])
    (OUT / "wordpiece.txt").write_text("".join(w + "\n" for w, _ in vocab), encoding="utf-8")

    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=1200, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.model.save(str(OUT))

    for kind in ("unigram", "bpe"):
        lines = iter("\n".join(texts).split("\n"))
        with open(OUT / f"{kind}.model", "wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=lines, model_writer=file, model_type=kind, vocab_size=800,
                byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=False,
                remove_extra_whitespaces=False, pad_id=3, num_threads=1, minloglevel=2,
                character_coverage=0.999)
    # As the library is used without options, but for the table of NFKC, which is large.
    with open(OUT / "prefix.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts[0].split("\n")), model_writer=file, vocab_size=400,
            normalization_rule_name="identity", num_threads=1, minloglevel=2)


def fnv(ids):
    h = 0xCBF29CE484222325
    for i in ids:
        for byte in i.to_bytes(4, "little"):
            h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def fast(tokenizer):
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def references():
    spm = {k: sentencepiece.SentencePieceProcessor(model_file=str(OUT / f"{k}.model"))
           for k in SENTENCES}
    return {
        "wordpiece": fast(word_pieces(True)),
        "wordpiece_cased": fast(word_pieces(False)),
        "folds": fast(word_pieces(True, "folds.txt")),
        "byte_pairs": fast(byte_pairs(False)),
        "byte_pairs_prefix": fast(byte_pairs(True)),
        **{k: (lambda text, p=p: p.encode(text)) for k, p in spm.items()},
    }


def spans(tokenizer, text):
    """Bytes of the text that each token stands for."""
    at = [len(text[:i].encode()) for i in range(len(text) + 1)]
    return [at[i] for span in tokenizer.encode(text, add_special_tokens=False).offsets for i in span]


def decoded():
    uncased, pairs = word_pieces(True), byte_pairs(False)
    text = TEXTS[6]
    return {"wordpiece": uncased.decode(uncased.encode(text).ids),
            "byte_pairs": pairs.decode(pairs.encode(text).ids)}


def cases():
    refs = references()
    texts = [{"text": t, **{k: f(t) for k, f in refs.items()}} for t in TEXTS]
    for text in texts[4:9]:
        text["spans"] = {"wordpiece": spans(word_pieces(True), text["text"]),
                         "byte_pairs": spans(byte_pairs(False), text["text"])}
    damaged = [{"hex": h, "wordpiece": refs["wordpiece"](bytes.fromhex(h).decode(errors="replace"))}
               for h in DAMAGED]
    whole = {}
    for name, text in (("tinyshakespeare", corpus()), ("random", random_text()),
                       ("everywhere", everywhere_text())):
        whole[name] = {}
        for kind, f in refs.items():
            # Sums of scores in f32 decide where a sentence is as long as a book.
            parts = text.split("\n") if kind in SENTENCES else [text]
            ids = [i for part in parts for i in f(part)]
            whole[name][kind] = {"count": len(ids), "fnv1a": fnv(ids)}
    return {"texts": texts, "damaged": damaged, "whole": whole, "decoded": decoded()}


def main():
    if "--train" in sys.argv:
        train()
    files = {"folds.txt": folds, "random.txt": random_text, "everywhere.txt": everywhere_text,
             "every.json": lambda: json.dumps(every_code_point(), indent=0) + "\n",
             "cases.json": lambda: json.dumps(cases(), separators=(",", ":")).replace('},{"text"', '},\n{"text"') + "\n"}
    for name, make in files.items():
        text = make()
        if "--check" in sys.argv:
            assert (OUT / name).read_text(encoding="utf-8") == text, f"{name} differs"
        else:
            (OUT / name).write_text(text, encoding="utf-8")


main()
