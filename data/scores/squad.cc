#include "data/scores/squad.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_set>

#include "core/error.h"
#include "data/metrics.h"

namespace longspan {
namespace {

/// A score whose sums can be compared: NaN is the lowest, infinite ones are finite.
double score_of(float value) {
  constexpr float most = std::numeric_limits<float>::max();
  return std::isnan(value) ? -most : std::clamp(value, -most, most);
}

/// Returns the positions of the `count` highest scores; of equal ones, the first.
std::vector<size_t> highest(const std::vector<float>& scores, int64_t count) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto kept = std::min(order.size(), static_cast<size_t>(count));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                    [&](size_t a, size_t b) {
                      const double x = score_of(scores[a]), y = score_of(scores[b]);
                      return x != y ? x > y : a < b;
                    });
  order.resize(kept);
  return order;
}

/// Finds, among the windows that hold a text token, the one with most text on both sides.
class MostContext {
 public:
  explicit MostContext(std::span<const SpanWindow> windows)
      : windows_(windows), ends_(windows.size()), firsts_(windows.size()) {
    for (size_t i = 0; i < windows.size(); ++i) {
      const int64_t end = windows[i].first + windows[i].count;
      ends_[i] = i == 0 ? end : std::max(ends_[i - 1], end);
    }
    for (size_t i = windows.size(); i-- > 0;) {
      const int64_t first = windows[i].first;
      firsts_[i] = i + 1 == windows.size() ? first : std::min(firsts_[i + 1], first);
    }
  }

  /// Returns the window; the first of equal ones.
  size_t window_of(int64_t token) const {
    const auto begin = std::upper_bound(ends_.begin(), ends_.end(), token) - ends_.begin();
    const auto end = std::upper_bound(firsts_.begin(), firsts_.end(), token) - firsts_.begin();
    size_t best = windows_.size();
    double most = 0;
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const SpanWindow& w = windows_[i];
      const int64_t before = token - w.first, after = w.count - 1 - before;
      if (before < 0 || after < 0) continue;
      const double context =
          static_cast<double>(std::min(before, after)) + 0.01 * static_cast<double>(w.count);
      if (best < windows_.size() && context <= most) continue;
      best = i;
      most = context;
    }
    return best;
  }

 private:
  std::span<const SpanWindow> windows_;
  std::vector<int64_t> ends_;    // the highest end of windows 0 to i
  std::vector<int64_t> firsts_;  // the lowest first token of windows i and later
};

/// A pair of a first and a last token.
struct Pair {
  double start, end;
  size_t window;
  int64_t first, last;  // of the text; first < 0: no answer
};

void check(std::span<const SpanWindow> windows, std::span<const std::vector<float>> starts,
           std::span<const std::vector<float>> ends, const AnswerSearch& search) {
  require(search.candidates >= 1 && search.longest >= 1, "find_answer",
          "got {} candidates of up to {} tokens; expected 1 or more of both", search.candidates,
          search.longest);
  require<ShapeError>(
      !windows.empty() && starts.size() == windows.size() && ends.size() == windows.size(),
      "find_answer", "got {} windows, scores of {} starts and {} ends; expected as many, and some",
      windows.size(), starts.size(), ends.size());
  for (size_t i = 0; i < windows.size(); ++i) {
    const size_t n = windows[i].tokens.size();
    require<ShapeError>(n > 0 && starts[i].size() >= n && ends[i].size() >= n, "find_answer",
                        "window {} has {} tokens, {} starts and {} ends; expected as many", i, n,
                        starts[i].size(), ends[i].size());
  }
}

/// Appends the pairs of one window.
void add_pairs(std::span<const SpanWindow> windows, size_t at, const std::vector<float>& starts,
               const std::vector<float>& ends, const AnswerSearch& search,
               const MostContext& most_context, std::vector<Pair>& pairs) {
  const SpanWindow& w = windows[at];
  const std::vector<size_t> lasts = highest(ends, search.candidates);
  for (const size_t a : highest(starts, search.candidates)) {
    const int64_t first = static_cast<int64_t>(a) - w.text_begin;
    if (first < 0 || first >= w.count) continue;
    if (search.most_context && most_context.window_of(w.first + first) != at) continue;
    for (const size_t b : lasts) {
      const int64_t last = static_cast<int64_t>(b) - w.text_begin;
      if (last < first || last >= w.count || last - first >= search.longest) continue;
      pairs.push_back(
          {score_of(starts[a]), score_of(ends[b]), at, w.first + first, w.first + last});
    }
  }
}

/// Sets probabilities: a softmax over the sums of scores.
void set_probabilities(std::vector<AnswerCandidate>& candidates) {
  double highest = std::numeric_limits<double>::lowest(), sum = 0;
  for (const AnswerCandidate& c : candidates) highest = std::max(highest, c.start + c.end);
  for (AnswerCandidate& c : candidates) {
    c.probability = std::exp(c.start + c.end - highest);
    sum += c.probability;
  }
  for (AnswerCandidate& c : candidates) c.probability /= sum;
}

