#include "data/metrics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <unordered_map>

#include "core/error.h"
#include "data/stemmer.h"
#include "data/unicode/unicode.h"

namespace longspan {
namespace {

using Tokens = std::vector<std::string>;
using Counts = std::map<Tokens, int64_t>;

Overlap shares(int64_t common, int64_t given, int64_t right) {
  const auto share = [&](int64_t of) {
    return of > 0 ? static_cast<double>(common) / static_cast<double>(of) : 0.0;
  };
  return {share(given), share(right)};
}

Counts count_grams(const Tokens& tokens, size_t n) {
  Counts counts;
  for (size_t i = 0; i + n <= tokens.size(); ++i) {
    const auto at = tokens.begin() + static_cast<std::ptrdiff_t>(i);
    ++counts[Tokens(at, at + static_cast<std::ptrdiff_t>(n))];
  }
  return counts;
}

int64_t total(const Counts& counts) {
  int64_t sum = 0;
  for (const auto& [gram, n] : counts) sum += n;
  return sum;
}

/// Number of common n-grams, each counted as often as in the text that has fewer.
int64_t in_common(const Counts& a, const Counts& b) {
  int64_t sum = 0;
  for (const auto& [gram, n] : a) {
    const auto other = b.find(gram);
    if (other != b.end()) sum += std::min(n, other->second);
  }
  return sum;
}

/// Marks the tokens of `reference` in one longest common subsequence with `summary`. Of several, it
/// is the one that the reference implementation of ROUGE-Lsum backtracks.
int64_t mark_common(const Tokens& reference, const Tokens& summary, std::vector<bool>& marked) {
  const size_t columns = summary.size() + 1;
  std::vector<int32_t> length((reference.size() + 1) * columns);
  const auto at = [&](size_t i, size_t j) -> int32_t& { return length[i * columns + j]; };
  for (size_t i = 1; i <= reference.size(); ++i) {
    for (size_t j = 1; j < columns; ++j) {
      at(i, j) = reference[i - 1] == summary[j - 1] ? at(i - 1, j - 1) + 1
                                                    : std::max(at(i - 1, j), at(i, j - 1));
    }
  }
  for (size_t i = reference.size(), j = summary.size(); i > 0 && j > 0;) {
    if (reference[i - 1] == summary[j - 1]) {
      marked[--i] = true;
      --j;
    } else if (at(i, j - 1) > at(i - 1, j)) {
      --j;
    } else {
      --i;
    }
  }
  return at(reference.size(), summary.size());
}

std::string joined(std::span<const std::string> sentences) {
  std::string text;
  for (const std::string& sentence : sentences) text += (text.empty() ? "" : " ") + sentence;
  return text;
}

bool is_ascii_punctuation(int32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}

/// White space of Python's str.split(): also the four separators of ASCII.
bool is_space(int32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

Tokens split(std::string_view text) {
  Tokens tokens;
  std::string token;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point(text, at);
    if (!is_space(c.value)) {
      token.append(text.substr(at, static_cast<size_t>(c.length)));
    } else if (!token.empty()) {
      tokens.push_back(std::move(token));
      token.clear();
    }
    at += static_cast<size_t>(c.length);
  }
  if (!token.empty()) tokens.push_back(token);
  return tokens;
}

Overlap answer_overlap_of_one(const Tokens& answer, const Tokens& reference) {
  if (answer.empty() || reference.empty()) {
    const double same = answer == reference ? 1 : 0;
    return {same, same};
  }
  const Counts a = count_grams(answer, 1), b = count_grams(reference, 1);
  return shares(in_common(a, b), total(a), total(b));
}

void require_pairs(std::string_view op, size_t a, size_t b) {
  require(a == b && a > 0, op, "got {} predictions and {} labels; expected as many, and some", a,
          b);
}

BinaryCounts counts_of(std::string_view op, std::span<const int32_t> predictions,
                       std::span<const int32_t> labels) {
  require_pairs(op, predictions.size(), labels.size());
  BinaryCounts counts;
  for (size_t i = 0; i < labels.size(); ++i) counts.add(predictions[i], labels[i]);
  return counts;
}

/// Returns ranks from 1; equal values share their mean rank.
std::vector<double> ranks(std::span<const double> x) {
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] < x[b]; });
  std::vector<double> rank(x.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && x[order[end]] == x[order[begin]]) ++end;
    const double mean = static_cast<double>(begin + end + 1) / 2;
    for (size_t i = begin; i < end; ++i) rank[order[i]] = mean;
    begin = end;
  }
  return rank;
}

