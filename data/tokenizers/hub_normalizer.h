#pragma once

#include <functional>
#include <vector>

#include "data/tokenizers/hub_part.h"
#include "data/unicode/aligned_text.h"

namespace longspan {

/// The member "normalizer" of a tokenizer.json: BertNormalizer, Precompiled, Replace, NFC, NFD,
/// NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend and Sequence.
class HubNormalizer {
 public:
  /// Leaves texts as they are.
  HubNormalizer() = default;
  /// Reads it; null leaves texts as they are.
  HubNormalizer(const Json& json, HubIssues& issues);

  /// Changes a text; `spare` is overwritten.
  void apply(AlignedText& text, AlignedText& spare) const;
  /// Whether it leaves every text as it is.
  bool empty() const { return steps_.empty(); }

 private:
  void read(const Json& json, const std::string& path, HubIssues& issues, int depth);
  void read_rules(HubPart& part);

  using Step = std::function<void(const AlignedText&, AlignedText&)>;
  std::vector<Step> steps_;
};

}  // namespace longspan
