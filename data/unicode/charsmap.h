#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/unicode/aligned_text.h"

namespace longspan {

/// The character rules of a SentencePiece model (precompiled_charsmap): a trie in a double array,
/// and the texts that replace what it finds. They are applied as the package tokenizers does: in
/// each grapheme cluster below 6 bytes, the shortest key that begins it replaces all of it; in
/// longer ones, and where there is none, characters are looked up one by one.
class CharacterRules {
 public:
  /// Reads the rules. Throws ValueError if they are cut off, or lead outside their own data.
  explicit CharacterRules(std::string data);

  /// Writes the changed text to `to`.
  void apply(const AlignedText& text, AlignedText& to) const;
  /// Returns the bytes that were read.
  const std::string& data() const { return data_; }

 private:
  template <class Replace, class Keep>
  void for_each(std::string_view bytes, Replace&& replace, Keep&& keep) const;
  /// Whether a key begins `part`; if so, sets what replaces it.
  bool find(std::string_view part, std::string_view& text) const;

  std::string data_;
  std::vector<uint32_t> units_;
  size_t texts_ = 0;                  // where they begin in data_
  std::array<bool, 128> ascii_ = {};  // whether a key is this character
};

/// Returns the end of the extended grapheme cluster that begins at byte `begin` < text.size(), by
/// the rules of the package tokenizers.
size_t cluster_end(std::string_view text, size_t begin);

}  // namespace longspan
