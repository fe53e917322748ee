#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/generator.h"
#include "core/tensor.h"
#include "nn/objective.h"

namespace longspan {

/// A sentence of a text: its bytes, and the index of its paragraph.
struct Sentence {
  int64_t begin = 0, length = 0, paragraph = 0;
  friend bool operator==(const Sentence&, const Sentence&) = default;
};

/// Splits a text into sentences that cover every byte. A paragraph ends after a blank line. A
/// sentence ends with its paragraph, and after the white space that follows '.', '!' or '?' and
/// closing quotes; but not at a period before a lower-case letter, or after an initial or a title
/// (Mr. and the like). A longer sentence is cut after `longest` bytes. Throws ValueError if longest
/// is below 1.
std::vector<Sentence> split_sentences(std::span<const uint8_t> text, int64_t longest = 128);

/// Options of structured windows.
struct StructuredOptions {
  int64_t n_long = 512;                    ///< bytes of a window
  int64_t paragraphs = 7, sentences = 24;  ///< maximum number of each in a window
  double word_share = 0.15;     ///< fraction of the bytes that is masked in the other sentences
  double sentence_share = 0.1;  ///< fraction of the sentences that is masked completely
  int64_t mask_token = 256;
  /// The globals that own a byte: 1: its sentence; 2: and its paragraph; 3: and the document.
  int64_t owners = 1;
  uint64_t seed = 1;
  /// Number of global tokens: the document, its paragraphs, its sentences.
  int64_t globals() const { return 1 + paragraphs + sentences; }
};

/// A batch, i32 unless stated otherwise. Padding is -1.
struct StructuredBatch {
  Tensor tokens, targets;  ///< [B, n_l]
  Tensor owner;            ///< [B, n_l]: global of the sentence; [B, n_l, owners] if several
  Tensor example, global_example;  ///< [B, n_l], [B, n_g]: 0, or -1
  Tensor level, parent;  ///< [B, n_g]: 0 document, 1 paragraph, 2 sentence; parent global or -1
  Tensor places;         ///< i64 [P]: b n_g + m of the completely masked sentences
  Tensor hidden, hidden_example;  ///< [P, n_s]: these sentences separately, unmasked
};

/// Windows of whole sentences with masked words and sentences \cite ainslie2020 : sentences are
/// chosen first; in the others, words are chosen in random order until their bytes are word_share
/// of all. Of the bytes of these words, 80 % become mask_token, 10 % a random byte and 10 % stay;
/// they are the targets.
class StructuredBatches {
 public:
  /// The text must outlive this object. Throws ValueError if it is empty or an option is out of
  /// range.
  StructuredBatches(std::span<const uint8_t> text, int64_t batch,
                    const StructuredOptions& options = {});

  /// Returns B windows that begin at sentences drawn from (seed, step).
  StructuredBatch at(int64_t step) const;
  /// Returns batch i of size() of the windows that cover the text once, in order.
  StructuredBatch in_order(int64_t i) const;
  int64_t size() const;

 private:
  /// Returns the end (in sentences) of the window that begins with sentence `first`.
  int64_t window_end(int64_t first) const;
  StructuredBatch build(const std::vector<int64_t>& firsts, Generator generator) const;
  StructuredBatch alone(const std::vector<Sentence>& hidden) const;

  std::span<const uint8_t> text_;
  int64_t batch_;
  StructuredOptions options_;
  std::vector<Sentence> sentences_;
  std::vector<int64_t> windows_;  // first sentences of the windows in order
};

}  // namespace longspan
