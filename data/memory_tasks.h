#pragma once

#include <cstdint>

#include "data/sample_task.h"

namespace longspan {

// Generated tasks for models that carry a memory from segment to segment: a target depends on a
// token far back. A sample may be longer than the model's segment: its length is an option, and 0
// takes the run's. The target at a position is the answer that is expected after the token there.

/// A sequence with a period: its first `period` tokens are drawn uniformly from `symbols` ones and
/// then repeated. The targets at positions from `period` on are the next tokens; they occur
/// `period` - 1 positions earlier. A uniform guess has a loss of ln(symbols) nats per target, a
/// reach of fewer than `period` - 1 positions is no help.
struct PeriodTask {
  static constexpr TargetKind kind = TargetKind::tokens;
  int64_t length = 0, period = 96, symbols = 16;

  void visit(auto& v) {
    v("length", length, range::not_negative, meaning::sample_length);
    v("period", period, range::positive, "tokens after which the sequence repeats");
    v("symbols", symbols, range::positive, "different tokens");
  }
  void fit(int64_t run_length, int64_t vocabulary);
  SampleShape shape() const { return {length, symbols, length - period}; }
  /// Throws ValueError that names the option if a size is too small.
  Sample sample(const SampleKey& key) const;
};

/// Documents, each with a label at its start that is asked for at its end: one of `labels` labels,
/// `document` - 2 tokens of noise, and the question. Only the question has a target, the label,
/// `document` - 1 positions earlier. Tokens: 0 asks, then come the labels, then `symbols` tokens of
/// noise. Chance accuracy is 1 / labels.
struct RecallTask {
  static constexpr TargetKind kind = TargetKind::tokens;
  int64_t documents = 0;  ///< of a sample; 0: as many as the run's length has space for
  int64_t document = 512, labels = 8, symbols = 16;

  int64_t length() const { return documents * document; }
  int64_t vocabulary() const { return 1 + labels + symbols; }
  void visit(auto& v) {
    v("documents", documents, range::not_negative,
      "of a sample; 0: as many as the run's length has space for");
    v("document", document, range::at_least(2), "tokens of a document");
    v("labels", labels, range::positive, "labels, one of which is asked for");
    v("symbols", symbols, range::positive, meaning::noise_symbols);
  }
  void fit(int64_t run_length, int64_t vocabulary);
  SampleShape shape() const { return {length(), vocabulary(), documents}; }
  /// Throws ValueError that names the option if a size is too small.
  Sample sample(const SampleKey& key) const;
};

/// Multi-query associative recall \cite arora2024 : `pairs` = K keys and values in turn, then the
/// keys again in other places, at each of which its value is the target. Keys are 1 to V/2 - 1 and
/// values V/2 to V - 1 of V tokens, each at most once in a sample. A key comes again `2 g` tokens
/// after the pairs; the K gaps g below (length - 2 K) / 2 are different, drawn with probabilities
/// proportional to (g + 1)^(power - 1), so that most are small. All other tokens are 0, or with
/// `noise` any token. Chance accuracy is 2 / V.
struct MultiQueryRecallTask {
  static constexpr TargetKind kind = TargetKind::tokens;
  int64_t length = 0, pairs = 4, vocabulary = 64;  // the vocabulary is the model's
  double power = 0.01;
  bool noise = false;

  void visit(auto& v) {
    v("length", length, range::not_negative, meaning::sample_length);
    v("pairs", pairs, range::positive, "K, pairs of a key and its value");
    v("power", power, range::not_negative, "gaps g have probabilities as (g + 1)^(power - 1)");
    v("noise", noise, "all other tokens are any token; false: they are 0");
  }
  void fit(int64_t run_length, int64_t tokens);
  SampleShape shape() const { return {length, vocabulary, pairs}; }
  /// Throws ValueError that names the option if the pairs do not fit.
  Sample sample(const SampleKey& key) const;
};

/// Corridors one after another, \cite sukhbaatar2021 : a mark of one of `colours` colours, noise,
/// and a query `nearest` to `distance` (uniform) positions after the mark, whose target is the
/// mark; the next mark follows the query. All else is noise without targets. The first query always
/// fits; a last mark that would be asked for after the end stays without its query. Tokens: 0 asks,
/// then come the marks, then `symbols` tokens of noise. Chance accuracy is 1 / colours. The paper's
/// corridor is an environment with actions that was not published; one mark and one query at a
/// fixed distance are the same demand on memory.
struct CorridorTask {
  static constexpr TargetKind kind = TargetKind::tokens;
  int64_t length = 0, nearest = 1, distance = 1000, colours = 2, symbols = 16;

