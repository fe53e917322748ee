#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/io/json.h"
#include "data/tokenizers/hub_encoding.h"
#include "data/tokenizers/tokenizer.h"

namespace longspan {

/// What the files of a hub folder say about a tokenizer besides its pipeline.
struct HubSettings {
  std::string tokenizer_class = {};  ///< without "Fast"; empty: none
  int64_t model_max_length = 0;      ///< 0: no limit
  bool pad_left = false, truncate_left = false;
  bool clean_up =
      false;  ///< decoding removes spaces before punctuation (clean_up_tokenization_spaces)
  /// Tokens by their member, such as "cls_token": "[CLS]".
  std::map<std::string, std::string> names = {};
  std::vector<std::string> more_special = {};  ///< extra_special_tokens
  /// What a class computes from: lower case, languages, and so on.
  std::map<std::string, Json> others = {};
};

struct HubToken;

/// A tokenizer of the package tokenizers, as tokenizer.json describes it: added tokens, normalizer,
/// pre-tokenizer, model, post-processor and decoder. Ids and texts equal the package's. Invalid
/// UTF-8, which the package does not take, is never an error: byte-level BPE and byte tokens spell
/// it, BERT's normalizer drops it, otherwise it is unknown.
class HubTokenizer : public Tokenizer {
 public:
  /// The tokens of a text, without tokens of the template.
  std::vector<Piece> pieces(std::string_view text) const override;
  std::vector<int32_t> encode(std::string_view text) const override;
  /// The text of these tokens, special ones included. Bytes that are no UTF-8 stay.
  std::string decode(std::span<const int32_t> ids) const override;
  int64_t vocabulary() const override;
  int32_t find(std::string_view token) const override;
  std::string token(int32_t id) const override;
  WordRole word_role(int32_t id) const override;

  /// Returns the row of a text. Throws ValueError if a row cannot be made that short.
  HubEncoding encode_text(std::string_view text, const HubEncodeOptions& options = {}) const;
  /// Returns the row of two texts.
  HubEncoding encode_pair(std::string_view first, std::string_view second,
                          const HubEncodeOptions& options = {}) const;
  /// Returns the row of a text that has been split into words, each of which is encoded alone.
  /// Spans are byte ranges in the word.
  HubEncoding encode_words(std::span<const std::string> words,
                           const HubEncodeOptions& options = {}) const;
  /// Returns rows that together hold the whole truncated text; each repeats the last `stride`
  /// tokens of the text in the row before. Only one of two texts may be truncated.
  std::vector<HubEncoding> windows(std::string_view text, const HubEncodeOptions& options) const;
  std::vector<HubEncoding> windows(std::string_view first, std::string_view second,
                                   const HubEncodeOptions& options) const;

  /// Returns the text of these tokens as the package does: bytes that are no UTF-8 become U+FFFD.
  /// Throws ValueError if an id is not in the vocabulary.
  std::string text(std::span<const int32_t> ids, bool skip_special = true) const;
  /// Whether a token is special: text() leaves it out.
  bool is_special(int32_t id) const;
  /// Number of special tokens that the template adds to one text or two.
  int64_t added_tokens(bool pair) const;
  /// The token of padding: pad_token, or 0 if there is none.
  int32_t pad_id() const;

  const HubSettings& settings() const;
  /// How the file itself would truncate and pad (members "truncation" and "padding"), which
  /// encode_text() and encode_pair() do not do unless they are given it.
  const HubEncodeOptions& file_options() const;
  /// The tokenizer as a tokenizer.json.
  Json json() const;
  Json hub_file() const override { return json(); }

  /// Reads a whole tokenizer.json; `name` names the file in messages. Throws IoError that lists
  /// everything that is not implemented or wrong. `special_in_text`: names of special tokens in a
  /// text are these tokens, as in the package, otherwise ordinary text.
  HubTokenizer(const Json& file, HubSettings settings, const std::string& name,
               bool special_in_text = true);
  ~HubTokenizer() override;

 private:
  class Pipeline;
  std::vector<HubEncoding> rows(const std::vector<std::string_view>& texts,
                                const HubEncodeOptions& options, bool all) const;
  std::vector<HubEncoding> made_rows(std::vector<std::vector<HubToken>> texts,
                                     const HubEncodeOptions& options,
                                     const std::function<std::string_view(size_t, int32_t)>& source,
                                     bool all) const;

  std::unique_ptr<Pipeline> pipeline_;
};

/// How a hub folder is opened.
struct HubOptions {
  /// Settings of tokenizer_config.json by name, which replace those of the file, such as
  /// "do_lower_case": "false". Values are JSON, or text without quotes.
  std::map<std::string, std::string> settings = {};
  bool special_in_text = true;  ///< names of special tokens in a text are these tokens
};

/// Opens the tokenizer of a hub folder: from tokenizer.json, or from vocab.txt, from vocab.json and
/// merges.txt, or from one .model file, with the settings in tokenizer_config.json,
/// special_tokens_map.json, added_tokens.json and config.json. docs/tokenizers.md says which file
/// decides. Throws IoError that names everything that is not implemented, and ValueError if the
/// settings would give another pipeline than tokenizer.json.
std::unique_ptr<HubTokenizer> open_hub_tokenizer(const std::string& folder,
                                                 const HubOptions& options = {});

/// Writes tokenizer.json and tokenizer_config.json into a folder, so that the package transformers
/// has the same ids: from a tokenizer of a hub folder, from WordPiece, byte-level BPE and
/// SentencePiece. Throws ValueError that names what these files cannot express.
void write_hub_tokenizer(const Tokenizer& tokenizer, const std::string& folder);

}  // namespace longspan
