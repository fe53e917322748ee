#include "data/unicode/unicode.h"

#include <utf8proc.h>

#include "core/error.h"

namespace longspan {
namespace {

int category(int32_t c) { return c < 0 ? -1 : utf8proc_category(c); }

bool between(int value, int first, int last) { return value >= first && value <= last; }

}  // namespace

CodePoint code_point(std::string_view text, size_t at) {
  const auto* from = reinterpret_cast<const uint8_t*>(text.data()) + at;
  if (*from < 0x80) return {*from, 1};
  utf8proc_int32_t value = -1;
  const auto left = static_cast<utf8proc_ssize_t>(text.size() - at);
  const utf8proc_ssize_t length = utf8proc_iterate(from, left, &value);
  return length > 0 ? CodePoint{value, static_cast<int32_t>(length)} : CodePoint{-1, 1};
}

void append_utf8(std::string& text, int32_t c) {
  uint8_t bytes[4];
  const auto length = utf8proc_encode_char(c, bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point(text, at);
    if (c.value < 0) return false;
    at += static_cast<size_t>(c.length);
  }
  return true;
}

bool is_letter(int32_t c) {
  return between(category(c), UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO);
}

bool is_number(int32_t c) {
  return between(category(c), UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}

bool is_punctuation(int32_t c) {
  return between(category(c), UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
}

bool is_ideograph(int32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

bool is_symbol(int32_t c) {
  return between(category(c), UTF8PROC_CATEGORY_SM, UTF8PROC_CATEGORY_SO);
}

bool is_white_space(int32_t c) {
  return between(c, 9, 13) || c == 0x85 ||
         between(category(c), UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZP);
}

void append_lower(std::u32string& to, char32_t c) {
  if (c == 0x130) {  // utf8proc knows only single-character lower cases
    to += U"i\u0307";
  } else {
    to += static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
  }
}

void append_decomposed(std::u32string& to, char32_t c) {
  utf8proc_int32_t parts[8];
  int boundary = 0;
  const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, 8,
                                                         UTF8PROC_DECOMPOSE, &boundary);
  require(count > 0 && count <= 8, "unicode", "U+{:04X} has no decomposition",
          static_cast<uint32_t>(c));
  for (utf8proc_ssize_t i = 0; i < count; ++i) to += static_cast<char32_t>(parts[i]);
}

}  // namespace longspan