  int64_t vocabulary() const { return 1 + colours + symbols; }
  void visit(auto& v) {
    v("length", length, range::not_negative, meaning::sample_length);
    v("nearest", nearest, range::positive, "minimum distance of a query from its mark");
    v("distance", distance, range::positive, "maximum distance of a query from its mark");
    v("colours", colours, range::positive, "colours of a mark");
    v("symbols", symbols, range::positive, meaning::noise_symbols);
  }
  void fit(int64_t run_length, int64_t vocabulary);
  SampleShape shape() const { return {length, vocabulary(), -1}; }
  /// Throws ValueError that names the option if a size is too small or no query fits.
  Sample sample(const SampleKey& key) const;
};

/// Next tokens at two distances: symbols drawn uniformly, among which marks ask for the symbol
/// `near` (token 0) or `far` (token 1) positions before the mark; it is the mark's target, and
/// follows the mark as the next token. A quarter of the tokens that are no answers are marks of
/// either kind, as far as the sample has a symbol at their distance; nothing else has a target.
/// Chance accuracy is 1 / symbols.
struct TwoDistanceTask {
  static constexpr TargetKind kind = TargetKind::tokens;
  int64_t length = 0, near = 3, far = 100, symbols = 16;

  int64_t vocabulary() const { return 2 + symbols; }
  void visit(auto& v) {
    v("length", length, range::not_negative, meaning::sample_length);
    v("near", near, range::positive, "distance of the symbol that token 0 asks for");
    v("far", far, range::positive, "distance of the symbol that token 1 asks for");
    v("symbols", symbols, range::positive, "different symbols");
  }
  void fit(int64_t run_length, int64_t vocabulary);
  SampleShape shape() const { return {length, vocabulary(), -1}; }
  /// Throws ValueError that names the option unless 1 <= near < far < length.
  Sample sample(const SampleKey& key) const;
};

/// Distant look-ups at markers: random tokens, one in `every` a marker (token 0), the others
/// uniform over `symbols` symbols. The target at a marker is the token `far` positions earlier,
/// elsewhere the token `near` positions earlier; there is none where that token is a marker or
/// before the start. Chance accuracy is 1 / symbols.
struct LookupTask {
  static constexpr TargetKind kind = TargetKind::tokens;
  int64_t length = 0, near = 3, far = 200, every = 10, symbols = 16;

  int64_t vocabulary() const { return 1 + symbols; }
  void visit(auto& v) {
    v("length", length, range::not_negative, meaning::sample_length);
    v("near", near, range::positive, "distance of the target of other tokens");
    v("far", far, range::positive, "distance of the target of a marker");
    v("every", every, range::at_least(2), "one token in so many is a marker");
    v("symbols", symbols, range::positive, "different symbols");
  }
  void fit(int64_t run_length, int64_t vocabulary);
  SampleShape shape() const { return {length, vocabulary(), -1}; }
  /// Throws ValueError that names the option unless 1 <= near < far < length.
  Sample sample(const SampleKey& key) const;
};

/// Recall of a marked symbol: a mark, one of `labels` labels, noise, and the question at the end,
/// the only token with a target: the label after the mark. With `decoys` the noise has labels too,
/// so that the right one must be found next to the mark. Tokens: 0 asks, 1 marks, then come the
/// labels, then `symbols` other tokens of noise. Chance accuracy is 1 / labels, and so it is with a
/// reach of fewer than length - 2 positions.
struct MarkedRecallTask {
  static constexpr TargetKind kind = TargetKind::tokens;
  int64_t length = 0, labels = 8, symbols = 16;
  bool decoys = false;

  int64_t vocabulary() const { return 2 + labels + symbols; }
  void visit(auto& v) {
    v("length", length, range::not_negative, meaning::sample_length);
    v("labels", labels, range::positive, "labels, one of which is asked for");
    v("symbols", symbols, range::positive, meaning::noise_symbols);
    v("decoys", decoys, "the noise has labels too");
  }
  void fit(int64_t run_length, int64_t vocabulary);
  SampleShape shape() const { return {length, vocabulary(), 1}; }
  /// Throws ValueError that names the option if a size is too small.
  Sample sample(const SampleKey& key) const;
};

}  // namespace longspan
