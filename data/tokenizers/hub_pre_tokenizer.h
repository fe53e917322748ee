#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/tokenizers/hub_part.h"
#include "data/unicode/aligned_text.h"

namespace longspan {

/// Bytes [begin, end) of a text, one of the words that a model sees.
struct HubWord {
  uint32_t begin = 0, end = 0;
};

/// The member "pre_tokenizer" of a tokenizer.json: BertPreTokenizer, ByteLevel, Metaspace,
/// WhitespaceSplit, Whitespace, Punctuation, Digits and Sequence.
class HubPreTokenizer {
 public:
  /// Does not split.
  HubPreTokenizer() = default;
  /// Reads it; null does not split.
  HubPreTokenizer(const Json& json, HubIssues& issues);

  /// A text and its words, none of them empty.
  struct Words {
    AlignedText text, spare;
    std::vector<HubWord> words, spare_words;
  };
  /// Splits `words.text` into `words.words`. Spaces may be inserted and replaced in it.
  void apply(Words& words) const;
  /// Whether the last component is ByteLevel. Its words are bytes here, each of which the model
  /// sees as a character (byte_level_characters()).
  bool bytes_last() const { return bytes_last_; }
  /// Whether the source of the text must be tracked, because a word at its begin is special.
  bool needs_source() const { return needs_source_; }

 private:
  using Step = std::function<void(Words&)>;
  void read(const Json& json, const std::string& path, HubIssues& issues, int depth);
  void read_byte_level(HubPart& part);
  void read_metaspace(HubPart& part);

  std::vector<Step> steps_;
  bool bytes_last_ = false, needs_source_ = false;
};

}  // namespace longspan
