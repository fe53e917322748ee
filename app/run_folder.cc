#include "app/run_folder.h"

#include <stdio.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "core/error.h"
#include "data/io/files.h"
#include "hub/folder.h"
#include "train/config.h"
#include "train/log.h"
#include "train/plot.h"
#include "train/state.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

constexpr int64_t max_rows_bytes = int64_t{1} << 32;

// Paths that cannot be accessed count as missing or as of another kind.
bool exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}
bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}
bool is_empty_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && fs::file_size(path, error) == 0 && !error;
}

/// Returns the entries of a folder without our temporary files, which are swept.
std::vector<fs::path> entries_of(const std::string& folder) {
  std::vector<fs::path> all;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (!is_temporary_name(entry->path().filename().string())) all.push_back(entry->path());
  }
  require<IoError>(!error, "--out", "cannot look into {}: {}", folder, error_text(error.value()));
  std::sort(all.begin(), all.end());
  return all;
}

/// Whether the file has the tables of a RunConfig.
bool is_run_config(const std::string& path) {
  try {
    const Settings settings = read_toml(path);
    constexpr std::string_view keys[] = {"task",       "length",         "batch",
                                         "model.name", "optimizer.name", "schedule.name"};
    return std::all_of(std::begin(keys), std::end(keys), [&](std::string_view key) {
      return last_setting(settings, key) != nullptr;
    });
  } catch (const Error&) {
    return false;
  }
}

bool has_checkpoint(const std::string& run) {
  for (const int64_t step : saved_steps(run)) {
    const std::string path = checkpoint_path(run, step);
    if (exists(path + "/state.json") && exists(path + "/model.safetensors") &&
        exists(path + "/optimizer.safetensors")) {
      return true;
    }
  }
  return false;
}

bool is_run(const std::string& folder) {
  const bool began = exists(folder + "/metrics.jsonl") || exists(folder + "/checkpoints");
  return (began && is_run_config(folder + "/config.toml")) || has_checkpoint(folder);
}

/// Whether a path contains nothing to lose when a run begins: an empty file of figures, or an empty
/// folder of ours.
bool is_bare(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name == "metrics.jsonl") return is_empty_file(path);
  if (name != "checkpoints" && name != "pictures") return false;
  return is_folder(path) && entries_of(path.string()).empty();
}

bool holds_own_pictures(const fs::path& path) {
  if (path.filename() != "pictures" || !is_folder(path)) return false;
  const std::vector<fs::path> pictures = entries_of(path.string());
  return std::all_of(pictures.begin(), pictures.end(),
                     [](const fs::path& picture) { return is_own_picture(picture.string()); });
}

/// Copies a file of a run if it exists.
void copy_part(const std::string& name, const std::string& from, const std::string& to) {
  const std::string path = from + "/" + name;
  if (!exists(path)) return;
  replace_file(to + "/" + name, read_file(path, "--step", max_rows_bytes), "--step");
}

/// Moves what was written after a step in samples/.
void move_samples(const std::string& run, const std::string& to, int64_t step) {
  if (!exists(run + "/samples")) return;
  for (const fs::path& path : entries_of(run + "/samples")) {
    const std::string name = path.filename().string();
    constexpr std::string_view begin = "step-";
    if (!name.starts_with(begin) || std::atoll(name.c_str() + begin.size()) <= step) continue;
    make_folders(to + "/samples", "--step");
    ::rename(path.c_str(), (to + "/samples/" + name).c_str());
  }
}

bool has_rows_beyond(const std::string& run, int64_t step) {
  const std::string path = run + "/metrics.jsonl";
  if (!exists(path)) return false;
  const std::vector<Json> rows = read_rows(path);
  return std::any_of(rows.begin(), rows.end(), [&](const Json& row) {
    const Json* at = row.find("step");
    return at != nullptr && at->is_integer() && at->integer() > step;
  });
}

}  // namespace

FolderContents contents_of(const std::string& folder, std::string* other) {
  if (!exists(folder)) return FolderContents::nothing;
  require<IoError>(fs::is_directory(folder), "--out", "{} is a file; expected a folder", folder);
  FolderContents all = FolderContents::nothing;
  for (const fs::path& path : entries_of(folder)) {
    if (is_bare(path)) continue;
    if (holds_own_pictures(path)) {
      all = FolderContents::pictures;
      continue;
    }
    if (is_run(folder)) return FolderContents::run;
    if (other != nullptr) *other = path.filename().string();
    return FolderContents::others;
  }
  return all;
}

