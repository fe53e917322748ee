#include "hub/settings.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>

#include "data/io/files.h"
#include "hub/folder.h"
#include "hub/generation.h"

namespace longspan {
namespace {

/// The fields of heads, which a task asks for.
constexpr std::array<std::string_view, 5> head_fields = {"mlm_head", "classes", "tags", "span_head",
                                                         "choice_head"};

/// Returns a setting as the path of a hub folder; empty if it is none.
std::string as_hub_folder(const Setting* setting) {
  if (setting == nullptr || !setting->value.is_string()) return {};
  const std::string& path = setting->value.string();
  std::error_code error;
  return std::filesystem::is_directory(path, error) && is_hub_folder(path) ? path : "";
}

/// Whether labels have names of their own, and not those that the package makes up.
bool are_names(const std::vector<std::string>& labels) {
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] != "LABEL_" + std::to_string(i)) return true;
  }
  return false;
}

/// Returns the name of the model and its fields as settings.
Settings model_of(const HubFolder& folder, bool with_heads) {
  const std::string origin = folder.path + "/config.json";
  Settings settings{{"model.name", Json(folder.type->model), origin}};
  for (const JsonMember& m : folder.fields.object()) {
    if (!with_heads && is_head_field(m.name)) continue;
    settings.push_back({"model." + m.name, m.value, origin});
  }
  const bool labelled = folder.head->task == HubTask::classes || folder.head->task == HubTask::tags;
  if (!with_heads && labelled && are_names(folder.labels)) {
    settings.push_back(
        {"labelled.labels", Json(Json::Array(folder.labels.begin(), folder.labels.end())), origin});
    const bool several = folder.problem_type == "multi_label_classification";
    if (folder.head->task == HubTask::classes) {
      settings.push_back({"labelled.several", Json(several), origin});
    }
  }
  if (folder.head->task != HubTask::sequence) return settings;
  const HubGeneration g = read_hub_generation(folder);
  const auto start = g.start ? g.start : folder.ids.decoder_start;
  if (start) settings.push_back({"labelled.start_id", Json(*start), origin});
  if (g.forced) settings.push_back({"labelled.forced_id", Json(*g.forced), origin});
  settings.push_back({"labelled.force_end", Json(g.force_end), origin});
  const bool is_mbart = folder.type->name == "mbart";
  settings.push_back({"labelled.last_first", Json(is_mbart), origin});
  return settings;
}

}  // namespace

bool is_head_field(std::string_view name) {
  return std::find(head_fields.begin(), head_fields.end(), name) != head_fields.end();
}

std::string hub_folder_of(const Settings& settings) {
  if (const Setting* name = last_setting(settings, "model.name")) return as_hub_folder(name);
  return as_hub_folder(last_setting(settings, "start.from"));
}

Settings with_hub_model(const Settings& settings, std::optional<HubTask> task) {
  const std::string path = hub_folder_of(settings);
  if (path.empty()) return settings;
  const bool model = last_setting(settings, "model.name") != nullptr;
  const HubFolder folder = read_hub_folder(path);
  HubFolder used = model || !task ? folder : with_hub_head(folder, *task);
  const bool drawn = is_on(settings, "start.new_head");
  if (used.head != folder.head || drawn) used.labels.clear();  // those of another head
  Settings all = model_of(used, model);
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

Settings settings_of_folder(const std::string& folder) {
  return model_of(read_hub_folder(folder), true);
}

}  // namespace longspan
