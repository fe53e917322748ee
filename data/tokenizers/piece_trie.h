#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "data/tokenizers/token_table.h"

namespace longspan {

/// All tokens by their bytes. Successors of a node are consecutive and sorted.
class PieceTrie {
 public:
  /// Builds it from the tokens that find() gives; empty ones are left out.
  explicit PieceTrie(const TokenTable& tokens);

  /// Whether a token begins with this byte.
  bool begins(char byte) const { return roots_[static_cast<uint8_t>(byte)] != 0; }
  /// Calls take(length, id) for each token that text[at..] begins with, shortest first.
  template <class F>
  void for_each_prefix(std::string_view text, size_t at, F&& take) const {
    uint32_t node = roots_[static_cast<uint8_t>(text[at])];
    for (size_t length = 1; node != 0; ++length) {
      if (nodes_[node].id >= 0) take(length, nodes_[node].id);
      if (at + length == text.size()) return;
      node = successor(nodes_[node], text[at + length]);
    }
  }

 private:
  struct Node {
    uint32_t first = 0;
    uint16_t count = 0;
    int32_t id = -1;
  };
  uint32_t successor(const Node& node, char byte) const {
    const auto begin = labels_.begin() + node.first, end = begin + node.count;
    const auto at = std::find(begin, end, byte);
    return at == end ? 0 : static_cast<uint32_t>(at - labels_.begin());
  }

  std::vector<Node> nodes_;
  std::vector<char> labels_;
  std::array<uint32_t, 256> roots_{};
};

}  // namespace longspan
