#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/hub_model.h"

namespace longspan {

/// The tokens of words that have occurred. Begins again when it is full.
class WordCache {
 public:
  /// Words of more bytes are not kept.
  static constexpr size_t longest_word = 96;

  /// Returns the tokens of a word, which is in the cache afterwards. `make(out)` appends them if it
  /// is new. The result is valid until the next call.
  template <class Make>
  std::span<const HubPiece> find(std::string_view word, Make&& make) {
    const uint64_t hash = hash_of(word);
    size_t at = hash & mask_;
    for (; slots_[at].count != 0; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.hash == hash && key(slot) == word) return pieces(slot);
    }
    if (used_ * 2 > mask_) {
      grow();
      at = free_slot(hash);
    }
    const size_t first = pieces_.size();
    make(pieces_);
    const size_t count = pieces_.size() - first;
    if (count == 0 || count > UINT16_MAX) {  // 0 marks a free slot
      spare_.assign(pieces_.begin() + static_cast<std::ptrdiff_t>(first), pieces_.end());
      pieces_.resize(first);
      return spare_;
    }
    slots_[at] = {hash, static_cast<uint32_t>(keys_.size()), static_cast<uint32_t>(first),
                  static_cast<uint16_t>(word.size()), static_cast<uint16_t>(count)};
    keys_ += word;
    ++used_;
    return pieces(slots_[at]);
  }

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t key = 0, first = 0;
    uint16_t length = 0, count = 0;  // count 0: free
  };
  static constexpr size_t first_slots = 1 << 10, most_slots = 1 << 17;

  static uint64_t hash_of(std::string_view word);
  std::string_view key(const Slot& slot) const { return {keys_.data() + slot.key, slot.length}; }
  std::span<const HubPiece> pieces(const Slot& slot) const {
    return {pieces_.data() + slot.first, slot.count};
  }
  size_t free_slot(uint64_t hash) const;
  void grow();

  std::vector<Slot> slots_ = std::vector<Slot>(first_slots);
  size_t mask_ = first_slots - 1, used_ = 0;
  std::string keys_;
  std::vector<HubPiece> pieces_, spare_;
};

}  // namespace longspan
