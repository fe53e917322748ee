#include "data/scores/classes.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace longspan {
namespace {

double share(double part, double of) { return of > 0 ? part / of : 0; }

/// Averages over classes by what they weigh.
template <class Weight>
ClassScores mean_of(std::span<const ClassCounts> classes, Weight&& weight) {
  ClassScores sum;
  double total = 0;
  for (const ClassCounts& c : classes) {
    const double w = weight(c);
    sum.precision += w * c.precision();
    sum.recall += w * c.recall();
    sum.f1 += w * c.f1();
    total += w;
  }
  return {share(sum.precision, total), share(sum.recall, total), share(sum.f1, total)};
}

void require_lengths(const char* op, size_t predictions, size_t labels) {
  require(predictions == labels, op, "got {} predictions and {} labels; expected as many",
          predictions, labels);
}

void require_binary(int32_t prediction, int32_t label, size_t at) {
  require((prediction == 0 || prediction == 1) && (label == 0 || label == 1), "label counts",
          "label {}: got the prediction {} and the label {}; expected 0 or 1", at, prediction,
          label);
}

}  // namespace

ClassScores average_over(std::span<const ClassCounts> classes, Average how) {
  if (how == Average::macro) return mean_of(classes, [](const ClassCounts&) { return 1.0; });
  if (how == Average::weighted) {
    return mean_of(classes, [](const ClassCounts& c) { return c.labelled; });
  }
  require(how == Average::micro, "averages",
          "an average over samples needs samples of several labels; expected micro, macro or "
          "weighted");
  ClassCounts sum;
  for (const ClassCounts& c : classes) {
    sum.hit += c.hit;
    sum.predicted += c.predicted;
    sum.labelled += c.labelled;
  }
  return sum.scores();
}

ConfusionMatrix::ConfusionMatrix(int64_t classes) : classes_(classes) {
  require(classes >= 1 && classes <= 30'000, "confusion matrix",
          "got {} classes; expected 1 to 30,000", classes);
  counts_.resize(static_cast<size_t>(classes * classes));
}

size_t ConfusionMatrix::at(int32_t label, int32_t prediction) const {
  require(label >= 0 && label < classes_ && prediction >= 0 && prediction < classes_,
          "confusion matrix", "got the prediction {} and the label {}; expected 0 to {}",
          prediction, label, classes_ - 1);
  return static_cast<size_t>(label * classes_ + prediction);
}

void ConfusionMatrix::add(int32_t prediction, int32_t label) {
  ++counts_[at(label, prediction)];
  ++total_;
}

void ConfusionMatrix::add(std::span<const int32_t> predictions, std::span<const int32_t> labels) {
  require_lengths("confusion matrix", predictions.size(), labels.size());
  for (size_t i = 0; i < labels.size(); ++i) add(predictions[i], labels[i]);
}

int64_t ConfusionMatrix::operator()(int32_t label, int32_t prediction) const {
  return counts_[at(label, prediction)];
}

ClassCounts ConfusionMatrix::of(int32_t c) const {
  ClassCounts counts;
  counts.hit = static_cast<double>(counts_[at(c, c)]);
  for (int32_t other = 0; other < classes_; ++other) {
    counts.predicted += static_cast<double>(counts_[at(other, c)]);
    counts.labelled += static_cast<double>(counts_[at(c, other)]);
  }
  return counts;
}

double ConfusionMatrix::accuracy() const {
  int64_t right = 0;
  for (int32_t c = 0; c < classes_; ++c) right += counts_[at(c, c)];
  return total_ > 0 ? static_cast<double>(right) / static_cast<double>(total_) : std::nan("");
}

ClassScores ConfusionMatrix::average(Average how) const {
  std::vector<ClassCounts> there;
  for (int32_t c = 0; c < classes_; ++c) {
    const ClassCounts counts = of(c);
    if (counts.predicted > 0 || counts.labelled > 0) there.push_back(counts);
  }
  return average_over(there, how);
}