/// Returns the best candidates of pairs in their order, each text once.
std::vector<AnswerCandidate> keep_best(std::string_view context, std::span<const Piece> text,
                                       std::span<const Pair> pairs, int64_t count) {
  std::vector<AnswerCandidate> kept;
  std::unordered_set<std::string> seen;
  for (const Pair& p : pairs) {
    if (std::ssize(kept) == count) break;
    AnswerCandidate c{{}, p.start, p.end};
    if (p.first >= 0) {
      const auto begin = static_cast<size_t>(text[static_cast<size_t>(p.first)].begin);
      const auto end = static_cast<size_t>(text[static_cast<size_t>(p.last)].end);
      if (begin < end && end <= context.size()) c.text = context.substr(begin, end - begin);
      c.begin = static_cast<int64_t>(begin);
      if (c.text.empty()) continue;
    }
    if (seen.insert(c.text).second) kept.push_back(std::move(c));
  }
  return kept;
}

}  // namespace

void SquadScores::add(std::string_view answer, std::span<const std::string> references,
                      double no_answer) {
  require(!std::isnan(no_answer), "squad", "the score of no answer is NaN; expected a number");
  std::vector<std::string> right;
  for (const std::string& r : references) {
    if (!normal_answer(r).empty()) right.push_back(r);
  }
  if (right.empty()) right.emplace_back();
  rows_.push_back({answer_matches(answer, right) ? 1.0 : 0.0, answer_overlap(answer, right).f1(),
                   no_answer, !references.empty(), !answer.empty()});
}

AnswerFigures SquadScores::mean(double threshold, std::optional<bool> has_answer) const {
  AnswerFigures sum;
  for (const Row& row : rows_) {
    if (has_answer && row.has_answer != *has_answer) continue;
    const bool none = row.no_answer > threshold;
    const double right = row.has_answer ? 0 : 1;
    sum.exact += none ? right : row.exact;
    sum.f1 += none ? right : row.f1;
    ++sum.total;
  }
  const auto n = static_cast<double>(sum.total);
  return {100 * sum.exact / n, 100 * sum.f1 / n, sum.total};
}

void SquadScores::best(double Row::*score, double& percent, double& threshold) const {
  std::vector<const Row*> order;
  double sum = 0;
  for (const Row& row : rows_) {
    order.push_back(&row);
    sum += row.has_answer ? 0 : 1;
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const Row* a, const Row* b) { return a->no_answer < b->no_answer; });
  double highest = sum;
  threshold = 0;
  // Questions up to the threshold count as answered.
  for (const Row* row : order) {
    sum += row->has_answer ? row->*score : row->answered ? -1 : 0;
    if (sum <= highest) continue;
    highest = sum;
    threshold = row->no_answer;
  }
  percent = 100 * highest / static_cast<double>(rows_.size());
}

SquadFigures SquadScores::figures(double threshold) const {
  require(!rows_.empty(), "squad", "there are no questions; expected one or more");
  SquadFigures f;
  f.all = mean(threshold, {});
  const AnswerFigures has = mean(threshold, true), none = mean(threshold, false);
  if (has.total > 0) f.has_answer = has;
  if (none.total > 0) f.no_answer = none;
  best(&Row::exact, f.best_exact, f.best_exact_threshold);
  best(&Row::f1, f.best_f1, f.best_f1_threshold);
  return f;
}

FoundAnswer find_answer(std::string_view context, std::span<const SpanWindow> windows,
                        std::span<const Piece> text, std::span<const std::vector<float>> starts,
                        std::span<const std::vector<float>> ends, const AnswerSearch& search) {
  check(windows, starts, ends, search);
  const MostContext most_context(windows);
  std::vector<Pair> pairs;
  Pair none{};
  for (size_t i = 0; i < windows.size(); ++i) {
    const double start = score_of(starts[i][0]), end = score_of(ends[i][0]);
    if (i == 0 || start + end < none.start + none.end) none = {start, end, i, -1, -1};
    add_pairs(windows, i, starts[i], ends[i], search, most_context, pairs);
  }
  if (search.no_answer) pairs.push_back(none);
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& a, const Pair& b) { return a.start + a.end > b.start + b.end; });
  FoundAnswer found;
  found.candidates = keep_best(context, text, pairs, search.candidates);
  const auto is_none = [](const AnswerCandidate& c) { return c.text.empty(); };
  if (search.no_answer && std::none_of(found.candidates.begin(), found.candidates.end(), is_none)) {
    found.candidates.push_back({{}, none.start, none.end});
  }
  set_probabilities(found.candidates);
  const auto best = std::find_if_not(found.candidates.begin(), found.candidates.end(), is_none);
  const bool any = best != found.candidates.end();
  if (search.no_answer) {
    found.null_difference = none.start + none.end - (any ? best->start + best->end : 0);
  }
  if (any && (!search.no_answer || !(found.null_difference > search.threshold))) {
    found.text = best->text;
  }
  return found;
}

}  // namespace longspan
