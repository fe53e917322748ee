#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "data/io/formats.h"
#include "data/tokenizers/tokenizer.h"

namespace longspan {

/// The special ids around the texts of a pair: the tokenizer's own, and new ids behind its
/// vocabulary for those it lacks.
struct SequenceIds {
  explicit SequenceIds(const Tokenizer& tokenizer);

  int32_t begin = 0;  ///< before a source
  int32_t end = 0;    ///< after a source and a target
  int32_t mask = 0;   ///< replaces a sentence that is left out
  int32_t start = 0;  ///< the first input of a decoder: `end`, unless a checkpoint has another
  bool last_first = false;  ///< that input is a target's last token instead, as in mBART
  int64_t vocabulary = 0;   ///< all ids are smaller
};

/// Maximum tokens of a source and of a target, including the special ids.
struct SequenceLimits {
  int64_t source = 1024, target = 512;
};

/// Input and target of a sequence-to-sequence model.
struct SequencePair {
  std::vector<int32_t> source;  ///< begin, text, end
  std::vector<int32_t> target;  ///< text, end
  int64_t bytes = 0;            ///< of the target's text
  friend bool operator==(const SequencePair&, const SequencePair&) = default;
};

/// Returns an article as a model's input: its sentences joined by spaces.
std::string article_text(const Document& document);
/// Returns a summary as a model's target: one sentence per line.
std::string summary_text(const Document& document);
/// Splits such a text into sentences, ignoring empty lines.
std::vector<std::string> summary_sentences(std::string_view text);

/// Tokenizes a source, truncated to `longest` tokens. Throws ValueError unless longest >= 1.
std::vector<int32_t> source_tokens(std::string_view text, const Tokenizer& tokenizer,
                                   int64_t longest);

/// Tokenizes an article and its summary, both truncated to the limits. Throws ValueError if a limit
/// is below 1.
SequencePair summary_pair(const Document& document, const Tokenizer& tokenizer,
                          const SequenceLimits& limits);

/// The same for several documents.
std::vector<SequencePair> summary_pairs(std::span<const Document> documents,
                                        const Tokenizer& tokenizer, const SequenceLimits& limits);

/// Builds gap-sentence pairs of an article, \cite zhang2020 : the article is divided into runs of
/// whole sentences, as many per run as fit a source. In each run the `share` of the most
/// informative sentences (gap_sentences()) is masked and becomes the target. A run of one sentence
/// gives no pair.
std::vector<SequencePair> gap_pairs(const Document& document, double share,
                                    const Tokenizer& tokenizer, const SequenceLimits& limits);

/// Decodes ids up to the first `end`; ids outside the tokenizer's vocabulary are left out.
std::string written_text(std::span<const int64_t> ids, const Tokenizer& tokenizer,
                         const SequenceIds& special);

/// A batch of pairs. Rows are padded to the longest; padding affects no result.
struct SequenceBatch {
  Tensor source;        ///< i32 [B, S]
  Tensor lengths;       ///< i64 [B], of the sources
  Tensor tokens;        ///< i32 [B, L]: start, then the target without its last token
  Tensor targets;       ///< i32 [B, L]; ignored_target after the target
  int64_t count = 0;    ///< tokens of sources and targets without padding
  int64_t counted = 0;  ///< targets that are not ignored
};

/// Throws ShapeError if there are no pairs.
SequenceBatch stack(std::span<const SequencePair* const> pairs, const SequenceIds& ids,
                    Device device = {});

/// Training batches: each pair once per epoch, in an order drawn from (seed, epoch). Row r of the
/// run is row r mod B of batch r div B.
class SequenceBatches {
 public:
  /// Throws ValueError if there are no pairs or batch is below 1.
  SequenceBatches(std::vector<SequencePair> pairs, int64_t batch, const SequenceIds& ids,
                  uint64_t seed, Device device = {});

  /// Returns the batch of any step, in constant time.
  SequenceBatch at(int64_t step) const;
  /// Returns rows row to row + B - 1 of the run as a batch.
  SequenceBatch from_row(int64_t row) const;
  int64_t size() const { return static_cast<int64_t>(pairs_.size()); }

 private:
  std::vector<SequencePair> pairs_;
  int64_t batch_;
  SequenceIds ids_;
  uint64_t seed_;
  Device device_;
};

}  // namespace longspan
