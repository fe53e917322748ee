// longspan info: what a run, a checkpoint, a folder of the hub or a tensor file holds.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <map>

#include "app/commands.h"
#include "app/run_folder.h"
#include "app/runs/figures.h"
#include "core/error.h"
#include "data/io/files.h"
#include "data/io/json.h"
#include "hub/folder.h"
#include "models/capabilities.h"
#include "train/state.h"
#include "train/step_memory.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

void say(const std::string& text) { std::puts(text.c_str()); }

/// Says what tensors there are by dtype, and with `each` names them.
void show_tensors(const std::string& path, bool each) {
  const TensorHeader header = read_tensor_header(path);
  std::map<DType, std::pair<int64_t, int64_t>> of;  // elements and bytes by dtype
  for (const TensorEntry& e : header.entries) {
    of[e.dtype].first += numel(e.shape);
    of[e.dtype].second += e.end - e.begin;
  }
  std::string text = fmt::format("{}: {} tensors", path, header.entries.size());
  for (const auto& [dtype, sums] : of) {
    text += fmt::format(", {} elements of {} ({})", sums.first, name_of(dtype),
                        bytes_text(sums.second));
  }
  say(text);
  if (!each) return;
  for (const TensorEntry& e : header.entries) {
    say(fmt::format("  {:<48} {}{}", e.name, name_of(e.dtype), to_string(e.shape)));
  }
}

void show_checkpoint(const std::string& path, bool each) {
  show_tensors(path + "/model.safetensors", each);
  if (fs::exists(path + "/optimizer.safetensors")) {
    show_tensors(path + "/optimizer.safetensors", each);
  }
  if (!fs::exists(path + "/state.json")) return;
  const Json state = parse_json(read_file(path + "/state.json", "info"));
  for (const char* name : {"step", "tokens", "seconds", "train_bpb"}) {
    if (const Json* value = state.find(name)) say(fmt::format("  {}: {}", name, to_string(*value)));
  }
}

void show_run(const std::string& path, bool each) {
  const RunFigures f = figures_of(path);
  say(fmt::format("{}: a run of {}, {} parameters", path, f.model, f.parameters));
  const auto value = [&](std::string_view key) -> std::string {
    for (const auto& [name, text] : f.keys) {
      if (name == key) return text;
    }
    return "";
  };
  say(fmt::format("  task {}, data {}, length {}, batch {}, memory {}, optimizer {}", value("task"),
                  value("data"), value("length"), value("batch"), value("model.memory"),
                  value("optimizer.name")));
  say(fmt::format("  step {} of {}{}, {} tokens, {:.1f} s, peak {}", f.steps,
                  f.planned > 0 ? std::to_string(f.planned) : "no fixed number",
                  f.ended ? "" : ", not at its end", f.tokens, f.seconds, bytes_text(f.peak)));
  say(fmt::format("  training {:.4f}, validation {:.4f} bits per {}; best {:.4f} at step {}",
                  f.train, f.valid, f.unit.name, f.best, f.best_step));
  std::string steps;
  for (const int64_t step : saved_steps(path)) steps += fmt::format(" {}", step);
  say("  checkpoints:" + (steps.empty() ? std::string(" none") : steps));
  const std::string newest = newest_checkpoint(path);
  if (!newest.empty()) show_checkpoint(newest, each);
}

void show_hub(const std::string& path, bool each) {
  const HubFolder folder = read_hub_folder(path);
  const auto model = folder.spec()->build(Init{.meta = true});
  say(fmt::format("{}: a checkpoint of the package transformers, {}; here {} with {} parameters",
                  path, to_string(folder.members["model_type"]), folder.type->model,
                  parameter_count(*model)));
  if (!folder.labels.empty()) say(fmt::format("  labels: {}", fmt::join(folder.labels, ", ")));
  for (const JsonMember& m : folder.fields.object()) {
    say(fmt::format("  {}: {}", m.name, to_string(m.value)));
  }
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".safetensors") show_tensors(entry.path().string(), each);
  }
}

}  // namespace

int info_command(int argc, const char* const* argv) {
  const Flag own[] = {{"--tensors", "", "name each tensor with its dtype and shape", true}};
  const CommandLine line = read_own_flags(argc, argv, own,
                                          "longspan info PATH: what a run folder, a checkpoint, a "
                                          "folder of the package transformers or a "
                                          ".safetensors file holds.");
  require(line.settings.empty() && line.others.size() == 1, "info",
          "takes one path; expected longspan info PATH [--tensors]");
  std::string path = line.others[0];
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  const bool each = line.value("--tensors") != nullptr;
  require<IoError>(fs::exists(path), "info", "there is no {}", path);
  if (!fs::is_directory(path)) {
    show_tensors(path, each);
  } else if (is_hub_folder(path)) {
    show_hub(path, each);
  } else if (fs::exists(path + "/model.safetensors")) {
    show_checkpoint(path, each);
  } else {
    require<IoError>(contents_of(path) == FolderContents::run, "info",
                     "{} is no run, no checkpoint and no folder with a config.json", path);
    show_run(path, each);
  }
  return 0;
}

}  // namespace longspan
