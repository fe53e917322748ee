#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace longspan {

/// While one exists, what evaluates a split in this thread reads a sample of it, and says how far
/// it is. The latest one counts.
class Evaluating {
 public:
  using Progress = std::function<void(int64_t done, int64_t all)>;

  ///   tokens    of the sample, about; 0: all of the split
  ///   progress  is told how many items have been read, of how many; may be empty
  explicit Evaluating(int64_t tokens, Progress progress = {});
  ~Evaluating();
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

  /// Returns how many tokens are read; 0: all.
  static int64_t tokens();
  /// Tells what watches, if anything does, that so many items have been read.
  static void see(int64_t done, int64_t all);

 private:
  int64_t tokens_;
  Progress progress_;
  Evaluating* outer_;
};

/// The items of a split that are evaluated: all, or a sample (Evaluating). With `length` tokens to
/// an item, the sample has as many items as its number of tokens gives, at least one, spread evenly
/// over the split: every evaluation has the same items.
class EvaluatedItems {
 public:
  EvaluatedItems(int64_t count, int64_t length);

  int64_t size() const { return sample_; }
  /// Whether some items of the split are left out.
  bool is_sample() const { return sample_ < count_; }
  /// Returns the place in the split of item i, 0 <= i < size().
  int64_t operator[](int64_t i) const { return (2 * i + 1) * count_ / (2 * sample_); }

 private:
  int64_t count_, sample_;
};

/// The same of rows that are in memory. Keeps a reference.
template <class Row>
class EvaluatedRows {
 public:
  EvaluatedRows(const std::vector<Row>& all, int64_t length)
      : all_(all), items_(std::ssize(all), length) {}

  size_t size() const { return static_cast<size_t>(items_.size()); }
  bool empty() const { return items_.size() == 0; }
  const Row& operator[](size_t i) const {
    return all_[static_cast<size_t>(items_[static_cast<int64_t>(i)])];
  }

 private:
  const std::vector<Row>& all_;
  EvaluatedItems items_;
};

}  // namespace longspan
