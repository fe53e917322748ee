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

/// Shares of a file, in per cent: the first bytes train, the next validate, the last test.
struct Split {
  double train = 90, valid = 5, test = 5;

  /// Parses "90/5/5". Throws ValueError unless there are three numbers from 0 on that add up to
  /// 100.
  static Split parse(std::string_view text);
  /// Where the first two parts of `size` tokens end: floor(share * size / 100) of the running
  /// total.
  std::array<int64_t, 2> cuts(int64_t size) const;
  friend bool operator==(const Split&, const Split&) = default;
};

/// One part of a corpus: the ids of its tokens. Keeps the corpus alive.
struct CorpusPart {
  std::shared_ptr<const void> owner;
  std::span<const uint8_t> bytes;  ///< ids of `width` bytes each, little endian
  int before = 0;                  ///< the id before the part, 0 at the start of the file
  std::string split;               ///< "train", "valid" or "test"
  std::string path;                ///< of the file
  int width = 1;                   ///< 1, 2 or 4
  int64_t vocabulary = 256;        ///< ids are smaller
  int64_t record = 1;              ///< tokens of a picture: windows do not straddle two
  int64_t symbols = -1;            ///< what bits are counted per, where not each token; -1: size()

  int64_t size() const { return static_cast<int64_t>(bytes.size()) / width; }
  /// Token i, 0 <= i < size().
  int32_t operator[](int64_t i) const;
};

/// A file as a sequence of bytes in three parts. A plain file is mapped into memory, a gzip file is
/// unpacked into Category::data.
class ByteCorpus {
 public:
  /// Throws IoError where the file is missing, unreadable, empty or a damaged or cut off gzip file.
  static ByteCorpus open(const std::string& path, const Split& split = {});

  /// No byte is lost or used twice.
  const CorpusPart& train() const { return parts_[0]; }
  const CorpusPart& valid() const { return parts_[1]; }
  const CorpusPart& test() const { return parts_[2]; }
  /// All of the file.
  std::span<const uint8_t> bytes() const { return bytes_; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  const std::string& path() const { return path_; }
  /// XXH3 (64 bits) of all bytes, unpacked; 16 hexadecimal digits.
  std::string checksum() const;

 private:
  std::string path_;
  std::span<const uint8_t> bytes_;
  CorpusPart parts_[3];
};

/// An order of 0 to size-1 that is computed, not stored: a Feistel network over the next power of
/// four, walked until it lands inside. A bijection for every size and key.
class Permutation {
 public:
  /// Throws ValueError unless size > 0.
  Permutation(int64_t size, Generator generator);
  int64_t size() const { return size_; }
  /// The element at place i, 0 <= i < size, in expected constant time.
  int64_t operator[](int64_t i) const;

 private:
  uint64_t encrypt(uint64_t x) const;

  static constexpr int rounds = 8;
  int64_t size_;
  int half_bits_ = 0;
  uint64_t keys_[rounds];
};

/// Which of `size` items row `row` of a run is: every item once an epoch, in an order of its own
/// drawn from (seed, epoch), in time that does not depend on the row. Throws ValueError unless
/// size > 0 and row >= 0.
int64_t item_of_row(int64_t row, int64_t size, uint64_t seed);

/// The token that stands for a hidden byte where the model does not say otherwise: masked models of
/// bytes have a vocabulary of 257.
inline constexpr int64_t default_mask_token = 256;

/// What a step is given; both i32[B, L], in Category::data. With next_token, target i is the byte
/// after token i; with masked_token it is the hidden byte, or ignored_target.
struct Batch {
  Tensor tokens;
  Tensor targets;
};

/// Where words end: word w is tokens [w ? ends[w - 1] : 0, ends[w]). `words` has the role of each
/// id; beyond it, or where it is empty, each token is a word.
std::vector<int64_t> word_ends(std::span<const int32_t> tokens, std::span<const WordRole> words);

/// What mask_window() hides, and how.
struct Masking {
  double share = 0.15;  ///< of words that are chosen
  double masked = 0.8;  ///< of the tokens chosen, those that become `token`
  double random = 0.1;  ///< those that become any token; the rest stays
  int64_t token = default_mask_token;
  int64_t vocabulary = 256;  ///< random tokens are below
};

/// Hides tokens of a window \cite devlin2019 (sec. 3.1): each word is chosen with probability
/// `share`, and one that is drawn if none was; every token of a word that is chosen becomes
/// `token`, a random one or stays. Without `words` each token is a word; with them masking is of
/// whole words \cite ainslie2020. Targets are the tokens where chosen, else ignored_target.
void mask_window(std::span<int32_t> tokens, std::span<int32_t> targets, Generator generator,
                 const Masking& masking = {}, std::span<const WordRole> words = {});

/// What batches are made of besides tokens.
struct BatchOptions {
  Objective objective = Objective::next_token;  ///< sequence is refused
  uint64_t seed = 1;
  int64_t mask_token = default_mask_token;
  Device device = {};
  std::vector<WordRole> words = {};  ///< masked_token: hide whole words; the role of each id
};

/// Training batches: windows of L tokens, every one once an epoch in an order of its own, drawn
/// from (seed, epoch). The windows of an epoch lie side by side from an offset that is drawn too,
/// so cuts fall elsewhere in each and at most 2 L - 2 tokens at the ends are left out. Where the
/// part has records, windows start where they do: targets are the tokens of the window, and the
/// first is predicted from the token before. Row r of the run is row r mod B of batch r div B.
class SegmentBatches {
 public:
  /// Throws ValueError where the part is shorter than one window (L tokens, and the next one for
  /// next_token), where L is neither a divisor nor a multiple of a record, or batch or length is
  /// below 1.
  SegmentBatches(CorpusPart part, int64_t batch, int64_t length, const BatchOptions& options = {});

  /// The batch of any step, in time that does not depend on it.
  Batch at(int64_t step) const;
  /// at(position()), and moves on.
  Batch next() { return at(position_++); }
  int64_t position() const { return position_; }
  void seek(int64_t step) { position_ = step; }

  /// Windows of an epoch.
  int64_t windows() const { return windows_; }
  int64_t batch() const { return batch_; }
  int64_t length() const { return length_; }
  /// First token, in the part, that the window in row `row` of the run is given; -1: the one
  /// before.
  int64_t window_begin(int64_t row) const;

 private:
  CorpusPart part_;
  int64_t batch_, length_, windows_, slack_;
  BatchOptions options_;
  int64_t position_ = 0;
};

/// Scoring: every byte of a part is a target exactly once (next_token), or stands in exactly one
/// window (masked_token). Segments have L bytes, the last may have fewer; a batch holds up to B
/// segments of one length. The first byte is predicted from the byte before the part.
/// Masks are drawn from (seed, name of the split, index of the segment).
class EvaluationSegments {
 public:
  /// Throws ValueError where batch or length is below 1. An empty part has no batches.
  EvaluationSegments(CorpusPart part, int64_t batch, int64_t length,
                     const BatchOptions& options = {});

  /// Number of batches.
  int64_t size() const { return full_batches_ + (rest_ > 0 ? 1 : 0); }
  /// Batch i, 0 <= i < size().
  Batch operator[](int64_t i) const;
  /// Bytes of the part.
  int64_t bytes() const { return part_.size(); }

 private:
  CorpusPart part_;
  int64_t batch_, length_, full_segments_, full_batches_, rest_;
  BatchOptions options_;
};

}  // namespace longspan