/// Returns character i, or -1 beyond the end.
int32_t at_or_none(const std::vector<int32_t>& text, size_t i) {
  return i < text.size() ? text[i] : -1;
}

}  // namespace

Overlap joint(const Overlap& a, const Overlap& b) {
  return {a.precision * b.precision, a.recall * b.recall};
}

Tokens rouge_tokens(std::string_view text, Stem stem) {
  Tokens tokens;
  std::string token;
  const auto close = [&] {
    if (stem == Stem::porter && token.size() > 3) token = porter_stem(token);
    if (!token.empty()) tokens.push_back(std::move(token));
    token.clear();
  };
  for (size_t at = 0; at < text.size(); ++at) {
    char c = text[at];
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    // Two other characters have a lower case of this alphabet: the Kelvin sign, and I with a dot.
    if (text.substr(at).starts_with("\u212A")) c = 'k', at += 2;
    const bool dotted = text.substr(at).starts_with("\u0130");
    if (dotted) c = 'i', at += 1;
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
      token += c;
    } else {
      close();
    }
    if (dotted) close();  // at the dot
  }
  close();
  return tokens;
}

Tokens rouge_sentences(std::string_view text) {
  Tokens sentences;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) sentences.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return sentences;
}

Overlap rouge_n(std::string_view summary, std::string_view reference, int n, Stem stem) {
  require(n >= 1, "rouge", "got n = {}; expected 1 or more", n);
  const Counts a = count_grams(rouge_tokens(summary, stem), static_cast<size_t>(n)),
               b = count_grams(rouge_tokens(reference, stem), static_cast<size_t>(n));
  return shares(in_common(a, b), total(a), total(b));
}

Overlap rouge_l(std::string_view summary, std::string_view reference, Stem stem) {
  const Tokens a = rouge_tokens(summary, stem), b = rouge_tokens(reference, stem);
  std::vector<bool> marked(b.size());
  return shares(mark_common(b, a, marked), static_cast<int64_t>(a.size()),
                static_cast<int64_t>(b.size()));
}

Overlap rouge_lsum(std::span<const std::string> summary, std::span<const std::string> reference,
                   Stem stem) {
  std::vector<Tokens> sentences;
  std::unordered_map<std::string, int64_t> left, left_in_reference;
  int64_t given = 0, right = 0, common = 0;
  for (const std::string& sentence : summary) {
    sentences.push_back(rouge_tokens(sentence, stem));
    for (const std::string& token : sentences.back()) ++left[token], ++given;
  }
  std::vector<Tokens> references;
  for (const std::string& sentence : reference) {
    references.push_back(rouge_tokens(sentence, stem));
    for (const std::string& token : references.back()) ++left_in_reference[token], ++right;
  }
  for (const Tokens& tokens : references) {
    std::vector<bool> marked(tokens.size());
    for (const Tokens& sentence : sentences) mark_common(tokens, sentence, marked);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (!marked[i] || left[tokens[i]] == 0 || left_in_reference[tokens[i]] == 0) continue;
      --left[tokens[i]];
      --left_in_reference[tokens[i]];
      ++common;
    }
  }
  return shares(common, given, right);
}

void RougeScores::add(std::span<const std::string> summary,
                      std::span<const std::string> reference) {
  const std::string a = joined(summary), b = joined(reference);
  const double one[] = {rouge_n(a, b, 1, stem).f1(), rouge_n(a, b, 2, stem).f1(),
                        longspan::rouge_l(a, b, stem).f1(),
                        longspan::rouge_lsum(summary, reference, stem).f1()};
  double* all[] = {&rouge1, &rouge2, &rouge_l, &rouge_lsum};
  ++documents;
  for (size_t i = 0; i < 4; ++i) *all[i] += (one[i] - *all[i]) / static_cast<double>(documents);
}

