#include "app/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>

#include "app/run_folder.h"
#include "app/tasks/task.h"
#include "core/backends.h"
#include "core/error.h"
#include "data/data_sets.h"
#include "hub/type.h"
#include "models/all/registry.h"
#include "models/capabilities.h"
#include "train/log.h"
#include "train/owned_parameters.h"
#include "train/state.h"
#include "train/weight_average.h"

namespace longspan {

TrainingRun::TrainingRun(RunConfig c, std::string folder, bool blank)
    : config(std::move(c)), out(std::move(folder)) {
  set_process(config);
  device = parse_device(config.device);
  if (config.memory_limit.bytes > 0) set_memory_limit(device, config.memory_limit.bytes);
  Init init{generator().fork("init"), device};
  init.blank = blank;
  model = config.model->build(init);
  require_length(config, *model);
  config.of_task->require_suited(config, *model);
  const Json fields = to_json(*config.model);
  const Json* random = fields.find("random");
  require(random == nullptr || !(*random == Json("given")), "model.random",
          "got given, whose blocks a program sets; expected uniform or first_1024");
}

std::optional<WeightAverage> average_of(const RunConfig& c, const TensorList& weights) {
  std::optional<WeightAverage> average;
  if (c.optimizer.average > 0) average.emplace(weights, c.optimizer.average);
  return average;
}

void read_average(const std::string& checkpoint, const TensorList& parameters) {
  TensorList averages;
  const TensorHeader header = read_optimizer_header(checkpoint);
  for (const NamedTensor& p : parameters) {
    const std::string name = p.name + WeightAverage::suffix;
    const bool there = std::any_of(header.entries.begin(), header.entries.end(),
                                   [&](const TensorEntry& e) { return e.name == name; });
    if (there) averages.push_back({name, p.tensor.detach()});
  }
  require<IoError>(!averages.empty(), "average", "{} holds no average of the weights", checkpoint);
  read_optimizer_tensors(checkpoint, averages);
}

namespace {

std::unique_ptr<Optimizer> optimizer_of(const RunConfig::Optimizer& o,
                                        const std::vector<ParameterGroup>& groups) {
  const AdamOptions adam{o.beta1, o.beta2, o.eps, o.weight_decay};
  switch (o.name) {
    case OptimizerName::adamw:
      return std::make_unique<AdamW>(groups, adam);
    case OptimizerName::lamb:
      return std::make_unique<Lamb>(groups, LambOptions{o.beta1, o.beta2, o.eps, o.weight_decay});
    case OptimizerName::adafactor:
      return std::make_unique<Adafactor>(groups, AdafactorOptions{.weight_decay = o.weight_decay});
    case OptimizerName::adagrad:
      return std::make_unique<Adagrad>(
          groups, AdagradOptions{.weight_decay = o.weight_decay, .step_clip = o.step_clip});
    case OptimizerName::sgd:
      return std::make_unique<Sgd>(groups, SgdOptions{o.momentum, o.weight_decay});
    case OptimizerName::adam:
      break;
  }
  return std::make_unique<Adam>(groups, adam);
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const RunConfig::Optimizer& o, const TensorList& weights,
                                          OwnedParameters* owned) {
  const bool matrices_only = o.name == OptimizerName::adamw || o.name == OptimizerName::lamb;
  std::vector<ParameterGroup> groups = parameter_groups(weights, o.parameters, matrices_only);
  if (owned != nullptr) {
    const bool norms_of_tensors =
        o.name == OptimizerName::lamb || o.name == OptimizerName::adafactor || o.step_clip > 0;
    groups = owned->divide(groups, !norms_of_tensors);
  }
  std::unique_ptr<Optimizer> optimizer = optimizer_of(o, groups);
  if (owned != nullptr) optimizer->share(owned);
  return optimizer;
}

LossScale make_loss_scale(const RunConfig& c) {
  if (c.optimizer.loss_scale > 0) return LossScale::fixed(c.optimizer.loss_scale);
  const Json fields = to_json(*c.model);
  const Json* precision = fields.find("precision");
  const bool f16 = precision != nullptr && *precision == Json("f16");
  return f16 ? LossScale::dynamic() : LossScale::fixed(1);
}

std::string name_of_tokens(const RunConfig& c) {
  const std::string tokenizer = c.of_task->tokenizer(c.tokenizer);
  return tokenizer.empty() ? c.of_task->symbols(c.tokenizer) : tokenizer;
}

RunTokens tokens_of(const RunConfig& c) {
  const Task& task = *c.of_task;
  const std::string name = name_of_tokens(c);
  if (!task.tokenizer(c.tokenizer).empty()) {
    return {name, fmt::format("{:x}", open_tokenizer(name)->hash())};
  }
  if (!task.symbols_follow_data()) return {name, name};
  // The vocabulary is made of the training text.
  const Fingerprint text = fingerprint_of_data(c);
  return {name, fmt::format("{}: {} bytes with checksum {}, {} % of them", name, text.bytes,
                            text.xxh3, split_of(c)->train)};
}

Fingerprint fingerprint_of_data(const RunConfig& config) {
  const DataSet& set = config.of_task->set();
  if (is_generated(set.kind)) return {};
  std::vector<std::string> paths = config.of_task->paths(config);
  std::erase_if(paths, [](const std::string& path) {
    // One that is missing is named as such.
    return std::filesystem::exists(path) && !std::filesystem::is_regular_file(path);
  });
  return fingerprint_of(paths);
}

std::optional<Split> split_of(const RunConfig& config) {
  const DataSet& set = config.of_task->set();
  if (is_generated(set.kind)) return {};
  if (!config.split.empty()) return Split::parse(config.split);
  return set.split.empty() ? Split{} : Split::parse(set.split);
}

bool same_tokens(const std::string& stored, const std::string& now) {
  return now == stored || (stored.starts_with("words of ") && now.starts_with(stored + ": "));
}

void require_same_model(const Settings& stored, const Settings& asked, const std::string& out) {
  const auto name = [](const Setting* s) {
    const std::string all = s != nullptr && s->value.is_string() ? s->value.string() : "";
    return all.substr(0, all.find(':'));
  };
  const std::string there = name(last_setting(stored, "model.name")),
                    here = name(last_setting(asked, "model.name"));
  require(here.empty() || there.empty() || here == there, "--model",
          "got {}, and {} holds a run of {}; expected the same: leave --model out, or choose "
          "another --out",
          here, out, there);
}

bool predicts_tokens(const TrainingRun& run) {
  const Task& task = *run.config.of_task;
  return task.is_one_text() || run.model->objective() == Objective::sequence ||
         task.hub_task() == HubTask::next_token;
}

void require_data(const RunConfig& config) {
  if (is_generated(config.of_task->set().kind)) return;
  for (const std::string& path : config.of_task->paths(config)) {
    require<IoError>(kind_of_path(path, "data") != PathKind::nothing, "data", "there is no {}",
                     path);
  }
}

void require_length(const RunConfig& config, const LanguageModel& model) {
  const int64_t longest = max_input_length(model);
  require(config.length <= longest, "length",
          "got {}; {} takes at most {} tokens: choose a shorter --length or a larger model.n_max",
          config.length, config.model_name, longest);
}

void require_sequence(const RunConfig& c, const LanguageModel& model) {
  const int64_t together = c.ranks.sequence;
  if (together == 1) return;
  constexpr const char* whole =
      "or ranks.sequence to 1, so that processes compute batches of their "
      "own";
  require(
      c.processes % together == 0, "ranks",
      "ranks.sequence is {}, and there {} {} process{}; start a multiple of {} with mpirun -np, "
      "or set ranks.sequence to 1",
      together, c.processes == 1 ? "is" : "are", c.processes, c.processes == 1 ? "" : "es",
      together);
  require(c.batch == 1, "ranks",
          "batch is {}, and processes split one sequence at a time; set batch to 1, and accumulate "
          "to the number of sequences, {}",
          c.batch, whole);
  require(c.of_task->splits_sequences(), "ranks",
          "the losses of {} are not means over tokens, which is all that processes split; set "
          "ranks.sequence to 1, so that they compute batches of their own",
          c.task);
  require(
      implements<SplitsSequences>(model) == nullptr || ask<SplitsSequences>(model) != nullptr,
      "ranks",
      "{}, as it is configured, splits no sequence over processes (docs/several-processes.md says "
      "which models and options do); set ranks.sequence to 1, so that they compute batches of "
      "their own",
      c.model_name);
  const auto* const splits = ask<SplitsSequences>(model);
  require(splits != nullptr, "ranks",
          "{} splits no sequence over processes; set ranks.sequence to 1, so that they compute "
          "batches of their own, or choose one of: {}",
          c.model_name,
          fmt::join(models_that([](const LanguageModel& other) {
                      return ask<SplitsSequences>(other) != nullptr;
                    }),
                    ", "));
  for (const int64_t heads : splits->divided_heads()) {
    require(
        heads % together == 0, "ranks",
        "the {} heads of {} cannot be divided by {} processes; set ranks.sequence to a divisor, "
        "{}",
        heads, c.model_name, together, whole);
  }
}

void Position::add(double loss) {
  constexpr size_t recent_steps = 100;
  recent.push_back(loss);
  if (recent.size() > recent_steps) recent.pop_front();
}

void Position::see(const Usage& usage) {
  if (usage.total() > peak.total()) peak = usage;
}

double Position::train_bpb() const {
  double sum = 0;
  for (const double loss : recent) sum += loss;
  if (recent.empty()) return std::nan("");
  return unit.value_or(LossUnit{}).bits(sum / static_cast<double>(recent.size()));
}

Members Position::values() const {
  Members values{{"tokens", tokens},
                 {"seconds", seconds},
                 {"train_bpb", train_bpb()},
                 {"recent", Json::Array(recent.begin(), recent.end())},
                 {"peak_bytes", to_members(peak)}};
  if (unit) {
    values.emplace_back("unit", unit->name);
    values.emplace_back("units_per_target", unit->per_target);
  }
  return values;
}

Position Position::read(const Json& values, const std::string& checkpoint) {
  try {
    Position p{.step = values["step"].integer(),
               .tokens = values["tokens"].integer(),
               .seconds = values["seconds"].number(),
               .recent = {},
               .peak = to_usage(values["peak_bytes"]),
               .unit = {}};
    if (values.find("unit") != nullptr) {  // absent in earlier versions
      p.unit = LossUnit{values["unit"].string(), values["units_per_target"].number()};
    }
    for (const Json& loss : values["recent"].array()) p.recent.push_back(loss.number());
    return p;
  } catch (const ValueError& error) {
    fail<IoError>("state", "{}/state.json is not of a run of longspan train: {}", checkpoint,
                  error.what());
  }
}

Members summary(const TrainingRun& run, const Position& at, double valid_bpb,
                double valid_perplexity) {
  const double speed = at.seconds > 0 ? static_cast<double>(at.tokens) / at.seconds : 0;
  const LossUnit unit = at.unit.value_or(LossUnit{});
  Members all{{"model", run.config.model_name},
              {"parameters", parameter_count(*run.model)},
              {"steps", at.step},
              {"tokens", at.tokens},
              {"unit", unit.name},
              {"units_per_target", unit.per_target},
              {"train_bpb", at.train_bpb()},
              {"valid_bpb", valid_bpb}};
  if (predicts_tokens(run)) all.emplace_back("valid_perplexity", valid_perplexity);
  if (run.config.eval_tokens > 0) all.emplace_back("eval_tokens", run.config.eval_tokens);
  all.emplace_back("seconds", at.seconds);
  all.emplace_back("tokens_per_second", speed);
  all.emplace_back("peak_bytes", to_members(at.peak));
  return all;
}

}  // namespace longspan
