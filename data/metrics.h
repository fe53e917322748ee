#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// Precision and recall of a prediction.
struct Overlap {
  double precision = 0;  ///< share of the prediction that is correct
  double recall = 0;     ///< share of the reference that was predicted

  /// Harmonic mean of both, 0 if both are 0.
  double f1() const {
    return precision + recall > 0 ? 2 * precision * recall / (precision + recall) : 0;
  }
};

/// Joint score as in HotpotQA, of an answer and its supporting facts: the products.
Overlap joint(const Overlap& a, const Overlap& b);

/// Whether ROUGE compares words, or their stems (porter_stem(), of words of more than 3 letters).
enum class Stem : uint8_t { none, porter };

/// Splits a lower-cased text into runs of a to z and 0 to 9.
std::vector<std::string> rouge_tokens(std::string_view text, Stem stem = Stem::none);
/// Splits a text at line feeds into the sentences of ROUGE-Lsum; empty lines are none.
std::vector<std::string> rouge_sentences(std::string_view text);

/// ROUGE-n of \cite lin2004 : common n-grams, each counted at most as often as it occurs in the
/// other text. Throws ValueError unless n >= 1.
Overlap rouge_n(std::string_view summary, std::string_view reference, int n,
                Stem stem = Stem::none);

/// ROUGE-L: the longest common subsequence of tokens.
Overlap rouge_l(std::string_view summary, std::string_view reference, Stem stem = Stem::none);

/// ROUGE-Lsum over sentences: for each reference sentence, the union of its longest common
/// subsequences with all summary sentences; each token counts at most as often as it occurs.
Overlap rouge_lsum(std::span<const std::string> summary, std::span<const std::string> reference,
                   Stem stem = Stem::none);

/// Mean F1 of summaries, between 0 and 1. With stems, figures are called rouge1_stem and so on.
struct RougeScores {
  double rouge1 = 0, rouge2 = 0, rouge_l = 0, rouge_lsum = 0;
  int64_t documents = 0;
  Stem stem = Stem::none;

  /// Adds a document; for ROUGE-1, -2 and -L its sentences are one text.
  void add(std::span<const std::string> summary, std::span<const std::string> reference);
};

/// Normalizes an answer as SQuAD does (\cite rajpurkar2016 ): lower case, no ASCII punctuation, no
/// a, an, the, single spaces.
std::string normal_answer(std::string_view text);
/// Token overlap with the best of the references, for the F1 of the SQuAD script. If either text is
/// empty, it is 1 if both are.
Overlap answer_overlap(std::string_view answer, std::span<const std::string> references);
/// Whether the answer equals one of the references after normal_answer().
bool answer_matches(std::string_view answer, std::span<const std::string> references);

/// Counts of each combination of a prediction and a label, both 0 or 1.
struct BinaryCounts {
  double hit = 0, false_alarm = 0, miss = 0, right_rejection = 0;

  /// Throws ValueError for values other than 0 and 1.
  void add(int32_t prediction, int32_t label);
  /// Share of correct predictions; NaN if there are none.
  double accuracy() const;
  /// Precision and recall of class 1.
  Overlap overlap() const;
};

/// Means of values by class.
class ClassMeans {
 public:
  /// Classes are 0 to count - 1; larger ones count as the last. Throws ValueError if count is below
  /// 1.
  explicit ClassMeans(int64_t count);
  /// Throws ValueError if the lengths differ or a class is negative.
  void add(std::span<const float> values, std::span<const int32_t> classes);
  /// NaN if there are none. Throws ValueError if there is no such class.
  double operator[](int64_t c) const;

 private:
  std::vector<double> sums_, counts_;
};

// Metrics over n predictions. Each throws ValueError if the lengths differ or n is 0.

/// Share of equal pairs.
double accuracy(std::span<const int32_t> predictions, std::span<const int32_t> labels);
/// Precision and recall of class 1 for binary predictions.
Overlap binary_overlap(std::span<const int32_t> predictions, std::span<const int32_t> labels);
/// Matthews correlation of binary values; 0 if predictions or labels are constant.
double matthews(std::span<const int32_t> predictions, std::span<const int32_t> labels);
/// Pearson correlation; 0 if either is constant.
double pearson(std::span<const double> x, std::span<const double> y);
/// Spearman correlation: pearson() of the ranks; equal values get their mean rank.
double spearman(std::span<const double> x, std::span<const double> y);
/// Probability that a sample of class 1 has a higher score than one of class 0, with ties counted
/// as one half (Mann and Whitney). Empty if the labels are constant.
std::optional<double> roc_auc(std::span<const double> scores, std::span<const int32_t> labels);

/// Corpus BLEU, 0 to 100: clipped n-grams up to 4, brevity penalty, exponential smoothing,
/// case-sensitive; Unicode punctuation and symbols are separate tokens except between digits
/// ("intl" of \cite post2018 ). One reference per translation. Throws ValueError if their numbers
/// differ or are 0.
double bleu(std::span<const std::string> translations, std::span<const std::string> references);
/// Tokenizes a text for BLEU.
std::vector<std::string> bleu_tokens(std::string_view text);

}  // namespace longspan
