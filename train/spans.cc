#include "train/spans.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/generator.h"

namespace longspan {
namespace {

/// Numbers one after another from one key.
class Draws {
 public:
  explicit Draws(Generator gen) : key_(gen.key) {}
  int64_t below(int64_t n) {
    return static_cast<int64_t>((uint64_t{philox_word(key_, at_++)} * static_cast<uint64_t>(n)) >>
                                32);
  }

 private:
  uint64_t key_;
  int64_t at_ = 0;
};

/// The best start + end within a window, in places of the window.
AnswerSpan best_in_window(const DocumentWindow& w, const std::vector<float>& start,
                          const std::vector<float>& end, int64_t longest) {
  AnswerSpan best{-1, -1, -std::numeric_limits<double>::infinity()};
  for (int64_t i = w.place; i < w.place + w.count; ++i) {
    for (int64_t j = i; j < std::min(i + longest, w.place + w.count); ++j) {
      const double score = static_cast<double>(start[static_cast<size_t>(i)]) +
                           static_cast<double>(end[static_cast<size_t>(j)]);
      if (score > best.score) best = {i, j, score};
    }
  }
  return best;
}

}  // namespace

std::vector<DocumentWindow> span_windows(std::span<const int32_t> question,
                                         std::span<const int32_t> document, int64_t length,
                                         int64_t stride, const SpanTokens& special) {
  constexpr const char* op = "span_windows";
  const int64_t place = static_cast<int64_t>(question.size()) + 2, room = length - place - 1;
  require(room >= 1, op, "a question of {} tokens leaves no room in windows of {}", question.size(),
          length);
  require(stride >= 1 && stride <= room, op,
          "stride is {}; expected 1 to {}, so that windows leave no gap", stride, room);
  const auto end = static_cast<int64_t>(document.size());
  std::vector<DocumentWindow> windows;
  for (int64_t first = 0;; first += stride) {
    DocumentWindow w;
    w.place = place;
    w.first = first;
    w.count = std::min(room, end - first);
    w.tokens.push_back(special.cls);
    w.tokens.insert(w.tokens.end(), question.begin(), question.end());
    w.tokens.push_back(special.sep);
    w.tokens.insert(w.tokens.end(), document.begin() + first, document.begin() + first + w.count);
    w.tokens.push_back(special.sep);
    windows.push_back(std::move(w));
    if (first + room >= end) return windows;
  }
}

std::optional<AnswerSpan> span_in_window(const DocumentWindow& w, int64_t first, int64_t last) {
  if (first < w.first || last >= w.first + w.count) return std::nullopt;
  return AnswerSpan{first - w.first + w.place, last - w.first + w.place, 0};
}

AnswerSpan best_span(std::span<const DocumentWindow> windows,
                     const std::vector<std::vector<float>>& start,
                     const std::vector<std::vector<float>>& end, int64_t longest,
                     bool may_have_none) {
  require(start.size() == windows.size() && end.size() == windows.size(), "best_span",
          "{} windows, {} starts and {} ends", windows.size(), start.size(), end.size());
  AnswerSpan best{-1, -1, -std::numeric_limits<double>::infinity()};
  double none = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < windows.size(); ++i) {
    const DocumentWindow& w = windows[i];
    const AnswerSpan here = best_in_window(w, start[i], end[i], longest);
    if (here.score > best.score) {
      best = {here.first - w.place + w.first, here.last - w.place + w.first, here.score};
    }
    none = std::min(none, static_cast<double>(start[i][0]) + static_cast<double>(end[i][0]));
  }
  return may_have_none && none > best.score ? AnswerSpan{-1, -1, none} : best;
}

NeedleDocument NeedleQa::sample(uint64_t split, uint64_t i) const {
  constexpr int64_t fact = 3;
  require(facts >= 1 && facts <= keys && facts * fact <= length, "needle-qa",
          "{} facts of {} keys do not fit {} tokens", facts, keys, length);
  Draws draw(Generator{seed}.fork("needle-qa").fork(split).fork(i));
  const auto word = [&] { return static_cast<int32_t>(special + keys + draw.below(words)); };
  std::vector<int32_t> order(static_cast<size_t>(keys));
  std::iota(order.begin(), order.end(), special);
  // Places of the facts: `facts` sorted draws among the free tokens, each moved on by those before.
  std::vector<int64_t> places;
  for (int64_t f = 0; f < facts; ++f) {
    std::swap(order[static_cast<size_t>(f)], order[static_cast<size_t>(f + draw.below(keys - f))]);
    places.push_back(draw.below(length - facts * fact + 1));
  }
  std::sort(places.begin(), places.end());
  NeedleDocument s;
  for (int64_t t = 0; t < length; ++t) s.document.push_back(word());
  const int64_t asked = draw.below(facts);
  for (int64_t f = 0; f < facts; ++f) {
    const int64_t at = places[static_cast<size_t>(f)] + f * fact;
    s.document[static_cast<size_t>(at)] = order[static_cast<size_t>(f)];
    if (f == asked) {
      s.question = {order[static_cast<size_t>(f)]};
      s.first = at + 1;
      s.last = at + 2;
    }
  }
  return s;
}

SpanBatch span_batch(std::span<const DocumentWindow> windows) {
  const auto batch = static_cast<int64_t>(windows.size());
  size_t longest = 0;
  for (const DocumentWindow& w : windows) longest = std::max(longest, w.tokens.size());
  std::vector<int64_t> tokens(windows.size() * longest), types(tokens.size()), lengths;
  for (size_t b = 0; b < windows.size(); ++b) {
    const DocumentWindow& w = windows[b];
    for (size_t i = 0; i < w.tokens.size(); ++i) {
      tokens[b * longest + i] = w.tokens[i];
      types[b * longest + i] = static_cast<int64_t>(i) >= w.place ? 1 : 0;
    }
    lengths.push_back(static_cast<int64_t>(w.tokens.size()));
  }
  SpanBatch out;
  const Shape shape{batch, static_cast<int64_t>(longest)};
  out.tokens = Tensor::from(tokens, shape);
  out.types = Tensor::from(types, shape);
  out.lengths = Tensor::from(lengths, {batch});
  return out;
}

SpanBatch SpanBatches::next() {
  const auto batch = static_cast<size_t>(batch_);
  while (windows_.size() < batch) {
    const NeedleDocument s = task_.sample(0, document_++);
    for (DocumentWindow& w : span_windows(s.question, s.document, length_, stride_)) {
      const auto answer = span_in_window(w, s.first, s.last).value_or(AnswerSpan{0, 0, 0});
      starts_.push_back(answer.first);
      ends_.push_back(answer.last);
      windows_.push_back(std::move(w));
    }
  }
  SpanBatch out = span_batch({windows_.data(), batch});
  out.starts = Tensor::from(std::span<const int64_t>(starts_.data(), batch), {batch_});
  out.ends = Tensor::from(std::span<const int64_t>(ends_.data(), batch), {batch_});
  windows_.erase(windows_.begin(), windows_.begin() + batch_);
  starts_.erase(starts_.begin(), starts_.begin() + batch_);
  ends_.erase(ends_.begin(), ends_.begin() + batch_);
  return out;
}

std::vector<std::vector<float>> rows_of(const Tensor& x) {
  const std::vector<float> all = x.to_vector<float>();
  std::vector<std::vector<float>> rows;
  for (auto at = all.begin(); at != all.end(); at += x.dim(1)) {
    rows.emplace_back(at, at + x.dim(1));
  }
  return rows;
}

}  // namespace longspan
