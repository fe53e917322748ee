#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/metrics.h"

namespace longspan {

// Metrics of classes as scikit-learn computes them with zero_division = 0: what would be divided by
// zero is 0.

/// How figures of several classes become one.
enum class Average : uint8_t {
  micro,     ///< of the sums of all counts
  macro,     ///< mean over classes
  weighted,  ///< mean over classes, by how often each is a label
  samples    ///< mean over samples; of several labels alone
};

/// Precision, recall and F1, each of them averaged: F1 is not the harmonic mean of the others.
struct ClassScores {
  double precision = 0, recall = 0, f1 = 0;
};

/// How often each class was predicted, was the label, and was both.
struct ClassCounts {
  double hit = 0, predicted = 0, labelled = 0;

  double precision() const { return predicted > 0 ? hit / predicted : 0; }
  double recall() const { return labelled > 0 ? hit / labelled : 0; }
  double f1() const { return predicted + labelled > 0 ? 2 * hit / (predicted + labelled) : 0; }
  ClassScores scores() const { return {precision(), recall(), f1()}; }
};

/// Averages over classes. Throws ValueError for Average::samples, which counts of classes do not
/// have.
ClassScores average_over(std::span<const ClassCounts> classes, Average how);

/// Counts of each pair of a label and a prediction, where each sample has one of K classes.
class ConfusionMatrix {
 public:
  /// Throws ValueError unless 1 <= classes <= 30,000.
  explicit ConfusionMatrix(int64_t classes);

  /// Throws ValueError unless both are 0 to K - 1.
  void add(int32_t prediction, int32_t label);
  /// Adds n samples. Throws ValueError if the lengths differ too.
  void add(std::span<const int32_t> predictions, std::span<const int32_t> labels);

  int64_t classes() const { return classes_; }
  /// Number of samples.
  int64_t total() const { return total_; }
  /// Number of samples with this label and this prediction. Throws ValueError as add() does.
  int64_t operator()(int32_t label, int32_t prediction) const;
  /// Counts of a class. Throws ValueError unless there is such a class.
  ClassCounts of(int32_t c) const;

  /// Share of samples whose prediction is the label; NaN of none.
  double accuracy() const;
  /// Of the classes that are a label or a prediction somewhere; zeros where there is none. For two
  /// classes, F1 of class 1 is of(1).f1(). Throws ValueError for Average::samples.
  ClassScores average(Average how) const;
  /// Matthews correlation \cite gorodkin2004 of all classes; 0 if labels or predictions are
  /// constant.
  double matthews() const;

 private:
  size_t at(int32_t label, int32_t prediction) const;

  int64_t classes_ = 0, total_ = 0;
  std::vector<int64_t> counts_;  // [K, K], label by prediction
};

/// Counts where each sample has any number of K labels.
class LabelCounts {
 public:
  /// Throws ValueError unless 1 <= labels <= 1,000,000.
  explicit LabelCounts(int64_t labels);

  /// Adds a sample: 0 or 1 for each label. Throws ValueError for other values, and if there are
  /// not K of each.
  void add(std::span<const int32_t> predictions, std::span<const int32_t> labels);
  /// Adds a sample whose predictions are the labels with a score above their threshold: one for
  /// all, or one for each. Throws ValueError if the numbers differ, or a label is not 0 or 1.
  void add(std::span<const float> scores, std::span<const float> thresholds,
           std::span<const int32_t> labels);

  /// Number of samples.
  int64_t total() const { return total_; }
  /// Counts of a label. Throws ValueError unless there is such a label.
  ClassCounts of(int64_t label) const;
  /// Share of samples all of whose labels are right; NaN of none.
  double accuracy() const;
  /// Average over labels, whether they occur or not, or over samples.
  ClassScores average(Average how) const;

 private:
  std::vector<ClassCounts> counts_;
  ClassScores samples_;  // sums over samples
  int64_t total_ = 0, right_ = 0;
};

/// Returns the weight n / (K n_c) of each class, with which all classes count the same in a loss;
/// n_c is the number of its samples, n their sum. A class without samples gets 0. Throws ValueError
/// for negative numbers, and if all are 0.
std::vector<float> balanced_weights(std::span<const int64_t> samples);

}  // namespace longspan
