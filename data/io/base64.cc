#include "data/io/base64.h"

#include <array>
#include <cstdint>

namespace longspan {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t group = 0;
    for (size_t i = 0; i < 3; ++i) {
      group = group << 8 | (at + i < bytes.size() ? static_cast<uint8_t>(bytes[at + i]) : 0u);
    }
    for (size_t i = 0; i < 4; ++i) {
      const bool padding = at + i > bytes.size();
      text += padding ? '=' : kDigits[group >> (18 - 6 * i) & 63];
    }
  }
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return {};
  std::array<int8_t, 256> values;
  values.fill(-1);
  for (size_t i = 0; i < kDigits.size(); ++i) {
    values[static_cast<uint8_t>(kDigits[i])] = static_cast<int8_t>(i);
  }
  size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t at = 0; at < text.size(); at += 4) {
    uint32_t group = 0;
    const bool last = at + 4 == text.size();
    for (size_t i = 0; i < 4; ++i) {
      const bool filled = !last || i < 4 - padding;
      const int8_t value = filled ? values[static_cast<uint8_t>(text[at + i])] : int8_t{0};
      if (value < 0) return {};
      group = group << 6 | static_cast<uint32_t>(value);
    }
    for (size_t i = 0; i < (last ? 3 - padding : 3); ++i) {
      bytes += static_cast<char>(group >> (16 - 8 * i) & 0xFF);
    }
  }
  return bytes;
}

}  // namespace longspan
