#!/usr/bin/env python3
"""Measures, code point by code point, what each component of the package tokenizers knows of Unicode,
and writes it as data/unicode/package_unicode.cc and package_classes.cc.

    .venv/bin/python unicode_tables.py           # writes the files again
    .venv/bin/python unicode_tables.py --check   # measures again and compares

The components have tables of different releases of Unicode, none of them that of utf8proc, and ids
depend on them. Nothing is copied from the package: it is asked about every code point.
"""

import pathlib
import struct
import sys
import unicodedata

import tokenizers
from tokenizers import normalizers, pre_tokenizers

OUT = pathlib.Path(__file__).resolve().parents[2] / "data" / "unicode"
ABOUT = {
    "letters": "\\p{L} of the regular expression of byte-level BPE.",
    "numbers": "\\p{N} of it.",
    "removed": "Control characters, which BERT's normalizer removes. Unassigned ones stay.",
    "punctuation": "Punctuation, each of which is a word of BERT.",
    "accents": "Nonspacing marks, which an uncased BERT removes after decomposition.",
    "ordered": "Other marks that have a combining class, and so an order among themselves.",
    "decomposed": "Characters that have a canonical decomposition.",
}
PROPERTIES = ("letter", "number", "removed", "punctuation", "accent", "ordered", "decomposes")
POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def runs(points):
    """[first, last] of each run of consecutive code points."""
    out = []
    for c in points:
        if out and c == out[-1][1] + 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def strided(mapping):
    """(first, last, stride, distance): every stride-th code point of a run goes that far up."""
    out = []
    for c, to in sorted(mapping.items()):
        if out:
            first, last, stride, distance = out[-1]
            step = c - last
            if to - c == distance and (step == stride or (first == last and step <= 2)):
                out[-1] = (first, c, step, distance)
                continue
        out.append((c, c, 1, to - c))
    return out


def bert(**settings):
    wanted = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False,
                  lowercase=False) | settings
    return normalizers.BertNormalizer(**wanted).normalize_str


