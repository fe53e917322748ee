#include "core/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define LONGSPAN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LONGSPAN_ASAN 1
#endif
#endif
#if defined(LONGSPAN_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace longspan {
namespace {

constexpr int64_t huge_page = int64_t{2} << 20;
constexpr int64_t small_limit = 2048;  // requests up to here come from lists of equal blocks

void poison([[maybe_unused]] char* at, [[maybe_unused]] int64_t bytes) {
#if defined(LONGSPAN_ASAN)
  ASAN_POISON_MEMORY_REGION(at, static_cast<size_t>(bytes));
#endif
}

void unpoison([[maybe_unused]] char* at, [[maybe_unused]] int64_t bytes) {
#if defined(LONGSPAN_ASAN)
  ASAN_UNPOISON_MEMORY_REGION(at, static_cast<size_t>(bytes));
#endif
}

class Arena {
 public:
  Arena() {
    physical_ = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    limit_ = physical_;
    for (int64_t size = 4 * physical_; size >= huge_page; size /= 2) {
      void* range = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (range == MAP_FAILED) continue;
      auto* start = static_cast<char*>(range);
      const auto misalignment = reinterpret_cast<uintptr_t>(start) % huge_page;
      if (misalignment != 0) {
        start += huge_page - static_cast<int64_t>(misalignment);
        size -= huge_page - static_cast<int64_t>(misalignment);
      }
      begin_ = top_ = start;
      end_ = begin_ + size;
      madvise(begin_, static_cast<size_t>(size), MADV_HUGEPAGE);
      break;
    }
  }

  void set_limit(int64_t bytes) { limit_ = bytes > 0 ? bytes : physical_; }

  char* allocate(int64_t bytes) {  // a multiple of 64
    char* at = nullptr;
    if (bytes <= small_limit) {
      auto& list = small_[static_cast<size_t>(bytes / 64)];
      if (!list.empty()) {
        at = list.back();
        list.pop_back();
        free_ -= bytes;
      }
    }
    if (at == nullptr) at = from_free(bytes);
    if (at == nullptr) at = from_top(bytes);
    if (at == nullptr && drain_small()) {
      at = from_free(bytes);
      if (at == nullptr) at = from_top(bytes);
    }
    if (at != nullptr) unpoison(at, bytes);
    return at;
  }

  void release(char* at, int64_t bytes) {
    poison(at, bytes);
    if (bytes <= small_limit) {
      small_[static_cast<size_t>(bytes / 64)].push_back(at);
      free_ += bytes;
    } else {
      insert_free(at, bytes);
    }
  }

  int64_t held_free() const { return free_; }

 private:
  char* from_free(int64_t bytes) {
    const auto fit = by_size_.lower_bound({bytes, nullptr});
    if (fit == by_size_.end()) return nullptr;
    const auto [size, at] = *fit;
    by_size_.erase(fit);
    by_address_.erase(at);
    free_ -= size;
    if (size > bytes) insert_free(at + bytes, size - bytes);
    return at;
  }

  char* from_top(int64_t bytes) {
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
    if (end_ - at < bytes || at + bytes - begin_ > limit_) return nullptr;
    if (have > 0) {
      by_size_.erase({have, at});
      by_address_.erase(at);
      free_ -= have;
    }
    top_ = at + bytes;
    return at;
  }

  void insert_free(char* at, int64_t bytes) {
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

  bool drain_small() {
    bool any = false;
    for (size_t i = 0; i < small_.size(); ++i) {
      for (char* at : small_[i]) {
        free_ -= static_cast<int64_t>(i) * 64;
        insert_free(at, static_cast<int64_t>(i) * 64);
        any = true;
      }
      small_[i].clear();
    }
    return any;
  }

  char *begin_ = nullptr, *top_ = nullptr, *end_ = nullptr;
  int64_t physical_ = 0, limit_ = 0, free_ = 0;
  std::map<char*, int64_t> by_address_;
  std::set<std::pair<int64_t, char*>> by_size_;
  std::array<std::vector<char*>, small_limit / 64 + 1> small_;
};

Arena& arena() {
  static auto* instance = new Arena;  // outlives every static tensor
  return *instance;
}

}  // namespace

memory::Source host_arena() {
  return {
      .allocate = [](int64_t bytes) -> void* { return arena().allocate(bytes); },
      .release = [](void* at, int64_t bytes) { arena().release(static_cast<char*>(at), bytes); },
      .held_free = [] { return arena().held_free(); },
      .set_limit = [](int64_t bytes) { arena().set_limit(bytes); }};
}

}  // namespace longspan
