#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/generator.h"
#include "core/tensor.h"
#include "data/tokenizers/tokenizer.h"
#include "nn/objective.h"

namespace longspan {

/// Shares of a file, in percent: the first bytes are for training, the next for validation, the
/// last for testing.
struct Split {
  double train = 90, valid = 5, test = 5;

  /// Parses "90/5/5". Throws ValueError unless the text has three numbers from 0 on that add up to
  /// 100.
  static Split parse(std::string_view text);
  /// Returns where the first two splits of `size` tokens end: floor(p * size / 100), p the sum of
  /// their percentages.
  std::array<int64_t, 2> cuts(int64_t size) const;
  friend bool operator==(const Split&, const Split&) = default;
};

/// One split of a corpus: the ids of its tokens. Keeps the corpus alive.
struct CorpusPart {
  std::shared_ptr<const void> owner;
  std::span<const uint8_t> bytes;  ///< ids of `width` bytes each, little endian
  int before = 0;                  ///< the id before the split, 0 at the start of the file
  std::string split;               ///< "train", "valid" or "test"
  std::string path;                ///< of the file
  int width = 1;                   ///< 1, 2 or 4
  int64_t vocabulary = 256;        ///< ids are smaller
  int64_t record = 1;              ///< tokens of an image; windows do not straddle two records
  bool stored = false;             ///< the ids are those of a token file
  int64_t symbols = -1;            ///< divisor of bits per symbol; -1: size()

  int64_t size() const { return static_cast<int64_t>(bytes.size()) / width; }
  /// Token i, 0 <= i < size().
  int32_t operator[](int64_t i) const;
};

/// A file as a sequence of bytes in three splits. A plain file is mapped into memory; a gzip file
/// is decompressed into Category::data.
class ByteCorpus {
 public:
  /// Throws IoError if the file is missing, unreadable, empty, or a damaged or truncated gzip file.
  static ByteCorpus open(const std::string& path, const Split& split = {});

  /// The splits cover every byte exactly once.
  const CorpusPart& train() const { return parts_[0]; }
  const CorpusPart& valid() const { return parts_[1]; }
  const CorpusPart& test() const { return parts_[2]; }
  /// The whole file.
  std::span<const uint8_t> bytes() const { return bytes_; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  const std::string& path() const { return path_; }
  /// Returns XXH3 (64 bits) of all decompressed bytes, as 16 hexadecimal digits.
  std::string checksum() const;

 private:
  std::string path_;
  std::span<const uint8_t> bytes_;
  CorpusPart parts_[3];
};

/// A permutation of 0 .. size - 1 that is computed, not stored: a Feistel network over the next
/// power of four, applied repeatedly until the result is below size (cycle walking). It is a
/// bijection for every size and key.
class Permutation {
 public:
  /// Throws ValueError unless size > 0.
  Permutation(int64_t size, Generator generator);
  int64_t size() const { return size_; }
  /// Returns element i, 0 <= i < size, in expected constant time.
  int64_t operator[](int64_t i) const;
  /// Returns its first `count` numbers: different ones below `size`, in random order.
  std::vector<int64_t> first(int64_t count) const;

 private:
  uint64_t encrypt(uint64_t x) const;

