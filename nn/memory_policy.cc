#include "nn/memory_policy.h"

#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "core/error.h"

namespace longspan {
namespace {

constexpr std::array<std::pair<std::string_view, MemoryKind>, 6> names{{
    {"standard", MemoryKind::standard},
    {"lean", MemoryKind::lean},
    {"selective", MemoryKind::selective},
    {"checkpoint", MemoryKind::checkpoint},
    {"reversible", MemoryKind::reversible},
    {"reversible:exact", MemoryKind::reversible_exact},
}};

/// The numbers of ":K:J"; false where they are none, or do not fall.
bool read_segments(std::string_view text, std::vector<int64_t>& sizes) {
  while (!text.empty()) {
    int64_t size = 0;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data() + 1, end, size);
    if (text[0] != ':' || read.ec != std::errc() || size < 1) return false;
    if (!sizes.empty() && size >= sizes.back()) return false;
    sizes.push_back(size);
    text.remove_prefix(static_cast<size_t>(read.ptr - text.data()));
  }
  return true;
}

/// False where the text is no policy.
bool read(std::string_view text, MemoryPolicy& policy) {
  for (const auto& [name, kind] : names) {
    if (text != name) continue;
    policy.kind = kind;
    policy.segments.clear();
    if (kind == MemoryKind::checkpoint) policy.segments = {1};
    return true;
  }
  constexpr std::string_view segmented = "checkpoint:";
  if (!text.starts_with(segmented)) return false;
  policy.kind = MemoryKind::checkpoint;
  policy.segments.clear();
  return read_segments(text.substr(segmented.size() - 1), policy.segments);
}

}  // namespace

void MemoryPolicy::set(std::string_view text) {
  require(read(text, *this), "memory", "\"{}\" is no policy: expected {}", text, expected);
}

bool MemoryPolicy::valid(std::string_view text) {
  MemoryPolicy policy;
  return read(text, policy);
}

std::string MemoryPolicy::text() const {
  std::string text;
  for (const auto& [name, of] : names) {
    if (of == kind) text = name;
  }
  if (segments == std::vector<int64_t>{1}) return text;
  for (const int64_t size : segments) text += fmt::format(":{}", size);
  return text;
}

}  // namespace longspan
