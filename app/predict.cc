// longspan summarise, longspan predict and longspan answer: what a trained model says of texts.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/tasks/documents.h"
#include "app/tasks/table.h"
#include "core/error.h"
#include "data/io/files.h"
#include "data/io/stories.h"
#include "data/labelled/table.h"
#include "data/sequence_pairs.h"
#include "data/tokenizers/hub_processor.h"

namespace longspan {
namespace {

/// Returns the documents of a text: a story, articles with <S_SEP> on a line each, or plain text.
std::vector<Document> documents_of(const std::string& text, const std::string& path) {
  if (path.ends_with(".story")) return {read_story(text, path)};
  if (text.find("<S_SEP>") != std::string::npos) return read_documents(text);
  return {{.article = split_sentences(text), .summary = {}}};
}

void print_prediction(const TaskData::Prediction& p, const std::string& text, bool json) {
  if (json) {
    Members row{{"text", with_replacement_characters(text)}};
    row.insert(row.end(), p.figures.begin(), p.figures.end());
    std::puts(to_string(Json(std::move(row))).c_str());
  } else if (std::isnan(p.probability)) {
    print_text(p.label);
  } else {
    print_text(fmt::format("{}\t{:.4f}", p.label, p.probability));
  }
}

/// Prints a heading before the lines about a text, if there are several.
void print_heading(bool several, const std::string& path) {
  if (several) print_text(fmt::format("== {} ==", path));
}

void print_summary(const std::string& path, const std::vector<std::string>& written, bool several,
                   bool json) {
  if (json) {
    const Members row{
        {"file", with_replacement_characters(path)},
        {"summary", with_replacement_characters(fmt::format("{}", fmt::join(written, "\n")))}};
    std::puts(to_string(Json(row)).c_str());
  } else {
    print_heading(several, path);
    for (const std::string& sentence : written) print_text(sentence);
  }
  std::fflush(stdout);
}

/// Prints what an encoder-decoder writes of texts.
void write_summaries(const TrainingRun& run, const std::vector<std::string>& paths,
                     const BeamSearch& search, bool json) {
  require(search.beams >= 1, "--beams", "got {}; expected 1 or more", search.beams);
  run.config.of_task->require_search(search, run);
  const std::unique_ptr<TaskData> data = run.config.of_task->open(run, false);
  for (const std::string& path : paths) {
    if (path != "-" && table_format(path)) {
      for (const std::string& document : run.config.of_task->read_inputs(path)) {
        print_summary(path, data->answer(document, search), paths.size() > 1, json);
      }
      continue;
    }
    std::string text = read_input(path, "summarise");
    if (path.ends_with(".story")) text = article_text(read_story(text, path));
    // The sentences of documents are joined by spaces; those of tables are as they are.
    if (run.config.of_task->set().kind == DataKind::documents) text = one_line(text);
    print_summary(path, data->answer(text, search), paths.size() > 1, json);
  }
}

/// Throws NotImplemented that names the tasks which predict, if this one does not.
void require_predictions(const Task& task) {
  if (task.predicts()) return;
  std::vector<std::string_view> names;
  for (const TaskEntry& other : tasks()) {
    if (other.make(other.set)->predicts()) names.push_back(other.set.id);
  }
  fail<NotImplemented>("predict",
                       "predictions are of the tasks {}; a run of spans answers questions "
                       "(longspan answer), one that writes does so with longspan summarise and "
                       "longspan generate",
                       fmt::join(names, ", "));
}

}  // namespace

int predict_command(int argc, const char* const* argv) {
  const Flag own[] = {{"--out", "", "the run folder, or a hub folder"},
                      {"--step", "", "step of the checkpoint, or best; without it the newest"},
                      {"--json", "", "a line of JSON for each text, with all probabilities", true},
                      other_data_flag};
  CommandLine line = read_command_line(
      argc, argv, own,
      "longspan predict --out DIR FILE: a label and its probability for each line of a file, or a "
      "number; - is standard input. A line of a pair has a tab between its texts. Of a table "
      "(.csv, .tsv, .json, .jsonl) it takes the rows.",
      1);
  require(line.others.size() == 1, "predict",
          "got no text; expected a file with a text on each line, or - for standard input");
  const bool json = is_on(line, "--json");
  const Trained trained = load_run(line, line, Reads::tokens);
  const std::string& file = line.others[0];
  const Task& task = *trained.run.config.of_task;
  require_predictions(task);
  const bool table = file != "-" && table_format(file).has_value();
  const std::vector<std::string> lines =
      table ? task.read_inputs(file) : lines_of(read_input(file, "predict"));
  const std::unique_ptr<TaskData> data = trained.run.config.of_task->open(trained.run, false);
  constexpr size_t together = 256;
  for (size_t begin = 0; begin < lines.size(); begin += together) {
    const std::span<const std::string> some =
        std::span(lines).subspan(begin, std::min(together, lines.size() - begin));
    const std::vector<TaskData::Prediction> found = data->predict(some);
    for (size_t i = 0; i < some.size(); ++i) {
      print_prediction(found[i], some[i], json);
    }
    std::fflush(stdout);
  }
  return 0;
}

int answer_command(int argc, const char* const* argv) {
  const Flag own[] = {{"--out", "", "the run folder, or a hub folder"},
                      {"--step", "", "step of the checkpoint, or best; without it the newest"},
                      {"--document", "", "the text with the answers, - for standard input"},
                      {"--question", "", "a question"},
                      {"--json", "",
                       "a line of JSON for each question, with the place in code points and what "
                       "else was considered",
                       true},
                      other_data_flag};
  CommandLine line = read_command_line(
      argc, argv, own,
      "longspan answer --out DIR --document FILE --question TEXT, or FILE with a question on each "
      "line: what a text answers, and how probable that is; - where it has no answer.",
      1);
  const std::string *const document = line.value("--document"), *const question =
                                                                    line.value("--question");
  require(document != nullptr, "answer", "got no text; expected --document FILE");
  require((question != nullptr) != (line.others.size() == 1), "answer",
          "got {}; expected --question TEXT, or a file with a question on each line",
          question != nullptr ? "both" : "no question");
  const bool both = *document == "-" && question == nullptr && line.others[0] == "-";
  require(!both, "answer", "standard input is the text or the questions; expected a file for one");
  const bool json = is_on(line, "--json");
  const Trained trained = load_run(line, line, Reads::tokens);
  const std::string text = read_input(*document, "answer");
  const std::vector<std::string> questions =
      question != nullptr ? std::vector{*question} : lines_of(read_input(line.others[0], "answer"));
  const std::unique_ptr<TaskData> data = trained.run.config.of_task->open(trained.run, false);
  for (const std::string& one : questions) {
    const TaskData::Prediction found = data->find_answers(text, {&one, 1})[0];
    if (json) {
      Members row{{"question", with_replacement_characters(one)}};
      row.insert(row.end(), found.figures.begin(), found.figures.end());
      std::puts(to_string(Json(std::move(row))).c_str());
    } else {
      const std::string label = found.label.empty() ? "-" : one_line(found.label);
      const bool known = !std::isnan(found.probability);
      print_text(known ? fmt::format("{}\t{:.4f}", label, found.probability) : label);
    }
    std::fflush(stdout);
  }
  return 0;
}

int summarise_command(int argc, const char* const* argv) {
  std::vector<Flag> own = {
      {"--out", "", "the run folder, or a hub folder"},
      {"--step", "", "step of the checkpoint, or best; without it the newest"},
      {"--sentences", "extracts.take.sentences", "most sentences of an extract"},
      {"--words", "extracts.take.words", "most words of an extract; 0: any number"},
      {"--scores", "", "print the score and the place of each sentence too", true},
      {"--json", "", "a line of JSON for each text", true},
      other_data_flag};
  own.insert(own.end(), search_flags().begin(), search_flags().end());
  CommandLine line = read_command_line(
      argc, argv, own,
      "longspan summarise --out DIR FILE...: what an encoder-decoder writes of texts, or the "
      "sentences that a model of documents chooses of them, in their order; - is standard input. A "
      ".story file, articles with <S_SEP> between sentences, or plain text.",
      SIZE_MAX);
  require(!line.others.empty(), "summarise",
          "got no text; expected files, or - for standard input");
  const bool with_scores = is_on(line, "--scores"), json = is_on(line, "--json");
  const CommandLine typed = line;
  const BeamSearch search = taken_search(line);
  const Trained trained = load_run(line, typed, Reads::tokens);
  const TrainingRun& run = trained.run;
  if (ask<WritesSequences>(std::as_const(*run.model)) != nullptr) {
    write_summaries(run, line.others, search, json);
    return 0;
  }
  const auto* const model = ask<ReadsDocuments>(std::as_const(*run.model));
  require<NotImplemented>(model != nullptr && model->labels() == 2, "summarise",
                          "{} neither writes nor labels sentences; expected a run of an "
                          "encoder-decoder or of hibert:labels",
                          run.config.model_name);
  const std::unique_ptr<const Tokenizer> tokenizer = document_tokenizer(run);
  const auto* const task = dynamic_cast<const DocumentTask*>(run.config.of_task.get());
  require<NotImplemented>(task != nullptr, "summarise",
                          "{} has no documents of files; expected a run of documents or wiki-leads",
                          run.config.task);
  const DocumentOptions& e = task->sentences();
  for (const std::string& path : line.others) {
    if (!json) print_heading(line.others.size() > 1, path);
    for (const Document& text : documents_of(read_input(path, "summarise"), path)) {
      require(!text.article.empty(), "summarise", "{} has a text without sentences; expected some",
              path);
      const TokenDocument document =
          token_document({.article = text.article, .summary = {}}, *tokenizer,
                         model->special().sentence_end, model->max_sentence());
      if (document.cut > 0) {
        say(fmt::format("{}: {} of {} sentences are scored by their first {} tokens", path,
                        document.cut, text.article.size(), model->max_sentence() - 1));
      }
      const std::vector<double> scores = sentence_scores(*model, document, e.chunk);
      if (json) {
        Json::Array sentences;
        for (const int64_t i : select_sentences(scores, text.article, e.take)) {
          const auto at = static_cast<size_t>(i);
          sentences.push_back(
              Json(Members{{"sentence", with_replacement_characters(text.article[at])},
                           {"place", i + 1},
                           {"score", scores[at]}}));
        }
        const Members row{{"file", with_replacement_characters(path)},
                          {"sentences", Json(std::move(sentences))}};
        std::puts(to_string(Json(row)).c_str());
        continue;
      }
      for (const int64_t i : select_sentences(scores, text.article, e.take)) {
        const std::string& sentence = text.article[static_cast<size_t>(i)];
        std::puts(with_scores ? fmt::format("{:.4f} {:>4}  {}", scores[static_cast<size_t>(i)],
                                            i + 1, sentence)
                                    .c_str()
                              : sentence.c_str());
      }
    }
  }
  return 0;
}

}  // namespace longspan
