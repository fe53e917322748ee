#include "data/labelled/examples.h"

#include <algorithm>

#include "core/error.h"
#include "data/code_points.h"

namespace longspan {
namespace {

constexpr const char* kExamples = "examples";

/// Rows of texts, or of pairs, with their labels.
class TextRows : public ExampleRows {
 public:
  TextRows(const TableSource& source, TextCount count)
      : ExampleRows(source, uses_of(source, count), groups_of(count)),
        label_(count == TextCount::one ? 1 : 2) {}

  const Json* label() const { return find(label_); }
  std::string label_place() const { return place(label_); }
  /// Returns the text, or the texts, of the row.
  LabelledText example() const {
    LabelledText example{.text = text(0)};
    if (label_ == 2) example.second = text(1);
    example.weight = weight();
    return example;
  }

 private:
  static std::vector<ColumnUse> uses_of(const TableSource& source, TextCount count) {
    std::vector<ColumnUse> uses;
    if (count == TextCount::one) {
      uses.push_back({"text", {"text", "sentence", "content", "review"}});
    } else {
      uses.push_back({"text", {"text"}});
      uses.push_back({"text_pair", {"text_pair"}});
    }
    uses.push_back({"label", {"label", "labels"}, source.labelled});
    uses.push_back({"weight", {}, source.columns.find("weight").has_value()});
    return uses;
  }

  static std::vector<std::vector<std::string>> groups_of(TextCount count) {
    if (count == TextCount::one) return {};
    return {{"sentence1", "sentence2"},
            {"premise", "hypothesis"},
            {"question1", "question2"},
            {"question", "sentence"},
            {"text", "text_pair"}};
  }

  double weight() const {
    const size_t use = label_ + 1;
    const Json* value = find(use);
    if (value == nullptr) return 1;
    const double weight = label_number(*value, row().is_text(), place(use)).value_or(1);
    require<IoError>(weight >= 0, kExamples, "{}: got {}; expected a weight of 0 or more",
                     place(use), weight);
    return weight;
  }

