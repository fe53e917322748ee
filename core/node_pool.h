#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <vector>

namespace longspan {

/// Preallocated memory for the small nodes of std::pmr containers: after reserve(), inserts need no
/// further memory, so they also work in code that must not fail. Never returns memory. Not
/// thread-safe.
class NodePool final : public std::pmr::memory_resource {
 public:
  /// Makes memory for this many nodes in all, in use or not. Throws std::bad_alloc and then leaves
  /// the state unchanged.
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
