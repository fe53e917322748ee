#include "app/run_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include "core/error.h"
#include "core/parallel.h"
#include "data/tasks.h"
#include "nn/axial.h"

namespace longspan {
namespace {

/// Returns the entry of a generated task; null for other tasks.
const SampleTaskEntry* find_sample_task(std::string_view id) {
  for (const SampleTaskEntry& entry : sample_tasks()) {
    if (entry.id == id) return &entry;
  }
  return nullptr;
}

}  // namespace

void RunConfig::set_task(const std::string& id) {
  task = id;
  const SampleTaskEntry* entry = find_sample_task(id);
  generated = entry != nullptr ? entry->make() : nullptr;
}

void RunConfig::visit(Fields& v) {
  v("task", task)("data", data)("data_root", data_root)("split", split)("tokenizer", tokenizer);
  v("whole_words", whole_words, "encoders: hide all tokens of a word or none");
  v("documents", documents)("target_length", target_length)("gap_sentences", gap_sentences);
  v("length", length)("batch", batch);
  v("accumulate", accumulate, "batches whose gradients are summed for one step");
  v("steps", steps)("seconds", seconds)("seed", seed)("threads", threads)("device", device);
  v("matmul_precision", matmul_precision)("matmul_library", matmul_library);
  v("memory_limit", memory_limit, "maximum memory of tensors, as 20MiB; 0: that of the machine");
  v("graph", graph, "record the steps of one shape, and submit each to the device as a whole");
  v("check_replays", check_replays, "check that recomputed layers give the same values; slow");
  v("anomaly", anomaly, "stop at the first op of a step that gives NaN or Inf; slow");
  v("save_every", save_every)("keep", keep)("log_every", log_every)("eval_every", eval_every);
  if (generated) {
    v.enter(find_sample_task(task)->section);
    generated->visit(v);
    v.leave();
  }
  v("profiles", profiles)("questions", questions)("extracts", extracts);
  v.enter("model");
  v("name", model_name);
  model->visit(v);
  v.leave();
  v("optimizer", optimizer)("schedule", schedule)("start", start);
}

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

}  // namespace

void RunConfig::follow_length() {
  if (!free_positions.empty()) {
    set_fields(*model, free_positions);
    model->extend_positions(length);
  }
  if (open_field) {
    set_fields(*model, {*open_field});
    model->settle_length(length);
  }
}

std::string RunConfig::remark_on_positions() {
  const Json now = to_json(*model);
  for (const Setting& s : free_positions) {
    if (s.key == "position_shape" || s.value == now[s.key]) continue;
    return fmt::format("model.{} = {}: positions for as many tokens as --length has", s.key,
                       now[s.key].integer());
  }
  return {};
}

std::string RunConfig::remark_on_length() {
  if (!open_field) return {};
  const Json now = to_json(*model)[open_field->key];
  if (now == open_field->value) return {};
  return fmt::format("model.{} = {}: for sequences of --length {}, and kept where it reads others",
                     open_field->key, to_string(now), length);
}

namespace {

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

void require_ranges(RunConfig& c, const Settings& settings) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  constexpr double many = std::numeric_limits<int32_t>::max();
  const KeyRange ranges[] = {
      {"length", 1, many},
      {"batch", 1, many},
      {"documents", 0, many},
      {"target_length", 0, many},
      {"gap_sentences", 0, 0.99},
      {"accumulate", 1, many},
      {"steps", 0, inf},
      {"seconds", 0, inf},
      {"save_every", 0, inf},
      {"keep", 0, many},
      {"log_every", 1, inf},
      {"eval_every", 0, inf},
      {"optimizer.lr", 0, inf},
      {"optimizer.beta1", 0, 1},
      {"optimizer.beta2", 0, 1},
      {"optimizer.eps", 0, inf},
      {"optimizer.momentum", 0, 1},
      {"optimizer.weight_decay", 0, inf},
      {"optimizer.clip", 0, inf},
      {"optimizer.step_clip", 0, inf},
      {"optimizer.loss_scale", 0, inf},
      {"optimizer.update_period", 1, many},
      {"optimizer.update_from", 0, inf},
      {"schedule.warmup", 0, inf},
      {"schedule.floor", 0, 1},
      {"schedule.every", 1, inf},
      {"schedule.factor", 0, 1},
      {"profiles.kmer", 1, 8},
      {"profiles.stride", 1, many},
      {"profiles.positive_weight", 0, inf},
      {"questions.most", 1, many},
      {"questions.longest", 1, many},
      {"extracts.chunk", 1, many},
      {"extracts.take.sentences", 1, many},
      {"extracts.take.words", 0, many},
      {"extracts.oracle", 1, many},
      {"extracts.mask_share", 0, 1},
      {"extracts.mask_most", 1, many},
  };
  check_ranges(to_json(c), ranges, settings);
  if (!c.generated) return;
  // Tasks say themselves which options fit together.
  const std::string section(find_sample_task(c.task)->section);
  const Json fields = to_json(*c.generated);
  std::vector<std::string> keys;
  for (const JsonMember& m : fields.object()) keys.push_back(section + "." + m.name);
  std::vector<KeyRange> of_task;
  for (const std::string& key : keys) of_task.push_back({key, 0, many});
  check_ranges(Json(Members{{section, fields}}), of_task, settings);
}

/// Returns the settings without those of generated tasks other than `task`: files of earlier
/// versions have the options of all of them. Throws ValueError if one was typed.
Settings of_task(const Settings& settings, const std::string& task) {
  Settings kept = settings;
  for (const SampleTaskEntry& other : sample_tasks()) {
    if (other.id == task) continue;
    const Json fields = to_json(*other.make());
    const std::string prefix = std::string(other.section) + ".";
    std::erase_if(kept, [&](const Setting& s) {
      const bool others =
          s.key.starts_with(prefix) && fields.find(s.key.substr(prefix.size())) != nullptr;
      require(!others || !s.text, s.key, "{}: it is an option of --task {}, and the task is {}",
              s.origin, other.id, task);
      return others;
    });
  }
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

RunConfig make_config(const Settings& settings) {
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
  const Setting* task = last_setting(settings, "task");
  c.set_task(task != nullptr && task->value.is_string() ? task->value.string() : c.task);
  set_fields(c, of_task(settings, c.task));
  if (c.steps == 0 && c.seconds == 0) {
    require(last_setting(settings, "steps") == nullptr, "steps",
            "got 0 and no time either; expected 1 or more, or --seconds");
    c.steps = c.model->defaults().steps;
  }

  require_ranges(c, settings);
  require_consistent(c);
  said_of(task, [&] { return find_data_set(c.task).id; });
  if (!c.split.empty()) {
    said_of(last_setting(settings, "split"), [&] { return Split::parse(c.split); });
  }
  c.free_positions = free_positions_of(c, settings);
  if (!c.free_positions.empty()) require_axes(c, settings);
  c.follow_length();
  c.open_field = open_field_of(c, settings);
  return c;
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

void set_process(const RunConfig& c) {
  if (c.threads > 0) set_num_threads(static_cast<int>(c.threads));
  set_matmul_precision(c.matmul_precision);
  set_matmul_library(c.matmul_library);
}

void say_positions(RunConfig& c) {
  const std::string remark = c.remark_on_positions();
  if (!remark.empty()) std::fprintf(stderr, "%s\n", remark.c_str());
}

DataPlace data_place(const RunConfig& c) { return {c.data_root, c.data}; }

std::string data_name(const RunConfig& c) { return c.data.empty() ? c.task : c.data; }

}  // namespace longspan