  size_t label_;
};

/// Returns the list that a value is; in csv and tsv the JSON of one. Null if it is none.
const Json* list_of(const Json& value, bool is_text, const std::string& place, Json& parsed) {
  if (value.is_array()) return &value;
  if (!is_text || !value.is_string() || !value.string().starts_with('[')) return nullptr;
  try {
    parsed = parse_json(value.string());
  } catch (const ValueError& error) {
    fail<IoError>(kExamples, "{}: got text that begins with [ and is no list of JSON: {}", place,
                  error.what());
  }
  return parsed.is_array() ? &parsed : nullptr;
}

/// Whether a list has 0.0 or 1.0 for each label, instead of labels.
bool is_indicator(const Json& list) {
  const Json::Array& all = list.array();
  return !all.empty() && std::all_of(all.begin(), all.end(), [](const Json& v) {
    return v.is_number() && !v.is_integer();
  });
}

/// Whether the number says that the row has the label.
bool indicates(const Json& value, const std::string& place) {
  const double number = value.number();
  require<IoError>(number == 0 || number == 1, kExamples,
                   "{}: got {} in a list of a number for each label; expected 0.0 or 1.0", place,
                   number);
  return number == 1;
}

/// Adds the labels of a list to a survey.
void survey_list(const Json& list, bool is_text, const std::string& place,
                 LabelCollector& collector) {
  if (is_indicator(list)) {
    collector.add(Json(std::ssize(list.array()) - 1), is_text, place);
    return;
  }
  for (const Json& value : list.array()) collector.add(value, is_text, place);
}

/// Returns the ids of a list, in ascending order.
std::vector<int32_t> ids_of(const Json& list, bool is_text, const std::string& place,
                            const Labels& labels) {
  std::vector<int32_t> ids;
  if (is_indicator(list)) {
    require<IoError>(std::ssize(list.array()) == labels.size(), kExamples,
                     "{}: got {} numbers for {} labels; expected as many", place,
                     list.array().size(), labels.size());
    for (size_t i = 0; i < list.array().size(); ++i) {
      if (indicates(list.array()[i], place)) ids.push_back(static_cast<int32_t>(i));
    }
    return ids;
  }
  for (const Json& value : list.array()) {
    const int32_t id = labels.id_of(value, is_text, place);
    if (id >= 0) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

void set_labels(const TextRows& rows, const LabelSurvey& survey, LabelledText& example) {
  const Json* value = rows.label();
  if (value == nullptr) return;
  const std::string place = rows.label_place();
  const bool is_text = rows.row().is_text();
  Json parsed;
  if (const Json* list = list_of(*value, is_text, place, parsed)) {
    require<IoError>(survey.several, kExamples,
                     "{}: got a list of labels, where this model has one label a row", place);
    example.labels = ids_of(*list, is_text, place, survey.labels);
    example.labelled = true;
    return;
  }
  const int32_t id = survey.labels.id_of(*value, is_text, place);
  if (id < 0) return;
  require<IoError>(!survey.several, kExamples,
                   "{}: got one label; expected a list of them, as other rows have", place);
  example.labels = {id};
  example.labelled = true;
}

}  // namespace

LabelSurvey survey_text_labels(std::span<const TableSource> sources, TextCount count) {
  LabelSurvey survey;
  LabelCollector collector;
  std::optional<std::string> list_at, one_at;
  for (const TableSource& source : sources) {
    TextRows rows(source, count);
    while (rows.next()) {
      const Json* value = rows.label();
      if (value == nullptr) continue;
      const bool is_text = rows.row().is_text();
      const std::string place = rows.label_place();
      Json parsed;
      if (const Json* list = list_of(*value, is_text, place, parsed)) {
        survey_list(*list, is_text, place, collector);
        if (!list_at) list_at = place;
      } else {
        collector.add(*value, is_text, place);
        const bool none = value->is_string() && value->string().empty();
        if (!one_at && !none && label_integer(*value, is_text) != -1) one_at = place;
      }
      require<IoError>(!list_at || !one_at, kExamples,
                       "{} has a list of labels, and {} one label; expected the same in all rows",
                       list_at.value_or(""), one_at.value_or(""));
    }
  }
  survey.labels = collector.labels();
  survey.several = list_at.has_value();
  return survey;
}

std::vector<LabelledText> read_texts(const TableSource& source, TextCount count,
                                     const LabelSurvey& survey) {
  std::vector<LabelledText> all;
  TextRows rows(source, count);
  while (rows.next()) {
    all.push_back(rows.example());
    set_labels(rows, survey, all.back());
  }
  return all;
}

std::vector<LabelledText> read_plain_texts(const TableSource& source, TextCount count) {
  std::vector<LabelledText> all;
  TextRows rows(source, count);
  while (rows.next()) all.push_back(rows.example());
  return all;
}

std::vector<LabelledText> read_number_texts(const TableSource& source, TextCount count) {
  std::vector<LabelledText> all;
  TextRows rows(source, count);
  while (rows.next()) {
    all.push_back(rows.example());
    const Json* value = rows.label();
    if (value == nullptr) continue;
    const auto number = label_number(*value, rows.row().is_text(), rows.label_place());
    all.back().labelled = number.has_value();
    if (number) all.back().number = *number;
  }
  return all;
}

std::vector<int64_t> count_labels(std::span<const LabelledText> rows, int64_t labels) {
  require(labels >= 1, kExamples, "got {} labels; expected 1 or more", labels);
  std::vector<int64_t> counts(static_cast<size_t>(labels));
  for (const LabelledText& row : rows) {
    for (const int32_t id : row.labels) {
      require(id >= 0 && id < labels, kExamples, "got label {}; expected 0 to {}", id, labels - 1);
      ++counts[static_cast<size_t>(id)];
    }
  }
  return counts;
}

namespace {

ExampleRows tag_rows(const TableSource& source) {
  return {source,
          {{"tokens", {"tokens", "words"}},
           {"tags", {"ner_tags", "tags", "labels", "pos_tags"}, source.labelled}}};
}

/// Returns the entries of a list; in csv and tsv also what is between spaces.
Json::Array entries_of(const ExampleRows& rows, size_t use, const Json& value) {
  Json parsed;
  const bool is_text = rows.row().is_text();
  const std::string place = rows.place(use);
  if (const Json* list = list_of(value, is_text, place, parsed)) return list->array();
  require<IoError>(is_text, kExamples, "{}: got {}; expected a list with an entry for each word",
                   place, value.kind());
  Json::Array entries;
  std::string_view rest = value.string();
  while (true) {
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t\n\r"), rest.size()));
    if (rest.empty()) return entries;
    const size_t end = std::min(rest.find_first_of(" \t\n\r"), rest.size());
    entries.emplace_back(rest.substr(0, end));
    rest.remove_prefix(end);
  }
}

}  // namespace

Labels survey_tags(std::span<const TableSource> sources) {
  LabelCollector collector;
  for (const TableSource& source : sources) {
    ExampleRows rows = tag_rows(source);
    while (rows.next()) {
      const Json* tags = rows.find(1);
      if (tags == nullptr) continue;
      const std::string place = rows.place(1);
      for (const Json& tag : entries_of(rows, 1, *tags)) {
        collector.add(tag, rows.row().is_text(), place);
      }
    }
  }
  return collector.labels();
}

namespace {

std::vector<std::string> words_of(const ExampleRows& rows) {
  std::vector<std::string> all;
  const Json* words = rows.find(0);
  require<IoError>(words != nullptr, kExamples, "{}: got null; expected a list of words",
                   rows.place(0));
  for (const Json& word : entries_of(rows, 0, *words)) {
    require<IoError>(word.is_string(), kExamples, "{}: got {} as word {}; expected a string",
                     rows.place(0), word.kind(), all.size());
    all.push_back(word.string());
  }
  return all;
}

}  // namespace

std::vector<TaggedWords> read_words(const TableSource& source) {
  std::vector<TaggedWords> all;
  ExampleRows rows = tag_rows(source);
  while (rows.next()) all.push_back({words_of(rows), {}});
  return all;
}

std::vector<TaggedWords> read_tagged(const TableSource& source, const Labels& tags) {
  std::vector<TaggedWords> all;
  ExampleRows rows = tag_rows(source);
  while (rows.next()) {
    TaggedWords sentence;
    sentence.words = words_of(rows);
    if (const Json* value = rows.find(1)) {
      const std::string place = rows.place(1);
      for (const Json& tag : entries_of(rows, 1, *value)) {
        sentence.tags.push_back(tags.id_of(tag, rows.row().is_text(), place));
      }
      require<IoError>(sentence.tags.size() == sentence.words.size(), kExamples,
                       "{} has {} tags for {} words; expected one for each word", place,
                       sentence.tags.size(), sentence.words.size());
    }
    all.push_back(std::move(sentence));
  }
  return all;
}

namespace {

// Numbers of the uses of questions.
constexpr size_t kQuestion = 0, kContext = 1, kAnswers = 2, kAnswerText = 3, kAnswerStart = 4,
                 kId = 5;

/// An answer as it is given.
struct GivenAnswer {
  std::string text;
  int64_t start;  // in code points
};

GivenAnswer given_answer(const Json& text, const Json& start, bool is_text,
                         const std::string& place) {
  const std::optional<int64_t> at = label_integer(start, is_text);
  require<IoError>(text.is_string() && at, kExamples,
                   "{}: got {} as text and {} as offset; expected a string and an integer", place,
                   text.kind(), start.kind());
  return {text.string(), *at};
}

/// Reads {"text": [...], "answer_start": [...]}, or a list of {"text": ..., "answer_start": ...}.
std::vector<GivenAnswer> answers_of(const Json& value, const std::string& place) {
  std::vector<GivenAnswer> answers;
  try {
    if (value.is_array()) {
      for (const Json& a : value.array()) {
        answers.push_back(given_answer(a["text"], a["answer_start"], false, place));
      }
      return answers;
    }
    const Json::Array &texts = value["text"].array(), &starts = value["answer_start"].array();
    require<IoError>(texts.size() == starts.size(), kExamples,
                     "{}: got {} texts and {} offsets; expected as many", place, texts.size(),
                     starts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      answers.push_back(given_answer(texts[i], starts[i], false, place));
    }
  } catch (const ValueError& error) {
    fail<IoError>(kExamples, "{}: {}", place, error.what());
  }
  return answers;
}

/// Reads the answers of a row; nothing if it has none of the columns.
std::optional<std::vector<GivenAnswer>> answers_of(const ExampleRows& rows) {
  if (const Json* value = rows.find(kAnswers)) {
    const std::string place = rows.place(kAnswers);
    if (!rows.row().is_text()) return answers_of(*value, place);
    if (value->string().empty()) return std::vector<GivenAnswer>{};
    Json parsed;
    try {
      parsed = parse_json(value->string());
    } catch (const ValueError& error) {
      fail<IoError>(kExamples, "{}: expected JSON with text and answer_start: {}", place,
                    error.what());
    }
    return answers_of(parsed, place);
  }
  if (!rows.column(kAnswers).empty()) return std::vector<GivenAnswer>{};  // null
  if (rows.column(kAnswerText).empty()) return std::nullopt;
  const Json *text = rows.find(kAnswerText), *start = rows.find(kAnswerStart);
  std::vector<GivenAnswer> answers;
  if (text == nullptr || (text->is_string() && text->string().empty())) return answers;
  require<IoError>(start != nullptr, kExamples, "{}: got an answer without answer_start",
                   rows.place(kAnswerText));
  answers.push_back(given_answer(*text, *start, rows.row().is_text(), rows.place(kAnswerStart)));
  return answers;
}

void place_answers(std::vector<GivenAnswer> given, const CodePointIndex& index,
                   const std::string& place, QuestionRows& all) {
  LabelledQuestion& row = all.rows.back();
  const SharedText& context = row.question.context;
  for (GivenAnswer& answer : given) {
    if (answer.text.empty()) continue;  // SQuAD 2: no answer
    ++all.answers;
    const int64_t begin = index.byte_of(answer.start);
    if (begin >= 0 && context.substr(static_cast<size_t>(begin)).starts_with(answer.text)) {
      row.question.answers.push_back(
          {context.part(static_cast<size_t>(begin), answer.text.size()), begin});
    } else if (++all.misplaced == 1) {
      all.first_misplaced = fmt::format("{}: the answer \"{}\" does not stand at character {}",
                                        place, answer.text.substr(0, 80), answer.start);
    }
    row.references.push_back(std::move(answer.text));
  }
  row.misplaced = row.question.answers.empty() && !row.references.empty();
}

std::string id_of(const ExampleRows& rows, size_t number) {
  const Json* id = rows.find(kId);
  if (id == nullptr) return std::to_string(number);
  if (id->is_integer()) return std::to_string(id->integer());
  return rows.text(kId);
}

}  // namespace

QuestionRows read_questions(const TableSource& source) {
  const bool flat = source.columns.find("answer_text").has_value();
  ExampleRows rows(source, {{"question", {"question"}},
                            {"context", {"context"}},
                            {"answers", {"answers"}, false},
                            {"answer_text", {"answer_text", "answer"}, flat},
                            {"answer_start", {"answer_start"}, false},
                            {"id", {"id"}, false}});
  QuestionRows all;
  SharedText context;
  CodePointIndex index;  // of `context`
  while (rows.next()) {
    const std::optional<std::vector<GivenAnswer>> answers = answers_of(rows);
    require<IoError>(answers || !source.labelled, kExamples,
                     "{} has no column answers, nor answer_text and answer_start; say which are "
                     "meant with --columns answers=NAME",
                     rows.row().place());
    if (context != rows.text(kContext)) {
      context = SharedText(rows.text(kContext));
      index = CodePointIndex(context);
    }
    LabelledQuestion row;
    row.question = {id_of(rows, all.rows.size() + 1), rows.text(kQuestion), context, {}};
    row.labelled = answers.has_value();
    all.rows.push_back(std::move(row));
    if (answers) place_answers(*answers, index, rows.row().place(), all);
  }
  return all;
}

std::string ChoiceExample::candidate(size_t i) const {
  require(i < endings.size(), kExamples, "got candidate {}; expected 0 to {}", i,
          endings.size() - 1);
  return second ? *second + " " + endings[i] : endings[i];
}

std::vector<ChoiceExample> read_choices(const TableSource& source) {
  constexpr size_t most = 64, ending = 3;
  std::vector<ColumnUse> uses = {{"sent1", {"sent1"}},
                                 {"sent2", {"sent2"}, source.columns.find("sent2").has_value()},
                                 {"label", {"label"}, source.labelled}};
  for (size_t i = 0; i < most; ++i) {
    const std::string name = fmt::format("ending{}", i);
    uses.push_back({name, {name}, i < 2});
  }
  ExampleRows rows(source, uses);
  std::vector<ChoiceExample> all;
  while (rows.next()) {
    ChoiceExample row{.first = rows.text(0), .second = {}, .endings = {}};
    if (rows.find(1) != nullptr) row.second = rows.text(1);
    require<IoError>(rows.row().find(fmt::format("ending{}", most)) == nullptr, kExamples,
                     "{} has more endings than the {} that are read", rows.row().place(), most);
    for (size_t i = 0; i < most; ++i) {
      const Json* value = rows.column(ending + i).empty() ? nullptr : rows.find(ending + i);
      const bool none = value == nullptr || (value->is_string() && value->string().empty());
      if (none) continue;
      require<IoError>(row.endings.size() == i, kExamples,
                       "{} has ending{} and no ending{}; expected them without a gap",
                       rows.row().place(), i, row.endings.size());
      row.endings.push_back(rows.text(ending + i));
    }
    require<IoError>(row.endings.size() >= 2, kExamples, "{} has {} endings; expected two or more",
                     rows.row().place(), row.endings.size());
    if (const Json* label = rows.find(2)) {
      const bool none = label->is_string() && label->string().empty();
      const auto id = none ? -1 : label_integer(*label, rows.row().is_text());
      require<IoError>(id && *id >= -1 && *id < std::ssize(row.endings), kExamples,
                       "{}: got {}; expected the number of an ending, 0 to {}, or -1 for none",
                       rows.place(2), id ? std::to_string(*id) : std::string(label->kind()),
                       row.endings.size() - 1);
      row.answer = static_cast<int32_t>(*id);
    }
    all.push_back(std::move(row));
  }
  return all;
}

std::vector<SummaryExample> read_summaries(const TableSource& source) {
  ExampleRows rows(source, {{"document", {"document", "article", "dialogue", "text"}},
                            {"summary", {"summary", "highlights"}, source.labelled}});
  std::vector<SummaryExample> all;
  while (rows.next()) {
    all.push_back({.document = rows.text(0), .summary = {}});
    if (rows.find(1) != nullptr) all.back().summary = rows.text(1);
  }
  return all;
}

std::vector<CompletionExample> read_completions(const TableSource& source) {
  const auto given = [&](const char* use) { return source.columns.find(use).has_value(); };
  ExampleRows rows(source, {{"prompt", {"prompt"}, given("prompt")},
                            {"completion", {"completion"}, given("prompt") || given("completion")},
                            {"text", {"text"}, given("text")}});
  std::vector<CompletionExample> all;
  while (rows.next()) {
    const bool whole = rows.column(1).empty() || given("text");
    require<IoError>(!whole || !rows.column(2).empty(), kExamples,
                     "{} has neither prompt and completion nor text; say which are meant with "
                     "--columns prompt=NAME,completion=NAME or --columns text=NAME",
                     rows.row().place());
    if (whole) {
      all.push_back({.prompt = "", .completion = rows.text(2)});
      continue;
    }
    all.push_back(
        {.prompt = rows.column(0).empty() ? "" : rows.text(0), .completion = rows.text(1)});
  }
  return all;
}

}  // namespace longspan
