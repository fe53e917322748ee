#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "data/corpus.h"
#include "data/questions.h"

namespace longspan {

// Generated tasks. Sample i of a split depends on (task, seed, split, i) alone, on every machine.

/// A sequence, and what should be said at each place: ignored_target where nothing is scored.
struct Sample {
  std::vector<int32_t> tokens, targets;
  friend bool operator==(const Sample&, const Sample&) = default;
};

/// Which sample.
struct SampleKey {
  uint64_t seed = 1;
  std::string_view split = "train";
  uint64_t index = 0;
};

/// Samples of one length as i32[B, L]. Throws ShapeError where they differ or there are none.
Batch stack(std::span<const Sample> samples, Device device = {});

/// 0 w 0 w, \cite kitaev2020 : words of `symbols` tokens from 1 to vocabulary - 1, each of the
/// second to be predicted from those before. Chance is 1 / (vocabulary - 1).
struct DuplicateTask {
  int64_t symbols = 511, vocabulary = 128;

  int64_t length() const { return 2 * symbols + 2; }
  /// Targets are one place before the token that they name. Throws ValueError where a size is too
  /// small.
  Sample sample(const SampleKey& key) const;
};

/// Copy memory: `symbols` tokens from 1 to alphabet, blanks (0), a mark (alphabet + 1) and as many
/// blanks as there are tokens, at which they are to be said. What knows nothing has ln(alphabet)
/// nats a target.
struct CopyTask {
  int64_t symbols = 10, alphabet = 8, blanks = 100;

  int64_t length() const { return 2 * symbols + blanks; }
  int64_t vocabulary() const { return alphabet + 2; }
  /// Throws ValueError where a size is too small.
  Sample sample(const SampleKey& key) const;
};

/// A text with facts, and a question whose answer is a part of it.
struct NeedleSample {
  std::vector<int32_t> tokens;
  int32_t start = 0, end = 0;                    ///< places of the answer's first and last token
  int64_t question_begin = 0, question_end = 0;  ///< places of the question: global tokens
  friend bool operator==(const NeedleSample&, const NeedleSample&) = default;
};

/// Needles in filler: facts (a mark, a key, the tokens of a value) with different keys stand at
/// random places of filler tokens, and the question names one key. Tokens: 0 begins, 1 separates, 2
/// marks a fact, 3 the question; then keys, value tokens, filler. Question first: 0 3 key 1 text;
/// else 0 text 1 3 key.
struct NeedleTask {
  int64_t length = 512, facts = 8, keys = 32, values = 32, value_length = 2, filler = 64;
  bool question_first = true;

  int64_t vocabulary() const { return 4 + keys + values + filler; }
  /// Throws ValueError where the facts do not fit or need more keys than there are.
  NeedleSample sample(const SampleKey& key) const;
};

/// The question and the text of a sample whose question comes first, a byte for each token, as
/// data/questions.h cuts them into windows. Its begin is 0, its separator 1.
struct NeedleQuestion {
  std::vector<Piece> question, text;
  Answer answer;
};
NeedleQuestion question_of(const NeedleSample& sample);
inline constexpr SpecialIds needle_ids{.begin = 0, .separator = 1};

/// Endless batches of windows of generated texts, one text after another.
class NeedleBatches {
 public:
  /// Throws ValueError unless the question comes first and windows have room for text.
  NeedleBatches(const NeedleTask& task, int64_t batch, const WindowOptions& windows, uint64_t seed);
  /// Of "train".
  SpanBatch next();

 private:
  NeedleTask task_;
  int64_t batch_;
  WindowOptions options_;
  SampleKey key_;
  std::vector<SpanWindow> waiting_;
};

/// A sequence and yes-or-no answers about it.
struct LabelledSample {
  std::vector<int32_t> tokens, labels;
  friend bool operator==(const LabelledSample&, const LabelledSample&) = default;
};

/// Motifs in random bases, a stand-in for promoters (one pair) and for profiles of chromatin
/// (many): label p is 1 iff the first motif of pair p stands somewhere, with at most so many other
/// bases, and `nearest` to `furthest` bases later the second one. In half of the samples a pair is
/// planted so; in the others its first motif, its second one, or both in the wrong order. The
/// motifs depend on the seed alone.
struct MotifTask {
  int64_t length = 1200;  ///< bases
  int64_t pairs = 1, motif = 8, mismatches = 1, nearest = 200, furthest = 1000;
  /// Token i + 1 names the bases i to i + k - 1 as a number to the base of 4 (A C G T).
  int64_t kmer = 1;

  int64_t tokens() const { return length - kmer + 2; }
  int64_t first_token() const { return int64_t{1} << 2 * kmer; }  ///< stands before all others
  int64_t vocabulary() const { return first_token() + 1; }
  /// The two motifs of pair p, in bases 0 to 3.
  std::array<std::vector<int32_t>, 2> motifs(uint64_t seed, int64_t p) const;
  /// Throws ValueError where a size is too small or the pairs do not fit.
  LabelledSample sample(const SampleKey& key) const;
};

}  // namespace longspan
