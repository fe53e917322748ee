#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace longspan {

/// Finds the byte at which a character of a text begins, by its number. The text must stay.
class CodePointIndex {
 public:
  CodePointIndex() = default;
  explicit CodePointIndex(std::string_view text);

  /// Returns the byte offset of character number `character`, or of the end, or -1 if there is no
  /// such character.
  int64_t byte_of(int64_t character) const;

 private:
  static constexpr int64_t kStep = 64;
  std::string_view text_;
  std::vector<size_t> places_;  // of every character number that kStep divides
};

}  // namespace longspan
