#include "app/make_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "app/tasks/table.h"
#include "core/error.h"
#include "data/corpus.h"
#include "data/io/files.h"
#include "hub/folder.h"
#include "hub/settings.h"
#include "nn/axial.h"
#include "train/config.h"

namespace longspan {
namespace {

constexpr std::string_view position_fields[] = {"n_max", "source_n_max", "n_positions",
                                                "position_shape"};

/// Returns the position fields of a model that starts from random parameters and whose number of
/// positions the user has not set.
Settings free_positions_of(RunConfig& c, const Settings& settings) {
  if (!c.start.from.empty()) return {};  // positions must match those of the other run
  Settings fields;
  const Json values = to_json(*c.model);
  for (const std::string_view name : position_fields) {
    const bool count = name != "position_shape";
    if (count && last_setting(settings, fmt::format("model.{}", name)) != nullptr) return {};
    const Json* value = values.find(name);
    if (value != nullptr) fields.push_back({std::string(name), *value, "the model"});
  }
  return fields;
}

/// Throws if the user has chosen axes that do not fit the length.
void require_axes(RunConfig& c, const Settings& settings) {
  if (last_setting(settings, "model.position_shape") == nullptr) return;
  const Json values = to_json(*c.model);
  std::vector<int64_t> shape;
  int64_t places = 1;
  for (const Json& n : values["position_shape"].array()) {
    shape.push_back(n.integer());
    if (__builtin_mul_overflow(places, std::max<int64_t>(n.integer(), 0), &places)) return;
  }
  if (shape.empty() || places >= c.length) return;
  const std::vector<int64_t> longer = longer_axial_shape(shape, c.length);
  fail("model.position_shape",
       "got {}, which has {} positions, and --length {} needs more: expected others, such as {}",
       fmt::join(shape.begin(), shape.end(), ","), places, c.length,
       fmt::join(longer.begin(), longer.end(), ","));
}

/// Returns RunConfig::open_field. An empty list leaves the field open.
std::optional<Setting> open_field_of(RunConfig& c, const Settings& settings) {
  const Json before = to_json(*c.model);
  const std::string field(c.model->settle_length(c.length));
  if (field.empty()) return {};
  const Json& value = before[field];
  const Setting open{field, value, "the model"};
  const bool set = last_setting(settings, "model." + field) != nullptr;
  if (!set || value == Json(Json::Array{})) return open;
  set_fields(*c.model, {open});
  return {};
}

/// Sets what the model's preset says about training.
void set_defaults(RunConfig& c) {
  const TrainingDefaults d = c.model->defaults();
  c.length = d.length;
  c.batch = d.batch;
  c.optimizer.lr = d.lr;
  c.optimizer.beta2 = d.beta2;
  c.optimizer.clip = d.clip;
  c.optimizer.weight_decay = d.weight_decay;
  // Papers use decoupled weight decay with Adam; added to its gradient, it would outweigh the loss.
  if (d.weight_decay > 0) c.optimizer.name = OptimizerName::adamw;
  c.optimizer.step_clip = d.step_clip;
  if (d.step_clip > 0) c.optimizer.name = OptimizerName::adagrad;
  c.optimizer.update_period = d.update_period;
  c.optimizer.update_from = d.update_from;
  c.schedule.warmup = d.warmup;
  c.schedule.floor = d.lr_floor;
}

/// How the package transformers fine-tunes unless told otherwise: AdamW, and a rate that falls to
/// 0.
void set_fine_tuning(RunConfig& c) {
  c.batch = 8;
  c.optimizer = {};
  c.optimizer.name = OptimizerName::adamw;
  c.optimizer.lr = 5e-5;
  c.optimizer.clip = 1;
  c.schedule = {};
  c.schedule.name = ScheduleName::linear;
  c.schedule.floor = 0;
}

std::vector<std::string> key_names(Task& task) {
  std::vector<std::string> names;
  for (const Key& key : keys_of(task)) names.push_back(key.name);
  return names;
}

/// Returns the names of the tasks that have options, by the keys of these.
std::map<std::string, std::vector<std::string>, std::less<>> tasks_by_key() {
  std::map<std::string, std::vector<std::string>, std::less<>> all;
  for (const TaskEntry& entry : tasks()) {
    for (const std::string& key : key_names(*entry.make(entry.set))) {
      all[key].emplace_back(entry.set.id);
    }
  }
  return all;
}

/// Returns the settings without the options of tasks other than the one of `c`: files of earlier
/// versions have the options of all tasks. Throws ValueError if one was typed.
Settings of_task(const Settings& settings, RunConfig& c) {
  constexpr size_t named = 4;
  const auto owners = tasks_by_key();
  Settings kept = settings;
  std::erase_if(kept, [&](const Setting& s) {
    const auto at = owners.find(s.key);
    if (at == owners.end()) return false;
    std::vector<std::string> names = at->second;
    if (std::find(names.begin(), names.end(), c.task) != names.end()) return false;
    if (names.size() > named) names.resize(named);
    require(!s.text, s.key, "{}: it is an option of --task {}, and the task is {}: leave it out",
            s.origin, fmt::join(names, ", "), c.task);
    return true;
  });
  return kept;
}

/// Throws ValueError if settings contradict each other or count more than 64 bits hold.
void require_consistent(const RunConfig& c) {
  int64_t tokens = c.batch;
  const bool countable = !__builtin_mul_overflow(tokens, c.length, &tokens) &&
                         !__builtin_mul_overflow(tokens, c.accumulate, &tokens) &&
                         !__builtin_mul_overflow(tokens, std::max<int64_t>(c.steps, 1), &tokens);
  require(countable, "steps",
          "{} steps of {} batches of {} segments of {} tokens are more tokens than 64 bits count; "
          "choose fewer",
          c.steps, c.accumulate, c.batch, c.length);
  require(c.threads >= 0 && c.threads <= 1024, "threads",
          "got {}; expected 1 to 1024, or 0 for one on every processor", c.threads);
  const bool openblas = c.matmul_library == MatmulLibrary::openblas;
  require(!openblas || c.matmul_precision == MatmulPrecision::f32, "--products",
          "openblas multiplies f32 as it is, and --precision asks for operands rounded to {}; "
          "leave one of them out",
          value_names<MatmulPrecision>[static_cast<size_t>(c.matmul_precision)]);
  require(!openblas || c.device == "cpu", "--products",
          "openblas is for the CPU, and --device is {}; leave one of them out", c.device);
  const bool validates = c.eval_every > 0 || (!c.keep_best && c.patience == 0);
  require(validates, c.keep_best ? "keep_best" : "patience",
          "the run is validated at its end alone; say how often with --eval-every N");
  require(!c.anomaly || !c.graph, "anomaly",
          "got true, and graph too: what a device records as a whole cannot be looked at op by op; "
          "expected one of them");
}

/// Returns f(), whose error is about a setting: one of a file names it and the line.
auto said_of(const Setting* setting, auto&& f) {
  try {
    return f();
  } catch (const ValueError& e) {
    if (setting == nullptr || setting->text) throw;
    fail("config", "{} ({}): {}", setting->key, setting->origin, e.what());
  }
}

}  // namespace

namespace {

/// Returns the run that settings take their model from: that of --from, without a --model. Throws
/// IoError if there is no such folder.
std::string run_of_model(const Settings& settings) {
  if (last_setting(settings, "model.name") != nullptr || !hub_folder_of(settings).empty())
    return {};
  const Setting* from = last_setting(settings, "start.from");
  if (from == nullptr || !from->value.is_string() || from->value.string().empty()) return {};
  const std::string& path = from->value.string();
  require<IoError>(kind_of_path(path, "--from") == PathKind::folder, "--from",
                   "there is no folder {}; expected a run, or a folder of the package transformers "
                   "on this disk: nothing is downloaded",
                   path);
  require<IoError>(kind_of_path(path + "/config.toml", "--from") == PathKind::file, "--from",
                   "{} is no run and no folder of the package transformers: it has neither "
                   "config.toml nor config.json",
                   path);
  return path;
}

/// Returns settings with the model and the tokenizer of a run before all others. With `head`, the
/// head that the task needs, the run's own head settings are left out; its labels are kept if it
/// had this head.
Settings with_model_of_run(const Settings& settings, const std::string& run,
                           std::optional<HubTask> head) {
  const Settings there = read_toml(run + "/config.toml");
  const Setting* task = last_setting(there, "task");
  const bool known = task != nullptr && task->value.is_string();
  const bool headed = head.has_value();
  const bool drawn = is_on(settings, "start.new_head");
  const bool same_head =
      headed && known && !drawn && make_task(task->value.string())->hub_task() == head;
  Settings all;
  for (const Setting& s : there) {
    const bool of_model = s.key.starts_with("model.");
    const bool labels = same_head && (s.key == "labelled.labels" || s.key == "labelled.several");
    if (!of_model && !labels && s.key != "tokenizer") continue;
    if (of_model && headed && is_head_field(s.key.substr(6))) continue;
    all.push_back(s);
  }
  all.insert(all.end(), settings.begin(), settings.end());
  return all;
}

}  // namespace

RunConfig make_config(const Settings& given) {
  const Setting* asked = last_setting(given, "task");
  const bool named = asked != nullptr && asked->value.is_string();
  const std::unique_ptr<Task> first =
      named ? said_of(asked, [&] { return make_task(asked->value.string()); }) : nullptr;
  const std::optional<HubTask> head = first != nullptr ? first->hub_task() : std::nullopt;
  const std::string run = run_of_model(given);
  Settings settings =
      run.empty() ? with_hub_model(given, head) : with_model_of_run(given, run, head);
  if (first != nullptr && !first->takes_tokenizer() && !run.empty()) {
    std::erase_if(settings, [](const Setting& s) { return s.key == "tokenizer" && !s.text; });
  }
  const std::string hub = hub_folder_of(given);
  const bool fine_tuned = !hub.empty() && last_setting(given, "model.name") == nullptr;
  RunConfig c;
  const Setting* name = last_setting(settings, "model.name");
  c.model_name = "local_transformer";
  if (name != nullptr) {
    require(name->value.is_string(), "model.name", "{}: got {}, expected the name of a model",
            name->origin, name->value.kind());
    c.model_name = name->value.string();
  }
  c.model = said_of(name, [&] { return find_model(c.model_name); });
  set_defaults(c);
  if (fine_tuned || (!run.empty() && head)) set_fine_tuning(c);
  const Setting* task = last_setting(settings, "task");
  if (task != nullptr && task->value.is_string()) c.task = task->value.string();
  c.of_task = said_of(task, [&] { return make_task(c.task); });
  set_fields(c, of_task(settings, c));
  if (c.steps == 0 && c.seconds == 0) {
    require(last_setting(settings, "steps") == nullptr, "steps",
            "got 0 and no time either; expected 1 or more, or --seconds");
    c.steps = c.model->defaults().steps;
  }

  const bool of_folder = last_setting(settings, "model.name") != nullptr &&
                         last_setting(settings, "model.name")->origin.ends_with("/config.json");
  if (of_folder && last_setting(settings, "length") == nullptr) {
    c.length = std::min(c.length, max_input_length(*c.model->build(Init{.meta = true})));
  }
  if (fine_tuned && c.tokenizer.empty() && c.of_task->takes_tokenizer() && has_tokenizer(hub)) {
    c.tokenizer = hub;
  }
  check_ranges(c, settings, "model");
  require_consistent(c);
  if (!c.split.empty()) {
    said_of(last_setting(settings, "split"), [&] { return Split::parse(c.split); });
  }
  c.free_positions = free_positions_of(c, settings);
  if (!c.free_positions.empty()) require_axes(c, settings);
  c.follow_length();
  c.open_field = open_field_of(c, settings);
  return c;
}

std::string fill_sizes(RunConfig& c, const Settings& settings) {
  const bool hub = !hub_folder_of(settings).empty();
  const bool taken = !run_of_model(settings).empty();
  TaskSizes sizes;
  // Whoever builds the model or opens the data says what is wrong.
  try {
    c.of_task->settle(c);
  } catch (const Error&) {
  }
  if (!c.start.from.empty() && !hub && !taken) return {};  // sizes are those of the other run
  try {
    sizes = c.of_task->sizes(c, *c.model->build(Init{.meta = true}));
  } catch (const Error&) {
    return {};
  }
  const Json fields = to_json(*c.model);
  std::string remark;
  const auto fill = [&](const std::string& field, const auto& wrong, const Json& value,
                        const std::string& why) {
    const Json* now = fields.find(field);
    if (now == nullptr || last_setting(settings, "model." + field) != nullptr || !wrong(*now))
      return;
    set_fields(*c.model, {{field, value, "the task"}});
    remark += fmt::format("{}model.{} = {}: {}", remark.empty() ? "" : "\n", field,
                          to_string(value), why);
  };
  if ((hub || taken) &&
      (sizes.classes > 0 || sizes.tags > 0 || !sizes.head.empty())) {  // it has another head
    fill(
        "mlm_head", [](const Json& now) { return now == Json(true); }, Json(false),
        fmt::format("{} trains another head", c.task));
  }
  if (sizes.vocabulary > 0 && !hub) {
    fill(
        "vocab", [&](const Json& now) { return now.integer() < sizes.vocabulary; },
        Json(sizes.vocabulary), fmt::format("as many as the tokens of {}", c.task));
  }
  for (const auto& [field, count] : {std::pair{"classes", sizes.classes}, {"tags", sizes.tags}}) {
    if (count == 0) continue;
    fill(
        field, [&](const Json& now) { return now.integer() != count; }, Json(count),
        fmt::format("an output for each answer of {}", c.task));
  }
  if (!sizes.head.empty()) {
    fill(
        std::string(sizes.head), [](const Json& now) { return now == Json(false); }, Json(true),
        fmt::format("the head that {} trains", c.task));
  }
  return remark;
}

Settings with_task_of_model(Settings settings) {
  if (last_setting(settings, "task") != nullptr) return settings;
  Settings of_model;
  for (const Setting& s : settings) {
    if (s.key.starts_with("model.")) of_model.push_back(s);
  }
  try {
    const RunConfig c = make_config(of_model);
    const std::string task = task_for(*c.model->build(Init{.meta = true}), c.task);
    settings.push_back({"task", task, "the model"});
  } catch (const Error&) {  // whoever builds the model says what is wrong with it
  }
  return settings;
}

Settings settings_of_hub(const std::string& folder) {
  Settings settings = settings_of_folder(folder);
  const HubFolder hub = read_hub_folder(folder);
  const auto add = [&](const char* key, Json value) {
    settings.push_back({key, std::move(value), folder});
  };
  const Json labels(Json::Array(hub.labels.begin(), hub.labels.end()));
  if (hub.head->task == HubTask::classes) {
    const bool number = hub.problem_type == "regression" || hub.labels.size() == 1;
    add("task", Json(number ? "regression" : "classes"));
    if (!number) {
      add("labelled.labels", labels);
      add("labelled.several", Json(hub.problem_type == "multi_label_classification"));
    }
  } else if (hub.head->task == HubTask::tags) {
    add("task", Json("tags"));
    add("labelled.labels", labels);
  } else if (hub.head->task == HubTask::spans) {
    add("task", Json("spans"));
  } else if (hub.head->task == HubTask::choice) {
    add("task", Json("choice"));
  } else if (hub.head->task == HubTask::sequence) {
    add("task", Json("summaries"));
  }
  settings = with_task_of_model(std::move(settings));
  if (!has_tokenizer(folder)) return settings;
  const Setting* task = last_setting(settings, "task");
  const std::unique_ptr<Task> of_task = make_task(task != nullptr ? task->value.string() : "bytes");
  if (of_task->takes_tokenizer()) settings.push_back({"tokenizer", Json(folder), folder});
  return settings;
}

Settings settings_of_run(const std::string& out) {
  Settings settings = read_toml(out + "/config.toml");
  const RunConfig c = make_config(settings);
  if (c.open_field) {
    const std::string& field = c.open_field->key;
    settings.push_back({"model." + field, to_json(*c.model)[field], c.open_field->origin});
  }
  return settings;
}

}  // namespace longspan