double ConfusionMatrix::matthews() const {
  const auto n = static_cast<double>(total_);
  double hits = 0, both = 0, predicted = 0, labelled = 0;
  for (int32_t c = 0; c < classes_; ++c) {
    const ClassCounts k = of(c);
    hits += k.hit;
    both += k.predicted * k.labelled;
    predicted += k.predicted * k.predicted;
    labelled += k.labelled * k.labelled;
  }
  const double scale = std::sqrt(n * n - predicted) * std::sqrt(n * n - labelled);
  return scale > 0 ? (hits * n - both) / scale : 0;
}

LabelCounts::LabelCounts(int64_t labels) {
  require(labels >= 1 && labels <= 1'000'000, "label counts",
          "got {} labels; expected 1 to 1,000,000", labels);
  counts_.resize(static_cast<size_t>(labels));
}

void LabelCounts::add(std::span<const int32_t> predictions, std::span<const int32_t> labels) {
  require(predictions.size() == counts_.size() && labels.size() == counts_.size(), "label counts",
          "got {} predictions and {} labels; expected {} of each", predictions.size(),
          labels.size(), counts_.size());
  for (size_t i = 0; i < labels.size(); ++i) require_binary(predictions[i], labels[i], i);
  ClassCounts sample;
  bool right = true;
  for (size_t i = 0; i < labels.size(); ++i) {
    const double hit = predictions[i] * labels[i];
    sample.hit += hit;
    sample.predicted += predictions[i];
    sample.labelled += labels[i];
    counts_[i].hit += hit;
    counts_[i].predicted += predictions[i];
    counts_[i].labelled += labels[i];
    right = right && predictions[i] == labels[i];
  }
  ++total_;
  right_ += right ? 1 : 0;
  samples_.precision += sample.precision();
  samples_.recall += sample.recall();
  samples_.f1 += sample.f1();
}

void LabelCounts::add(std::span<const float> scores, std::span<const float> thresholds,
                      std::span<const int32_t> labels) {
  require(thresholds.size() == 1 || thresholds.size() == scores.size(), "label counts",
          "got {} scores and {} thresholds; expected as many, or one threshold", scores.size(),
          thresholds.size());
  std::vector<int32_t> predictions;
  for (size_t i = 0; i < scores.size(); ++i) {
    predictions.push_back(scores[i] > thresholds[thresholds.size() == 1 ? 0 : i] ? 1 : 0);
  }
  add(predictions, labels);
}

ClassCounts LabelCounts::of(int64_t label) const {
  require(label >= 0 && label < std::ssize(counts_), "label counts",
          "got label {}; expected 0 to {}", label, counts_.size() - 1);
  return counts_[static_cast<size_t>(label)];
}

double LabelCounts::accuracy() const {
  return total_ > 0 ? static_cast<double>(right_) / static_cast<double>(total_) : std::nan("");
}

ClassScores LabelCounts::average(Average how) const {
  if (how != Average::samples) return average_over(counts_, how);
  const auto n = static_cast<double>(total_);
  return {share(samples_.precision, n), share(samples_.recall, n), share(samples_.f1, n)};
}

std::vector<float> balanced_weights(std::span<const int64_t> samples) {
  double sum = 0;
  for (size_t c = 0; c < samples.size(); ++c) {
    require(samples[c] >= 0, "class weights", "got {} samples of class {}; expected 0 or more",
            samples[c], c);
    sum += static_cast<double>(samples[c]);
  }
  require(sum > 0, "class weights", "got no sample of {} classes; expected one or more",
          samples.size());
  std::vector<float> weights;
  for (const int64_t n : samples) {
    const double even = sum / static_cast<double>(samples.size());
    weights.push_back(static_cast<float>(share(even, static_cast<double>(n))));
  }
  return weights;
}

}  // namespace longspan
