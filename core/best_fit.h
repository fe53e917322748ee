#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace longspan {

/// Hands out blocks of one range of addresses, used from its start: freed blocks merge with their
/// neighbours and the best fit is taken, so a training step that repeats its requests gets the same
/// addresses. Knows nothing of what lies at them; the caller keeps it to one thread at a time.
class BestFit {
 public:
  /// Makes the addresses [from, to) usable; false where there is no room. They follow one another.
  using Back = bool (*)(char* from, char* to);

  BestFit() = default;
  BestFit(char* begin, int64_t size, int64_t limit, Back back = nullptr)
      : begin_(begin), top_(begin), end_(begin + size), limit_(limit), back_(back) {}

  /// Never goes beyond `bytes` from the start.
  void set_limit(int64_t bytes) { limit_ = bytes; }
  /// A block of `bytes`, a multiple of 64; null where there is no room.
  char* allocate(int64_t bytes);
  void release(char* at, int64_t bytes);
  /// Bytes below the highest address ever handed out that are free.
  int64_t held_free() const { return free_; }

 private:
  static constexpr int64_t small_limit = 2048;  // requests up to here: lists of equal blocks

  char* from_free(int64_t bytes);
  char* from_top(int64_t bytes);
  void insert_free(char* at, int64_t bytes);
  bool drain_small();

  char *begin_ = nullptr, *top_ = nullptr, *end_ = nullptr;
  int64_t limit_ = 0, free_ = 0;
  Back back_ = nullptr;
  std::map<char*, int64_t> by_address_;
  std::set<std::pair<int64_t, char*>> by_size_;
  std::array<std::vector<char*>, small_limit / 64 + 1> small_;
};

}  // namespace longspan
