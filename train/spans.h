#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace longspan {

// Answers as spans of a document that is longer than a model's input.

/// Tokens with a meaning of their own.
struct SpanTokens {
  int32_t cls = 1, sep = 2;
};

/// A piece of a document behind its question: [CLS] q [SEP] p [SEP].
struct DocumentWindow {
  std::vector<int32_t> tokens;
  int64_t place = 0;  ///< where the piece begins in `tokens`
  int64_t first = 0;  ///< which token of the document that is
  int64_t count = 0;  ///< tokens of the document
};

/// Windows of at most `length` tokens that begin every `stride` tokens of the document, until one
/// holds its end. Throws ValueError where the question leaves no room or stride is not 1 or more.
std::vector<DocumentWindow> span_windows(std::span<const int32_t> question,
                                         std::span<const int32_t> document, int64_t length,
                                         int64_t stride, const SpanTokens& special = {});

/// Tokens first to last of a document, and the sum of the two logits; first = -1: no answer.
struct AnswerSpan {
  int64_t first = -1, last = -1;
  double score = 0;
};

/// Where tokens first .. last of the document lie in a window; none where they are not all in it.
std::optional<AnswerSpan> span_in_window(const DocumentWindow& window, int64_t first, int64_t last);

/// The span of at most `longest` tokens with the largest start + end over all windows. With
/// `may_have_none`, that of the window whose no-answer, the logits of [CLS], is least likely counts
/// against it, and wins where it is larger \cite devlin2019 .
///   start, end  of each window, a logit for each of its tokens
AnswerSpan best_span(std::span<const DocumentWindow> windows,
                     const std::vector<std::vector<float>>& start,
                     const std::vector<std::vector<float>>& end, int64_t longest,
                     bool may_have_none = false);

/// A document of noise with facts in it, and a question for one of them.
struct NeedleDocument {
  std::vector<int32_t> question, document;
  int64_t first = 0, last = 0;  ///< the answer
};

/// Generated questions about facts (key, value, value) in documents of noise. Sample i of a split
/// depends on (seed, split, i) alone. Tokens: 0 padding, 1 [CLS], 2 [SEP], 3 [MASK], then keys,
/// then words, of which noise and values are made.
struct NeedleQa {
  int64_t length = 100, facts = 4, keys = 16, words = 44;
  uint64_t seed = 1;

  static constexpr int32_t special = 4;
  int64_t vocab() const { return special + keys + words; }
  /// Throws ValueError where the facts do not fit.
  NeedleDocument sample(uint64_t split, uint64_t i) const;
};

/// Windows side by side, padded with 0 to the longest.
struct SpanBatch {
  Tensor tokens, types;  ///< i64 [B, L]; types: 1 for the document and the [SEP] behind it
  Tensor lengths;        ///< i64 [B]
  Tensor starts, ends;   ///< i64 [B]: of the answer, or of [CLS] where the window has none
};

/// As many windows as are given; no answers.
SpanBatch span_batch(std::span<const DocumentWindow> windows);

/// Endless batches of windows of generated documents, one document after another.
class SpanBatches {
 public:
  SpanBatches(const NeedleQa& task, int64_t batch, int64_t length, int64_t stride)
      : task_(task), batch_(batch), length_(length), stride_(stride) {}
  /// Of split 0.
  SpanBatch next();

 private:
  NeedleQa task_;
  int64_t batch_, length_, stride_;
  uint64_t document_ = 0;
  std::vector<DocumentWindow> windows_;  // that still wait, and their answers
  std::vector<int64_t> starts_, ends_;
};

/// The rows of f32 [B, L].
std::vector<std::vector<float>> rows_of(const Tensor& x);

}  // namespace longspan
