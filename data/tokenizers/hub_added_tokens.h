#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizers/hub_model.h"
#include "data/tokenizers/hub_normalizer.h"
#include "data/tokenizers/piece_trie.h"

namespace longspan {

/// A token that is found in a text before everything else.
struct HubAddedToken {
  std::string content;
  std::string shown = {};  ///< what it is decoded to: the content, normalized if the token is
  int32_t id = 0;
  bool special = false;
  bool normalized = false;           ///< found in the normalized text, and normalized itself
  bool left = false, right = false;  ///< takes the white space there
  bool single = false;               ///< only where no word continues
};

/// The member "added_tokens" of a tokenizer.json.
class HubAddedTokens {
 public:
  HubAddedTokens() = default;
  /// Reads the list. A token has its id in the model, or else the next free id; any other id is an
  /// issue. Without `special_in_text`, special ones are not found in texts.
  HubAddedTokens(const Json& list, const HubModel& model, const HubNormalizer& normalizer,
                 bool special_in_text, HubIssues& issues);

  /// A part of a text: a token by its index, or text (-1).
  struct Part {
    int32_t token = -1;
    size_t begin = 0, end = 0;
  };
  /// Splits a text at the tokens that are normalized, or at those that are not: leftmost first, of
  /// those the longest. Parts may be empty only if they are tokens.
  void split(std::string_view text, bool normalized, std::vector<Part>& out) const;
  /// Whether no token of this sort is found in any text.
  bool none(bool normalized) const { return finders_[normalized ? 1 : 0].trie == nullptr; }

  const std::vector<HubAddedToken>& all() const { return all_; }
  /// Returns the token with this id or content, or null.
  const HubAddedToken* find(int32_t id) const;
  const HubAddedToken* find(std::string_view content) const;
  /// One more than the largest id; 0: none.
  int64_t limit() const { return limit_; }

 private:
  struct Finder {
    TokenTable patterns;
    std::vector<int32_t> tokens;  // index of the token of each pattern
    std::unique_ptr<PieceTrie> trie;
  };
  void index(const HubNormalizer& normalizer, bool special_in_text);

  std::vector<HubAddedToken> all_;
  std::unordered_map<int32_t, size_t> by_id_;
  std::unordered_map<std::string, size_t> by_content_;
  Finder finders_[2];
  int64_t limit_ = 0;
};

}  // namespace longspan