def measure():
    level = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    clean, ideographs = bert(clean_text=True), bert(handle_chinese_chars=True)
    accents, lower = bert(strip_accents=True), normalizers.Lowercase().normalize_str
    nfd = normalizers.NFD().normalize_str

    sets = {name: [] for name in ABOUT}
    spaces, lowered = set(), {}
    for c in POINTS:
        s = chr(c)
        after = lambda before: len(level(before + s)) == 1  # noqa: E731
        if c != ord("'"):
            if after("a"):
                sets["letters"].append(c)
            elif after("1"):
                sets["numbers"].append(c)
            elif not after("!"):
                spaces.add(c)
        cleaned = clean("a" + s + "b")
        if cleaned == "ab":
            sets["removed"].append(c)
        else:
            assert (cleaned == "a b") == (s.isspace() and not 0x1C <= c <= 0x1F), hex(c)
        pieces = len(split("a" + s + "b"))
        if pieces == 3:
            sets["punctuation"].append(c)
        assert (pieces == 2) == (c in spaces), hex(c)
        alone = ideographs("a" + s + "b") == "a " + s + " b"
        assert alone == any(a <= c <= b for a, b in (
            (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
            (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))), hex(c)
        parts = nfd(s)
        if parts != s:  # decompositions never change once they are there
            assert parts == unicodedata.normalize("NFD", s), hex(c)
            sets["decomposed"].append(c)
        if accents("a" + s) == "a":
            sets["accents"].append(c)
        # U+0345 has the highest class: what has a lower one goes before it.
        elif parts == s and nfd("a\u0345" + s) == "a" + s + "\u0345":
            assert unicodedata.combining(s) > 0, hex(c)
            sets["ordered"].append(c)
        low = lower(s)
        if c == 0x130:  # which decomposes first
            assert low == "i\u0307"
        elif low != s:
            assert len(low) == 1, hex(c)
            lowered[c] = ord(low)
    assert len(spaces) == 25 and all(chr(c).isspace() for c in spaces)
    return {name: runs(points) for name, points in sets.items()}, strided(lowered)


def table(kind, name, about, rows):
    lines, line = [], "   "
    for row in rows:
        cell = " {" + ", ".join(hex(x) if x > 9 else str(x) for x in row) + "},"
        if len(line) + len(cell) > 118:
            lines.append(line)
            line = "   "
        line += cell
    return f"/// {about}\nconstexpr {kind} {name}[] = {{\n" + "\n".join(lines + [line]) + "\n};\n"


ABOUT_CLASS = {
    "words": "\\\\w of the regular expressions of Whitespace and of tokens of a single word.",
    "numerals": "What Digits sets apart.",
    "marks": "What StripAccents removes.",
    "compatible": "Characters that NFKD takes apart otherwise than NFD.",
    "excluded": "Characters that NFC does not leave as they are.",
    "joining": "Characters that join the grapheme cluster before them.",
    "controls": "Characters, of at most three bytes, that nothing joins.",
    "prepended": "Characters that the grapheme cluster of what follows includes.",
    "pictographs": "Characters that a zero width joiner joins to a pictograph.",
    "consonants": "Consonants of scripts whose conjuncts are one grapheme cluster.",
    "linkers": "What joins such consonants.",
    "linked": "Other characters that may stand between them.",
    "hangul_before_vowel": "Characters that a vowel of Hangul joins.",
    "hangul_before_final": "Characters that a final consonant of Hangul joins.",
    "hangul_after_initial": "Characters that join an initial consonant of Hangul.",
    "hangul_after_final": "Characters that join a final consonant of Hangul.",
}
CLASSES = ("word", "numeral", "mark", "compatible", "excluded", "joining", "control", "prepended", "pictograph",
           "consonant", "linker", "linked", "before_vowel", "before_final", "after_initial", "after_final")


def every_byte_rules():
    """Rules of the normalizer Precompiled that replace whatever begins with any byte but 0 by b: a root with
    255 successors, each of which has a text, the only one."""
    units = [256 << 10] + [0] * 767
    for byte in range(1, 256):
        at = 256 ^ byte
        units[at] = byte | 1 << 8 | (at ^ 512) << 10
    rules = struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + b"b\0"
    return normalizers.Precompiled(rules).normalize_str


def clusters():
    """What joins what: a grapheme cluster below 6 bytes becomes one b, longer ones a b for each character. A
    consonant of Devanagari, its linker, and the mark U+0301 of two bytes tell which it is."""
    rules = every_byte_rules()
    length = lambda s: len(rules(s))  # noqa: E731
    assert length("a\u0301") == 1 and length("a") == 1 and length("ab") == 2 and length("\r\n") == 1
    out = {name: [] for name in list(ABOUT_CLASS)[5:]}
    for c in POINTS[1:]:
        s = chr(c)
        size = len(s.encode())
        if length("A" + s) == 1:
            out["joining"].append(c)
        if size < 4 and length(s + "\u0301") == 2 and c not in (10, 13):
            out["controls"].append(c)
        prepended = length(s + "A\u0301") == (1 if size < 3 else 3)
        if prepended:
            out["prepended"].append(c)
        if length("\u00a9\u200d" + s + "\u0301") == 4:
            out["pictographs"].append(c)
        if length(s + "\u094d\u0915\u0301") == 4 and not prepended:
            out["consonants"].append(c)
        if length("\u0915" + s + "\u0915\u0301") == 4:
            out["linkers"].append(c)
        elif length("\u0915\u094d" + s + "\u0915\u0301") == 5:
            out["linked"].append(c)
        if length(s + "\u1161\u0301") == 3 and not prepended:
            out["hangul_before_vowel"].append(c)
        if length(s + "\u11a8\u0301") == 3 and not prepended:
            out["hangul_before_final"].append(c)
        joins = c in out["joining"][-1:]
        if length("\u1100" + s + "\u0301") == 3 and not joins and size == 3:
            out["hangul_after_initial"].append(c)
        if length("\u11a8" + s + "\u0301") == 3 and not joins and size == 3:
            out["hangul_after_final"].append(c)
    # What joins or stands alone in any case shows in other probes too.
    without = {"pictographs": ("joining", "prepended"), "linkers": ("prepended",), "linked": ("prepended",),
               "hangul_after_initial": ("controls",), "hangul_after_final": ("controls",)}
    for name, others in without.items():
        leave = {c for other in others for c in out[other]}
        out[name] = [c for c in out[name] if c not in leave]
    return out


def measure_classes():
    word, white = pre_tokenizers.Whitespace().pre_tokenize_str, pre_tokenizers.WhitespaceSplit().pre_tokenize_str
    digits = pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str
    punctuation = pre_tokenizers.Punctuation().pre_tokenize_str
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    strip, accents = normalizers.Strip().normalize_str, normalizers.StripAccents().normalize_str
    nfd, nfkd, nfc = (getattr(normalizers, f)().normalize_str for f in ("NFD", "NFKD", "NFC"))
    sets = {name: [] for name in list(ABOUT_CLASS)[:5]}
    for c in POINTS:
        s = chr(c)
        space = len(white("a" + s + "b")) == 2
        assert space == (strip(s) == "") == (len(split("a" + s + "b")) == 2), hex(c)
        assert (len(split("a" + s + "b")) == 3) == (len(punctuation("a" + s)) == 2), hex(c)
        if len(word("a" + s + "b")) == 1:
            sets["words"].append(c)
        else:
            assert (len(word("a" + s + "b")) == 2) == space, hex(c)
        if len(digits("a" + s)) == 2:
            sets["numerals"].append(c)
        if accents("a" + s) == "a":
            sets["marks"].append(c)
        apart = nfkd(s)
        if apart != nfd(s):
            assert apart == unicodedata.normalize("NFKD", s), hex(c)
            sets["compatible"].append(c)
        if nfc(s) != s:
            assert nfc(s) == unicodedata.normalize("NFC", s), hex(c)
            sets["excluded"].append(c)
    return {name: runs(points) for name, points in (sets | clusters()).items()}


def class_source():
    sets = measure_classes()
    tables = [table("CodePoints", name, ABOUT_CLASS[name], rows) for name, rows in sets.items() if rows]
    adds = "".join(f"  table.add({name}, PackageClass::{p});\n" for name, p in zip(sets, CLASSES) if sets[name])
    return NOTICE + CLASS_HEAD + "// clang-format off\n" + "\n".join(tables) + "// clang-format on\n" + \
        CLASS_TAIL.replace("ADDS", adds)


NOTICE = f"""// Made by tests/oracles/unicode_tables.py, which asks each component of the package tokenizers
// {tokenizers.__version__} (Apache License 2.0) about every code point. The answers are properties in the Unicode
// Character Database of several releases, (c) Unicode, Inc., https://www.unicode.org/license.txt.
"""


def source():
    sets, lowered = measure()
    tables = [table("CodePoints", name, ABOUT[name], rows) for name, rows in sets.items()]
    tables.append(table("Lower", "lowered", "Every `stride`-th code point of a run, and how far above "
                        "it its lower case is.", lowered))
    adds = "".join(f"  table.add({name}, PackageProperty::{p});\n" for name, p in zip(sets, PROPERTIES))
    return NOTICE + HEAD + "// clang-format off\n" + "\n".join(tables) + "// clang-format on\n" + TAIL.replace("ADDS", adds)


HEAD = """#include "data/unicode/package_unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "data/unicode/code_point_table.h"

namespace longspan {
namespace {

struct Lower {
  int32_t first, last, stride, distance;
};

"""
TAIL = """
CodePointTable<uint8_t> make_table() {
  CodePointTable<uint8_t> table;
ADDS  for (const Lower& run : lowered) {
    for (int32_t c = run.first; c <= run.last; c += run.stride) {
      table.add(c, PackageProperty::has_lower);
    }
  }
  table.compress();
  return table;
}

}  // namespace

uint8_t package_properties(int32_t code_point) {
  static const CodePointTable<uint8_t> table = make_table();
  return table[code_point];
}

char32_t package_lower(char32_t code_point) {
  const auto c = static_cast<int32_t>(code_point);
  const Lower* run = std::lower_bound(std::begin(lowered), std::end(lowered), c,
                                      [](const Lower& r, int32_t x) { return r.last < x; });
  return code_point + static_cast<char32_t>(run->distance);
}

int package_combining_class(char32_t code_point) {
  const auto c = static_cast<int32_t>(code_point);
  constexpr uint8_t marks = PackageProperty::accent | PackageProperty::ordered;
  return (package_properties(c) & marks) != 0 ? utf8proc_get_property(c)->combining_class : 0;
}

}  // namespace longspan
"""
CLASS_HEAD = """#include "data/unicode/package_classes.h"

#include "data/unicode/code_point_table.h"

namespace longspan {
namespace {

"""
CLASS_TAIL = """
CodePointTable<uint16_t> make_table() {
  CodePointTable<uint16_t> table;
ADDS  table.compress();
  return table;
}

}  // namespace

uint16_t package_classes(int32_t code_point) {
  static const CodePointTable<uint16_t> table = make_table();
  return table[code_point];
}

}  // namespace longspan
"""


def main():
    for name, make in (("package_unicode.cc", source), ("package_classes.cc", class_source)):
        made = make()
        if "--check" in sys.argv:
            assert (OUT / name).read_text(encoding="utf-8") == made, f"{name} differs"
        else:
            (OUT / name).write_text(made, encoding="utf-8")


main()
