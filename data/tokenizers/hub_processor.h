#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/tokenizers/hub_part.h"

namespace longspan {

/// An element of a template: a special token, or the place of a text.
struct HubTemplatePart {
  int32_t sequence = -1;  ///< 0: the first text, 1: the second one, -1: special tokens
  int32_t type = 0;  ///< token type of what stands here; -1: 0 for the first text, 1 for the second
  std::vector<int32_t> ids = {};
};

/// The member "post_processor" of a tokenizer.json: TemplateProcessing, RobertaProcessing,
/// BertProcessing, ByteLevel and Sequence.
class HubProcessor {
 public:
  /// Puts texts one after another, with types 0 and 1.
  HubProcessor() = default;
  /// Reads it; null puts texts one after another. Ids are to be below `limit`.
  HubProcessor(const Json& json, int64_t limit, HubIssues& issues);

  /// The template of one text or of two.
  const std::vector<HubTemplatePart>& parts(bool pair) const { return pair ? pair_ : single_; }
  /// Number of special tokens that the template adds.
  int64_t added(bool pair) const;
  /// Whether spaces at the ends of tokens do not count as their source.
  bool trims() const { return trims_; }
  /// Whether one space at the begin of the first token was inserted and has no source.
  bool prefixed() const { return prefixed_; }

 private:
  void read(const Json& json, const std::string& path, int64_t limit, HubIssues& issues, int depth);
  void read_template(HubPart& part, int64_t limit);
  void read_pair_of_tokens(HubPart& part, int64_t limit, bool roberta);

  std::vector<HubTemplatePart> single_ = {{0, -1}}, pair_ = {{0, -1}, {1, -1}};
  bool trims_ = false, prefixed_ = false, templated_ = false;
};

/// The member "decoder" of a tokenizer.json: WordPiece, ByteLevel, Metaspace, BPEDecoder, Replace,
/// ByteFallback, Fuse, Strip and Sequence.
class HubDecoder {
 public:
  /// Puts a space between tokens.
  HubDecoder() = default;
  /// Reads it; null puts a space between tokens.
  HubDecoder(const Json& json, HubIssues& issues);

  /// Returns the text of tokens. Bytes that are no UTF-8 become U+FFFD if `utf8`, otherwise they
  /// stay.
  std::string decode(std::vector<std::string> tokens, bool utf8) const;

 private:
  using Step = std::function<void(std::vector<std::string>&, bool utf8)>;
  void read(const Json& json, const std::string& path, HubIssues& issues, int depth);
  void read_strip(HubPart& part);

  std::vector<Step> steps_;
  bool joins_ = true;  // with spaces
};

/// Replaces each byte that is not part of well-formed UTF-8, as Rust's from_utf8_lossy() does: each
/// longest beginning of a character that is cut off, or each other byte, by one U+FFFD.
std::string with_replacement_characters(std::string_view text);

/// Removes the spaces that tokenizers put before punctuation and in "do n't", "'s" and the like.
std::string without_token_spaces(std::string text);

}  // namespace longspan
