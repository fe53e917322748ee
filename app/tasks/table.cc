#include "app/tasks/table.h"

#include <algorithm>
#include <vector>

#include "app/tasks/completions.h"
#include "app/tasks/documents.h"
#include "app/tasks/endings.h"
#include "app/tasks/labels.h"
#include "app/tasks/questions.h"
#include "app/tasks/samples.h"
#include "app/tasks/spans.h"
#include "app/tasks/summaries.h"
#include "app/tasks/tags.h"
#include "app/tasks/text.h"
#include "app/tasks/text_labels.h"
#include "core/error.h"
#include "data/tasks.h"
#include "nn/nearest.h"

namespace longspan {
namespace {

template <class OneTask>
std::unique_ptr<Task> make_one(const DataSet& set) {
  return std::make_unique<OneTask>(set);
}

using Make = std::unique_ptr<Task> (*)(const DataSet&);

/// What is done with data of a kind, unless they are generated; all others are texts.
constexpr std::pair<DataKind, Make> kinds[] = {
    {DataKind::documents, make_one<DocumentTask>}, {DataKind::promoters, make_one<ProfileTask>},
    {DataKind::profiles, make_one<ProfileTask>},   {DataKind::choices, make_one<ChoiceTask>},
    {DataKind::trivia, make_one<SpanTask>},
};

/// The tasks over tables of examples: a name, what a table holds, and the task.
struct TableRow {
  std::string_view id, about;
  Make make;
};
constexpr TableRow table_tasks[] = {
    {"classes", "texts with a label each, or several", make_one<TextLabelTask>},
    {"pairs", "pairs of texts with a label each", make_one<TextLabelTask>},
    {"regression", "texts with a number each", make_one<TextLabelTask>},
    {"tags", "words with a tag each", make_one<TagTask>},
    {"spans", "questions and texts that answer them", make_one<AnswerTask>},
    {"choice", "texts with several endings each", make_one<EndingTask>},
    {"summaries", "documents with a summary each", make_one<SummaryTask>},
    {"completions", "prompts and what follows them", make_one<CompletionTask>},
};

TaskEntry entry_of(const DataSet& set) {
  for (const auto& [kind, make] : kinds) {
    if (kind == set.kind) return {set, make};
  }
  return {set, make_one<TextTask>};
}

TaskEntry entry_of(const SampleTaskEntry& task) {
  return {generated_data_set(task),
          [task](const DataSet& set) { return std::make_unique<GeneratedTask>(set, task); }};
}

std::vector<TaskEntry>& entries() {
  static std::vector<TaskEntry> all = [] {
    std::vector<TaskEntry> list, tables;
    for (const auto& [id, about, make] : table_tasks) {
      tables.push_back({{id, "", DataKind::tables, {}, "90/5/5", {-1, -1, -1}, about}, make});
    }
    for (const DataSet& set : data_sets()) {
      const auto sample = std::find_if(sample_tasks().begin(), sample_tasks().end(),
                                       [&](const SampleTaskEntry& t) { return t.id == set.id; });
      list.push_back(sample != sample_tasks().end() ? entry_of(*sample) : entry_of(set));
    }
    const auto generated = std::find_if(list.begin(), list.end(), [](const TaskEntry& task) {
      return is_generated(task.set.kind);
    });
    list.insert(generated, tables.begin(), tables.end());  // behind the other kinds of files
    return list;
  }();
  return all;
}

}  // namespace

std::span<const TaskEntry> tasks() { return entries(); }

void register_task(const SampleTaskEntry& entry) {
  require(!entry.id.empty(), "task", "a task of one's own has no name; expected one");
  require(entry.make != nullptr, "task", "{} has no function that makes it", entry.id);
  for (const TaskEntry& other : entries()) {
    require(other.set.id != entry.id, "task", "there is a task {} already; choose another name",
            entry.id);
  }
  const bool own_section = entry.section != "model" && entry.section != "optimizer" &&
                           entry.section != "schedule" && entry.section != "start";
  require(
      own_section && !entry.section.empty(), "task",
      "the options of {} are in the section \"{}\", which is another's; expected one of its own",
      entry.id, entry.section);
  entries().push_back(entry_of(entry));
}

namespace {

/// What tasks over tables are called elsewhere.
constexpr std::pair<std::string_view, std::string_view> other_names[] = {
    {"class", "classes"},
    {"classification", "classes"},
    {"text-classification", "classes"},
    {"sequence-classification", "classes"},
    {"sentiment-analysis", "classes"},
    {"multi-label", "classes"},
    {"nli", "pairs"},
    {"glue", "pairs"},
    {"sts", "regression"},
    {"ner", "tags"},
    {"pos", "tags"},
    {"token-classification", "tags"},
    {"qa", "spans"},
    {"squad", "spans"},
    {"question-answering", "spans"},
    {"answers", "spans"},
    {"multiple-choice", "choice"},
    {"swag", "choice"},
    {"summarization", "summaries"},
    {"summarisation", "summaries"},
    {"summary", "summaries"},
    {"seq2seq", "summaries"},
    {"completion", "completions"},
    {"sft", "completions"},
    {"instructions", "completions"},
    {"text-generation", "bytes"},
    {"language-modeling", "bytes"},
};

}  // namespace

const TaskEntry& find_task(const std::string& id) {
  std::vector<std::string> names;
  for (const TaskEntry& entry : entries()) {
    if (entry.set.id == id) return entry;
    names.emplace_back(entry.set.id);
  }
  std::string near = nearest(id, names);
  for (const auto& [other, own] : other_names) {
    if (id == other) near = own;
  }
  fail("task", "there is no task \"{}\"; {}longspan tasks has them all", id,
       near.empty() ? "" : fmt::format("did you mean {}? ", near));
}

std::unique_ptr<Task> make_task(const std::string& id) {
  const TaskEntry& entry = find_task(id);
  return entry.make(entry.set);
}

std::string task_for(const LanguageModel& model, const std::string& id) {
  if (make_task(id)->suits(model)) return id;
  for (const TaskEntry& entry : entries()) {
    if (!entry.set.files.empty() && entry.make(entry.set)->suits(model)) {
      return std::string(entry.set.id);
    }
  }
  return id;
}

}  // namespace longspan
