// longspan import and longspan export: hub folders become runs, and runs become hub folders.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "app/commands.h"
#include "app/make_config.h"
#include "app/provenance.h"
#include "app/run_folder.h"
#include "app/tasks/table.h"
#include "core/error.h"
#include "data/io/files.h"
#include "data/tokenizers/hub_tokenizer.h"
#include "hub/export.h"
#include "train/state.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

/// Where a run keeps what it needs of the folder that it was imported from.
/// The tensors that the model does not have, which an export of the same class writes again.
constexpr const char* others_file = "/others.safetensors";

/// The files of a folder that are not its weights: what describes the model and its tokenizer.
bool is_kept(const fs::path& file) {
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt"}) {
    if (file.filename() == name) return true;
  }
  return file.extension() == ".model";
}

void copy_files(const std::string& from, const std::string& to, bool (*wanted)(const fs::path&)) {
  constexpr int64_t longest = int64_t{1} << 30;
  make_folders(to, "import");
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    if (!entry.is_regular_file() || !wanted(entry.path())) continue;
    const std::string text = read_file(entry.path().string(), "import", longest);
    replace_file(to + "/" + entry.path().filename().string(), text, "import");
  }
}

/// Returns a list of tensors in a few words.
std::string few(const std::vector<std::string>& names) {
  constexpr size_t shown = 6;
  if (names.empty()) return "nothing";
  const std::vector<std::string> first(
      names.begin(), names.begin() + static_cast<long>(std::min(shown, names.size())));
  const std::string text = fmt::format("{}", fmt::join(first, ", "));
  return names.size() > shown ? fmt::format("{} and {} more", text, names.size() - shown) : text;
}

/// Says in three lines what was read, what is new and what was left out.
void report(const HubFolder& folder, const std::string& path, const HubTensors& tensors) {
  std::puts(fmt::format("read: {}, a {} ({}{}), {} tensors: the model {}", path, folder.type->name,
                        folder.type->class_name, folder.head->name, tensors.read,
                        folder.type->model)
                .c_str());
  std::puts(fmt::format("new: {}", few(tensors.drawn)).c_str());
  std::string left = few(tensors.left_out);
  if (!folder.head->without.empty()) left = fmt::format("{} ({})", folder.head->without, left);
  std::puts(fmt::format("left out: {}", left).c_str());
}

/// Returns the tensors of the folder that a run was imported from which the model does not have, if
/// the run is written as the same class.
TensorList others_of(const std::string& out, const HubFolder& folder) {
  const std::string path = out + kept_folder + others_file;
  if (!fs::exists(path)) return {};
  const HubFolder origin = read_hub_folder(out + kept_folder);
  const bool same = origin.type == folder.type && origin.head == folder.head;
  return same ? read_tensors(path) : TensorList{};
}

/// Returns the type that a folder names, empty if it is none of those here.
std::string type_named_in(const std::string& folder) {
  const Json members = read_pretrained_json(folder);
  const Json* type = members.find("model_type");
  return type != nullptr && type->is_string() ? type->string() : "";
}

/// Returns the same without the member of special tokens that a config.json has for generation.
HubDescription description_of(const std::string& out, const RunConfig& config,
                              const CommandLine& line) {
  HubDescription d;
  const std::string origin = hub_origin_of(out);
  if (!origin.empty()) {
    d.type = type_named_in(origin);
    const HubFolder folder = read_hub_folder(origin);
    d.ids = folder.ids;
    d.origin = read_pretrained_json(origin);
    d.labels = folder.labels;
    d.problem_type = folder.problem_type;
    d.architecture = fmt::format("{}{}", folder.type->class_name, folder.head->name);
  }
  if (const std::string* type = line.value("--type")) d.type = *type;
  d.task = config.of_task->hub_task();
  const bool number = config.of_task->problem_type() == "regression";
  if (number && (d.problem_type.empty() ? d.labels.size() != 1 : d.problem_type != "regression")) {
    d.problem_type = "regression";
    d.labels.clear();
  }
  if (const std::vector<std::string> names = config.of_task->label_names(); !names.empty()) {
    // A folder without problem_type stays without it if its labels and the default type are
    // unchanged.
    const bool as_it_was = d.problem_type.empty() && d.labels == names;
    const std::string problem = config.of_task->problem_type();
    if (!as_it_was || problem != "single_label_classification") d.problem_type = problem;
    d.labels = names;
  }
  return d;
}

