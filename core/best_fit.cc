#include "core/best_fit.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <new>

namespace longspan {

char* BestFit::allocate(int64_t bytes) {
  const bool within = top_ - begin_ - free_ + bytes <= limit_;  // of all blocks
  const bool small = bytes <= small_limit;
  if (small) {
    auto& list = small_[static_cast<size_t>(bytes / 64)].free;
    if (!list.empty() && within) {
      char* const at = list.back();
      list.pop_back();
      free_ -= bytes;  // blocks in these lists are never given up
      return at;
    }
  }
  reserve(bytes);
  all_given_up_ = false;
  char* at = find(bytes);
  if (at == nullptr && drain_small()) {
    all_given_up_ = false;
    at = find(bytes);
  }
  if (at == nullptr && within && give_up_ != nullptr) {
    shared_pages_count_ = false;
    at = find(bytes);
    shared_pages_count_ = true;
  }
  if (at != nullptr) {
    ++blocks_;
    if (small) ++small_[static_cast<size_t>(bytes / 64)].count;
  }
  return at;
}

void BestFit::release(char* at, int64_t bytes) noexcept {
  if (bytes <= small_limit) {
    small_[static_cast<size_t>(bytes / 64)].free.push_back(at);
    free_ += bytes;
  } else {
    --blocks_;
    insert_free(at, bytes);
  }
}

bool BestFit::shrink(char* at, int64_t bytes, int64_t kept) {
  if (!divides(kept, bytes - kept)) return false;
  reserve(bytes - kept);
  insert_free(at + kept, bytes - kept);
  return true;
}

/// Reserves the memory to track one more block, however it is released.
void BestFit::reserve(int64_t bytes) {
  nodes_.reserve(2 * (blocks_ + static_cast<int64_t>(by_address_.size()) + 1));
  if (bytes > small_limit) return;
  Equals& equals = small_[static_cast<size_t>(bytes / 64)];
  const auto needed = static_cast<size_t>(equals.count) + 1;
  if (needed > equals.free.capacity()) equals.free.reserve(2 * needed);
}

char* BestFit::find(int64_t bytes) {
  char* const at = from_free(bytes);
  return at != nullptr ? at : from_top(bytes);
}

char* BestFit::from_free(int64_t bytes) {
  const auto fit = by_size_.lower_bound({bytes, nullptr});
  if (fit == by_size_.end()) return nullptr;
  const auto [size, at] = *fit;
  const int64_t back = std::min(size, bytes + page_);  // a split touches the whole last page
  if (!fits(0, back)) return nullptr;
  by_size_.erase(fit);
  by_address_.erase(at);
  take_back(back);
  free_ -= size;
  if (size > bytes) insert_free(at + bytes, size - bytes);
  return at;
}

/// Whether `fresh` bytes beyond the top and `again` bytes of free blocks may be used within the
/// limit. If not, gives up the free memory and checks again.
bool BestFit::fits(int64_t fresh, int64_t again) {
  const auto within = [&] {
    return top_ - begin_ - given_up_ + fresh + std::min(again, given_up_) <= limit_;
  };
  if (give_up_ == nullptr) return fresh == 0 || within();
  if (within() || !shared_pages_count_) return true;
  if (all_given_up_) return false;
  all_given_up_ = true;
  given_up_ = 0;
  for (const auto& [at, bytes] : by_address_) given_up_ += give_up_(at, at + bytes);
  return within();
}

/// Counts free bytes as used again. Given-up bytes count first, so given_up_ stays a lower bound.
void BestFit::take_back(int64_t bytes) { given_up_ -= std::min(bytes, given_up_); }

char* BestFit::from_top(int64_t bytes) {
  char* at = top_;
  // A free block that ends at the top is extended instead of left behind.
  int64_t have = 0;
  if (!by_address_.empty()) {
    const auto last = std::prev(by_address_.end());
    if (last->first + last->second == top_) {
      at = last->first;
      have = last->second;
    }
  }
  if (end_ - at < bytes || !fits(bytes - have, have)) return nullptr;
  if (back_ != nullptr && !back_(top_, at + bytes)) return nullptr;
  if (have > 0) {
    by_size_.erase({have, at});
    by_address_.erase(at);
    take_back(have);
    free_ -= have;
  }
  top_ = at + bytes;
  return at;
}

void BestFit::insert_free(char* at, int64_t bytes) {
  free_ += bytes;
  auto next = by_address_.lower_bound(at);
  if (next != by_address_.end() && at + bytes == next->first) {
    bytes += next->second;
    by_size_.erase({next->second, next->first});
    next = by_address_.erase(next);
  }
  if (next != by_address_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == at) {
      by_size_.erase({before->second, before->first});
      before->second += bytes;
      by_size_.insert({before->second, before->first});
      return;
    }
  }
  by_address_.emplace_hint(next, at, bytes);
  by_size_.insert({bytes, at});
}

bool BestFit::drain_small() {
  bool any = false;
  for (size_t i = 0; i < small_.size(); ++i) {
    Equals& equals = small_[i];
    for (char* at : equals.free) {
      free_ -= static_cast<int64_t>(i) * 64;
      --blocks_;
      --equals.count;
      insert_free(at, static_cast<int64_t>(i) * 64);
      any = true;
    }
    equals.free.clear();
  }
  return any;
}

namespace memory {
namespace {

std::array<std::atomic<void (*)()>, 8> droppers;  // null after the last one

}  // namespace

void when_short(void (*drop)()) {
  for (auto& slot : droppers) {
    void (*none)() = nullptr;
    if (slot.compare_exchange_strong(none, drop) || none == drop) return;
  }
}

void drop_retained() {
  for (const auto& slot : droppers) {
    void (*const drop)() = slot.load();
    if (drop == nullptr) return;
    try {
      drop();
    } catch (const std::bad_alloc&) {  // no host memory for it either
    }
  }
}

}  // namespace memory

}  // namespace longspan
