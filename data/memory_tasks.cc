#include "data/memory_tasks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "core/error.h"

namespace longspan {
namespace {

void require_from(std::string_view option, int64_t value, int64_t least) {
  require(value >= least, option, "got {}; expected {} or more", value, least);
}

/// Throws ValueError that names `option` unless its value is less than the length of a sample.
void require_within(std::string_view option, int64_t value, int64_t length) {
  require(value < length, option,
          "got {} and samples of {} tokens; expected less, or longer samples", value, length);
}

size_t at(int64_t i) { return static_cast<size_t>(i); }

/// Returns a token of [first, first + count).
int32_t any_of(Draws& draws, int64_t first, int64_t count) {
  return static_cast<int32_t>(first + draws.below(count));
}

/// Returns `length` random tokens of [first, first + count), without targets.
Sample noise(Draws& draws, int64_t length, int64_t first, int64_t count) {
  Sample s;
  s.tokens.resize(at(length));
  for (int32_t& token : s.tokens) token = any_of(draws, first, count);
  s.targets.assign(s.tokens.size(), ignored_target);
  return s;
}

void check(const PeriodTask& t) {
  require_from("period.period", t.period, 1);
  require_from("period.symbols", t.symbols, 1);
  require_within("period.period", t.period, t.length);
}

void check(const RecallTask& t) {
  require_from("recall.document", t.document, 2);
  require_from("recall.labels", t.labels, 1);
  require_from("recall.symbols", t.symbols, 1);
  require_from("recall.documents", t.documents, 1);
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  require(t.documents <= most / t.document, "recall.documents",
          "got {} of {} tokens; expected {} or fewer", t.documents, t.document, most / t.document);
}

void check(const MultiQueryRecallTask& t) {
  require_from("multi_query_recall.pairs", t.pairs, 1);
  require(t.pairs < t.vocabulary / 2, "multi_query_recall.pairs",
          "got {} of {} tokens, half of which are keys; expected fewer than {}", t.pairs,
          t.vocabulary, t.vocabulary / 2);
  require(t.length >= 4 * t.pairs, "multi_query_recall.pairs",
          "got {} and samples of {} tokens; expected samples of {} or more", t.pairs, t.length,
          4 * t.pairs);
  require(std::isfinite(t.power), "multi_query_recall.power", "got {}; expected a finite number",
          t.power);
}

/// Returns `count` different integers below `range`, in random order.
std::vector<int64_t> different(Draws& draws, int64_t count, int64_t range) {
  const Generator order{static_cast<uint64_t>(draws.below(int64_t{1} << 62))};
  return Permutation(range, order).first(count);
}

/// Returns `count` different integers g below `range`, drawn one after another with probabilities
/// proportional to (g + 1)^(power - 1), which are rounded to integers so that they are the same on
/// every machine.
std::vector<int64_t> gaps(Draws& draws, int64_t count, int64_t range, double power) {
  std::vector<int64_t> weights;
  for (int64_t g = 0; g < range; ++g) {
    const double w = std::pow(static_cast<double>(g + 1), power - 1);
    weights.push_back(std::max<int64_t>(1, std::llround(std::min(w, 1e6) * 0x1p20)));
  }
  int64_t total = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  std::vector<int64_t> all;
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = draws.below(total);
    size_t g = 0;
    while (rest >= weights[g]) rest -= weights[g++];
    all.push_back(static_cast<int64_t>(g));
    total -= std::exchange(weights[g], 0);
  }
  return all;
}

void check(const CorridorTask& t) {
  require_from("corridor.nearest", t.nearest, 1);
  require_from("corridor.distance", t.distance, t.nearest);
  require_from("corridor.colours", t.colours, 1);
  require_from("corridor.symbols", t.symbols, 1);
  require_within("corridor.nearest", t.nearest, t.length);
}

void check(const TwoDistanceTask& t) {
  require_from("two_distance.near", t.near, 1);
  require_from("two_distance.far", t.far, t.near + 1);
  require_from("two_distance.symbols", t.symbols, 1);
  require_within("two_distance.far", t.far, t.length);
}

void check(const LookupTask& t) {
  require_from("lookup.near", t.near, 1);
  require_from("lookup.far", t.far, t.near + 1);
  require_from("lookup.every", t.every, 2);
  require_from("lookup.symbols", t.symbols, 1);
  require_within("lookup.far", t.far, t.length);
}

void check(const MarkedRecallTask& t) {
  require_from("marked_recall.length", t.length, 3);
  require_from("marked_recall.labels", t.labels, 1);
  require_from("marked_recall.symbols", t.symbols, 1);
}

/// Gives a task without a length of its own the run's.
void fit_length(auto& task, int64_t run_length) {
  if (task.length == 0) task.length = run_length;
  check(task);
}

}  // namespace

void PeriodTask::fit(int64_t run_length, int64_t /*vocabulary*/) { fit_length(*this, run_length); }

Sample PeriodTask::sample(const SampleKey& key) const {
  check(*this);
  Draws draws = draws_of("period", key);
  Sample s = noise(draws, period, 0, symbols);
  for (int64_t i = period; i <= length; ++i) s.tokens.push_back(s.tokens[at(i - period)]);
  s.targets.insert(s.targets.end(), s.tokens.begin() + period + 1, s.tokens.end());
  s.tokens.pop_back();  // only the last target
  return s;
}

