#include "core/node_pool.h"

#include <algorithm>
#include <new>

namespace longspan {

void NodePool::grow(int64_t nodes) {
  const int64_t more = std::max(nodes - nodes_, std::max<int64_t>(64, nodes_ / 2));
  pieces_.push_back(std::make_unique_for_overwrite<Node[]>(static_cast<size_t>(more)));
  for (int64_t i = more - 1; i >= 0; --i) {
    Node& node = pieces_.back()[static_cast<size_t>(i)];
    node.next = free_;
    free_ = &node;
  }
  nodes_ += more;
}

void* NodePool::do_allocate(size_t bytes, size_t alignment) {
  if (bytes > node_bytes || alignment > alignof(Node)) throw std::bad_alloc();
  if (free_ == nullptr) grow(nodes_ + 1);
  Node* const node = free_;
  free_ = node->next;
  return node;
}

void NodePool::do_deallocate(void* at, size_t, size_t) {
  Node* const node = static_cast<Node*>(at);
  node->next = free_;
  free_ = node;
}

}  // namespace longspan