/// Returns the tokenizer of a run over texts; null if it has none, or came from a folder without.
/// Throws if it cannot be opened.
std::unique_ptr<const Tokenizer> tokenizer_of(const RunConfig& config, const std::string& origin) {
  const std::string& name = config.tokenizer;
  if (name.empty() && !origin.empty()) return nullptr;
  std::unique_ptr<const Tokenizer> text = config.of_task->text_tokenizer(name);
  if (text != nullptr || !config.of_task->takes_tokenizer()) return text;
  return open_tokenizer(name.empty() ? "bytes" : name);
}

/// Whether a folder has a tokenizer with these ids.
bool has_ids_of(const std::string& folder, const Tokenizer& tokenizer) {
  try {
    return open_tokenizer(folder)->hash() == tokenizer.hash();
  } catch (const Error&) {
    return false;
  }
}

/// Writes a tokenizer beside a config.json: the files of its folder, if they define the same
/// tokenizer there, else new files, if its kind has any.
void write_tokenizer(const Tokenizer& tokenizer, const RunConfig& config, const std::string& to) {
  if (fs::is_directory(config.tokenizer)) {
    copy_files(config.tokenizer, to, [](const fs::path& file) {
      return is_kept(file) && file.filename() != "config.json" &&
             file.filename() != "generation_config.json";
    });
    if (has_ids_of(to, tokenizer)) return;
  }
  const bool rows = config.of_task->set().kind == DataKind::tables;
  if (rows && dynamic_cast<const HubTokenizer*>(&tokenizer) == nullptr) {
    say("export: no tokenizer is written: a token comes before each text, and its files would not "
        "say so");
    return;
  }
  try {
    write_hub_tokenizer(tokenizer, to);
  } catch (const ValueError& error) {
    say(fmt::format("export: no tokenizer is written: {}", error.what()));
  }
}

/// Says which options of a task a folder does not hold, where they are not the usual ones.
void say_what_stays(const RunConfig& config) {
  const Json task = to_json(*config.of_task), usual = to_json(*make_task(config.task));
  for (const char* name : {"no_answer", "threshold"}) {
    const Json* labelled = task.find("labelled");
    const Json* value = labelled != nullptr ? labelled->find(name) : nullptr;
    if (value == nullptr || *value == usual["labelled"][name]) continue;
    say(
        fmt::format("export: a folder does not hold labelled.{0}; use it with --set "
                    "labelled.{0}={1}",
                    name, to_string(*value)));
  }
}

}  // namespace