void RecallTask::fit(int64_t run_length, int64_t /*vocabulary*/) {
  require_from("recall.document", document, 2);
  if (documents == 0) {
    require(document <= run_length, "recall.document",
            "got {}, and samples of {} tokens have no space for it; expected less, longer samples, "
            "or recall.documents",
            document, run_length);
    documents = run_length / document;
  }
  check(*this);
}

Sample RecallTask::sample(const SampleKey& key) const {
  check(*this);
  Draws draws = draws_of("recall", key);
  Sample s = noise(draws, length(), 1 + labels, symbols);
  for (int64_t begin = 0; begin < length(); begin += document) {
    const int64_t question = begin + document - 1;
    const int32_t label = any_of(draws, 1, labels);
    s.tokens[at(begin)] = s.targets[at(question)] = label;
    s.tokens[at(question)] = 0;
  }
  return s;
}

void MultiQueryRecallTask::fit(int64_t run_length, int64_t tokens) {
  vocabulary = tokens;
  fit_length(*this, run_length);
}

Sample MultiQueryRecallTask::sample(const SampleKey& key) const {
  check(*this);
  Draws draws = draws_of("multi-query-recall", key);
  const int64_t half = vocabulary / 2;
  const std::vector<int64_t> keys = different(draws, pairs, half - 1);
  const std::vector<int64_t> values = different(draws, pairs, vocabulary - half);
  const std::vector<int64_t> places = gaps(draws, pairs, (length - 2 * pairs) / 2, power);
  Sample s;
  s.tokens.resize(at(length));
  for (int32_t& token : s.tokens) token = noise ? any_of(draws, 0, vocabulary) : 0;
  s.targets.assign(at(length), ignored_target);
  for (int64_t i = 0; i < pairs; ++i) {
    const int64_t again = 2 * pairs + 2 * places[at(i)];
    s.tokens[at(2 * i)] = s.tokens[at(again)] = static_cast<int32_t>(1 + keys[at(i)]);
    s.tokens[at(2 * i + 1)] = s.targets[at(again)] = static_cast<int32_t>(half + values[at(i)]);
  }
  return s;
}

void CorridorTask::fit(int64_t run_length, int64_t /*vocabulary*/) {
  fit_length(*this, run_length);
}

Sample CorridorTask::sample(const SampleKey& key) const {
  check(*this);
  Draws draws = draws_of("corridor", key);
  Sample s = noise(draws, length, 1 + colours, symbols);
  for (int64_t mark = 0; mark + nearest < length;) {
    const int64_t furthest = mark == 0 ? std::min(distance, length - 1) : distance;
    const int64_t query = mark + nearest + draws.below(furthest - nearest + 1);
    s.tokens[at(mark)] = any_of(draws, 1, colours);
    if (query < length) {
      s.targets[at(query)] = s.tokens[at(mark)];
      s.tokens[at(query)] = 0;
    }
    mark = query + 1;
  }
  return s;
}

void TwoDistanceTask::fit(int64_t run_length, int64_t /*vocabulary*/) {
  fit_length(*this, run_length);
}

Sample TwoDistanceTask::sample(const SampleKey& key) const {
  check(*this);
  constexpr int64_t marks = 2;  // tokens 0 and 1
  Draws draws = draws_of("two-distance", key);
  Sample s = noise(draws, length, marks, symbols);
  for (int64_t i = 0; i < length; ++i) {
    const int64_t mark = draws.below(4), source = i - (mark == 0 ? near : far);
    if (i > 0 && s.targets[at(i - 1)] != ignored_target) {
      s.tokens[at(i)] = s.targets[at(i - 1)];
    } else if (mark < marks && source >= 0 && s.tokens[at(source)] >= marks) {
      s.tokens[at(i)] = static_cast<int32_t>(mark);
      s.targets[at(i)] = s.tokens[at(source)];
    }
  }
  return s;
}

void LookupTask::fit(int64_t run_length, int64_t /*vocabulary*/) { fit_length(*this, run_length); }

Sample LookupTask::sample(const SampleKey& key) const {
  check(*this);
  Draws draws = draws_of("lookup", key);
  Sample s = noise(draws, length, 1, symbols);
  for (int64_t i = 0; i < length; ++i) {
    if (draws.below(every) == 0) s.tokens[at(i)] = 0;
    const int64_t source = i - (s.tokens[at(i)] == 0 ? far : near);
    if (source >= 0 && s.tokens[at(source)] != 0) s.targets[at(i)] = s.tokens[at(source)];
  }
  return s;
}

void MarkedRecallTask::fit(int64_t run_length, int64_t /*vocabulary*/) {
  fit_length(*this, run_length);
}

Sample MarkedRecallTask::sample(const SampleKey& key) const {
  check(*this);
  Draws draws = draws_of("marked-recall", key);
  Sample s = decoys ? noise(draws, length, 2, labels + symbols)
                    : noise(draws, length, 2 + labels, symbols);
  s.tokens[0] = 1;
  s.tokens[1] = any_of(draws, 2, labels);
  s.tokens.back() = 0;
  s.targets.back() = s.tokens[1];
  return s;
}

}  // namespace longspan
