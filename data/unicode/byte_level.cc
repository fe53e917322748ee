#include "data/unicode/byte_level.h"

#include "data/unicode/package_unicode.h"
#include "data/unicode/unicode.h"

namespace longspan {

std::array<int32_t, 256> byte_level_characters() {
  std::array<int32_t, 256> visible;
  int32_t next = 256;
  for (int32_t byte = 0; byte < 256; ++byte) {
    const bool is_visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    visible[static_cast<size_t>(byte)] = is_visible ? byte : next++;
  }
  return visible;
}

size_t byte_level_end(std::string_view text, size_t begin) {
  for (const std::string_view end : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text[begin] != '\'') break;
    if (text.substr(begin, end.size()) == end) return begin + end.size();
  }
  enum Kind { letter, number, space, other };
  const auto kind_at = [&](size_t at, size_t& next) {
    const auto byte = static_cast<uint8_t>(text[at]);
    if (byte < 0x80) {
      next = at + 1;
      const auto lower = static_cast<uint8_t>(byte | 0x20);
      if (lower >= 'a' && lower <= 'z') return letter;
      if (byte >= '0' && byte <= '9') return number;
      return byte == ' ' || (byte >= 9 && byte <= 13) ? space : other;
    }
    const CodePoint c = code_point(text, at);
    next = at + static_cast<size_t>(c.length);
    const uint8_t properties = package_properties(c.value);
    return (properties & PackageProperty::letter) != 0   ? letter
           : (properties & PackageProperty::number) != 0 ? number
           : is_white_space(c.value)                     ? space
                                                         : other;
  };
  size_t at = begin, next = 0;
  Kind kind = kind_at(at, next);
  if (text[at] == ' ' && next < text.size()) {  // one space belongs to what follows
    const size_t after = next;
    const Kind following = kind_at(after, next);
    if (following != space) {
      kind = following;
      at = after;
    }
  }
  size_t last = at;  // start of the last character of this kind
  while (at < text.size() && kind_at(at, next) == kind) {
    last = at;
    at = next;
  }
  // The last white space belongs to the text that follows, unless it is the only one.
  const bool keep_one = kind == space && at < text.size() && last > begin;
  return keep_one ? last : at;
}

}  // namespace longspan
