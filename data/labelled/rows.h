#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "data/questions.h"
#include "data/tokenizers/hub_encoding.h"
#include "data/tokenizers/tokenizer.h"

namespace longspan {

class HubTokenizer;

/// The row of a model that is made of one text or two, or of words.
struct TextRow {
  HubEncoding tokens;
  bool cut = false;  ///< the text was longer than a row
  /// Models with global tokens usually make positions [global_begin, global_end) global: the first
  /// one, unless the maker sets others.
  int64_t global_begin = 0, global_end = 1;

  int64_t length() const { return std::ssize(tokens.ids); }
};

/// A question and a text in windows.
struct QuestionRow {
  std::vector<SpanWindow> windows;
  std::vector<Piece> pieces;  ///< of the text; a window has [first, first + count) of them
  bool cut = false;           ///< the question was longer than it may be

  /// Returns the row of a window; its global tokens are those before the first [SEP].
  TextRow row(size_t window) const;
};

/// Makes the rows that models read, with the template of a tokenizer of a hub folder
/// (docs/tokenizers.md). Of other tokenizers a row is [CLS] text [SEP], [CLS] text [SEP] text [SEP]
/// for two, as far as the vocabulary has these tokens; the id behind its last one is [CLS] if it
/// has none, as bytes.
///
/// No row has more than `most` tokens: of two texts, the longer one is cut, and the end unless the
/// folder says truncation_side. Throws ValueError if `most` has no room for a template.
class RowMaker {
 public:
  /// `tokenizer`: a name for open_tokenizer(), which says what is thrown; empty: bytes.
  /// `separated`: a vocabulary without [SEP] gets one, behind [CLS].
  explicit RowMaker(const std::string& tokenizer, bool separated = false);

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  /// Whether the tokenizer is of a hub folder.
  bool templated() const { return hub_ != nullptr; }
  /// V: all ids of rows are smaller.
  int64_t vocabulary() const { return vocabulary_; }
  /// The id of padding.
  int32_t padding() const { return padding_; }
  /// The id that a folder gives a member such as eos_token; -1 without.
  int32_t named_id(const std::string& member) const;
  /// The maker of what is written in answer to rows: this one, but for a folder with another
  /// language for that (tgt_lang of mBART).
  RowMaker of_targets() const;
  /// Returns the text of tokens without special ones, as the package does.
  std::string text_of(std::span<const int32_t> ids) const;

  /// Throws ValueError if words() has other tokens for words than text() has, as byte-level BPE of
  /// a hub folder without add_prefix_space, which the package refuses too.
  void require_words() const;

  TextRow text(std::string_view text, int64_t most) const;
  TextRow pair(std::string_view first, std::string_view second, int64_t most) const;
  /// A text that has been split into words: HubEncoding::words says which word a token is of. A
  /// tokenizer of a hub folder encodes each alone, as the package does; others put a space between.
  TextRow words(std::span<const std::string> words, int64_t most) const;
  /// A question, of at most `most_question` tokens, and a text in windows of at most `most` tokens,
  /// each of which repeats the last `stride` tokens of the text in that before, or, in short
  /// windows, half of their tokens of the text.
  QuestionRow question(std::string_view question, std::string_view text, int64_t most,
                       int64_t stride, int64_t most_question = 64) const;

 private:
  TextRow plain(std::span<const std::string_view> texts, bool each_is_word, int64_t most) const;

  std::string name_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  const HubTokenizer* hub_;  // tokenizer_, if it is one
  SpecialIds special_;
  int64_t vocabulary_ = 0;
  int32_t padding_ = 0;
};

/// Rows as one batch, padded at their ends to the longest.
struct TextBatch {
  Tensor tokens, types;  ///< i32 [B, L]
  Tensor lengths;        ///< i64 [B]
  Tensor global;         ///< u8 [B, L]
  bool equal = true;     ///< all rows have the same length
  bool typed = false;    ///< there is a type other than 0
};
/// Returns the batch of some rows. Throws ShapeError if there are none.
TextBatch text_batch(std::span<const TextRow> rows, int32_t padding);

}  // namespace longspan
