#include "data/tokenizers/token_table.h"

#include <xxhash.h>

#include <algorithm>

namespace longspan {

bool TokenTable::add(std::string_view token, int64_t id) {
  if (id < 0 || id > largest_id || has(id)) return false;
  if (id >= limit()) {
    if (static_cast<size_t>(id) >= places_.capacity()) {
      places_.reserve(std::max(static_cast<size_t>(id) + 1, 2 * places_.capacity()));
    }
    places_.resize(static_cast<size_t>(id) + 1);
  }
  places_[static_cast<size_t>(id)] = {texts_.size(), static_cast<int32_t>(token.size())};
  texts_ += token;
  longest_ = std::max(longest_, token.size());
  ++size_;
  if (slots_.size() < 2 * static_cast<size_t>(size_) + 2) {
    slots_.assign(std::max<size_t>(16, 4 * static_cast<size_t>(size_)), -1);
    for (int32_t i = 0; i < static_cast<int32_t>(limit()); ++i) {
      if (has(i) && i != id) insert(i, false);
    }
  }
  insert(static_cast<int32_t>(id), true);
  return true;
}

void TokenTable::insert(int32_t id, bool replaces) {
  const std::string_view text = token(id);
  size_t at = XXH3_64bits(text.data(), text.size()) % slots_.size();
  while (slots_[at] >= 0) {
    if (token(slots_[at]) == text) {
      if (replaces) slots_[at] = id;
      return;
    }
    at = at + 1 == slots_.size() ? 0 : at + 1;
  }
  slots_[at] = id;
}

int32_t TokenTable::find(std::string_view text) const {
  if (slots_.empty()) return -1;
  size_t at = XXH3_64bits(text.data(), text.size()) % slots_.size();
  while (slots_[at] >= 0) {
    if (token(slots_[at]) == text) return slots_[at];
    at = at + 1 == slots_.size() ? 0 : at + 1;
  }
  return -1;
}

}  // namespace longspan
