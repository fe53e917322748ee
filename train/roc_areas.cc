#include "train/roc_areas.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "data/metrics.h"

namespace longspan {
namespace {

constexpr const char* kRocAreas = "roc_areas";
constexpr int64_t kBins = 4096;

}  // namespace

RocAreas::RocAreas(int64_t answers, int64_t most) : answers_(answers), most_(most) {
  require(answers >= 1, kRocAreas, "got {} answers; expected 1 or more", answers);
}

void RocAreas::add(std::span<const double> scores, std::span<const int32_t> labels) {
  const auto n = static_cast<int64_t>(scores.size());
  require(labels.size() == scores.size() && n % answers_ == 0, kRocAreas,
          "got {} scores and {} labels of {} answers each; expected as many, in whole rows", n,
          labels.size(), answers_);
  for (const int32_t y : labels) {
    require(y == 0 || y == 1, kRocAreas, "got the label {}; expected 0 or 1", y);
  }
  samples_ += n / answers_;
  if (counts_) {
    for (int64_t i = 0; i < n; ++i) {
      count(i % answers_, scores[static_cast<size_t>(i)], labels[static_cast<size_t>(i)]);
    }
    return;
  }
  const Shape shape{n / answers_, answers_};
  Kept kept{Tensor::empty(shape, DType::f32, {}, Category::data),
            Tensor::empty(shape, DType::u8, {}, Category::data)};
  std::transform(scores.begin(), scores.end(), kept.scores.mut().as<float>(),
                 [](double z) { return static_cast<float>(z); });
  std::transform(labels.begin(), labels.end(), kept.labels.mut().as<uint8_t>(),
                 [](int32_t y) { return static_cast<uint8_t>(y); });
  kept_.push_back(std::move(kept));
  if (samples_ * answers_ > most_) begin_counting();
}

RocAreas::Column RocAreas::column(int64_t answer) const {
  Column c;
  for (const Kept& k : kept_) {
    const auto* scores = k.scores.view().as<float>();
    const auto* labels = k.labels.view().as<uint8_t>();
    for (int64_t i = answer; i < k.scores.numel(); i += answers_) {
      c.scores.push_back(double{scores[i]});
      c.labels.push_back(labels[i]);
    }
  }
  return c;
}

void RocAreas::begin_counting() {
  edges_ = Tensor::empty({answers_, kBins - 1}, DType::f32, {}, Category::data);
  counts_ = Tensor::zeros({answers_, kBins, 2}, DType::i64, {}, Category::data);
  for (int64_t a = 0; a < answers_; ++a) {
    Column c = column(a);
    std::vector<double> sorted = c.scores;
    std::sort(sorted.begin(), sorted.end());
    const auto n = static_cast<int64_t>(sorted.size());
    auto* edges = edges_.mut().as<float>() + a * (kBins - 1);
    for (int64_t b = 1; b < kBins; ++b) {
      edges[b - 1] = static_cast<float>(sorted[static_cast<size_t>(b * n / kBins)]);
    }
    for (size_t i = 0; i < c.scores.size(); ++i) count(a, c.scores[i], c.labels[i]);
  }
  kept_.clear();
}

void RocAreas::count(int64_t answer, double score, int32_t label) {
  const auto* edges = edges_.view().as<float>() + answer * (kBins - 1);
  const auto* end = edges + kBins - 1;
  const int64_t bin = std::upper_bound(edges, end, static_cast<float>(score)) - edges;
  ++counts_.mut().as<int64_t>()[(answer * kBins + bin) * 2 + label];
}

std::optional<double> RocAreas::counted_area(int64_t answer) const {
  const auto* counts = counts_.view().as<int64_t>() + answer * kBins * 2;
  double zeros = 0, ones = 0, won = 0;
  for (int64_t b = 0; b < kBins; ++b) {
    const auto zero = static_cast<double>(counts[2 * b]);
    const auto one = static_cast<double>(counts[2 * b + 1]);
    won += one * (zeros + zero / 2);
    zeros += zero;
    ones += one;
  }
  if (ones == 0 || zeros == 0) return std::nullopt;
  return won / (ones * zeros);
}

std::vector<std::optional<double>> RocAreas::areas() const {
  std::vector<std::optional<double>> all(static_cast<size_t>(answers_));
  for (int64_t a = 0; a < answers_ && samples_ > 0; ++a) {
    if (counts_) {
      all[static_cast<size_t>(a)] = counted_area(a);
    } else {
      const Column c = column(a);
      all[static_cast<size_t>(a)] = roc_auc(c.scores, c.labels);
    }
  }
  return all;
}

MedianAuc median_auc(std::span<const std::optional<double>> areas) {
  std::vector<double> known;
  for (const std::optional<double>& area : areas) {
    if (area) known.push_back(*area);
  }
  MedianAuc result{.median = std::nan(""),
                   .answers = static_cast<int64_t>(known.size()),
                   .skipped = static_cast<int64_t>(areas.size() - known.size())};
  if (known.empty()) return result;
  std::sort(known.begin(), known.end());
  result.median = (known[(known.size() - 1) / 2] + known[known.size() / 2]) / 2;
  return result;
}

}  // namespace longspan
