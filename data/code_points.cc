#include "data/code_points.h"

#include <algorithm>

#include "data/unicode/unicode.h"

namespace longspan {

CodePointIndex::CodePointIndex(std::string_view text) : text_(text) {
  size_t at = 0;
  for (int64_t i = 0; at < text_.size(); ++i) {
    if (i % kStep == 0) places_.push_back(at);
    at += static_cast<size_t>(code_point(text_, at).length);
  }
}

int64_t CodePointIndex::byte_of(int64_t character) const {
  if (character == 0) return 0;
  const auto known = static_cast<size_t>(character / kStep);
  if (character < 0 || known > places_.size() || places_.empty()) return -1;
  const size_t from = std::min(known, places_.size() - 1);
  size_t at = places_[from];
  for (auto i = static_cast<int64_t>(from) * kStep; i < character; ++i) {
    if (at >= text_.size()) return -1;
    at += static_cast<size_t>(code_point(text_, at).length);
  }
  return static_cast<int64_t>(at);
}

}  // namespace longspan
