#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace longspan {

/// roc_auc() of several answers (data/metrics.h), for samples that arrive in batches, in bounded
/// memory. Up to `most` scores are stored, as f32, and areas are exact. Beyond that the scores of
/// each answer are counted in bins between up to 4,095 quantiles of the scores stored so far.
/// Scores in one bin count as ties, which moves an area by at most half the share of the pairs of a
/// 1 and a 0 in that bin.
class RocAreas {
 public:
  /// Throws ValueError unless answers >= 1.
  explicit RocAreas(int64_t answers, int64_t most = int64_t{1} << 25);

  /// Scores and labels are [samples, answers], row-major. Throws ValueError if their sizes differ
  /// or are not whole rows, or if a label is neither 0 nor 1.
  void add(std::span<const double> scores, std::span<const int32_t> labels);
  /// Returns the area of each answer; nullopt if its labels are all the same, or there are none.
  std::vector<std::optional<double>> areas() const;

 private:
  struct Column {
    std::vector<double> scores;
    std::vector<int32_t> labels;
  };
  struct Kept {
    Tensor scores, labels;  // f32 and u8 [samples, answers]
  };
  Column column(int64_t answer) const;
  void begin_counting();
  void count(int64_t answer, double score, int32_t label);
  std::optional<double> counted_area(int64_t answer) const;

  int64_t answers_, most_, samples_ = 0;
  std::vector<Kept> kept_;
  Tensor edges_;   // f32 [answers, bins - 1], ascending
  Tensor counts_;  // i64 [answers, bins, 2], of labels 0 and 1; undefined while areas are exact
};

/// The median of the areas of several answers, and how many answers have an area.
struct MedianAuc {
  double median = 0;  ///< NaN if no answer has an area
  int64_t answers = 0, skipped = 0;
};
MedianAuc median_auc(std::span<const std::optional<double>> areas);

}  // namespace longspan
