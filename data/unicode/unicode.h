#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace longspan {

/// One character of a text.
struct CodePoint {
  int32_t value = 0;   ///< -1: a byte that is not part of well-formed UTF-8
  int32_t length = 0;  ///< bytes
};

/// Returns the character at byte `at` < text.size().
CodePoint code_point(std::string_view text, size_t at);
/// Returns the bytes of the character at byte `at` < text.size().
inline size_t length_at(std::string_view text, size_t at) {
  return static_cast<size_t>(code_point(text, at).length);
}
/// Appends the UTF-8 encoding.
void append_utf8(std::string& text, int32_t code_point);
/// Whether the whole text is well-formed UTF-8.
bool is_utf8(std::string_view text);

// Unicode general categories of utf8proc; an invalid byte (-1) belongs to none. Tokenizers use the
// categories of the packages that they follow (data/unicode/package_unicode.h).
/// Categories L*.
bool is_letter(int32_t code_point);
/// Categories N*.
bool is_number(int32_t code_point);
/// Categories P*.
bool is_punctuation(int32_t code_point);
/// CJK ideographs, each of which is a word for BERT. Hangul and kana are split like other letters.
bool is_ideograph(int32_t code_point);
/// Categories S*: mathematical, currency and other symbols.
bool is_symbol(int32_t code_point);
/// The property White_Space.
bool is_white_space(int32_t code_point);

/// Appends the lower case of one character; U+0130 gives two.
void append_lower(std::u32string& to, char32_t code_point);
/// Appends the canonical decomposition (NFD) of one character.
void append_decomposed(std::u32string& to, char32_t code_point);

}  // namespace longspan
