#include "data/gap_sentences.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "core/error.h"
#include "data/metrics.h"

namespace longspan {

std::vector<int64_t> gap_sentences(std::span<const std::string> sentences, double share) {
  require(share > 0 && share < 1, "gap_sentences", "got a share of {}; expected between 0 and 1",
          share);
  const auto n = static_cast<int64_t>(sentences.size());
  if (n < 2) return {};
  using Counts = std::unordered_map<std::string, int64_t>;
  std::vector<Counts> counts(sentences.size());
  Counts all;
  std::vector<int64_t> lengths(sentences.size());
  for (size_t i = 0; i < sentences.size(); ++i) {
    for (const std::string& token : rouge_tokens(sentences[i])) {
      ++counts[i][token];
      ++all[token];
      ++lengths[i];
    }
  }
  const int64_t length = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  std::vector<double> scores(sentences.size());
  for (size_t i = 0; i < sentences.size(); ++i) {
    int64_t common = 0;  // with the others: each token at most as often as it occurs there
    for (const auto& [token, count] : counts[i]) common += std::min(count, all[token] - count);
    // F1 = 2 common / (tokens here + tokens elsewhere).
    scores[i] = length > 0 ? 2 * static_cast<double>(common) / static_cast<double>(length) : 0;
  }
  std::vector<int64_t> order(sentences.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  const auto wanted = static_cast<int64_t>(std::lround(share * static_cast<double>(n)));
  order.resize(static_cast<size_t>(std::clamp<int64_t>(wanted, 1, n - 1)));
  std::sort(order.begin(), order.end());
  return order;
}

GapPair gap_pair(std::span<const std::string> sentences, std::span<const int64_t> chosen,
                 const Tokenizer& tokenizer, int32_t mask_token) {
  const auto n = static_cast<int64_t>(sentences.size());
  int64_t last = -1;
  for (const int64_t i : chosen) {
    require(i > last && i < n, "gap_pair",
            "got sentence {} after {}; expected places in order below {}", i, last, n);
    last = i;
  }
  GapPair pair;
  const auto add = [&](std::vector<int32_t>& to, const std::string& sentence) {
    const std::vector<int32_t> ids = tokenizer.encode(to.empty() ? sentence : " " + sentence);
    to.insert(to.end(), ids.begin(), ids.end());
  };
  size_t next = 0;
  for (int64_t i = 0; i < n; ++i) {
    const std::string& sentence = sentences[static_cast<size_t>(i)];
    if (next < chosen.size() && chosen[next] == i) {
      pair.source.push_back(mask_token);
      add(pair.target, sentence);
      ++next;
    } else {
      add(pair.source, sentence);
    }
  }
  return pair;
}

}  // namespace longspan
