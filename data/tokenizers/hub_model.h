#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "data/tokenizers/hub_part.h"
#include "data/tokenizers/token_table.h"

namespace longspan {

/// A token of a word, and the bytes of the word that it stands for.
struct HubPiece {
  int32_t id = 0;
  uint32_t begin = 0, end = 0;
};

/// The member "model" of a tokenizer.json: WordPiece, BPE or Unigram.
class HubModel {
 public:
  virtual ~HubModel() = default;
  /// Appends the tokens of a word that is not empty.
  virtual void tokenize(std::string_view word, std::vector<HubPiece>& out) const = 0;
  /// "WordPiece", "BPE" or "Unigram".
  virtual std::string_view kind() const = 0;
  /// The model as the member of a tokenizer.json.
  virtual Json json() const = 0;
  /// What a token inside a word begins with: "##" of WordPiece; "" if nothing tells.
  virtual std::string_view inside_prefix() const { return {}; }
  const TokenTable& tokens() const { return tokens_; }

 protected:
  TokenTable tokens_;
};

/// Reads it; the type may be absent if its members tell. Issues: another type, tokens without ids,
/// merges of tokens that are not there, dropout.
std::unique_ptr<HubModel> read_hub_model(const Json& json, HubIssues& issues);

}  // namespace longspan
