#include "data/stemmer.h"

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace longspan {
namespace {

/// Whether each letter is a consonant: no vowel, and no y after a consonant.
std::vector<bool> consonants(std::string_view word) {
  std::vector<bool> flags;
  for (size_t i = 0; i < word.size(); ++i) {
    const bool vowel = std::string_view("aeiou").find(word[i]) != std::string_view::npos;
    flags.push_back(word[i] == 'y' ? i == 0 || !flags[i - 1] : !vowel);
  }
  return flags;
}

/// Number of times that a vowel is followed by a consonant, Porter's m.
int64_t measure(std::string_view stem) {
  const std::vector<bool> flags = consonants(stem);
  int64_t count = 0;
  for (size_t i = 1; i < flags.size(); ++i) count += !flags[i - 1] && flags[i] ? 1 : 0;
  return count;
}

bool has_vowel(std::string_view stem) {
  for (const bool consonant : consonants(stem)) {
    if (!consonant) return true;
  }
  return false;
}

bool ends_in_double_consonant(std::string_view word) {
  const size_t n = word.size();
  return n >= 2 && word[n - 1] == word[n - 2] && consonants(word).back();
}

/// Whether a word ends in consonant, vowel, consonant other than w, x and y; or is a vowel and a
/// consonant.
bool ends_short(std::string_view word) {
  const std::vector<bool> flags = consonants(word);
  const size_t n = flags.size();
  if (n == 2) return !flags[0] && flags[1];
  return n >= 3 && flags[n - 3] && !flags[n - 2] && flags[n - 1] && word[n - 1] != 'w' &&
         word[n - 1] != 'x' && word[n - 1] != 'y';
}

/// A suffix, and what takes its place.
struct Rule {
  std::string_view suffix, replacement;
};

/// Applies the first rule whose suffix the word has, if the measure of what is before the suffix is
/// above `above`; later rules are not tried.
void apply(std::string& word, std::span<const Rule> rules, int64_t above) {
  for (const auto& [suffix, replacement] : rules) {
    if (!word.ends_with(suffix)) continue;
    const size_t length = word.size() - suffix.size();
    std::string_view stem(word.data(), length);
    if (suffix == "logi") stem = std::string_view(word.data(), length + 1);  // "geo" and "theo"
    if (measure(stem) <= above) return;
    if (suffix == "ion" && stem.back() != 's' && stem.back() != 't') return;
    word.resize(length);
    word += replacement;
    return;
  }
}

/// Plurals.
void step_1a(std::string& word) {
  if (word.ends_with("ies")) {
    word.resize(word.size() - (word.size() == 4 ? 1 : 2));
  } else if (word.ends_with("sses")) {
    word.resize(word.size() - 2);
  } else if (word.ends_with('s') && !word.ends_with("ss")) {
    word.pop_back();
  }
}

/// Past tenses and participles.
void step_1b(std::string& word) {
  if (word.ends_with("ied")) {
    word.resize(word.size() - (word.size() == 4 ? 1 : 2));
    return;
  }
  if (word.ends_with("eed")) {
    if (measure(std::string_view(word).substr(0, word.size() - 3)) > 0) word.pop_back();
    return;
  }
  const size_t suffix = word.ends_with("ed") ? 2 : word.ends_with("ing") ? 3 : 0;
  if (suffix == 0 || !has_vowel(std::string_view(word).substr(0, word.size() - suffix))) return;
  word.resize(word.size() - suffix);
  if (word.ends_with("at") || word.ends_with("bl") || word.ends_with("iz")) {
    word += 'e';
  } else if (ends_in_double_consonant(word)) {
    if (word.back() != 'l' && word.back() != 's' && word.back() != 'z') word.pop_back();
  } else if (measure(word) == 1 && ends_short(word)) {
    word += 'e';
  }
}

/// A last y after a consonant.
void step_1c(std::string& word) {
  if (word.size() < 3 || word.back() != 'y') return;
  if (consonants(word)[word.size() - 2]) word.back() = 'i';
}

/// Double suffixes.
void step_2(std::string& word) {
  constexpr Rule rules[] = {
      {"ational", "ate"}, {"tional", "tion"}, {"enci", "ence"},   {"anci", "ance"},
      {"izer", "ize"},    {"bli", "ble"},     {"alli", "al"},     {"entli", "ent"},
      {"eli", "e"},       {"ousli", "ous"},   {"ization", "ize"}, {"ation", "ate"},
      {"ator", "ate"},    {"alism", "al"},    {"iveness", "ive"}, {"fulness", "ful"},
      {"ousness", "ous"}, {"aliti", "al"},    {"iviti", "ive"},   {"biliti", "ble"},
      {"fulli", "ful"},   {"logi", "log"}};
  const bool again =
      word.ends_with("alli") && measure(std::string_view(word).substr(0, word.size() - 4)) > 0;
  apply(word, rules, 0);
  if (again) apply(word, rules, 0);
}

void step_3(std::string& word) {
  constexpr Rule rules[] = {{"icate", "ic"}, {"ative", ""}, {"alize", "al"}, {"iciti", "ic"},
                            {"ical", "ic"},  {"ful", ""},   {"ness", ""}};
  apply(word, rules, 0);
}

void step_4(std::string& word) {
  constexpr Rule rules[] = {{"al", ""},   {"ance", ""}, {"ence", ""}, {"er", ""},    {"ic", ""},
                            {"able", ""}, {"ible", ""}, {"ant", ""},  {"ement", ""}, {"ment", ""},
                            {"ent", ""},  {"ion", ""},  {"ou", ""},   {"ism", ""},   {"ate", ""},
                            {"iti", ""},  {"ous", ""},  {"ive", ""},  {"ize", ""}};
  apply(word, rules, 1);
}

/// A last e, and ll.
void step_5(std::string& word) {
  if (word.ends_with('e')) {
    const std::string_view stem = std::string_view(word).substr(0, word.size() - 1);
    const int64_t m = measure(stem);
    if (m > 1 || (m == 1 && !ends_short(stem))) word.pop_back();
  }
  if (word.ends_with("ll") && measure(std::string_view(word).substr(0, word.size() - 1)) > 1) {
    word.pop_back();
  }
}

constexpr std::array<std::pair<std::string_view, std::string_view>, 16> irregular = {{
    {"sky", "sky"},
    {"skies", "sky"},
    {"dying", "die"},
    {"lying", "lie"},
    {"tying", "tie"},
    {"news", "news"},
    {"innings", "inning"},
    {"inning", "inning"},
    {"outings", "outing"},
    {"outing", "outing"},
    {"cannings", "canning"},
    {"canning", "canning"},
    {"howe", "howe"},
    {"proceed", "proceed"},
    {"exceed", "exceed"},
    {"succeed", "succeed"},
}};

}  // namespace

std::string porter_stem(std::string_view word) {
  for (const auto& [from, to] : irregular) {
    if (word == from) return std::string(to);
  }
  std::string stem(word);
  if (stem.size() <= 2) return stem;
  step_1a(stem);
  step_1b(stem);
  step_1c(stem);
  step_2(stem);
  step_3(stem);
  step_4(stem);
  step_5(stem);
  return stem;
}

}  // namespace longspan
