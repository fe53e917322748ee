#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

#include "app/commands.h"
#include "app/question_data.h"
#include "core/error.h"
#include "data/tokenizers/unicode.h"
#include "models/evaluate.h"
#include "train/log.h"

namespace longspan {
namespace {

/// Returns the key of evals.jsonl for a score of a split. train_part_bpb is for the training split,
/// because train_bpb is the mean over the last steps.
std::string key_of(const std::string& part, const char* score) {
  return (part == "train" ? "train_part" : part) + "_" + score;
}

void set(Members& figures, const std::string& key, const Json& value) {
  for (JsonMember& m : figures) {
    if (m.name == key) {
      m.value = value;
      return;
    }
  }
  figures.push_back({key, value});
}

/// Returns the settings of the command line, the last of each key. A value that JSON cannot hold is
/// replaced by a remark.
Json overrides_of(const CommandLine& line) {
  Members all;
  for (const Setting& s : line.settings) {
    const bool text = !s.value.is_string() || is_utf8(s.value.string());
    set(all, s.key, text ? s.value : Json("a name that is not UTF-8"));
  }
  return Json(std::move(all));
}

/// Appends a row to evals.jsonl if that is writable, and prints it as the last line on standard
/// output.
void finish_evaluation(const std::string& out, const Members& row) {
  try {
    append_row(out + "/evals.jsonl", row);
  } catch (const IoError& e) {
    std::fprintf(stderr, "the score is not kept: %s\n", e.what());
  }
  std::puts(to_string(Json(row)).c_str());
  std::fflush(stdout);
}

struct Windows {
  int64_t stride = 0;
  void visit(auto& v) { v("stride", stride); }
};

/// Bits per byte if every byte except the first ones has a context of at least length - stride.
double sliding_bits(const TrainingRun& run, const CorpusPart& part, int64_t stride) {
  require<NotImplemented>(run.model->objective() == Objective::next_token, "--stride",
                          "{} predicts hidden bytes; expected a decoder", run.config.model_name);
  std::vector<int32_t> text{part.before};
  for (int64_t i = 0; i < part.size(); ++i) text.push_back(part[i]);
  const int64_t together = std::max<int64_t>(1, 4096 / run.config.length);
  const Score score = score_sliding(*run.model, Tensor::from(text, {part.size() + 1}),
                                    run.config.length, stride, together);
  const double symbols = static_cast<double>(part.symbols > 0 ? part.symbols : part.size());
  return score.bits() * static_cast<double>(score.count) / symbols;
}

/// Scores a split again with sliding windows, for --stride.
void score_windows(const TrainingRun& run, const TaskData& task_data, const std::string& part,
                   const std::string& stride, Members& figures) {
  const auto* text = dynamic_cast<const TextData*>(&task_data);
  require<NotImplemented>(text != nullptr, "--stride", "{} reads sources; expected a decoder",
                          run.config.model_name);
  Windows windows;
  set_fields(windows, {{"stride", Json(stride), "--stride", true}});
  const double bits = sliding_bits(run, text->corpus().part(part), windows.stride);
  std::fprintf(stderr, "in windows of %lld that move by %lld: %.4f bits per %s\n",
               static_cast<long long>(run.config.length), static_cast<long long>(windows.stride),
               bits, task_data.unit().c_str());
  set(figures, "stride", windows.stride);
  set(figures, key_of(part, "sliding_bpb"), bits);
}

/// Prints mean F1 scores in percent and returns them for evals.jsonl.
Json percent(const char* name, const RougeScores& scores) {
  const double one = 100 * scores.rouge1, two = 100 * scores.rouge2, sum = 100 * scores.rouge_lsum;
  std::fprintf(stderr, "%-20s %7.2f %7.2f %10.2f\n", name, one, two, sum);
  return Members{{"rouge1", one}, {"rouge2", two}, {"rouge_lsum", sum}};
}

/// Adds ROUGE of the generated summaries and of the first sentences.
void score_summaries(const PairData& task_data, const std::string& part, const BeamSearch& search,
                     Members& figures) {
  const SummaryScores scores = task_data.scores(part, search);
  std::fprintf(stderr, "%-20s %7s %7s %10s\n", "", "ROUGE-1", "ROUGE-2", "ROUGE-Lsum");
  set(figures, key_of(part, "rouge"), percent("summaries", scores.summaries));
  set(figures, key_of(part, "lead3"), percent("first 3 sentences", scores.lead3));
  set(figures, key_of(part, "lead10"), percent("first 10 sentences", scores.lead10));
}

/// Adds accuracy, F1 (with a single label), and the median areas under the curve, in percent.
void score_labels(const LabelData& task_data, const std::string& part, Members& figures) {
  const LabelScores scores = task_data.scores(part);
  const auto answers = static_cast<long long>(scores.auc.answers + scores.auc.skipped);
  std::fprintf(stderr, "%.2f %% of answers right, median area under the curve %.2f %% of %lld\n",
               100 * scores.accuracy, 100 * scores.auc.median,
               static_cast<long long>(scores.auc.answers));
  set(figures, key_of(part, "accuracy"), 100 * scores.accuracy);
  set(figures, key_of(part, "auc"), 100 * scores.auc.median);
  if (answers == 1) {
    std::fprintf(stderr, "F1 %.2f %%\n", 100 * scores.f1);
    set(figures, key_of(part, "f1"), 100 * scores.f1);
  }
  for (const auto& [kind, auc] : scores.kinds) {
    std::fprintf(stderr, "%s: median area %.2f %% of %lld, %lld without both answers\n",
                 kind.c_str(), 100 * auc.median, static_cast<long long>(auc.answers),
                 static_cast<long long>(auc.skipped));
    set(figures, key_of(part, ("auc_" + kind).c_str()), 100 * auc.median);
  }
}

/// Throws ValueError if the score is nonfinite. NaN is allowed for documents without a target and
/// for questions without an answer in reach.
void require_score(double bits, const TaskData& task_data, int64_t step) {
  const bool may_be_empty = dynamic_cast<const SpanData*>(&task_data) != nullptr ||
                            dynamic_cast<const PairData*>(&task_data) != nullptr;
  require(std::isfinite(bits) || (std::isnan(bits) && may_be_empty), "eval",
          "{} bits per {} are no score: the parameters of step {} are finite, and what the model "
          "makes of them is not; choose an earlier checkpoint with --step",
          bits, task_data.unit(), step);
}

/// Returns advice about an empty split.
std::string why_empty(const RunConfig& config, const TaskData& task_data) {
  const std::string_view split =
      config.split.empty() ? find_data_set(config.task).split : config.split;
  if (!split.empty()) return fmt::format(" with --split {}", split);
  std::string others;
  for (const char* part : {"train", "valid", "test"}) {
    if (task_data.size(part) > 0) others += fmt::format("{}{}", others.empty() ? "" : " or ", part);
  }
  return fmt::format(": there is no file of it; expected --part {}", others);
}

}  // namespace

int eval_command(int argc, const char* const* argv) {
  std::vector<Flag> own = {{"--out", "", "the run folder"},
                           {"--step", "", "step of the checkpoint; without it the newest"},
                           {"--part", "", "train, valid or test; without it valid"},
                           {"--stride", "", "score again in windows that move by so many tokens"}};
  own.insert(own.end(), search_flags().begin(), search_flags().end());
  CommandLine line = read_command_line(
      argc, argv, own,
      "longspan eval --out DIR: scores a checkpoint on every byte of a part of the data once; "
      "summaries by ROUGE too.");
  const Json overrides = overrides_of(line);
  const BeamSearch search = taken_search(line);
  Trained trained = load_run(line);
  const TrainingRun& run = trained.run;
  const std::unique_ptr<TaskData> task_data = open_task_data(run);
  const std::string part = line.value("--part") != nullptr ? *line.value("--part") : "valid";
  const int64_t size = task_data->size(part);
  require(size > 0, "--part", "the {} part of {} is empty{}", part, run.config.task,
          why_empty(run.config, *task_data));

  const auto start = std::chrono::steady_clock::now();
  const double bits = task_data->bits(part);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::fprintf(stderr, "step %lld, %s part of %s: %.4f bits per %s (%lld %s in %.2f s)\n",
               static_cast<long long>(trained.at.step), part.c_str(), run.config.task.c_str(), bits,
               task_data->unit().c_str(), static_cast<long long>(size), task_data->items().c_str(),
               seconds);
  require_score(bits, *task_data, trained.at.step);
  Members figures{{"step", trained.at.step},
                  {"part", part},
                  {"overrides", overrides},
                  {"unit", task_data->unit()}};
  set(figures, key_of(part, "bpb"), bits);
  if (const std::string* stride = line.value("--stride")) {
    score_windows(run, *task_data, part, *stride, figures);
  }
  const auto* pairs = dynamic_cast<const PairData*>(task_data.get());
  if (pairs != nullptr && run.config.gap_sentences == 0 && search.beams > 0) {
    score_summaries(*pairs, part, search, figures);
  }
  if (const auto* labels = dynamic_cast<const LabelData*>(task_data.get())) {
    score_labels(*labels, part, figures);
  }
  if (const auto* choices = dynamic_cast<const ChoiceData*>(task_data.get())) {
    const double accuracy = 100 * choices->scores(part).accuracy;
    std::fprintf(stderr, "%.2f %% of questions right\n", accuracy);
    set(figures, key_of(part, "accuracy"), accuracy);
  }
  if (const auto* spans = dynamic_cast<const SpanData*>(task_data.get())) {
    const SpanData::Scores scores = spans->scores(part);
    std::fprintf(stderr, "exact %.2f %%, F1 %.2f %% of %lld questions\n", 100 * scores.exact,
                 100 * scores.f1, static_cast<long long>(scores.questions));
    set(figures, key_of(part, "exact"), 100 * scores.exact);
    set(figures, key_of(part, "f1"), 100 * scores.f1);
  }
  if (const auto* words = dynamic_cast<const DuplicateData*>(task_data.get())) {
    const double accuracy = words->accuracy(part);
    std::fprintf(stderr, "%.2f %% of symbols right\n", 100 * accuracy);
    set(figures, key_of(part, "accuracy"), 100 * accuracy);
  }
  finish_evaluation(run.out, figures);
  return 0;
}

}  // namespace longspan
