#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace longspan {

/// How a summary is made of the sentences of a document.
struct ExtractOptions {
  int64_t sentences = 3;  ///< at most so many
  int64_t words = 0;      ///< and so many words, rouge_tokens(), in all; 0: any number
  bool blocking = true;   ///< no two sentences share a trigram of words

  void visit(auto& v) {
    v("sentences", sentences, "maximum sentences of an extract");
    v("words", words, "maximum words of an extract; 0: any number");
    v("blocking", blocking, "no two sentences share three words in a row");
  }
};

/// Returns the places of the sentences of a summary, ascending. Sentences are tried by falling
/// score, then by place; a sentence is skipped if it has a trigram of a chosen one, or more words
/// than are left. Throws ValueError if the numbers of scores and sentences differ, on a score that
/// is NaN, and on options below 0.
std::vector<int64_t> select_sentences(std::span<const double> scores,
                                      std::span<const std::string> sentences,
                                      const ExtractOptions& options = {});

/// The overlap that oracles maximise: ROUGE-1 F1 + ROUGE-2 F1 over sets of n-grams, each counted
/// once. A bigram may span two sentences of the summary, but not two of the chosen sentences.
double oracle_overlap(std::span<const std::string> chosen, std::span<const std::string> summary);

/// Returns the places of the sentences that come nearest to a summary, in the order in which they
/// are chosen \cite liu2019bertsum : again and again the one that raises oracle_overlap() most (the
/// first of equal ones), until none does or there are `most`. Throws ValueError if most < 0.
std::vector<int64_t> greedy_oracle(std::span<const std::string> sentences,
                                   std::span<const std::string> summary, int64_t most = 3);

/// Returns the sentences at these places.
std::vector<std::string> sentences_at(std::span<const std::string> sentences,
                                      std::span<const int64_t> places);

}  // namespace longspan