  static constexpr int rounds = 8;
  int64_t size_;
  int half_bits_ = 0;
  uint64_t keys_[rounds];
};

/// Returns which of `size` items row `row` of a run is. Every item occurs once per epoch, in an
/// order drawn from (seed, epoch). The time does not depend on the row. Throws ValueError unless
/// size > 0 and row >= 0.
int64_t item_of_row(int64_t row, int64_t size, uint64_t seed);

/// The default token for a masked byte: masked models of bytes have a vocabulary of 257.
inline constexpr int64_t default_mask_token = 256;

/// The inputs of a step, both i32 [B, L], in Category::data. With next_token, target i is the byte
/// after token i; with masked_token it is the masked byte, or ignored_target.
struct Batch {
  Tensor tokens;
  Tensor targets;
};

/// Returns where words end: word w is tokens [w ? ends[w - 1] : 0, ends[w]). `words` has the role
/// of each id. An id beyond it (or any id, if it is empty) is a word of its own.
std::vector<int64_t> word_ends(std::span<const int32_t> tokens, std::span<const WordRole> words);

/// Options of mask_window().
struct Masking {
  double share = 0.15;  ///< of words, that is chosen
  double masked = 0.8;  ///< of the chosen tokens, that becomes `token`
  double random = 0.1;  ///< of the chosen tokens, that becomes a random one; the rest stays
  int64_t token = default_mask_token;
  int64_t vocabulary = 256;  ///< random tokens are smaller
};

/// Masks tokens of a window \cite devlin2019 (sec. 3.1): each word is chosen with probability
/// `share`, and one random word if none was. Every token of a chosen word becomes `token`, becomes
/// a random token, or stays. Without `words` each token is a word; with them this is whole-word
/// masking \cite ainslie2020. Targets are the original tokens of chosen words, else ignored_target.
void mask_window(std::span<int32_t> tokens, std::span<int32_t> targets, Generator generator,
                 const Masking& masking = {}, std::span<const WordRole> words = {});

/// Options of batches.
struct BatchOptions {
  Objective objective = Objective::next_token;  ///< sequence is rejected
  uint64_t seed = 1;
  int64_t mask_token = default_mask_token;
  Device device = {};
  std::vector<WordRole> words = {};  ///< masked_token: the role of each id, for whole-word masking
};

/// Training batches: windows of L tokens, each once per epoch, in an order drawn from (seed,
/// epoch). The windows of an epoch are adjacent and begin at an offset that is drawn too, so
/// boundaries differ between epochs, and at most 2 L - 2 tokens at the ends are left out. If the
/// split has records, windows are aligned to them: the targets are the tokens of the window, and
/// the first is predicted from the token before it. Row r of the run is row r mod B of batch r div
/// B.
class SegmentBatches {
 public:
  /// Throws ValueError if the split is shorter than one window (L tokens, and the next one for
  /// next_token), if L is neither a divisor nor a multiple of the record length, or if batch or
  /// length is below 1.
  SegmentBatches(CorpusPart part, int64_t batch, int64_t length, const BatchOptions& options = {});

  /// Returns the batch of any step, in constant time.
  Batch at(int64_t step) const;
  /// Returns rows row to row + B - 1 of the run as a batch.
  Batch from_row(int64_t row) const;
  /// Returns at(position()) and advances the position.
  Batch next() { return at(position_++); }
  int64_t position() const { return position_; }
  void seek(int64_t step) { position_ = step; }

  /// Number of windows in an epoch.
  int64_t windows() const { return windows_; }
  int64_t batch() const { return batch_; }
  int64_t length() const { return length_; }
  /// Index in the split of the first input token of the window in row `row` of the run; -1: the
  /// token before the split.
  int64_t window_begin(int64_t row) const;

 private:
  CorpusPart part_;
  int64_t batch_, length_, windows_, slack_;
  BatchOptions options_;
  int64_t position_ = 0;
};

/// Evaluation: every byte of a split is a target exactly once (next_token), or is in exactly one
/// window (masked_token). Segments have L bytes; the last may be shorter. A batch holds up to B
/// segments of one length. The first byte is predicted from the byte before the split. Masks are
/// drawn from (seed, name of the split, index of the segment).
class EvaluationSegments {
 public:
  /// Throws ValueError if batch or length is below 1. An empty split has no batches.
  EvaluationSegments(CorpusPart part, int64_t batch, int64_t length,
                     const BatchOptions& options = {});
  /// Of these segments of L bytes alone, which are counted from 0: a sample of the split. Throws
  /// ValueError if there is no such segment.
  EvaluationSegments(CorpusPart part, int64_t batch, int64_t length, const BatchOptions& options,
                     std::vector<int64_t> segments);

  /// Number of batches.
  int64_t size() const { return full_batches_ + (rest_ > 0 ? 1 : 0); }
  /// Batch i, 0 <= i < size().
  Batch operator[](int64_t i) const;
  /// Size of the split.
  int64_t bytes() const { return part_.size(); }

 private:
  CorpusPart part_;
  int64_t batch_, length_, full_segments_, full_batches_, rest_;
  BatchOptions options_;
  std::vector<int64_t> chosen_;  // empty: all
};

}  // namespace longspan
