#include "core/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include "core/best_fit.h"
#include "core/divide.h"

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

/// Returns the whole pages among the free addresses [from, to) to the system: they come back empty.
int64_t give_up(char* from, char* to) {
  static const int64_t page = sysconf(_SC_PAGESIZE);
  const auto beyond = static_cast<int64_t>(reinterpret_cast<uintptr_t>(from) % uintptr_t(page));
  from += round_up(beyond, page) - beyond;
  const int64_t bytes = round_down(to - from, page);
  if (bytes <= 0 || madvise(from, static_cast<size_t>(bytes), MADV_DONTNEED) != 0) return 0;
  return bytes;
}

struct Arena {
  int64_t physical;
  BestFit blocks;

  Arena() : physical(static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE)) {
    for (int64_t size = 4 * physical; size >= huge_page; size /= 2) {
      void* range = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (range == MAP_FAILED) continue;
      auto* start = static_cast<char*>(range);
      const auto misalignment = reinterpret_cast<uintptr_t>(start) % huge_page;
      if (misalignment != 0) {
        start += huge_page - static_cast<int64_t>(misalignment);
        size -= huge_page - static_cast<int64_t>(misalignment);
      }
      blocks = BestFit(start, size, physical, nullptr, give_up);
      madvise(start, static_cast<size_t>(size), MADV_HUGEPAGE);
      break;
    }
  }
};

Arena& arena() {
  static auto* instance = new Arena;  // outlives every static tensor
  return *instance;
}

}  // namespace

memory::Source host_arena() {
  return {
      .allocate = [](int64_t bytes) -> void* {
        char* at = arena().blocks.allocate(bytes);
        if (at != nullptr) unpoison(at, bytes);
        return at;
      },
      .release =
          [](void* at, int64_t bytes) {
            poison(static_cast<char*>(at), bytes);
            arena().blocks.release(static_cast<char*>(at), bytes);
          },
      .held_free = [] { return arena().blocks.held_free(); },
      .set_limit =
          [](int64_t bytes) { arena().blocks.set_limit(bytes > 0 ? bytes : arena().physical); }};
}

}  // namespace longspan
