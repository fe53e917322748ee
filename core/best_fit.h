#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/node_pool.h"

namespace longspan {

/// Hands out blocks of one range of addresses, used from its start: freed blocks merge with their
/// neighbours and the best fit is taken, so a training step that repeats its requests gets the same
/// addresses. Knows nothing of what lies at them; the caller keeps it to one thread at a time. What
/// it must note of a block that is released, it takes memory for when the block is handed out.
class BestFit {
 public:
  /// Makes the addresses [from, to) usable; false where there is no room. They follow one another.
  using Back = bool (*)(char* from, char* to);
  /// Gives up what lies behind the free addresses [from, to), which stay usable; how many bytes.
  /// It comes back with the first use of an address on its page.
  using GiveUp = int64_t (*)(char* from, char* to);

  BestFit() = default;
  BestFit(char* begin, int64_t size, int64_t limit, Back back = nullptr, GiveUp give_up = nullptr,
          int64_t page = 0) {
    open(begin, size, limit, back, give_up, page);
  }
  BestFit(const BestFit&) = delete;
  BestFit& operator=(const BestFit&) = delete;

  /// Gives a range to one that has none.
  void open(char* begin, int64_t size, int64_t limit, Back back = nullptr, GiveUp give_up = nullptr,
            int64_t page = 0) {
    begin_ = top_ = begin;
    end_ = begin + size;
    limit_ = limit;
    page_ = page;
    back_ = back;
    give_up_ = give_up;
  }

  /// Blocks and what is held free never are more than `bytes` together. Where no free block fits,
  /// and the next addresses would be beyond it, free ones are given up: their places are used
  /// again, and gaps between blocks do not count.
  void set_limit(int64_t bytes) { limit_ = bytes; }
  int64_t limit() const { return limit_; }
  /// A block of `bytes`, a multiple of 64; null where there is no room. Throws std::bad_alloc where
  /// the host has none for the notes; then all is as it was.
  char* allocate(int64_t bytes);
  void release(char* at, int64_t bytes) noexcept;
  /// Bytes below the highest address ever handed out that are free, and not given up.
  int64_t held_free() const { return free_ - given_up_; }
  /// Ends the range where the highest address ever handed out is; how many bytes it has left.
  int64_t trim() {
    end_ = top_;
    return end_ - begin_;
  }

 private:
  static constexpr int64_t small_limit = 2048;  // requests up to here: lists of equal blocks

  /// Blocks of one small size.
  struct Equals {
    std::vector<char*> free;  // with room for all that there are
    int64_t count = 0;        // of all, free or not
  };

  void reserve(int64_t bytes);
  char* from_free(int64_t bytes);
  char* from_top(int64_t bytes);
  void insert_free(char* at, int64_t bytes);
  bool drain_small();
  bool fits(int64_t fresh, int64_t again);
  void take_back(int64_t bytes);

  char *begin_ = nullptr, *top_ = nullptr, *end_ = nullptr;
  int64_t limit_ = 0, page_ = 0, free_ = 0;
  int64_t given_up_ = 0;  // of the free bytes, at least
  Back back_ = nullptr;
  GiveUp give_up_ = nullptr;
  int64_t blocks_ = 0;  // handed out, or free in lists of equal ones
  NodePool nodes_;      // two for each block, and for each piece that is free
  std::pmr::map<char*, int64_t> by_address_{&nodes_};
  std::pmr::set<std::pair<int64_t, char*>> by_size_{&nodes_};
  std::array<Equals, small_limit / 64 + 1> small_;
};

}  // namespace longspan
