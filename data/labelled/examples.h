#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/labelled/columns.h"
#include "data/labelled/labels.h"
#include "data/questions.h"

namespace longspan {

// Examples for fine-tuning, read from the rows of tables. Every function here throws ValueError if
// a source names columns for a use that the task does not have, and IoError as TableReader and
// ExampleRows do, and for a value of another kind than expected, with its file, row and column.

/// One text or two.
enum class TextCount : uint8_t { one, two };

/// A text, or a pair, with its labels or with a number.
struct LabelledText {
  std::string text;
  std::string second = {};           ///< of a pair
  std::vector<int32_t> labels = {};  ///< ids in ascending order; of one label each, one
  bool labelled = false;             ///< several labels may be none, which is a label too
  double number = std::nan("");      ///< for regression; NaN: none
  double weight = 1;                 ///< of its loss
};

/// What the labels of a data set are.
struct LabelSurvey {
  Labels labels;
  bool several = false;  ///< each row has a list of them
};

/// Reads the labels of texts in all files: column label or labels. A list has the labels of a row,
/// or, of floating-point numbers, 0.0 or 1.0 for each label. Throws IoError too if some rows have
/// lists and others do not, and ValueError if no row has a label.
LabelSurvey survey_text_labels(std::span<const TableSource> sources, TextCount count);
/// Reads texts for classes: columns text, sentence, content or review and label or labels; of pairs
/// sentence1 and sentence2, premise and hypothesis, question1 and question2, question and sentence,
/// or text and text_pair. Uses are text, text_pair, label and weight (which no column usually has).
std::vector<LabelledText> read_texts(const TableSource& source, TextCount count,
                                     const LabelSurvey& survey);
/// Reads texts, or pairs, whatever their labels are.
std::vector<LabelledText> read_plain_texts(const TableSource& source, TextCount count);
/// Reads texts, or pairs, for regression: the label is a number.
std::vector<LabelledText> read_number_texts(const TableSource& source, TextCount count);
/// Returns how often each label occurs, for balanced_weights().
std::vector<int64_t> count_labels(std::span<const LabelledText> rows, int64_t labels);

/// Words of a sentence and their tags.
struct TaggedWords {
  std::vector<std::string> words;
  std::vector<int32_t> tags;  ///< -1: none; empty if the sentence has none
};
/// Reads the tags of all files.
Labels survey_tags(std::span<const TableSource> sources);
/// Reads sentences, whatever their tags are.
std::vector<TaggedWords> read_words(const TableSource& source);
/// Reads tagged sentences: columns tokens or words, and ner_tags, tags, labels or pos_tags; in csv
/// and tsv a JSON list, or words between spaces. Throws IoError too if a row has another number of
/// tags than words.
std::vector<TaggedWords> read_tagged(const TableSource& source, const Labels& tags);

/// A question about a text, with the answers that stand in it where they should.
struct LabelledQuestion {
  Question question;                    ///< its id is the number of the row if it has none
  std::vector<std::string> references;  ///< texts of all answers; empty: there is no answer
  bool labelled = false;
  bool misplaced =
      false;  ///< there are answers, and none stands where it should: do not train on it
};
/// Questions, and what is wrong with them.
struct QuestionRows {
  std::vector<LabelledQuestion> rows;
  int64_t answers = 0, misplaced = 0;  ///< answers, and answers that are not at their offset
  std::string first_misplaced;         ///< where the first of these is, for a message
};
/// Reads questions: columns question, context and answers, which is {"text": [...],
/// "answer_start": [...]}, or a list of {"text": ..., "answer_start": ...}; or the two as columns
/// answer_text (or answer) and answer_start, where an empty text is no answer. Offsets count code
/// points. Uses are question, context, answers, answer_text, answer_start and id. Files of SQuAD
/// and SQuAD 2 are read too. Questions about one context that follow each other share it.
QuestionRows read_questions(const TableSource& source);

/// A beginning, and possible endings.
struct ChoiceExample {
  std::string first;                  ///< sent1
  std::optional<std::string> second;  ///< sent2: how the second text of every candidate begins
  std::vector<std::string> endings;
  int32_t answer = -1;  ///< -1: unlabelled

  /// Returns the second text of candidate i: `second`, a space and the ending, or the ending
  /// alone. Throws ValueError if there is no such candidate.
  std::string candidate(size_t i) const;
};
/// Reads choices: columns sent1, sent2 (which may be missing), ending0, ending1 and so on, label.
/// Throws IoError too if there are fewer than two endings, or the label is none of them.
std::vector<ChoiceExample> read_choices(const TableSource& source);

/// A document and its summary.
struct SummaryExample {
  std::string document;
  std::optional<std::string> summary;
};
/// Reads documents: columns document, article, dialogue or text, and summary or highlights.
std::vector<SummaryExample> read_summaries(const TableSource& source);

/// A text of which only the second part is trained on.
struct CompletionExample {
  std::string prompt;      ///< may be empty
  std::string completion;  ///< what is trained on
};
/// Reads texts for decoders: columns prompt and completion, or text, all of which is trained on.
std::vector<CompletionExample> read_completions(const TableSource& source);

}  // namespace longspan
