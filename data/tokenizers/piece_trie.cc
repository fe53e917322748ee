#include "data/tokenizers/piece_trie.h"

#include <utility>

namespace longspan {

PieceTrie::PieceTrie(const TokenTable& tokens) {
  std::vector<std::pair<std::string_view, int32_t>> sorted;
  for (int64_t id = 0; id < tokens.limit(); ++id) {
    if (!tokens.has(id) || tokens.token(id).empty()) continue;
    if (tokens.find(tokens.token(id)) == id)
      sorted.emplace_back(tokens.token(id), static_cast<int32_t>(id));
  }
  std::sort(sorted.begin(), sorted.end());
  struct Open {
    size_t begin, end, depth;  // tokens below a node, which agree in `depth` bytes
  };
  std::vector<Open> open = {{0, sorted.size(), 0}};
  nodes_.push_back({});
  for (size_t at = 0; at < open.size(); ++at) {  // breadth first: nodes are in the same order
    auto [begin, end, depth] = open[at];
    if (begin < end && sorted[begin].first.size() == depth) nodes_[at].id = sorted[begin++].second;
    nodes_[at].first = static_cast<uint32_t>(nodes_.size());
    while (begin < end) {
      const char byte = sorted[begin].first[depth];
      size_t next = begin;
      while (next < end && sorted[next].first[depth] == byte) ++next;
      open.push_back({begin, next, depth + 1});
      nodes_.push_back({});
      labels_.resize(nodes_.size());
      labels_.back() = byte;
      ++nodes_[at].count;
      begin = next;
    }
  }
  labels_.resize(nodes_.size());
  for (uint32_t i = 0; i < nodes_[0].count; ++i) {
    roots_[static_cast<uint8_t>(labels_[nodes_[0].first + i])] = nodes_[0].first + i;
  }
}

}  // namespace longspan
