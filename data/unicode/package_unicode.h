#pragma once

#include <cstdint>

namespace longspan {

// Unicode as the package tokenizers knows it: each of its components has tables of its own release,
// and ids depend on them. See tests/oracles/unicode_tables.py.

/// Properties of a code point, as bits.
struct PackageProperty {
  static constexpr uint8_t letter = 1;       ///< \p{L} of byte-level BPE
  static constexpr uint8_t number = 2;       ///< \p{N} of it
  static constexpr uint8_t removed = 4;      ///< a control character, which BERT drops
  static constexpr uint8_t punctuation = 8;  ///< a word of its own in BERT
  static constexpr uint8_t accent = 16;      ///< a nonspacing mark, which an uncased BERT drops
  static constexpr uint8_t ordered = 32;     ///< another mark with a canonical combining class
  static constexpr uint8_t decomposes = 64;  ///< has a canonical decomposition
  static constexpr uint8_t has_lower = 128;  ///< has a lower case
};

/// Returns the properties of a code point; an invalid byte (-1) has none.
uint8_t package_properties(int32_t code_point);
/// Returns the lower case, of one character, of a code point that has one.
char32_t package_lower(char32_t code_point);
/// Returns the canonical combining class of a mark, 0 of all others.
int package_combining_class(char32_t code_point);

}  // namespace longspan
