#include "data/topic_documents.h"

#include <algorithm>

#include "core/error.h"

namespace longspan {
namespace {

/// Returns the topic of more than half of the sentences, or -1.
int64_t majority_of(const std::vector<int64_t>& drawn) {
  for (const int64_t t : drawn) {
    if (2 * std::count(drawn.begin(), drawn.end(), t) > std::ssize(drawn)) return t;
  }
  return -1;
}

}  // namespace

Sample TopicTask::sample(const SampleKey& key) const {
  constexpr int64_t many = 1 << 15;  // so that all tokens are of 32 bits
  require(topics >= 2 && topics <= many && sentences >= 1 && sentences <= many, "topic-docs",
          "got {} topics and {} sentences; expected 2 or more of 1 or more, up to {}", topics,
          sentences, many);
  Draws draws = draws_of(mixed ? "topic-labels" : "topic-docs", key);
  const int64_t topic = draws.below(topics);
  std::vector<int64_t> drawn(static_cast<size_t>(sentences), topic);
  int64_t majority = topic;
  while (mixed) {
    for (int64_t& t : drawn) {
      const bool own = draws.below(2) == 0;
      const int64_t other = draws.below(topics);
      t = own ? topic : other;
    }
    majority = majority_of(drawn);
    if (majority >= 0) break;
  }
  Sample s;
  for (int64_t i = 0; i < sentences; ++i) {
    const int64_t t = drawn[static_cast<size_t>(i)];
    for (const int64_t token :
         {1 + t, 1 + topics + i, 1 + topics + sentences + (t + i) % topics, int64_t{0}}) {
      s.tokens.push_back(static_cast<int32_t>(token));
      s.targets.push_back(token == 0 ? (t == majority ? 1 : 0) : ignored_target);
    }
  }
  return s;
}

}  // namespace longspan
