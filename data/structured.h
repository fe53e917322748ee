#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/generator.h"
#include "core/tensor.h"
#include "nn/objective.h"

namespace longspan {

/// A piece of text: its bytes, and the paragraph that they are in.
struct Sentence {
  int64_t begin = 0, length = 0, paragraph = 0;
  friend bool operator==(const Sentence&, const Sentence&) = default;
};

/// Every byte of a text in sentences. A paragraph ends after a blank line; a sentence at the end of
/// its paragraph, and after the white space that follows '.', '!' or '?' and closing quotes; but
/// not at a dot before a small letter, or after an initial or a title (Mr. and the like). What is
/// longer than `longest` is cut there. Throws ValueError where longest is below 1.
std::vector<Sentence> split_sentences(std::span<const uint8_t> text, int64_t longest = 128);

/// What structured windows are made of.
struct StructuredOptions {
  int64_t n_long = 512;                    ///< bytes of a window, and
  int64_t paragraphs = 7, sentences = 24;  ///< how many of these it may have
  double word_share = 0.15;                ///< of the bytes in sentences that are not hidden whole
  double sentence_share = 0.1;             ///< sentences that are hidden whole
  int64_t mask_token = 256;
  uint64_t seed = 1;
  /// Globals: the document, its paragraphs, its sentences.
  int64_t globals() const { return 1 + paragraphs + sentences; }
};

/// A batch, i32 where nothing else is said. Places of padding have -1.
struct StructuredBatch {
  Tensor tokens, targets;          ///< [B, n_l]
  Tensor owner;                    ///< [B, n_l]: global of the sentence
  Tensor example, global_example;  ///< [B, n_l], [B, n_g]: 0, or -1
  Tensor level, parent;  ///< [B, n_g]: 0 document, 1 paragraph, 2 sentence; the global above, or -1
  Tensor places;         ///< i64 [P]: b n_g + m of the sentences that are hidden whole
  Tensor hidden, hidden_example;  ///< [P, n_s]: these sentences on their own, as they were
};

/// Windows of whole sentences, with words and whole sentences hidden \cite ainslie2020 : sentences
/// first; of the others, words in random order until their bytes are word_share of all. Of the
/// bytes of words, 80 % become mask_token, 10 % any byte and 10 % stay; those are the targets.
class StructuredBatches {
 public:
  /// The text must outlive this. Throws ValueError where it is empty or an option is out of range.
  StructuredBatches(std::span<const uint8_t> text, int64_t batch,
                    const StructuredOptions& options = {});

  /// B windows that begin at sentences drawn from (seed, step).
  StructuredBatch at(int64_t step) const;
  /// Windows that cover the text once, in order, B at a time: batch i of size().
  StructuredBatch in_order(int64_t i) const;
  int64_t size() const;

 private:
  /// Sentence after the last of the window that begins with sentence `first`.
  int64_t window_end(int64_t first) const;
  StructuredBatch build(const std::vector<int64_t>& firsts, Generator generator) const;
  StructuredBatch alone(const std::vector<Sentence>& hidden) const;

  std::span<const uint8_t> text_;
  int64_t batch_;
  StructuredOptions options_;
  std::vector<Sentence> sentences_;
  std::vector<int64_t> windows_;  // first sentences of those in order
};

}  // namespace longspan
