#include "train/tasks.h"

#include <algorithm>

#include "core/error.h"

namespace longspan {
namespace {

/// Draws numbers one after the other from a key of their own.
class Draws {
 public:
  Draws(std::string_view task, const SampleKey& key)
      : generator_(Generator{key.seed}.fork(task).fork(key.split).fork(key.index)) {}

  /// Below `range`.
  int64_t below(int64_t range) {
    const uint64_t high = philox_word(generator_.key, next_),
                   low = philox_word(generator_.key, next_ + 1);
    next_ += 2;
    return static_cast<int64_t>(to_range(high << 32 | low, static_cast<uint64_t>(range)));
  }
  /// `count` different numbers below `range`, in random order.
  std::vector<int64_t> different(int64_t count, int64_t range, std::string_view what) const {
    const Permutation order(range, generator_.fork(what));
    std::vector<int64_t> all;
    for (int64_t i = 0; i < count; ++i) all.push_back(order[i]);
    return all;
  }

 private:
  Generator generator_;
  int64_t next_ = 0;
};

}  // namespace

Batch stack(std::span<const Sample> samples, Device device) {
  require<ShapeError>(!samples.empty(), "stack", "got no samples");
  const size_t length = samples[0].tokens.size();
  std::vector<int32_t> tokens, targets;
  for (const Sample& s : samples) {
    require<ShapeError>(s.tokens.size() == length && s.targets.size() == length, "stack",
                        "got samples of {} and {} tokens; expected one length", length,
                        s.tokens.size());
    tokens.insert(tokens.end(), s.tokens.begin(), s.tokens.end());
    targets.insert(targets.end(), s.targets.begin(), s.targets.end());
  }
  const auto rows = static_cast<int64_t>(samples.size()), columns = static_cast<int64_t>(length);
  return {Tensor::from(tokens, {rows, columns}, device),
          Tensor::from(targets, {rows, columns}, device)};
}

Sample DuplicateTask::sample(const SampleKey& key) const {
  require(symbols >= 1 && vocabulary >= 2, "duplicate",
          "got {} symbols of {} tokens; expected 1 or more of 2 or more", symbols, vocabulary);
  Draws draws("duplicate", key);
  Sample s;
  s.tokens.assign(static_cast<size_t>(length()), 0);
  s.targets.assign(s.tokens.size(), ignored_target);
  for (int64_t i = 0; i < symbols; ++i) {
    const auto token = static_cast<int32_t>(1 + draws.below(vocabulary - 1));
    const auto first = static_cast<size_t>(1 + i), second = static_cast<size_t>(symbols + 2 + i);
    s.tokens[first] = s.tokens[second] = token;
    s.targets[second - 1] = token;
  }
  return s;
}

Sample CopyTask::sample(const SampleKey& key) const {
  require(symbols >= 1 && alphabet >= 1 && blanks >= 1, "copy",
          "got {} symbols of {} and {} blanks; expected 1 or more of each", symbols, alphabet,
          blanks);
  Draws draws("copy", key);
  Sample s;
  s.tokens.assign(static_cast<size_t>(length()), 0);
  s.targets.assign(s.tokens.size(), ignored_target);
  for (int64_t i = 0; i < symbols; ++i) {
    const auto token = static_cast<int32_t>(1 + draws.below(alphabet));
    s.tokens[static_cast<size_t>(i)] = token;
    s.targets[static_cast<size_t>(symbols + blanks + i)] = token;
  }
  s.tokens[static_cast<size_t>(symbols + blanks - 1)] = static_cast<int32_t>(alphabet + 1);
  return s;
}

NeedleSample NeedleTask::sample(const SampleKey& key) const {
  const int64_t fact = 2 + value_length, text = length - 4;
  require(facts >= 1 && value_length >= 1 && values >= 1 && filler >= 1 && keys >= facts, "needle",
          "got {} facts of {} keys, {} values of {} tokens and {} fillers; expected 1 or more of "
          "each, and as many keys as facts",
          facts, keys, values, value_length, filler);
  require(text >= facts * fact, "needle",
          "{} facts of {} tokens do not fit into {}; expected {} or more", facts, fact, length,
          facts * fact + 4);
  Draws draws("needle", key);
  const auto key_token = [&](int64_t k) { return static_cast<int32_t>(4 + k); };
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };

  NeedleSample s;
  s.tokens.resize(at(length));
  for (int32_t& token : s.tokens) {
    token = static_cast<int32_t>(4 + keys + values + draws.below(filler));
  }
  const int64_t text_begin = question_first ? 4 : 1;
  s.question_begin = question_first ? 1 : length - 2;
  s.question_end = s.question_begin + 2;
  const std::vector<int64_t> named = draws.different(facts, keys, "keys");
  // With all but one token of each fact taken away, any places do; they come back in order.
  std::vector<int64_t> places = draws.different(facts, text - facts * (fact - 1), "places");
  std::sort(places.begin(), places.end());
  const int64_t asked = draws.below(facts);
  for (int64_t f = 0; f < facts; ++f) {
    const int64_t begin = text_begin + places[at(f)] + f * (fact - 1);
    s.tokens[at(begin)] = 2;
    s.tokens[at(begin + 1)] = key_token(named[at(f)]);
    for (int64_t i = 0; i < value_length; ++i) {
      s.tokens[at(begin + 2 + i)] = static_cast<int32_t>(4 + keys + draws.below(values));
    }
    if (f == asked) {
      s.start = static_cast<int32_t>(begin + 2);
      s.end = static_cast<int32_t>(begin + 1 + value_length);
    }
  }
  s.tokens[0] = 0;
  s.tokens[at(question_first ? 3 : length - 3)] = 1;
  s.tokens[at(s.question_begin)] = 3;
  s.tokens[at(s.question_begin + 1)] = key_token(named[at(asked)]);
  return s;
}

}  // namespace longspan
