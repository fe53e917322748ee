#include "data/tokenizers/hub_encoding.h"

#include <algorithm>

namespace longspan {

std::vector<TextSpan> in_code_points(std::string_view text, std::span<const TextSpan> spans) {
  std::vector<int64_t> places(text.size() + 1);
  int64_t count = -1;
  for (size_t at = 0; at < text.size(); ++at) {
    const bool begins = (static_cast<uint8_t>(text[at]) & 0xC0) != 0x80;
    if (begins || at == 0) ++count;
    places[at] = count;
  }
  places[text.size()] = count + 1;
  std::vector<TextSpan> out;
  out.reserve(spans.size());
  const auto last = static_cast<int64_t>(text.size());
  for (const TextSpan& span : spans) {
    const auto place = [&](int64_t byte) {
      return places[static_cast<size_t>(std::clamp<int64_t>(byte, 0, last))];
    };
    out.push_back({place(span.begin), place(span.end)});
  }
  return out;
}

}  // namespace longspan
