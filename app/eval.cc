#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <optional>
#include <vector>

#include "app/commands.h"
#include "app/tasks/task_data.h"
#include "core/error.h"
#include "data/io/files.h"
#include "data/unicode/unicode.h"
#include "train/log.h"
#include "train/plot.h"

namespace longspan {
namespace {

/// Returns the key of evals.jsonl for a score of a split. train_part_bpb is for the training split,
/// because train_bpb is the mean over the last steps.
std::string key_of(const std::string& part, const std::string& score) {
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

/// Appends a row to evals.jsonl if that is writable, and with --json prints it.
void finish_evaluation(const std::string& out, const Members& row, bool json) {
  try {
    if (!out.empty()) append_row(out + "/evals.jsonl", row);
  } catch (const IoError& e) {
    std::fprintf(stderr, "the score is not kept: %s\n", e.what());
  }
  if (json) std::puts(to_string(Json(row)).c_str());
  std::fflush(stdout);
}

struct Windows {
  int64_t stride = 0;
  void visit(auto& v) { v("stride", stride); }
};

/// Returns the number of --stride; 0 if it is not given.
int64_t stride_of(const CommandLine& line) {
  const std::string* const given = line.value("--stride");
  if (given == nullptr) return 0;
  Windows windows;
  const Settings settings{{"stride", Json(*given), "--stride", true}};
  set_fields(windows, settings);
  require(windows.stride >= 1, "--stride", "stride is {}: expected 1 to length", windows.stride);
  return windows.stride;
}

/// Scores a split again with sliding windows, for --stride. Returns what to say.
std::string score_windows(const TrainingRun& run, const TaskData& task_data,
                          const std::string& part, int64_t stride, Members& figures) {
  const std::optional<double> bits = task_data.sliding_bits(part, stride);
  require<NotImplemented>(bits.has_value(), "--stride",
                          "windows move over one long text, and {} on --task {} has none; leave it "
                          "out",
                          run.config.model_name, run.config.task);
  set(figures, "stride", stride);
  set(figures, key_of(part, "sliding_bpb"), *bits);
  return fmt::format("in windows of {} that move by {}: {:.4f} bits per {}", run.config.length,
                     stride, *bits, task_data.unit());
}

/// Throws ValueError if the score is nonfinite. NaN is allowed for documents without a target and
/// for questions without an answer in reach.
void require_score(double bits, const TaskData& task_data, int64_t step) {
  require(std::isfinite(bits) || (std::isnan(bits) && task_data.may_lack_targets()), "eval",
          "{} bits per {} are no score: the parameters of step {} are finite, and what the model "
          "makes of them is not; choose an earlier checkpoint with --step",
          bits, task_data.unit(), step);
}

/// Returns the file of --predictions, empty if there is none. Throws before anything is computed.
std::string predictions_file(const CommandLine& line, const RunConfig& config) {
  const std::string* const path = line.value("--predictions");
  if (path == nullptr) return {};
  require(!path->empty(), "--predictions", "got no name; expected a file to write");
  require(config.of_task->set().kind == DataKind::tables, "--predictions",
          "it is for tables of texts with labels, and the task is {}; leave it out", config.task);
  const auto status = std::filesystem::symlink_status(*path);  // a link that leads nowhere too
  require<IoError>(!std::filesystem::exists(status), "--predictions",
                   "{} is there already, and nothing is replaced; choose another name", *path);
  const size_t slash = path->rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path->substr(0, slash + 1);
  require<IoError>(kind_of_path(folder, "eval") == PathKind::folder, "--predictions",
                   "there is no folder {}", folder);
  return *path;
}

/// Returns rows as CSV, RFC 4180.
std::string to_csv(const std::vector<std::vector<std::string>>& rows) {
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) text += ',';
      if (row[i].find_first_of(",\"\r\n") == std::string::npos) {
        text += row[i];
        continue;
      }
      text += '"';
      for (const char c : row[i]) text += c == '"' ? std::string("\"\"") : std::string(1, c);
      text += '"';
    }
    text += "\r\n";
  }
  return text;
}

/// Draws how often each class was predicted for each label, if there are classes, as shares of the
/// labels.
void draw_confusions(const TaskData::Report& report, const TrainingRun& run,
                     const std::string& part) {
  const size_t count = report.classes.size();
  if (count < 2) return;
  HeatMap map{.title = fmt::format("{}: what was predicted", part),
              .x_label = "predicted",
              .y_label = "label",
              .value_label = "share of the label",
              .rows = static_cast<int64_t>(count),
              .columns = static_cast<int64_t>(count),
              .row_labels = report.classes,
              .column_labels = report.classes,
              .low = 0,
              .high = 1};
  for (size_t label = 0; label < count; ++label) {
    const auto row = report.confusions.begin() + static_cast<std::ptrdiff_t>(label * count);
    const double all = std::accumulate(row, row + static_cast<std::ptrdiff_t>(count), 0.0);
    for (size_t c = 0; c < count; ++c) {
      map.values.push_back(all > 0 ? row[static_cast<std::ptrdiff_t>(c)] / all : std::nan(""));
    }
  }
  make_folders(run.out + "/pictures", "eval");
  for (const std::string& path :
       run.config.pictures.paths(fmt::format("{}/pictures/confusions-{}", run.out, part))) {
    write_heat_map(path, map);
    say(path);
  }
}