std::string normal_answer(std::string_view text) {
  std::u32string kept;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point(text, at);
    at += static_cast<size_t>(c.length);
    if (c.value >= 0 && !is_ascii_punctuation(c.value)) {
      append_lower(kept, static_cast<char32_t>(c.value));
    }
  }
  // Articles are separate words: delimited by characters that are neither letters nor numbers.
  std::string out, word;
  const auto close = [&] {
    out += word == "a" || word == "an" || word == "the" ? " " : word;
    word.clear();
  };
  for (const char32_t c : kept) {
    const auto value = static_cast<int32_t>(c);
    if (is_letter(value) || is_number(value)) {
      append_utf8(word, value);
    } else {
      close();
      append_utf8(out, value);
    }
  }
  close();
  const Tokens tokens = split(out);
  return joined(tokens);
}

Overlap answer_overlap(std::string_view answer, std::span<const std::string> references) {
  const Tokens tokens = split(normal_answer(answer));
  Overlap best;
  for (const std::string& reference : references) {
    const Overlap one = answer_overlap_of_one(tokens, split(normal_answer(reference)));
    if (one.f1() > best.f1()) best = one;
  }
  return best;
}

bool answer_matches(std::string_view answer, std::span<const std::string> references) {
  const std::string normal = normal_answer(answer);
  return std::any_of(references.begin(), references.end(),
                     [&](const std::string& r) { return normal_answer(r) == normal; });
}

void BinaryCounts::add(int32_t prediction, int32_t label) {
  require((prediction == 0 || prediction == 1) && (label == 0 || label == 1), "binary counts",
          "got the prediction {} and the label {}; expected 0 or 1", prediction, label);
  if (prediction == 1) {
    ++(label == 1 ? hit : false_alarm);
  } else {
    ++(label == 1 ? miss : right_rejection);
  }
}

double BinaryCounts::accuracy() const {
  return (hit + right_rejection) / (hit + right_rejection + false_alarm + miss);
}

Overlap BinaryCounts::overlap() const {
  return {hit > 0 ? hit / (hit + false_alarm) : 0, hit > 0 ? hit / (hit + miss) : 0};
}

ClassMeans::ClassMeans(int64_t count) {
  require(count >= 1, "class means", "{} classes; expected 1 or more", count);
  sums_.resize(static_cast<size_t>(count), 0.0);
  counts_ = sums_;
}

void ClassMeans::add(std::span<const float> values, std::span<const int32_t> classes) {
  require(values.size() == classes.size(), "class means", "{} values for {} classes", values.size(),
          classes.size());
  for (size_t i = 0; i < values.size(); ++i) {
    require(classes[i] >= 0, "class means", "class {} is negative", classes[i]);
    const size_t c = std::min(static_cast<size_t>(classes[i]), sums_.size() - 1);
    sums_[c] += static_cast<double>(values[i]);
    counts_[c] += 1;
  }
}

double ClassMeans::operator[](int64_t c) const {
  require(c >= 0 && c < std::ssize(sums_), "class means", "class {} of {}", c, sums_.size());
  const auto at = static_cast<size_t>(c);
  return counts_[at] > 0 ? sums_[at] / counts_[at] : std::nan("");
}

double accuracy(std::span<const int32_t> predictions, std::span<const int32_t> labels) {
  require_pairs("accuracy", predictions.size(), labels.size());
  int64_t right = 0;
  for (size_t i = 0; i < labels.size(); ++i) right += predictions[i] == labels[i] ? 1 : 0;
  return static_cast<double>(right) / static_cast<double>(labels.size());
}

Overlap binary_overlap(std::span<const int32_t> predictions, std::span<const int32_t> labels) {
  return counts_of("f1", predictions, labels).overlap();
}

double matthews(std::span<const int32_t> predictions, std::span<const int32_t> labels) {
  const BinaryCounts t = counts_of("matthews", predictions, labels);
  const double given = t.hit + t.false_alarm, right = t.hit + t.miss,
               not_given = t.right_rejection + t.miss, wrong = t.right_rejection + t.false_alarm;
  const double scale =
      std::sqrt(given) * std::sqrt(right) * std::sqrt(not_given) * std::sqrt(wrong);
  return scale > 0 ? (t.hit * t.right_rejection - t.false_alarm * t.miss) / scale : 0;
}

