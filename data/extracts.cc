#include "data/extracts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "core/error.h"
#include "data/metrics.h"

namespace longspan {
namespace {

using Grams = std::set<std::string>;

/// Returns the different n-grams of tokens.
Grams grams_of(const std::vector<std::string>& tokens, size_t n) {
  Grams all;
  for (size_t i = 0; i + n <= tokens.size(); ++i) {
    std::string gram = tokens[i];
    for (size_t j = 1; j < n; ++j) gram += ' ' + tokens[i + j];
    all.insert(std::move(gram));
  }
  return all;
}

bool meet(const Grams& a, const Grams& b) {
  return std::any_of(a.begin(), a.end(), [&](const std::string& g) { return b.contains(g); });
}

double f1(size_t common, size_t chosen, size_t wanted) {
  return common > 0 ? 2 * static_cast<double>(common) / static_cast<double>(chosen + wanted) : 0;
}

/// Unigrams and bigrams of a text, and how many of them a summary has.
struct Both {
  Grams one, two;

  void add(const Both& other) {
    one.insert(other.one.begin(), other.one.end());
    two.insert(other.two.begin(), other.two.end());
  }
};

Both grams_of_sentence(const std::string& sentence) {
  const std::vector<std::string> tokens = rouge_tokens(sentence);
  return {grams_of(tokens, 1), grams_of(tokens, 2)};
}

/// The summary is one text.
Both grams_of_summary(std::span<const std::string> summary) {
  std::vector<std::string> all;
  for (const std::string& sentence : summary) {
    const std::vector<std::string> tokens = rouge_tokens(sentence);
    all.insert(all.end(), tokens.begin(), tokens.end());
  }
  return {grams_of(all, 1), grams_of(all, 2)};
}

/// Counts the n-grams of `more` that `chosen` lacks: all, and the ones in `wanted`, the summary.
std::pair<size_t, size_t> new_grams(const Grams& more, const Grams& chosen, const Grams& wanted) {
  std::pair<size_t, size_t> n{0, 0};
  for (const std::string& g : more) {
    if (chosen.contains(g)) continue;
    ++n.first;
    n.second += wanted.contains(g) ? 1 : 0;
  }
  return n;
}

/// The overlap of chosen sentences with a summary, kept while sentences are added.
class GrowingOverlap {
 public:
  explicit GrowingOverlap(std::span<const std::string> summary)
      : wanted_(grams_of_summary(summary)) {}

  double with(const Both& more) const {
    const auto [all1, hit1] = new_grams(more.one, chosen_.one, wanted_.one);
    const auto [all2, hit2] = new_grams(more.two, chosen_.two, wanted_.two);
    return f1(hit1_ + hit1, chosen_.one.size() + all1, wanted_.one.size()) +
           f1(hit2_ + hit2, chosen_.two.size() + all2, wanted_.two.size());
  }
  void add(const Both& more) {
    hit1_ += new_grams(more.one, chosen_.one, wanted_.one).second;
    hit2_ += new_grams(more.two, chosen_.two, wanted_.two).second;
    chosen_.add(more);
  }

 private:
  Both wanted_, chosen_;
  size_t hit1_ = 0, hit2_ = 0;
};

}  // namespace

std::vector<int64_t> select_sentences(std::span<const double> scores,
                                      std::span<const std::string> sentences,
                                      const ExtractOptions& o) {
  constexpr const char* kOp = "select_sentences";
  require(scores.size() == sentences.size(), kOp, "got {} scores for {} sentences", scores.size(),
          sentences.size());
  require(o.sentences >= 0 && o.words >= 0, kOp,
          "got at most {} sentences and {} words; expected 0 or more", o.sentences, o.words);
  for (const double s : scores) require(!std::isnan(s), kOp, "got a score that is NaN");
  std::vector<int64_t> order(scores.size()), chosen;
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  Grams seen;
  int64_t words = 0;
  for (const int64_t i : order) {
    if (std::ssize(chosen) >= o.sentences) break;
    const std::vector<std::string> tokens = rouge_tokens(sentences[static_cast<size_t>(i)]);
    const Grams own = grams_of(tokens, 3);
    if (o.blocking && meet(own, seen)) continue;
    if (o.words > 0 && words + std::ssize(tokens) > o.words) continue;
    chosen.push_back(i);
    words += std::ssize(tokens);
    seen.insert(own.begin(), own.end());
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

double oracle_overlap(std::span<const std::string> chosen, std::span<const std::string> summary) {
  Both all;
  for (const std::string& sentence : chosen) all.add(grams_of_sentence(sentence));
  return GrowingOverlap(summary).with(all);
}

std::vector<int64_t> greedy_oracle(std::span<const std::string> sentences,
                                   std::span<const std::string> summary, int64_t most) {
  require(most >= 0, "greedy_oracle", "got at most {} sentences; expected 0 or more", most);
  std::vector<Both> grams;
  for (const std::string& sentence : sentences) grams.push_back(grams_of_sentence(sentence));
  GrowingOverlap overlap(summary);
  std::vector<int64_t> chosen;
  double best = 0;
  while (std::ssize(chosen) < most) {
    int64_t found = -1;
    for (size_t i = 0; i < grams.size(); ++i) {
      const double score = overlap.with(grams[i]);
      if (score > best) {
        best = score;
        found = static_cast<int64_t>(i);
      }
    }
    if (found < 0) break;
    overlap.add(grams[static_cast<size_t>(found)]);
    chosen.push_back(found);
  }
  return chosen;
}

std::vector<std::string> sentences_at(std::span<const std::string> sentences,
                                      std::span<const int64_t> places) {
  std::vector<std::string> all;
  for (const int64_t i : places) all.push_back(sentences[static_cast<size_t>(i)]);
  return all;
}

}  // namespace longspan
