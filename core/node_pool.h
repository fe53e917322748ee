#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <vector>

namespace longspan {

/// Room for the small nodes of containers (std::pmr) that is taken ahead of their use: who has
/// reserved it may insert without asking for memory, and so where nothing may fail. Keeps what it
/// has taken. For one thread at a time.
class NodePool final : public std::pmr::memory_resource {
 public:
  /// Room for so many nodes in all, in use or not. Throws std::bad_alloc, and then all is as it
  /// was.
  void reserve(int64_t nodes) {
    if (nodes > nodes_) grow(nodes);
  }

 private:
  static constexpr size_t node_bytes = 64;
  union Node {
    Node* next;
    alignas(std::max_align_t) std::byte bytes[node_bytes];
  };

  void grow(int64_t nodes);
  void* do_allocate(size_t bytes, size_t alignment) override;
  void do_deallocate(void* at, size_t bytes, size_t alignment) override;
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  Node* free_ = nullptr;
  int64_t nodes_ = 0;
  std::vector<std::unique_ptr<Node[]>> pieces_;
};

}  // namespace longspan
