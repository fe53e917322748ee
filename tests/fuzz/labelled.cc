// Any bytes as tables of labelled examples are read to the end or refused. The first byte selects
// the format and the task.

#include "data/labelled/examples.h"
#include "data/labelled/rows.h"

#include <filesystem>

#include "tests/fuzz/input.h"

using namespace longspan;

namespace {

void read_all_texts(const TableSource& source, TextCount count) {
  const LabelSurvey survey = survey_text_labels({&source, 1}, count);
  const std::vector<LabelledText> rows = read_texts(source, count, survey);
  for (const LabelledText& row : rows) {
    for (const int32_t id : row.labels) check(id >= 0 && id < survey.labels.size());
    check(survey.several || row.labels.size() == (row.labelled ? 1 : 0));
  }
  count_labels(rows, survey.labels.size());
}

void read_all_tags(const TableSource& source) {
  const Labels tags = survey_tags({&source, 1});
  for (const TaggedWords& row : read_tagged(source, tags)) {
    check(row.tags.empty() || row.tags.size() == row.words.size());
    for (const int32_t id : row.tags) check(id >= -1 && id < tags.size());
  }
}

/// Windows have all tokens of the text, and no more than they may.
void make_windows(const Question& question) {
  static const RowMaker maker("bytes", true);
  constexpr int64_t most = 24;
  const QuestionRow row = maker.question(question.text, question.context, most, 8, 12);
  check(!row.windows.empty());
  int64_t end = 0;
  for (const SpanWindow& w : row.windows) {
    check(w.first <= end && std::ssize(w.tokens) <= most && w.tokens.size() == w.types.size());
    end = w.first + w.count;
    answers_in(w, row.pieces, question.answers);
  }
  check(end == std::ssize(row.pieces));
}

void read_all_questions(const TableSource& source) {
  for (const LabelledQuestion& row : read_questions(source).rows) {
    for (const Answer& a : row.question.answers) {
      check(row.question.context.substr(static_cast<size_t>(a.begin)).starts_with(a.text));
    }
    if (row.question.context.size() < 4096) make_windows(row.question);
  }
}

void read_rows_of(const TableSource& source) {
  TableReader reader(source.paths[0]);
  for (TableRow row; reader.next(row);) {
    check(!row.place().empty());
    for (const std::string& name : row.columns()) check(row.find(name) != nullptr);
  }
}

void read_task(int task, const TableSource& source) {
  switch (task) {
    case 0:
      return read_all_texts(source, TextCount::one);
    case 1:
      return read_all_texts(source, TextCount::two);
    case 2:
      read_number_texts(source, TextCount::one);
      return;
    case 3:
      return read_all_tags(source);
    case 4:
      return read_all_questions(source);
    case 5:
      read_choices(source);
      return;
    case 6:
      read_summaries(source);
      return;
    case 7:
      read_completions(source);
      return;
    default:
      return read_rows_of(source);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile file("labelled");
  static const std::string folder = [] {
    std::string pattern = std::filesystem::temp_directory_path() / "longspan-fuzz-XXXXXX";
    check(mkdtemp(pattern.data()) != nullptr);
    for (const char* ending : {"jsonl", "json", "csv", "tsv"}) {
      std::filesystem::create_symlink(file.path, pattern + "/x." + ending);
    }
    return pattern;
  }();
  prepare();
  if (size == 0) return 0;
  file.set(text_of(data + 1, size - 1));
  constexpr const char* endings[] = {"jsonl", "json", "csv", "tsv"};
  const TableSource source{{folder + "/x." + endings[data[0] % 4]}, {}, data[0] < 128};
  const int task = data[0] / 4 % 9;
  refuses([&] { read_task(task, source); });
  return 0;
}
