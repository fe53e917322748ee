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

/// Reads the numbers of ":K:J"; returns false if they are not numbers or do not descend.
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

/// Reads ":K+J+rest".
bool read_cut(std::string_view text, std::vector<int64_t>& sizes) {
  constexpr std::string_view rest = "rest";
  while (text.substr(text.empty() ? 0 : 1) != rest) {
    int64_t size = 0;
    const char* const end = text.data() + text.size();
    if (text.empty() || text[0] != (sizes.empty() ? ':' : '+')) return false;
    const auto read = std::from_chars(text.data() + 1, end, size);
    if (read.ec != std::errc() || size < 1) return false;
    sizes.push_back(size);
    text.remove_prefix(static_cast<size_t>(read.ptr - text.data()));
  }
  return text[0] == '+' && !sizes.empty();
}

/// Reads ":K", ":exact", ":exact:G", each with or without ":stored" after it.
bool read_reversible(std::string_view text, MemoryPolicy& policy) {
  constexpr std::string_view stored = ":stored", exact = ":exact";
  policy.kind = MemoryKind::reversible;
  policy.stored = text.ends_with(stored);
  if (policy.stored) text.remove_suffix(stored.size());
  if (!text.starts_with(exact)) {
    return read_segments(text, policy.segments) && policy.segments.size() <= 1;
  }
  policy.kind = MemoryKind::reversible_exact;
  text.remove_prefix(exact.size());
  if (text.empty()) return true;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data() + 1, end, policy.grid);
  return text[0] == ':' && read.ec == std::errc() && read.ptr == end && policy.grid >= 0 &&
         policy.grid <= 23;
}

/// Returns false if the text is not a policy.
bool read(std::string_view text, MemoryPolicy& policy) {
  const int64_t chunks = policy.chunks;
  policy = {};
  policy.chunks = chunks;
  for (const auto& [name, kind] : names) {
    if (text != name) continue;
    policy.kind = kind;
    if (kind == MemoryKind::checkpoint) policy.segments = {1};
    return true;
  }
  constexpr std::string_view reversible = "reversible", checkpoint = "checkpoint";
  if (text.starts_with(reversible)) {
    return read_reversible(text.substr(reversible.size()), policy);
  }
  if (!text.starts_with(checkpoint)) return false;
  policy.kind = MemoryKind::checkpoint;
  text.remove_prefix(checkpoint.size());
  if (text.ends_with("rest")) return read_cut(text, policy.cut);
  return read_segments(text, policy.segments);
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
  if (kind != MemoryKind::checkpoint || segments != std::vector<int64_t>{1}) {
    for (const int64_t size : segments) text += fmt::format(":{}", size);
  }
  for (size_t i = 0; i < cut.size(); ++i) text += fmt::format("{}{}", i == 0 ? ":" : "+", cut[i]);
  if (!cut.empty()) text += "+rest";
  if (grid != MemoryPolicy{}.grid) text += fmt::format(":{}", grid);
  if (stored) text += ":stored";
  return text;
}

}  // namespace longspan
