#include "core/error.h"

#include <algorithm>
#include <cstdint>

#include "core/scope.h"

namespace longspan {
namespace {

// Bytes of a message's line, and of a whole message; of longer ones the begin and the end are kept.
constexpr size_t most_of_line = 600, most_of_message = 16'000;

/// Returns the number of bytes of the character at the beginning of a text, and its code point; 0
/// bytes if it is not UTF-8.
size_t character(std::string_view text, uint32_t& code) {
  const auto first = static_cast<uint8_t>(text[0]);
  const size_t length = first < 0x80             ? 1
                        : (first & 0xE0) == 0xC0 ? 2
                        : (first & 0xF0) == 0xE0 ? 3
                        : (first & 0xF8) == 0xF0 ? 4
                                                 : 0;
  if (length == 0 || length > text.size()) return 0;
  code = length == 1 ? first : first & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    const auto next = static_cast<uint8_t>(text[i]);
    if ((next & 0xC0) != 0x80) return 0;
    code = code << 6 | (next & 0x3Fu);
  }
  constexpr uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool valid = code >= least[length] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
  return valid ? length : 0;
}

/// Whether a terminal would do something else with a character than show it: control characters,
/// and those that change the direction of a line.
bool controls(uint32_t code) {
  return (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7F && code < 0xA0) ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

/// Leaves out the middle of a text that is longer than `most`, and says how much that is.
std::string cut(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  const auto inside = [&](size_t at) { return (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80; };
  size_t head = most * 2 / 3, tail = text.size() - most / 4;
  while (inside(head)) --head;
  while (tail < text.size() && inside(tail)) ++tail;
  return fmt::format("{} ... ({} bytes left out) ... {}", text.substr(0, head), tail - head,
                     text.substr(tail));
}

/// Returns a message as it can be shown: characters that control a terminal, and bytes that are not
/// UTF-8, as \xHH or \u{HHHH}, and the middle of long lines left out. A message may repeat what a
/// hostile file holds.
std::string shown(std::string_view message) {
  std::string text;
  for (std::string_view rest = message; !rest.empty();) {
    uint32_t code = 0;
    const size_t length = character(rest, code);
    if (length == 0 || (length == 1 && controls(code))) {
      constexpr std::string_view digits = "0123456789abcdef";
      const auto byte = static_cast<uint8_t>(rest[0]);
      text += "\\x";
      text += digits[byte >> 4];
      text += digits[byte & 0xF];
    } else if (controls(code)) {
      text += fmt::format("\\u{{{:x}}}", code);
    } else {
      text += rest.substr(0, length);
    }
    rest.remove_prefix(std::max<size_t>(length, 1));
  }
  std::string lines;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines += cut(std::string_view(text).substr(begin, end - begin), most_of_line);
    if (end < text.size()) lines += '\n';
    begin = end + 1;
  }
  return cut(lines, most_of_message);
}

std::string with_scope(const std::string& message) {
  const std::string& scope = Scope::path();
  return scope.empty() ? shown(message) : shown(message + "\n  in " + scope);
}

}  // namespace

Error::Error(const std::string& message) : std::runtime_error(with_scope(message)) {}

void fail_for_memory(std::string_view op) {
  fail<OutOfMemory>(op,
                    "out of memory on the host, beside the tensors; shorten the sequence, shrink "
                    "the batch or the model, or end other programs");
}

}  // namespace longspan
