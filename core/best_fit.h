#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/node_pool.h"

namespace longspan {

/// Allocates best-fit blocks from one address range, starting at its beginning; freed blocks merge
/// with their neighbours, so a training step that repeats its requests gets the same addresses.
/// Never reads or writes the memory itself. The caller must serialize access. The memory for
/// releasing a block is reserved when the block is allocated.
class BestFit {
 public:
  /// Makes the addresses [from, to) usable; returns false if there is no memory. Successive calls
  /// receive adjacent ranges.
  using Back = bool (*)(char* from, char* to);
  /// Gives up the memory behind the free addresses [from, to), which stay usable, and returns the
  /// number of bytes. The memory returns with the first use of an address on its page.
  using GiveUp = int64_t (*)(char* from, char* to);

  BestFit() = default;
  BestFit(char* begin, int64_t size, int64_t limit, Back back = nullptr, GiveUp give_up = nullptr,
          int64_t page = 0) {
    open(begin, size, limit, back, give_up, page);
  }
  BestFit(const BestFit&) = delete;
  BestFit& operator=(const BestFit&) = delete;

  /// Assigns a range to an allocator that has none.
  void open(char* begin, int64_t size, int64_t limit, Back back = nullptr, GiveUp give_up = nullptr,
            int64_t page = 0) {
    begin_ = top_ = begin;
    end_ = begin + size;
    limit_ = limit;
    page_ = page;
    back_ = back;
    give_up_ = give_up;
  }

  /// Allocated blocks together never exceed `bytes`. Nor do they with the retained free bytes, as
  /// far as those can be given up: if no free block fits and the next addresses would exceed the
  /// limit, free ranges are given up, whose addresses stay usable. Only where that is not enough
  /// are the pages that blocks share with gaps not counted: so whatever fits in `bytes` is served.
  void set_limit(int64_t bytes) { limit_ = bytes; }
  int64_t limit() const { return limit_; }
  /// Returns a block of `bytes`, a multiple of 64, or null if there is no space. Throws
  /// std::bad_alloc if the host has no memory for the bookkeeping; the state is then unchanged.
  char* allocate(int64_t bytes);
  void release(char* at, int64_t bytes) noexcept;
  /// Frees what lies behind the first `kept` bytes of a block, both multiples of 64. Returns false,
  /// and leaves the block as it is, if one of the parts is so small that it would be counted with
  /// others of its size. Throws std::bad_alloc as allocate() does.
  bool shrink(char* at, int64_t bytes, int64_t kept);
  /// Whether a block may be cut into parts of these sizes.
  static bool divides(int64_t kept, int64_t rest) { return std::min(kept, rest) > small_limit; }
  /// Returns the free bytes below the highest address ever allocated, without those given up.
  int64_t held_free() const { return free_ - given_up_; }
  /// Ends the range at the highest address ever allocated and returns its new size in bytes.
  int64_t trim() {
    end_ = top_;
    return end_ - begin_;
  }

 private:
  static constexpr int64_t small_limit = 2048;  // largest size with lists of equal blocks

  /// Blocks of one small size.
  struct Equals {
    std::vector<char*> free;  // capacity for all blocks of this size
    int64_t count = 0;        // all blocks of this size, free or not
  };

  void reserve(int64_t bytes);
  char* find(int64_t bytes);
  char* from_free(int64_t bytes);
  char* from_top(int64_t bytes);
  void insert_free(char* at, int64_t bytes);
  bool drain_small();
  bool fits(int64_t fresh, int64_t again);
  void take_back(int64_t bytes);

  char *begin_ = nullptr, *top_ = nullptr, *end_ = nullptr;
  int64_t limit_ = 0, page_ = 0, free_ = 0;
  bool shared_pages_count_ = true;  // pages that gaps share with blocks, against the limit
  bool all_given_up_ = false;       // in this call of allocate()
  int64_t given_up_ = 0;            // lower bound of the free bytes that are given up
  Back back_ = nullptr;
  GiveUp give_up_ = nullptr;
  int64_t blocks_ = 0;  // allocated, or free in lists of equal blocks
  NodePool nodes_;      // two for each block and for each free range
  std::pmr::map<char*, int64_t> by_address_{&nodes_};
  std::pmr::set<std::pair<int64_t, char*>> by_size_{&nodes_};
  std::array<Equals, small_limit / 64 + 1> small_;
};

namespace memory {

/// Has `drop` called whenever a device has no room for a request, before the request is tried once
/// more. `drop` frees memory that can be rebuilt, such as caches for later calls.
void when_short(void (*drop)());
/// Calls these functions.
void drop_retained();

}  // namespace memory

}  // namespace longspan
