#include "data/tokenizers/word_cache.h"

#include <xxhash.h>

namespace longspan {

uint64_t WordCache::hash_of(std::string_view word) { return XXH3_64bits(word.data(), word.size()); }

size_t WordCache::free_slot(uint64_t hash) const {
  size_t at = hash & mask_;
  while (slots_[at].count != 0) at = (at + 1) & mask_;
  return at;
}

void WordCache::grow() {
  if (slots_.size() >= most_slots) {
    slots_.assign(first_slots, {});
    keys_.clear();
    pieces_.clear();
    used_ = 0;
    mask_ = first_slots - 1;
    return;
  }
  std::vector<Slot> old(2 * slots_.size());
  old.swap(slots_);
  mask_ = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.count != 0) slots_[free_slot(slot.hash)] = slot;
  }
}

}  // namespace longspan