int import_command(int argc, const char* const* argv) {
  const Flag own[] = {{"--out", "", "the run folder"}};
  CommandLine line = read_command_line(
      argc, argv, own,
      "longspan import FOLDER --out DIR: makes a run of a checkpoint of the package transformers, "
      "a folder with config.json and model.safetensors, and its tokenizer. The run has step 0 and "
      "no data: eval wants --data, and training starts with --from.",
      1);
  require(line.others.size() == 1, "import", "no folder given; expected longspan import FOLDER");
  const std::string from = line.others[0];
  const std::string* const out = line.value("--out");
  require(out != nullptr && !out->empty(), "import", "no run folder given; expected --out DIR");
  require<IoError>(kind_of_path(from, "import") == PathKind::folder, "import",
                   "there is no folder {}", from);
  const HubFolder folder = read_hub_folder(from);
  require_empty_folder(*out, "import");
  Settings settings = settings_of_hub(from);
  settings.insert(settings.end(), line.settings.begin(), line.settings.end());
  RunConfig config = make_config(settings);
  check_hub_shapes(folder, *config.model);
  if (last_setting(line.settings, "task") != nullptr) {
    const auto blank = config.model->build(Init{.meta = true});
    require(config.of_task->suits(*blank), "--task",
            "{} has no head for {}, and an import makes none: leave it out, and train with --from "
            "{} --task {}",
            from, config.task, from, config.task);
  }
  HubTensors tensors;
  const std::unique_ptr<LanguageModel> model = build_loaded(folder, *config.model, Init{}, tensors);

  // A tokenizer that cannot be used is refused before anything is written.
  if (!config.tokenizer.empty()) {
    const int64_t tokens = open_tokenizer(config.tokenizer)->vocabulary();
    require(tokens <= model->vocab(), "import",
            "{} has {} tokens, more than the {} of the model; expected another --tokenizer",
            config.tokenizer, tokens, model->vocab());
  }
  copy_files(from, *out + kept_folder, is_kept);
  const std::string tokenizer = tokenizer_path(config.tokenizer);
  std::error_code missing;
  if (fs::equivalent(tokenizer, from, missing))
    config.tokenizer.replace(0, tokenizer.size(), *out + kept_folder);
  Members values = Position{}.values();
  values.emplace_back("imported", from);
  values.emplace_back("config", to_json(config));
  write_state(*out, 0, named_state(*model), {}, values);
  replace_file(*out + "/config.toml", to_toml(to_json(config)), "import");
  const TensorList others = hub_left_out(folder, tensors);
  if (!others.empty()) write_tensors(*out + kept_folder + others_file, others);
  report(folder, from, tensors);
  return 0;
}

int export_command(int argc, const char* const* argv) {
  const Flag own[] = {{"--out", "", "the folder to write, which must be empty or missing"},
                      {"--step", "", "step of the checkpoint, or best; without it the newest"},
                      {"--type", "",
                       "the model_type of config.json; without it that of the folder that the run "
                       "was imported from, or the first that fits"},
                      other_data_flag};
  CommandLine line = read_command_line(
      argc, argv, own,
      "longspan export RUN --out FOLDER: writes a checkpoint as a folder that the package "
      "transformers reads: config.json, model.safetensors and the tokenizer.",
      1);
  require(line.others.size() == 1, "export", "no run given; expected longspan export RUN");
  const std::string* const to = line.value("--out");
  require(to != nullptr && !to->empty(), "export", "no folder given; expected --out FOLDER");
  require_empty_folder(*to, "export");
  const std::string& out = line.others[0];
  const std::string* const step = line.value("--step");
  const std::string checkpoint = choose_checkpoint(out, step);
  require<IoError>(!checkpoint.empty(), "export",
                   "{} holds no checkpoint; expected the folder of a run", out);
  RunConfig config = make_config(settings_of_run(out));
  const std::string name = config.model_name.substr(0, config.model_name.find(':'));
  const HubFolder folder =
      hub_folder_for(name, to_json(*config.model), description_of(out, config, line));
  const std::unique_ptr<LanguageModel> model = config.model->build(Init{.blank = true});
  const TensorList state = named_state(*model);
  Json values;
  const std::string used =
      read_checkpoint(out, checkpoint, step != nullptr,
                      [&](const std::string& path) { values = read_parameters(path, state); });
  if (config.optimizer.average > 0) read_average(used, named_parameters(*model));
  require_finite(out, used, state);
  const bool other_data = is_on(line, other_data_flag.name);
  for (const std::string& remark :
       compare_inputs(Before(values, out, used), config, Reads::tokens, "export", other_data)) {
    say(remark);
  }
  const auto tokenizer = tokenizer_of(config, hub_origin_of(out));
  write_hub_folder(folder, *model, *to, others_of(out, folder));
  if (tokenizer != nullptr) write_tokenizer(*tokenizer, config, *to);
  say_what_stays(config);
  std::puts(fmt::format("{}: a {} ({}{}), step {} of {}", *to, folder.type->name,
                        folder.type->class_name, folder.head->name, values["step"].integer(), out)
                .c_str());
  return 0;
}

}  // namespace longspan
