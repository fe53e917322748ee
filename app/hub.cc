#include "app/hub.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "app/make_config.h"
#include "app/tasks/table.h"
#include "core/error.h"
#include "data/io/files.h"
#include "models/convert.h"

namespace longspan {
namespace {

/// The fields of heads, which a task asks for.
constexpr std::array<std::string_view, 6> head_fields = {"mlm_head",  "classes",    "tags",
                                                         "span_head", "span_block", "choice_head"};

bool is_head_field(std::string_view name) {
  return std::find(head_fields.begin(), head_fields.end(), name) != head_fields.end();
}

/// Returns a setting as the path of a hub folder; empty if it is none.
std::string as_hub_folder(const Setting* setting) {
  if (setting == nullptr || !setting->value.is_string()) return {};
  const std::string& path = setting->value.string();
  std::error_code error;
  return std::filesystem::is_directory(path, error) && is_hub_folder(path) ? path : "";
}

/// Returns the name of the model and its fields as settings.
Settings model_of(const HubFolder& folder, bool with_heads) {
  const std::string origin = folder.path + "/config.json";
  Settings settings{{"model.name", Json(folder.type->model), origin}};
  for (const JsonMember& m : folder.fields.object()) {
    if (!with_heads && is_head_field(m.name)) continue;
    settings.push_back({"model." + m.name, m.value, origin});
  }
  return settings;
}

}  // namespace

std::string hub_folder_of(const Settings& settings) {
  if (const Setting* name = last_setting(settings, "model.name")) return as_hub_folder(name);
  return as_hub_folder(last_setting(settings, "start.from"));
}

Settings with_hub_model(const Settings& settings) {
  const std::string path = hub_folder_of(settings);
  if (path.empty()) return settings;
  const bool model = last_setting(settings, "model.name") != nullptr;
  Settings all = model_of(read_hub_folder(path), model);
  std::copy_if(settings.begin(), settings.end(), std::back_inserter(all),
               [](const Setting& s) { return s.key != "model.name"; });
  return all;
}

bool has_tokenizer(const std::string& folder) {
  namespace fs = std::filesystem;
  for (const char* file : {"tokenizer.json", "vocab.txt", "vocab.json"}) {
    if (fs::exists(folder + "/" + file)) return true;
  }
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".model") return true;
  }
  return false;
}

Started start_from_hub(const TrainingRun& run) {
  const RunConfig::Start& start = run.config.start;
  const HubFolder folder = read_hub_folder(start.from);
  const std::unique_ptr<ModelSpec> spec = folder.spec();
  check_hub_shapes(folder, *spec);
  const std::unique_ptr<LanguageModel> other = spec->build(Init{.device = run.device});
  load_hub_weights(folder, *other);
  const Json fields = to_json(*run.config.model);
  const Json* offset = fields.find("position_offset");
  try {
    return {0, start_from(*run.model, *other, offset != nullptr ? offset->integer() : 0,
                          start.positions)};
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& e) {
    fail("--from", "{} cannot start from {}, a {}: {}", run.config.model_name, start.from,
         folder.type->name, e.what());
  }
}

Settings settings_of_hub(const std::string& path) {
  const HubFolder folder = read_hub_folder(path);
  Settings settings = model_of(folder, true);
  settings = with_task_of_model(std::move(settings));
  if (has_tokenizer(path)) {
    const Setting* task = last_setting(settings, "task");
    const std::unique_ptr<Task> of_task =
        make_task(task != nullptr ? task->value.string() : "bytes");
    if (of_task->takes_tokenizer()) settings.push_back({"tokenizer", Json(path), path});
  }
  return settings;
}

HubTensors read_hub_parameters(const std::string& path, TrainingRun& run) {
  const HubFolder folder = read_hub_folder(path);
  check_hub_shapes(folder, *run.config.model);
  return load_hub_weights(folder, *run.model);
}

}  // namespace longspan
