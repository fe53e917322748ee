#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// How much of one thing is in another.
struct Overlap {
  double precision = 0;  ///< share of what was given that is right
  double recall = 0;     ///< share of what is right that was given

  /// Their harmonic mean, 0 where both are 0.
  double f1() const {
    return precision + recall > 0 ? 2 * precision * recall / (precision + recall) : 0;
  }
};

/// Both at once, as HotpotQA counts an answer and its supporting facts: products.
Overlap joint(const Overlap& a, const Overlap& b);

/// Runs of a to z and 0 to 9 after lower-casing.
std::vector<std::string> rouge_tokens(std::string_view text);

/// ROUGE-n of \cite lin2004, n-grams in common, each at most as often as in the other. Throws
/// ValueError unless n >= 1.
Overlap rouge_n(std::string_view summary, std::string_view reference, int n);

/// ROUGE-L: the longest common subsequence of tokens.
Overlap rouge_l(std::string_view summary, std::string_view reference);

/// ROUGE-Lsum, of sentences: for each sentence of the reference the union of its longest common
/// subsequences with all of the summary, where each token counts at most as often as it occurs.
Overlap rouge_lsum(std::span<const std::string> summary, std::span<const std::string> reference);

/// Mean F1 of summaries, between 0 and 1.
struct RougeScores {
  double rouge1 = 0, rouge2 = 0, rouge_l = 0, rouge_lsum = 0;
  int64_t documents = 0;

  /// Adds a document; ROUGE-1, -2 and -L see its sentences as one text.
  void add(std::span<const std::string> summary, std::span<const std::string> reference);
};

/// An answer as SQuAD compares it (\cite rajpurkar2016 ), lower case, without ASCII punctuation and
/// a, an, the, single spaces.
std::string normal_answer(std::string_view text);
/// Tokens in common with the best of the references; the F1 of the SQuAD script. Where either is
/// empty, 1 if both are.
Overlap answer_overlap(std::string_view answer, std::span<const std::string> references);
/// Whether it is one of the references, after normal_answer().
bool answer_matches(std::string_view answer, std::span<const std::string> references);

/// How often each pair of a prediction and a label of 0 or 1 occurs.
struct BinaryCounts {
  double hit = 0, false_alarm = 0, miss = 0, right_rejection = 0;

  /// Throws ValueError on other numbers than 0 and 1.
  void add(int32_t prediction, int32_t label);
  /// Share of right predictions; NaN of none.
  double accuracy() const;
  /// Of class 1.
  Overlap overlap() const;
};

// Of n predictions. Each throws ValueError where the lengths differ or there are none.

/// Share of equal pairs.
double accuracy(std::span<const int32_t> predictions, std::span<const int32_t> labels);
/// Of class 1 among 0 and 1.
Overlap binary_overlap(std::span<const int32_t> predictions, std::span<const int32_t> labels);
/// Matthews' correlation of 0 and 1; 0 where predictions or labels are all the same.
double matthews(std::span<const int32_t> predictions, std::span<const int32_t> labels);
/// Pearson's correlation; 0 where either is constant.
double pearson(std::span<const double> x, std::span<const double> y);
/// The same of ranks, where equal values share the mean of theirs.
double spearman(std::span<const double> x, std::span<const double> y);
/// The probability that a 1 has a higher score than a 0, ties counted as a half (Mann and Whitney);
/// nothing where the labels are all the same.
std::optional<double> roc_auc(std::span<const double> scores, std::span<const int32_t> labels);

/// Corpus BLEU, 0 to 100: clipped n-grams up to 4, brevity penalty, exponential smoothing, case
/// kept, Unicode punctuation and symbols apart but not between digits ("intl" of \cite post2018 ).
/// One reference for each. Throws ValueError where their numbers differ or there are none.
double bleu(std::span<const std::string> translations, std::span<const std::string> references);
/// What BLEU splits a text into.
std::vector<std::string> bleu_tokens(std::string_view text);

}  // namespace longspan
