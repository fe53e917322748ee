#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// Tokens and their ids, which may have gaps.
class TokenTable {
 public:
  /// The largest id that is accepted.
  static constexpr int64_t largest_id = 4'000'000;

  /// Adds a token. Returns false if the id already has one. A token that is there with another id
  /// keeps its text there, and is found by the new one.
  bool add(std::string_view token, int64_t id);
  /// Returns the id of a token, or -1.
  int32_t find(std::string_view token) const;
  bool has(int64_t id) const {
    return id >= 0 && id < limit() && places_[static_cast<size_t>(id)].length >= 0;
  }
  /// Text of an id that has one.
  std::string_view token(int64_t id) const {
    const Place& p = places_[static_cast<size_t>(id)];
    return std::string_view(texts_).substr(p.begin, static_cast<size_t>(p.length));
  }
  /// Number of tokens.
  int64_t size() const { return size_; }
  /// One more than the largest id.
  int64_t limit() const { return static_cast<int64_t>(places_.size()); }
  /// Bytes of the longest token.
  size_t longest() const { return longest_; }

 private:
  struct Place {
    size_t begin = 0;
    int32_t length = -1;
  };
  void insert(int32_t id, bool replaces);

  std::string texts_;
  std::vector<Place> places_;
  std::vector<int32_t> slots_;  // ids by hash; -1: none
  int64_t size_ = 0;
  size_t longest_ = 0;
};

}  // namespace longspan
