#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "data/corpus.h"
#include "data/questions.h"

namespace longspan {

// Generated tasks. Sample i of a split depends only on (task, seed, split, i), on every machine.

/// A sequence and the target at each position; ignored_target if it is not scored.
struct Sample {
  std::vector<int32_t> tokens, targets;
  friend bool operator==(const Sample&, const Sample&) = default;
};

/// Identifies a sample.
struct SampleKey {
  uint64_t seed = 1;
  std::string_view split = "train";
  uint64_t index = 0;
};

/// Stacks samples of one length into i32 [B, L]. Throws ShapeError if the lengths differ or there
/// are no samples.
Batch stack(std::span<const Sample> samples, Device device = {});

/// Duplication task 0 w 0 w, \cite kitaev2020 : w has `symbols` tokens from 1 to vocabulary - 1,
/// and each token of the second w is predicted from those before it. Chance accuracy is 1 /
/// (vocabulary - 1).
struct DuplicateTask {
  int64_t symbols = 511, vocabulary = 128;

  int64_t length() const { return 2 * symbols + 2; }
  /// Each target is one position before the token that it predicts. Throws ValueError if a size is
  /// too small.
  Sample sample(const SampleKey& key) const;
};

/// Copy memory task: `symbols` tokens from 1 to alphabet, blanks (0), a mark (alphabet + 1), and
/// then as many blanks as there are tokens, at which the tokens are the targets. A uniform guess
/// has a loss of ln(alphabet) nats per target.
struct CopyTask {
  int64_t symbols = 10, alphabet = 8, blanks = 100;

  int64_t length() const { return 2 * symbols + blanks; }
  int64_t vocabulary() const { return alphabet + 2; }
  /// Throws ValueError if a size is too small.
  Sample sample(const SampleKey& key) const;
};

/// A text with facts, and a question whose answer is a span of it.
struct NeedleSample {
  std::vector<int32_t> tokens;
  int32_t start = 0, end = 0;                    ///< positions of the answer's first and last token
  int64_t question_begin = 0, question_end = 0;  ///< range of the question's global tokens
  friend bool operator==(const NeedleSample&, const NeedleSample&) = default;
};

/// Needle in a haystack: facts (a mark, a key, the tokens of a value) with different keys are at
/// random positions among filler tokens, and the question names one key. Tokens: 0 begins, 1
/// separates, 2 marks a fact, 3 marks the question; then keys, value tokens, filler. With
/// question_first the sequence is 0 3 key 1 text; else 0 text 1 3 key.
struct NeedleTask {
  int64_t length = 512, facts = 8, keys = 32, values = 32, value_length = 2, filler = 64;
  bool question_first = true;

  int64_t vocabulary() const { return 4 + keys + values + filler; }
  /// Throws ValueError if the facts do not fit or outnumber the keys.
  NeedleSample sample(const SampleKey& key) const;
};

/// The question and the text of a question-first sample, with one byte per token, ready for the
/// windows of data/questions.h. Its begin is 0, its separator 1.
struct NeedleQuestion {
  std::vector<Piece> question, text;
  Answer answer;
};
NeedleQuestion question_of(const NeedleSample& sample);
inline constexpr SpecialIds needle_ids{.begin = 0, .separator = 1};

/// Endless batches of windows of generated texts, one text after another.
class NeedleBatches {
 public:
  /// Throws ValueError unless the question comes first and the windows have space for text.
  NeedleBatches(const NeedleTask& task, int64_t batch, const WindowOptions& windows, uint64_t seed);
  /// Returns the next batch of the split "train".
  SpanBatch next();

 private:
  NeedleTask task_;
  int64_t batch_;
  WindowOptions options_;
  SampleKey key_;
  std::vector<SpanWindow> waiting_;
};

/// A sequence and its binary labels.
struct LabelledSample {
  std::vector<int32_t> tokens, labels;
  friend bool operator==(const LabelledSample&, const LabelledSample&) = default;
};

/// Motifs in random bases, a stand-in for promoters (one pair) and chromatin profiles (many pairs).
/// Label p is 1 iff the first motif of pair p occurs, with at most `mismatches` wrong bases, and
/// the second one occurs `nearest` to `furthest` bases later. In half of the samples a pair is
/// planted this way; in the others only its first motif, only its second one, or both in reverse
/// order. The motifs depend on the seed only.
struct MotifTask {
  int64_t length = 1200;  ///< bases
  int64_t pairs = 1, motif = 8, mismatches = 1, nearest = 200, furthest = 1000;
  /// Token i + 1 encodes the bases i to i + k - 1 as a base-4 number (A C G T).
  int64_t kmer = 1;

  int64_t tokens() const { return length - kmer + 2; }
  int64_t first_token() const { return int64_t{1} << 2 * kmer; }  ///< precedes all others
  int64_t vocabulary() const { return first_token() + 1; }
  /// Returns the two motifs of pair p, in bases 0 to 3.
  std::array<std::vector<int32_t>, 2> motifs(uint64_t seed, int64_t p) const;
  /// Throws ValueError if a size is too small or the pairs do not fit.
  LabelledSample sample(const SampleKey& key) const;
};

}  // namespace longspan
