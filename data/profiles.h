#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/data_sets.h"
#include "data/sample_task.h"

namespace longspan {

// DNA sequences with binary labels: promoters, chromatin profiles.

/// Tokens of k bases, each `stride` bases after the previous one. Token ids: A C G T as base-4
/// digits; then 4^k, the token that begins every sequence; then 4^k + 1, for k bases that include
/// an N.
struct KmerTokens {
  int64_t k = 6, stride = 1;

  int32_t first() const { return int32_t{1} << 2 * k; }
  int32_t unknown() const { return first() + 1; }
  int64_t vocabulary() const { return int64_t{first()} + 2; }
  /// Number of tokens of `length` bases, including the first token.
  int64_t count(int64_t length) const { return length < k ? 1 : (length - k) / stride + 2; }
  /// Tokenizes bases 0 to 4 (ACGTN). Throws ValueError unless 1 <= k <= 8 and stride >= 1.
  std::vector<int32_t> tokens(std::span<const int32_t> sequence) const;
};

/// Labelled samples of a data set, in three splits. The `tokens` of a sample are its bases, 0 to 4.
class LabelledSequences {
 public:
  virtual ~LabelledSequences() = default;
  /// Number of samples of a split: 0 train, 1 validation, 2 test.
  virtual int64_t size(size_t part) const = 0;
  /// Throws IoError if the file holds values other than bases and labels.
  virtual Sample sample(size_t part, int64_t i) const = 0;
  /// Number of binary labels of a sample.
  virtual int64_t answers() const = 0;
  /// Number of bases of each sample.
  virtual int64_t length() const = 0;
};

/// Makes a negative from a promoter as \cite oubounyt2019 do: the sequence is cut into `pieces`
/// segments, and all but `kept` of them are replaced by uniformly random bases. Bases are 0 to 3 or
/// 4. The result depends on the sequence and the generator only.
std::vector<int32_t> negative_of(std::span<const int32_t> sequence, Generator gen,
                                 int64_t pieces = 20, int64_t kept = 8);

/// Opens promoters: a folder with positive.fasta and negative.fasta (without the latter,
/// negative_of() of each positive), or one FASTA file whose headers end in "label=1" or "label=0".
/// Positive and negative records are split separately, in their order. Lower case is read as upper
/// case, and ambiguity codes as N; all records have the same length. Throws IoError that names the
/// file and line for other letters, records of another length, or headers without a label.
std::unique_ptr<LabelledSequences> open_promoters(const DataPlace& place, std::string_view split,
                                                  uint64_t seed);

/// Opens chromatin profiles: a folder with train.npz, valid.npz and test.npz, each of which may be
/// replaced by two files such as train_x.npy and train_y.npy; or one .npz file, which is split. x
/// is [N, L, 4], one-hot over A C G T (all 0: N); y is [N, answers] of 0 and 1. Throws IoError that
/// names the file, the array and what is expected.
std::unique_ptr<LabelledSequences> open_profiles(const DataPlace& place, std::string_view split);

/// Opens either, by the kind of the data set.
std::unique_ptr<LabelledSequences> open_labelled(const DataSet& set, const DataPlace& place,
                                                 std::string_view split, uint64_t seed);

}  // namespace longspan
