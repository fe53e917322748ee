#!/usr/bin/env python3
"""Measures, code point by code point, what each component of the package tokenizers knows of Unicode,
and writes it as data/tokenizers/package_unicode.cc.

    .venv/bin/python unicode_tables.py           # writes the file again
    .venv/bin/python unicode_tables.py --check   # measures again and compares

The components have tables of different releases of Unicode, none of them that of utf8proc, and ids
depend on them. Nothing is copied from the package: it is asked about every code point.
"""

import pathlib
import sys
import unicodedata

import tokenizers
from tokenizers import normalizers, pre_tokenizers

OUT = pathlib.Path(__file__).resolve().parents[2] / "data" / "tokenizers" / "package_unicode.cc"
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


def source():
    sets, lowered = measure()
    tables = [table("Run", name, ABOUT[name], rows) for name, rows in sets.items()]
    tables.append(table("Lower", "lowered", "Every `stride`-th code point of a run, and how far above "
                        "it its lower case is.", lowered))
    adds = "".join(f"    add({name}, PackageProperty::{p});\n" for name, p in zip(sets, PROPERTIES))
    return f"""// Made by tests/oracles/unicode_tables.py, which asks each component of the package tokenizers
// {tokenizers.__version__} (Apache License 2.0) about every code point. The answers are properties in the Unicode
// Character Database of several releases, (c) Unicode, Inc., https://www.unicode.org/license.txt.
""" + HEAD + "// clang-format off\n" + "\n".join(tables) + "// clang-format on\n" + TAIL.replace("ADDS", adds)


HEAD = """#include "data/tokenizers/package_unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <vector>

namespace longspan {
namespace {

struct Run {
  int32_t first, last;
};
struct Lower {
  int32_t first, last, stride, distance;
};

"""
TAIL = """
/// The properties of all code points, in blocks of which equal ones are kept once.
class Properties {
 public:
  Properties() {
    all_.resize(code_points);
ADDS    for (const Lower& run : lowered) {
      for (int32_t c = run.first; c <= run.last; c += run.stride) {
        all_[static_cast<size_t>(c)] |= PackageProperty::has_lower;
      }
    }
    std::map<Block, uint16_t> known;
    for (size_t b = 0; b < places_.size(); ++b) {
      Block block;
      std::copy_n(all_.begin() + static_cast<std::ptrdiff_t>(b * block.size()), block.size(),
                  block.begin());
      const auto [at, is_new] = known.try_emplace(block, static_cast<uint16_t>(blocks_.size()));
      if (is_new) blocks_.push_back(block);
      places_[b] = at->second;
    }
    all_ = {};
  }

  uint8_t operator[](int32_t c) const {
    const auto at = static_cast<uint32_t>(c);
    if (at >= code_points) return 0;
    return blocks_[places_[at / block_size]][at % block_size];
  }

 private:
  static constexpr size_t code_points = 0x110000, block_size = 256;
  using Block = std::array<uint8_t, block_size>;

  template <size_t N>
  void add(const Run (&runs)[N], uint8_t property) {
    for (const Run& run : runs) {
      for (int32_t c = run.first; c <= run.last; ++c) all_[static_cast<size_t>(c)] |= property;
    }
  }

  std::vector<uint8_t> all_;  // while it is made
  std::vector<Block> blocks_;
  std::array<uint16_t, code_points / block_size> places_{};
};

}  // namespace

uint8_t package_properties(int32_t code_point) {
  static const Properties properties;
  return properties[code_point];
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


def main():
    made = source()
    if "--check" in sys.argv:
        assert OUT.read_text(encoding="utf-8") == made, f"{OUT} differs"
    else:
        OUT.write_text(made, encoding="utf-8")


main()
