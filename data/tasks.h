#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/questions.h"
#include "data/sample_task.h"

namespace longspan {

/// Returns the generated tasks that programs find by name.
std::span<const SampleTaskEntry> sample_tasks();

/// Duplication task 0 w 0 w, \cite kitaev2020 : w has `symbols` tokens from 1 to vocabulary - 1,
/// and each token of the second w is predicted from those before it. Chance accuracy is 1 /
/// (vocabulary - 1).
struct DuplicateTask {
  static constexpr TargetKind kind = TargetKind::tokens;
  int64_t symbols = 511, vocabulary = 128;

  int64_t length() const { return 2 * symbols + 2; }
  void visit(auto& /*v*/) {}  // its sizes follow the model
  void fit(int64_t length, int64_t vocabulary);
  SampleShape shape() const { return {length(), vocabulary, symbols}; }
  /// Each target is one position before the token that it predicts. Throws ValueError if a size is
  /// too small.
  Sample sample(const SampleKey& key) const;
};

/// Copy memory task: `symbols` tokens from 1 to alphabet, blanks (0), a mark (alphabet + 1), and
/// then as many blanks as there are tokens, at which the tokens are the targets. A uniform guess
/// has a loss of ln(alphabet) nats per target.
struct CopyTask {
  static constexpr TargetKind kind = TargetKind::tokens;
  int64_t symbols = 10, alphabet = 8, blanks = 100;

  int64_t length() const { return 2 * symbols + blanks; }
  int64_t vocabulary() const { return alphabet + 2; }
  void visit(auto& v) {
    v("symbols", symbols, range::positive, "symbols to copy");
    v("alphabet", alphabet, range::positive, "different symbols");
  }
  void fit(int64_t length, int64_t vocabulary);
  SampleShape shape() const { return {length(), vocabulary(), symbols}; }
  /// Throws ValueError if a size is too small.
  Sample sample(const SampleKey& key) const;
};

/// Sorting: `symbols` tokens from 1 to vocabulary - 1, a 0, and the same tokens in ascending order
/// without the last, which is only a target; each is predicted from those before it. Chance
/// accuracy is 1 / (vocabulary - 1).
struct SortTask {
  static constexpr TargetKind kind = TargetKind::tokens;
  int64_t symbols = 32, vocabulary = 32;

  int64_t length() const { return 2 * symbols; }
  void visit(auto& /*v*/) {}  // its sizes follow the model
  void fit(int64_t length, int64_t vocabulary);
  SampleShape shape() const { return {length(), vocabulary, symbols}; }
  /// Each target is one position before the token that it predicts. Throws ValueError if a size is
  /// too small.
  Sample sample(const SampleKey& key) const;
};

/// Retrieval: facts, each one token that has a key and a value, at random positions of a noise, and
/// at the end questions, each one token that has a key; its target is the value of the fact with
/// this key, the only token that matters to it. Keys of facts differ, and so do those of questions.
/// Tokens: the values, the questions, the facts (key by key), the noise. Chance accuracy is 1 /
/// values.
struct RetrievalTask {
  static constexpr TargetKind kind = TargetKind::tokens;
  int64_t length = 256, facts = 8, questions = 4, keys = 16, values = 4, symbols = 16;

  int64_t question(int64_t key) const { return values + key; }
  int64_t fact(int64_t key, int64_t value) const { return values + keys + key * values + value; }
  int64_t vocabulary() const { return fact(keys, 0) + symbols; }
  void visit(auto& v) {
    v("facts", facts, range::positive, "facts of a sample, each with a key and a value");
    v("questions", questions, range::positive, "questions of a sample, each with a key");
    v("keys", keys, range::between(1, 1 << 15), "different keys");
    v("values", values, range::between(1, 1 << 15), "different values");
    v("symbols", symbols, range::between(1, 1 << 15), meaning::noise_symbols);
  }
  void fit(int64_t length, int64_t vocabulary);
  SampleShape shape() const { return {length, vocabulary(), questions}; }
  /// Throws ValueError that names the option if a size is too small or too large.
  Sample sample(const SampleKey& key) const;
};

/// Needle in a haystack: facts (a mark, a key, the tokens of a value) with different keys are at
/// random positions among filler tokens, and the question names one key. Tokens: 0 begins, 1
/// separates, 2 marks a fact, 3 marks the question; then keys, value tokens, filler. With
/// question_first the sequence is 0 3 key 1 text; else 0 text 1 3 key. The targets are the
/// positions of the value's first and last token, and the question is global.
struct NeedleTask {
  static constexpr TargetKind kind = TargetKind::span;
  int64_t length = 512, facts = 8, keys = 32, values = 32, value_length = 2, filler = 64;
  bool question_first = true;

