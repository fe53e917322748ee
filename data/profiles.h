#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/data_sets.h"
#include "data/tasks.h"

namespace longspan {

// Sequences of bases with yes-or-no answers about each: promoters, profiles of chromatin.

/// Bases as tokens: runs of k of them, each `stride` bases after the one before. Token number:
/// A C G T as digits to the base of 4; then 4^k, the token before all others; then 4^k + 1, a run
/// that has an N in it.
struct KmerTokens {
  int64_t k = 6, stride = 1;

  int32_t first() const { return int32_t{1} << 2 * k; }
  int32_t unknown() const { return first() + 1; }
  int64_t vocabulary() const { return int64_t{first()} + 2; }
  /// Tokens of so many bases with the one before them.
  int64_t count(int64_t length) const { return length < k ? 1 : (length - k) / stride + 2; }
  /// Of bases 0 to 4 (ACGTN). Throws ValueError unless 1 <= k <= 8 and stride >= 1.
  std::vector<int32_t> tokens(std::span<const int32_t> sequence) const;
};

/// Samples of a data set with answers, in three parts. `tokens` of a sample are its bases, 0 to 4.
class LabelledSequences {
 public:
  virtual ~LabelledSequences() = default;
  /// Of part 0 train, 1 validation, 2 test.
  virtual int64_t size(size_t part) const = 0;
  /// Throws IoError where the file holds something else than bases and answers.
  virtual LabelledSample sample(size_t part, int64_t i) const = 0;
  /// Yes-or-no answers of a sample.
  virtual int64_t answers() const = 0;
  /// Bases of each sample.
  virtual int64_t length() const = 0;
};

/// A sequence that is no promoter, made of one that is, as \cite oubounyt2019 makes them: cut into
/// `pieces` runs, of which all but `kept` are drawn anew from equally likely bases. Bases 0 to 3 or
/// 4; which runs stay and what they become depends on the generator alone.
std::vector<int32_t> negative_of(std::span<const int32_t> sequence, Generator gen,
                                 int64_t pieces = 20, int64_t kept = 8);

/// Promoters: a folder with positive.fasta and negative.fasta (without the latter, negative_of()
/// each of the former), or one FASTA file whose headers end in "label=1" or "label=0". The split is
/// of positive and negative records each, in their order. Lower case is read as upper case, and
/// codes of several bases as N; all records have equal lengths. Throws IoError, naming the file and
/// line, on other letters, on records of another length and on headers without a label.
std::unique_ptr<LabelledSequences> open_promoters(const DataPlace& place, std::string_view split,
                                                  uint64_t seed);

/// Profiles of chromatin: a folder with train.npz, valid.npz and test.npz, or in place of each the
/// files train_x.npy and train_y.npy; or one .npz file, which is split. x is [N, L, 4], one of
/// A C G T in each place 1 (all 0: N), y is [N, answers] of 0 and 1. Throws IoError that names the
/// file, the array and what is expected.
std::unique_ptr<LabelledSequences> open_profiles(const DataPlace& place, std::string_view split);

/// Either, by the kind of the data set.
std::unique_ptr<LabelledSequences> open_labelled(const DataSet& set, const DataPlace& place,
                                                 std::string_view split, uint64_t seed);

}  // namespace longspan