/// Returns advice about an empty split.
std::string why_empty(const RunConfig& config, const TaskData& task_data) {
  if (config.of_task->set().kind == DataKind::tables) {
    return ": no file is for it, or no row of a single file is left for it; --split 0/0/100 scores "
           "all rows of a file as --part test";
  }
  const std::string_view split = config.split.empty() ? config.of_task->set().split : config.split;
  if (!split.empty()) return fmt::format(" with --split {}", split);
  std::string others;
  for (const char* part : {"train", "valid", "test"}) {
    if (task_data.size(part) > 0) others += fmt::format("{}{}", others.empty() ? "" : " or ", part);
  }
  return fmt::format(": there is no file of it; expected --part {}", others);
}

/// Scores a split, and says from time to time how far it is.
TaskData::Evaluation evaluated(const TaskData& task_data, const std::string& part) {
  constexpr double patience = 2;  // seconds between lines
  auto said = std::chrono::steady_clock::now();
  const Evaluating watched(0, [&](int64_t done, int64_t all) {
    const auto now = std::chrono::steady_clock::now();
    if (std::chrono::duration<double>(now - said).count() < patience || done == all) return;
    said = now;
    std::fprintf(stderr, "%lld %% of the %s part\n",
                 static_cast<long long>(100 * done / std::max<int64_t>(all, 1)), part.c_str());
  });
  return task_data.evaluate(part);
}

}  // namespace

int eval_command(int argc, const char* const* argv) {
  std::vector<Flag> own = {
      {"--out", "", "the run folder"},
      {"--step", "", "step of the checkpoint, or best; without it the newest"},
      {"--part", "", "train, valid or test; without it valid"},
      {"--stride", "", "score again in windows that move by so many tokens"},
      {"--json", "", "print the row of evals.jsonl, for programs, and all else to standard error",
       true},
      {"--predictions", "",
       "labelled tables: write what is predicted for each row to this CSV file"},
      other_data_flag};
  own.insert(own.end(), search_flags().begin(), search_flags().end());
  CommandLine line = read_command_line(
      argc, argv, own,
      "longspan eval --out DIR: scores a checkpoint on every byte of a part of the data once; "
      "summaries by ROUGE too.");
  const CommandLine typed = line;
  const Json overrides = overrides_of(line);
  const BeamSearch search = taken_search(line);
  const int64_t stride = stride_of(line);
  const std::string part = line.value("--part") != nullptr ? *line.value("--part") : "valid";
  part_index(part);  // throws on another name
  Trained trained = load_run(line, typed, Reads::data);
  const TrainingRun& run = trained.run;
  require(stride <= run.config.length, "--stride", "stride is {}: expected 1 to length, {}", stride,
          run.config.length);
  run.config.of_task->require_search(search, run);
  const std::string predictions = predictions_file(line, run.config);
  const std::unique_ptr<TaskData> task_data = open_task_data(run);
  const int64_t size = task_data->size(part);
  require(size > 0, "--part", "the {} part of {} is empty{}", part, data_name(run.config),
          why_empty(run.config, *task_data));

  const auto start = std::chrono::steady_clock::now();
  const auto [bits, report] = evaluated(*task_data, part);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const bool json = is_on(line, "--json");
  const auto tell = [json](const std::string& text) {
    std::fprintf(json ? stderr : stdout, "%s\n", text.c_str());
  };
  const LossUnit of_run = trained.at.unit.value_or(LossUnit{task_data->unit(), 1});
  const double perplexity = task_data->perplexity(part, bits, of_run);
  const std::string shown = predicts_tokens(run)
                                ? fmt::format(", perplexity {:.4g}{}", perplexity,
                                              of_run.per_target != 1 ? " per token" : "")
                                : "";
  tell(fmt::format("step {}, {} part of {}: {:.4f} bits per {}{} ({} {} in {:.2f} s)",
                   trained.at.step, part, run.config.task, bits, task_data->unit(), shown, size,
                   task_data->items(), seconds));
  if (const std::string how = task_data->protocol(part); !how.empty()) tell("read in " + how);
  require_score(bits, *task_data, trained.at.step);
  Members figures{{"step", trained.at.step},
                  {"part", part},
                  {"overrides", overrides},
                  {"unit", task_data->unit()}};
  if (!trained.remarks.empty()) {
    set(figures, "other_data", Json::Array(trained.remarks.begin(), trained.remarks.end()));
  }
  set(figures, key_of(part, "bpb"), bits);
  if (predicts_tokens(run)) set(figures, key_of(part, "perplexity"), perplexity);
  if (stride > 0) tell(score_windows(run, *task_data, part, stride, figures));
  const TaskData::Report written = task_data->written(part, search);
  for (const TaskData::Report& r : {report, written}) {
    for (const std::string& text : r.lines) tell(text);
    for (const JsonMember& m : r.figures) set(figures, key_of(part, m.name), m.value);
  }
  if (!trained.is_hub) draw_confusions(report, run, part);
  const auto& rows = report.rows.empty() ? written.rows : report.rows;
  require(predictions.empty() || !rows.empty(), "--predictions",
          "nothing is predicted of single rows here{}",
          search.beams == 0 ? ": --beams is 0, and nothing is written" : "");
  if (!predictions.empty()) replace_file(predictions, to_csv(rows), "eval");
  finish_evaluation(trained.is_hub ? "" : run.out, figures, json);
  return 0;
}

}  // namespace longspan