void require_own_folder(const std::string& folder, std::string_view op) {
  std::string other;
  require(contents_of(folder, &other) != FolderContents::others, op,
          "{} is not empty and holds no run of longspan: it contains \"{}\"; choose a folder for "
          "--out that is new or empty",
          folder, other);
}

void require_empty_folder(const std::string& folder, std::string_view op) {
  if (!exists(folder)) return;
  require<IoError>(fs::is_directory(folder), op, "{} is a file; expected a folder", folder);
  const std::vector<fs::path> entries = entries_of(folder);
  require(entries.empty(), op,
          "{} is not empty: it contains \"{}\", and nothing is replaced; choose a folder for --out "
          "that is new or empty",
          folder, entries.empty() ? "" : entries[0].filename().string());
}

std::string hub_origin_of(const std::string& run) {
  namespace fs = std::filesystem;
  if (is_hub_folder(run)) return run;
  if (fs::exists(run + kept_folder + "/config.json")) return run + kept_folder;
  if (!fs::exists(run + "/config.toml")) return {};
  const Settings settings = read_toml(run + "/config.toml");
  const Setting* start = last_setting(settings, "start.from");
  if (start == nullptr || !start->value.is_string() || start->value.string().empty()) return {};
  const std::string& from = start->value.string();
  const bool is_run = fs::exists(from + "/config.toml");
  const std::string folder = is_run ? from + kept_folder : from;
  return fs::exists(folder + "/config.json") ? folder : "";
}

void require_no_run(const std::string& folder) {
  const std::string checkpoint = newest_checkpoint(folder);
  require(checkpoint.empty(), "train",
          "{} holds a run already ({}): add --resume to go on with it, or choose another --out",
          folder, checkpoint);
  if (contents_of(folder) != FolderContents::run) return;
  const std::string rows = folder + "/metrics.jsonl";
  const bool figures = (exists(rows) && !is_empty_file(rows)) || exists(folder + "/summary.json");
  require(!figures, "train",
          "{} holds the figures of a run that has no checkpoint: add --resume to start it from the "
          "beginning, which replaces them, or choose another --out",
          folder);
}

void BestValidation::add(int64_t at, double found) {
  ++since;
  if (!std::isfinite(found) || (step >= 0 && found >= score)) return;
  step = at;
  score = found;
  since = 0;
}

Members BestValidation::values() const {
  return {{"best", step}, {"score", score}, {"from", from}, {"before", before}};
}

BestValidation best_validation(const std::string& run, bool saved, int64_t from) {
  BestValidation best{.from = from};
  const std::string path = run + "/metrics.jsonl";
  if (!exists(path)) return best;
  const std::vector<int64_t> steps = saved ? saved_steps(run) : std::vector<int64_t>{};
  for (const Json& row : read_rows(path)) {
    const Json *score = row.find("score"), *at = row.find("step");
    if (score == nullptr) score = row.find("valid_bpb");
    if (score == nullptr || at == nullptr || !at->is_integer() || at->integer() <= from) continue;
    if (saved && std::find(steps.begin(), steps.end(), at->integer()) == steps.end()) continue;
    best.add(at->integer(), score->is_number() ? score->number() : std::nan(""));
  }
  return best;
}

BestValidation continued_validations(const std::string& run, const Json* kept) {
  if (kept == nullptr) return best_validation(run, false, -1);
  BestValidation best = best_validation(run, false, (*kept)["from"].integer());
  best.before = (*kept)["before"].integer();
  const int64_t step = (*kept)["best"].integer();
  const double score = (*kept)["score"].number();
  if (step >= 0 && (best.step < 0 || score < best.score)) {  // its row has been lost
    best.step = step;
    best.score = score;
  }
  return best;
}

std::string choose_checkpoint(const std::string& run, const std::string* step) {
  if (step == nullptr) return newest_checkpoint(run);
  if (*step == "best") {
    const std::string newest = newest_checkpoint(run);
    const Json values = newest.empty() ? Json() : read_values(newest);
    const Json* kept = values.find("validations");
    const int64_t from = kept == nullptr ? -1 : (*kept)["from"].integer();
    const int64_t best = best_validation(run, true, from).step;
    require(best >= 0, "--step",
            "no checkpoint in {} has a validation of its own step; train with --keep-best, or name "
            "a step",
            run);
    return checkpoint_path(run, best);
  }
  std::string known;
  for (const int64_t s : saved_steps(run)) {
    if (std::to_string(s) == *step) return checkpoint_path(run, s);
    known += (known.empty() ? "" : ", ") + std::to_string(s);
  }
  fail("--step", "got {}; {} holds {}", *step, run,
       known.empty() ? "no checkpoint" : "the steps " + known);
}