  int64_t vocabulary() const { return 4 + keys + values + filler; }
  void visit(auto& v) {
    v("facts", facts, range::positive, "facts of a sample, each with a key and a value");
    v("keys", keys, range::positive, "different keys");
    v("values", values, range::positive, "different tokens of values");
    v("value_length", value_length, range::positive, "tokens of a value");
    v("filler", filler, range::positive, "different filler tokens");
    v("question_first", question_first, "the question comes before the text");
  }
  void fit(int64_t length, int64_t vocabulary);
  SampleShape shape() const { return {length, vocabulary(), 2}; }
  /// Throws ValueError if the facts do not fit or outnumber the keys.
  Sample sample(const SampleKey& key) const;
};

/// The question and the text of a question-first sample, with one byte per token, ready for the
/// windows of data/questions.h. Its begin is 0, its separator 1.
struct NeedleQuestion {
  std::vector<Piece> question, text;
  Answer answer;
};
NeedleQuestion question_of(const Sample& sample);
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

/// A distant marker: noise of the tokens below vocabulary - 1, and in half of the samples one
/// marker, the last token, in the second half of the sequence. The label says whether there is one;
/// the first token is global.
struct MarkerTask {
  static constexpr TargetKind kind = TargetKind::labels;
  int64_t length = 256, vocabulary = 64;

  void visit(auto& /*v*/) {}  // its sizes follow the model
  void fit(int64_t length, int64_t vocabulary);
  SampleShape shape() const { return {length, vocabulary, 1}; }
  /// Throws ValueError if a size is too small.
  Sample sample(const SampleKey& key) const;
};

/// Motifs in random bases, a stand-in for promoters (one pair) and chromatin profiles (many pairs).
/// Label p is 1 iff the first motif of pair p occurs, with at most `mismatches` wrong bases, and
/// the second one occurs `nearest` to `furthest` bases later. In half of the samples a pair is
/// planted this way; in the others only its first motif, only its second one, or both in reverse
/// order. The motifs depend on the seed only.
struct MotifTask {
  static constexpr TargetKind kind = TargetKind::labels;
  int64_t length = 1200;  ///< bases
  int64_t pairs = 1, motif = 8, mismatches = 1, nearest = 200, furthest = 1000;
  /// Token i + 1 encodes the bases i to i + k - 1 as a base-4 number (A C G T).
  int64_t kmer = 1;

  int64_t tokens() const { return length - kmer + 2; }
  int64_t first_token() const { return int64_t{1} << 2 * kmer; }  ///< precedes all others
  int64_t vocabulary() const { return first_token() + 1; }
  /// Returns the two motifs of pair p, in bases 0 to 3.
  std::array<std::vector<int32_t>, 2> motifs(uint64_t seed, int64_t p) const;
  void visit(auto& v) {
    v("pairs", pairs, range::positive, "pairs of motifs, each with a label");
    v("motif", motif, range::positive, "bases of a motif");
    v("mismatches", mismatches, range::not_negative, "wrong bases of a motif that still count");
    v("nearest", nearest, range::not_negative, "minimum bases from the first motif to the second");
    v("furthest", furthest, range::not_negative,
      "maximum bases from the first motif to the second");
    v("kmer", kmer, range::between(1, 8), "bases that a token represents");
  }
  void fit(int64_t tokens, int64_t vocabulary);
  SampleShape shape() const { return {tokens(), vocabulary(), pairs}; }
  std::string token_kind() const;
  /// Throws ValueError if a size is too small or the pairs do not fit.
  Sample sample(const SampleKey& key) const;
};

}  // namespace longspan