double pearson(std::span<const double> x, std::span<const double> y) {
  require_pairs("pearson", x.size(), y.size());
  const auto n = static_cast<double>(x.size());
  const double mean_x = std::accumulate(x.begin(), x.end(), 0.0) / n,
               mean_y = std::accumulate(y.begin(), y.end(), 0.0) / n;
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double a = x[i] - mean_x, b = y[i] - mean_y;
    xy += a * b;
    xx += a * a;
    yy += b * b;
  }
  return xx > 0 && yy > 0 ? xy / (std::sqrt(xx) * std::sqrt(yy)) : 0;
}

double spearman(std::span<const double> x, std::span<const double> y) {
  require_pairs("spearman", x.size(), y.size());
  return pearson(ranks(x), ranks(y));
}

std::optional<double> roc_auc(std::span<const double> scores, std::span<const int32_t> labels) {
  require_pairs("roc_auc", scores.size(), labels.size());
  const std::vector<double> rank = ranks(scores);
  double ones = 0, sum = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    require(labels[i] == 0 || labels[i] == 1, "roc_auc", "got the label {}; expected 0 or 1",
            labels[i]);
    ones += labels[i];
    if (labels[i] == 1) sum += rank[i];
  }
  const double zeros = static_cast<double>(labels.size()) - ones;
  if (ones == 0 || zeros == 0) return std::nullopt;
  return (sum - ones * (ones + 1) / 2) / (ones * zeros);
}

Tokens bleu_tokens(std::string_view text) {
  std::vector<int32_t> in, out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point(text, at);
    in.push_back(c.value < 0 ? 0xFFFD : c.value);
    at += static_cast<size_t>(c.length);
  }
  // Three successive replacements, each from left to right without overlap: a non-number before
  // punctuation; punctuation before a non-number; symbols.
  for (size_t i = 0; i < in.size(); ++i) {
    out.push_back(in[i]);
    if (i + 1 < in.size() && !is_number(in[i]) && is_punctuation(in[i + 1])) {
      out.insert(out.end(), {' ', in[++i], ' '});
    }
  }
  in.swap(out);
  out.clear();
  for (size_t i = 0; i < in.size(); ++i) {
    const int32_t next = at_or_none(in, i + 1);
    if (is_punctuation(in[i]) && next >= 0 && !is_number(next)) {
      out.insert(out.end(), {' ', in[i], ' ', next});
      ++i;
    } else {
      out.push_back(in[i]);
    }
  }
  std::string spaced;
  for (const int32_t c : out) {
    if (is_symbol(c)) spaced += ' ';
    append_utf8(spaced, c);
    if (is_symbol(c)) spaced += ' ';
  }
  return split(spaced);
}

double bleu(std::span<const std::string> translations, std::span<const std::string> references) {
  require_pairs("bleu", translations.size(), references.size());
  constexpr size_t orders = 4;
  int64_t common[orders] = {}, given[orders] = {}, length = 0, reference_length = 0;
  for (size_t i = 0; i < translations.size(); ++i) {
    const Tokens a = bleu_tokens(translations[i]), b = bleu_tokens(references[i]);
    length += static_cast<int64_t>(a.size());
    reference_length += static_cast<int64_t>(b.size());
    for (size_t n = 0; n < orders; ++n) {
      const Counts counts = count_grams(a, n + 1);
      common[n] += in_common(counts, count_grams(b, n + 1));
      given[n] += total(counts);
    }
  }
  double sum = 0, smooth = 1;
  size_t used = 0;
  for (size_t n = 0; n < orders && given[n] > 0; ++n, ++used) {
    if (n == 0 && common[0] == 0) return 0;
    // N-gram orders without a match are smoothed with counts of 1/2, 1/4, ...
    const double found = common[n] > 0 ? static_cast<double>(common[n]) : 1 / (smooth *= 2);
    sum += std::log(found / static_cast<double>(given[n]));
  }
  if (used < orders) return 0;
  const double short_by = length < reference_length ? 1 - static_cast<double>(reference_length) /
                                                              static_cast<double>(length)
                                                    : 0;
  return 100 * std::exp(sum / static_cast<double>(orders) + short_by);
}

}  // namespace longspan