std::string read_checkpoint(const std::string& run, std::string checkpoint, bool chosen,
                            const std::function<void(const std::string& path)>& read) {
  while (true) {
    try {
      read(checkpoint);
      return checkpoint;
    } catch (const IoError&) {
      if (chosen || is_folder(checkpoint)) throw;
      const std::string newest = newest_checkpoint(run);
      if (newest.empty() || newest == checkpoint) throw;
      checkpoint = newest;
    }
  }
}

void require_finite(const std::string& run, const std::string& checkpoint,
                    const TensorList& weights, const TensorList& optimizer) {
  std::string name = first_nonfinite(weights);
  if (name.empty()) name = first_nonfinite(optimizer);
  if (name.empty()) return;
  std::string remedy = "no checkpoint before it is finite";
  std::vector<int64_t> steps = saved_steps(run);
  while (!steps.empty()) {
    const std::string path = checkpoint_path(run, steps.back());
    steps.pop_back();
    if (std::pair(path.size(), path) >= std::pair(checkpoint.size(), checkpoint)) continue;
    try {
      read_parameters(path, weights);
    } catch (const Error&) {
      continue;
    }
    if (!first_nonfinite(weights).empty()) continue;
    const std::string step = path.substr(path.rfind('-') + 1);
    remedy = fmt::format("the newest finite one before it is of step {}: --step {}", step, step);
    break;
  }
  fail<IoError>("state", "{}: \"{}\" holds NaN or infinity, as the run had diverged; {}",
                checkpoint, name, remedy);
}

std::string set_aside(const std::string& run, int64_t step) {
  std::vector<int64_t> beyond = saved_steps(run);
  std::erase_if(beyond, [&](int64_t s) { return s <= step; });
  if (beyond.empty() && !has_rows_beyond(run, step)) return {};
  const std::string first = fmt::format("{}/beyond-step-{}", run, step);
  std::string to = first;
  for (int n = 2; exists(to); ++n) to = fmt::format("{}-{}", first, n);
  make_folders(to + "/checkpoints", "--step");
  for (const char* name : {"config.toml", "metrics.jsonl", "summary.json"}) {
    copy_part(name, run, to);
  }
  move_samples(run, to, step);
  // The newest checkpoint moves first, so that an interruption leaves a consistent run.
  for (; !beyond.empty(); beyond.pop_back()) {
    const std::string from = checkpoint_path(run, beyond.back()),
                      path = checkpoint_path(to, beyond.back());
    require<IoError>(::rename(from.c_str(), path.c_str()) == 0, "--step",
                     "cannot move {} to {}: {}", from, path, error_text());
    sync_folder(to + "/checkpoints", "--step");
    sync_folder(run + "/checkpoints", "--step");
  }
  return to;
}

Checkpoints::Checkpoints(std::string run, int64_t keep, TensorList weights,
                         std::function<TensorList()> progress, int64_t resumed)
    : run_(std::move(run)),
      keep_(keep),
      weights_(std::move(weights)),
      progress_(std::move(progress)),
      saved_(resumed) {}

void Checkpoints::save(int64_t step, const Members& values, double rate,
                       const TensorList& overflowing) {
  if (saved_ == step) return;
  try {
    write_state(run_, step, weights_, progress_(), values, 0, overflowing);
  } catch (const NonfiniteState& e) {
    diverged(e.what(), rate);
  }
  saved_ = step;
}

void Checkpoints::confirm(int64_t step, std::vector<int64_t> spared) {
  if (saved_ != step || confirmed_ == step) return;
  confirmed_ = step;
  spared.push_back(step);
  prune_checkpoints(run_, static_cast<int>(keep_), spared);
}

int64_t Checkpoints::last_good() const {
  if (confirmed_ >= 0) return confirmed_;
  int64_t good = -1;  // from an earlier start of the run: the one before the checkpoint in question
  for (const int64_t step : saved_steps(run_)) {
    if (step < saved_) good = step;
  }
  return good;
}

void Checkpoints::diverged(const std::string& what, double rate) const {
  const int64_t good = last_good();
  std::string remedy = "no checkpoint has been written: start again with";
  if (good >= 0) {
    remedy =
        fmt::format("its last good checkpoint is {}: go on from it with --resume --step {} and",
                    checkpoint_path(run_, good), good);
  } else if (saved_ >= 0) {
    remedy = fmt::format("{} leads there, and none is before it: start again in another --out with",
                         checkpoint_path(run_, saved_));
  }
  fail("train",
       "the run has diverged: {}\n{} a lower --lr (the rate was {:.3g}) or --set "
       "optimizer.clip=NORM",
       what, remedy, rate);
}

}  // namespace longspan
