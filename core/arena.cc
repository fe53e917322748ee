#include "core/arena.h"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

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

int64_t page_bytes() {
  static const int64_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

/// Return the multiple of `bytes` at or below `at`, and the one at or above `at`.
char* aligned_down(char* at, int64_t bytes) {
  return at - static_cast<int64_t>(reinterpret_cast<uintptr_t>(at) % static_cast<uintptr_t>(bytes));
}
char* aligned_up(char* at, int64_t bytes) { return aligned_down(at + bytes - 1, bytes); }

/// Returns the whole pages among the free addresses [from, to) to the system. They come back empty
/// and one small page at a time, because a huge page would bring back more than the block that uses
/// it.
int64_t give_up(char* from, char* to) {
  from = aligned_up(from, page_bytes());
  const int64_t bytes = round_down(to - from, page_bytes());
  if (bytes <= 0) return 0;
  char* const first = aligned_down(from, huge_page);
  char* const last = aligned_up(from + bytes, huge_page);
  const bool small = madvise(first, static_cast<size_t>(last - first), MADV_NOHUGEPAGE) == 0 ||
                     errno == EINVAL;  // a system without huge pages
  if (!small) return 0;
  return madvise(from, static_cast<size_t>(bytes), MADV_DONTNEED) == 0 ? bytes : 0;
}

/// Returns a range of free addresses, null if the system grants none.
void* reserve(int64_t bytes) {
  void* const range = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return range != MAP_FAILED ? range : nullptr;
}

bool grants(int64_t bytes) {
  void* const range = reserve(bytes);
  if (range != nullptr) munmap(range, static_cast<size_t>(bytes));
  return range != nullptr;
}

/// Returns how much the arena may reserve of `wanted` bytes of addresses. Under a limit on them
/// (ulimit -v, ulimit -d) half of what the system grants remains for the rest of the program, but
/// no more than it needs: stacks, buffers, mapped files. Threads then share one heap of the C
/// library, which would otherwise reserve 64 MiB for each of them until nothing is left.
int64_t reservable(int64_t wanted) {
  constexpr int64_t rest = int64_t{512} << 20;
  if (grants(wanted + rest)) return wanted;
#ifdef M_ARENA_MAX
  mallopt(M_ARENA_MAX, 1);
#endif
  int64_t most = 0;
  for (int64_t step = wanted + rest; step >= huge_page; step /= 2) {
    if (grants(most + step)) most += step;
  }
  return std::min(wanted, most - std::min(most / 2, rest));
}

struct Arena {
  int64_t physical;
  BestFit blocks;

  Arena() : physical(static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE)) {
    int64_t size = reservable(4 * physical);
    void* const range = size > huge_page ? reserve(size) : nullptr;
    if (range == nullptr) return;
    char* const start = aligned_up(static_cast<char*>(range), huge_page);
    size = round_down(size - (start - static_cast<char*>(range)), huge_page);
    blocks.open(start, size, physical, nullptr, give_up, page_bytes());
    madvise(start, static_cast<size_t>(size), MADV_HUGEPAGE);
  }
};

Arena& arena() {
  static auto* instance = new Arena;  // outlives every static tensor
  return *instance;
}

}  // namespace

memory::Source host_arena() {
  return {.allocate = [](int64_t bytes) -> void* {
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
              [](int64_t bytes) { arena().blocks.set_limit(bytes > 0 ? bytes : arena().physical); },
          .limit = [] { return arena().blocks.limit(); }};
}

}  // namespace longspan
