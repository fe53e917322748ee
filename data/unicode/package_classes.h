#pragma once

#include <cstdint>

namespace longspan {

// More properties of Unicode as the package tokenizers knows it (data/unicode/package_unicode.h),
// for the components of a tokenizer.json.

/// Classes of a code point, as bits. Those from `joining` on tell which characters are one extended
/// grapheme cluster.
struct PackageClass {
  static constexpr uint16_t word = 1;          ///< \w of regular expressions
  static constexpr uint16_t numeral = 2;       ///< what Digits sets apart
  static constexpr uint16_t mark = 4;          ///< what StripAccents removes
  static constexpr uint16_t compatible = 8;    ///< NFKD takes it apart otherwise than NFD
  static constexpr uint16_t excluded = 16;     ///< NFC does not leave it as it is
  static constexpr uint16_t joining = 32;      ///< joins what is before it
  static constexpr uint16_t control = 64;      ///< nothing joins it
  static constexpr uint16_t prepended = 128;   ///< what follows joins it
  static constexpr uint16_t pictograph = 256;  ///< joins a pictograph with a zero width joiner
  static constexpr uint16_t consonant = 512;   ///< part of a conjunct
  static constexpr uint16_t linker = 1024;     ///< joins consonants to a conjunct
  static constexpr uint16_t linked = 2048;     ///< may stand within a conjunct
  static constexpr uint16_t before_vowel = 1u << 12;   ///< a vowel of Hangul joins it
  static constexpr uint16_t before_final = 1u << 13;   ///< a final consonant of Hangul joins it
  static constexpr uint16_t after_initial = 1u << 14;  ///< joins an initial consonant of Hangul
  static constexpr uint16_t after_final = 1u << 15;    ///< joins a final consonant of Hangul
};

/// Returns the classes of a code point; an invalid byte (-1) has none.
uint16_t package_classes(int32_t code_point);

}  // namespace longspan
