#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "data/io/formats.h"
#include "data/tokenizers/tokenizer.h"

namespace longspan {

/// The ids around the texts of a pair: those of the tokenizer, and behind its vocabulary those that
/// it lacks.
struct SequenceIds {
  explicit SequenceIds(const Tokenizer& tokenizer);

  int32_t begin = 0;       ///< before a source
  int32_t end = 0;         ///< after a source and a target; a decoder starts with it too
  int32_t mask = 0;        ///< in place of a sentence that is left out
  int64_t vocabulary = 0;  ///< all ids are below
};

/// Most tokens of a source and of a target, with the ids around them.
struct SequenceLimits {
  int64_t source = 1024, target = 512;
};

/// What is read, and what is to be written then.
struct SequencePair {
  std::vector<int32_t> source;  ///< begin, text, end
  std::vector<int32_t> target;  ///< text, end
  int64_t bytes = 0;            ///< of the target's text
  friend bool operator==(const SequencePair&, const SequencePair&) = default;
};

/// An article as models read it: its sentences with spaces between.
std::string article_text(const Document& document);
/// A summary as models write it: a sentence a line.
std::string summary_text(const Document& document);
/// The sentences of such a text; empty lines are none.
std::vector<std::string> summary_sentences(std::string_view text);

/// The source of a text, cut to `longest` tokens. Throws ValueError unless longest >= 1.
std::vector<int32_t> source_tokens(std::string_view text, const Tokenizer& tokenizer,
                                   int64_t longest);

/// An article and its summary, the ends of both cut off where they are longer than the limits.
/// Throws ValueError on limits below 1.
SequencePair summary_pair(const Document& document, const Tokenizer& tokenizer,
                          const SequenceLimits& limits);

/// The same of several documents.
std::vector<SequencePair> summary_pairs(std::span<const Document> documents,
                                        const Tokenizer& tokenizer, const SequenceLimits& limits);

/// Gap sentences of an article, \cite zhang2020 : the article is taken apart into runs of whole
/// sentences, as many each as fit a source; of each run the `share` of sentences that say most of
/// it (gap_sentences()) become masks and are the target. A run of one sentence gives no pair.
std::vector<SequencePair> gap_pairs(const Document& document, double share,
                                    const Tokenizer& tokenizer, const SequenceLimits& limits);

/// The text that ids stand for, up to the first `end`; ids that are no text of the tokenizer are
/// left out.
std::string written_text(std::span<const int64_t> ids, const Tokenizer& tokenizer,
                         const SequenceIds& special);

/// Pairs side by side. Rows are as long as the longest; what follows a shorter one counts nowhere.
struct SequenceBatch {
  Tensor source;        ///< i32 [B, S]
  Tensor lengths;       ///< i64 [B], of the sources
  Tensor tokens;        ///< i32 [B, L]: end, then all of the target but its last token
  Tensor targets;       ///< i32 [B, L]; ignored_target after the target
  int64_t count = 0;    ///< tokens of sources and targets, without padding
  int64_t counted = 0;  ///< targets that are not ignored
};

/// Throws ShapeError where there are no pairs.
SequenceBatch stack(std::span<const SequencePair* const> pairs, const SequenceIds& ids,
                    Device device = {});

/// Training batches: every pair once an epoch, in an order of its own drawn from (seed, epoch). Row
/// r of the run is row r mod B of batch r div B.
class SequenceBatches {
 public:
  /// Throws ValueError where there are no pairs or batch is below 1.
  SequenceBatches(std::vector<SequencePair> pairs, int64_t batch, const SequenceIds& ids,
                  uint64_t seed, Device device = {});

  /// The batch of any step, in time that does not depend on it.
  SequenceBatch at(int64_t step) const;
  int64_t size() const { return static_cast<int64_t>(pairs_.size()); }

 private:
  std::vector<SequencePair> pairs_;
  int64_t batch_;
  SequenceIds ids_;
  uint64_t seed_;
  Device device_;
};

}  // namespace longspan
