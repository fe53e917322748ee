#include "data/scores/entities.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "data/unicode/unicode.h"

namespace longspan {
namespace {

/// Splits a tag into its first character and its type.
std::pair<std::string_view, std::string_view> parts_of(std::string_view tag) {
  const auto length = static_cast<size_t>(code_point(tag, 0).length);
  const std::string_view rest = tag.substr(length);
  const size_t dash = rest.find('-');
  const std::string_view type = dash == std::string_view::npos ? rest : rest.substr(dash + 1);
  return {tag.substr(0, length), type.empty() ? "_" : type};
}

bool is_any(std::string_view letter, std::string_view of) {
  return letter.size() == 1 && of.find(letter) != std::string_view::npos;
}

bool ends(std::string_view before, std::string_view now, bool same_type) {
  if (is_any(before, "ES")) return true;
  if (is_any(before, "BI") && is_any(now, "BSO")) return true;
  return !is_any(before, "O.") && !same_type;
}

bool begins(std::string_view before, std::string_view now, bool same_type) {
  if (is_any(now, "BS")) return true;
  if (is_any(before, "ESO") && is_any(now, "EI")) return true;
  return !is_any(now, "O.") && !same_type;
}

void require_tags(std::span<const std::string> tags) {
  for (size_t i = 0; i < tags.size(); ++i) {
    require(!tags[i].empty(), "entities", "the tag of word {} is empty; expected one such as O", i);
  }
}

}  // namespace

void EntityReader::step(std::string_view letter, std::string_view type,
                        std::vector<Entity>& entities) {
  const bool same = type == type_;
  if (ends(letter_, letter, same)) entities.push_back({type_, begin_, at_ - 1});
  if (begins(letter_, letter, same)) begin_ = at_;
  letter_ = letter;
  type_ = type;
  ++at_;
}

std::vector<Entity> EntityReader::read(std::span<const std::string> tags) {
  require_tags(tags);
  std::vector<Entity> entities;
  for (const std::string& tag : tags) {
    const auto [letter, type] = parts_of(tag);
    step(letter, type, entities);
  }
  step("O", "_", entities);  // no entity goes on in the next sentence
  return entities;
}

void EntityScores::add(std::span<const std::string> predictions,
                       std::span<const std::string> tags) {
  require(predictions.size() == tags.size(), "entities",
          "got {} predicted tags for {} words; expected as many", predictions.size(), tags.size());
  require_tags(predictions);
  require_tags(tags);
  const std::vector<Entity> found = predicted_.read(predictions);
  const std::vector<Entity> right = labelled_.read(tags);
  const std::set<Entity> labelled(right.begin(), right.end());
  for (const Entity& e : right) ++types_[e.type].labelled;
  for (const Entity& e : found) {
    ClassCounts& counts = types_[e.type];
    ++counts.predicted;
    counts.hit += labelled.contains(e) ? 1 : 0;
  }
  words_ += std::ssize(tags);
  for (size_t i = 0; i < tags.size(); ++i) right_ += predictions[i] == tags[i] ? 1 : 0;
}

double EntityScores::accuracy() const {
  return words_ > 0 ? static_cast<double>(right_) / static_cast<double>(words_) : std::nan("");
}

ClassCounts EntityScores::overall() const {
  ClassCounts sum;
  for (const auto& [type, counts] : types_) {
    sum.hit += counts.hit;
    sum.predicted += counts.predicted;
    sum.labelled += counts.labelled;
  }
  return sum;
}

ClassScores EntityScores::average(Average how) const {
  std::vector<ClassCounts> all;
  for (const auto& [type, counts] : types_) all.push_back(counts);
  return average_over(all, how);
}

}  // namespace longspan
