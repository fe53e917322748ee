#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/metrics.h"
#include "data/scores/classes.h"

namespace longspan {

/// An entity: words of one type that belong together.
struct Entity {
  std::string type;
  int64_t first = 0, last = 0;  ///< its words
  friend auto operator<=>(const Entity&, const Entity&) = default;
};

/// Reads the entities of sentences from tags such as B-PER, I-PER and O, as the package seqeval
/// does by default: an entity begins at B, at S, and at I or E after O, after E or S, or after
/// another type, and ends with E or S or where it does not go on. Of a tag, the first letter
/// counts, and what follows its first "-" is the type, or else what follows the letter; "_" if that
/// is nothing. So words with tags such as NOUN are entities of a type OUN: count the accuracy of
/// those alone.
class EntityReader {
 public:
  /// Returns the entities that end in the next sentence; words are counted from the first word of
  /// all sentences. Throws ValueError if a tag is empty.
  std::vector<Entity> read(std::span<const std::string> tags);

 private:
  void step(std::string_view letter, std::string_view type, std::vector<Entity>& entities);

  std::string letter_ = "O", type_;
  int64_t begin_ = 0, at_ = 0;
};

/// Precision, recall and F1 of entities, of all and of each type, and the share of right tags.
class EntityScores {
 public:
  /// Adds a sentence. Throws ValueError if the lengths differ or a tag is empty.
  void add(std::span<const std::string> predictions, std::span<const std::string> tags);

  /// Number of words.
  int64_t words() const { return words_; }
  /// Share of words with the right tag; NaN of none.
  double accuracy() const;
  /// Counts of all entities: precision(), recall(), f1(), 0 where there are none.
  ClassCounts overall() const;
  /// Counts by type, in the order of their names.
  const std::map<std::string, ClassCounts>& by_type() const { return types_; }
  /// Means over types.
  ClassScores average(Average how) const;

 private:
  EntityReader predicted_, labelled_;
  std::map<std::string, ClassCounts> types_;
  int64_t words_ = 0, right_ = 0;
};

}  // namespace longspan
