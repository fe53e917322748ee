#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "app/commands.h"
#include "app/make_config.h"
#include "app/ranks/processes.h"
#include "app/run_folder.h"
#include "app/step.h"
#include "app/training.h"
#include "core/error.h"
#include "core/ranks/communicator.h"
#include "data/data_sets.h"
#include "data/io/files.h"
#include "train/state.h"

namespace longspan {
namespace {

Beginning beginning_of(const CommandLine& line) {
  const std::string* folder = line.value("--out");
  require(folder != nullptr && !folder->empty(), "train",
          "no run folder given; expected --out DIR");
  Beginning b{.out = *folder,
              .resume = is_on(line, "--resume"),
              .rewarm = is_on(line, "--rewarm"),
              .other_data = is_on(line, "--other-data")};
  const std::string* step = line.value("--step");
  b.chosen = step != nullptr;
  const bool starts = last_setting(line.settings, "start.from") != nullptr;
  for (const auto& [name, given] : {std::pair{"--step", b.chosen},
                                    {"--rewarm", b.rewarm},
                                    {"--other-data", b.other_data && !starts}}) {
    require(b.resume || !given, name, "is for runs that go on; expected --resume too{}",
            b.chosen ? ", or --steps for the number of steps" : "");
  }
  require_own_folder(b.out, "train");
  b.newest = newest_checkpoint(b.out);
  if (!b.resume) require_no_run(b.out);
  b.checkpoint = choose_checkpoint(b.out, step);
  if (b.resume && !b.checkpoint.empty()) {
    const Json values = read_values(b.checkpoint);
    const Json* from = values.find("imported");
    require(from == nullptr, "--resume",
            "the run in {0} was imported from {1}: there is no step to go on from; expected a new "
            "run that starts with it: --from {0}",
            b.out, from != nullptr ? from->string() : "");
  }
  return b;
}

/// Returns a number of config.toml, 0 if it is not set.
double number_of(const Settings& settings, std::string_view key) {
  const Setting* setting = last_setting(settings, key);
  return setting != nullptr && setting->value.is_number() ? setting->value.number() : 0;
}

/// Chooses the memory policy that --budget asks for, if any. Returns what to say about it.
std::string choose_policy(const CommandLine& line, const Settings& settings,
                          std::optional<Choice> automatic, RunConfig& config) {
  const std::string* budget = line.value("--budget");
  require(!automatic || budget != nullptr, "--memory",
          "auto needs to know what may be used; expected --budget SIZE, as 4GiB");
  if (budget == nullptr) return {};
  const bool given = last_setting(settings, "model.memory") != nullptr;
  const Choice from = automatic.value_or(given ? Choice::own : Choice::same);
  const auto model = config.model->build(Init{.meta = true});
  const int64_t longest = config.of_task->longest_sample(config.length, *model);
  const int64_t length = std::exchange(config.length, longest);
  const Strategy s = choose_strategy(config, parse_bytes(*budget, "--budget"), from);
  config.length = length;
  config.sparing = true;
  const int64_t process = process_bytes(config);
  std::string remark =
      fmt::format("{}: a step needs {} of {}{}, and runs {:.2f} forward passes again", s.options(),
                  bytes_text(s.memory->peak()), *budget,
                  process > 0 ? fmt::format(" beside {} of the process", bytes_text(process)) : "",
                  s.memory->extra_forward());
  if (from != Choice::own && s.shape.memory.starts_with("reversible")) {
    remark += "\n" + reversible_note(StepPlanner(config));
  }
  return remark;
}

/// Returns a path that is there as one that does not depend on the current folder; others as they
/// are, such as "bytes".
std::string absolute_path(const std::string& path) {
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return path;
  const std::filesystem::path whole = std::filesystem::absolute(path, error);
  return error ? path : whole.lexically_normal().string();
}

/// Makes the paths absolute that the run is read with later, wherever that is.
void make_absolute(RunConfig& c) {
  c.start.from = absolute_path(c.start.from);
  const std::string path = tokenizer_path(c.tokenizer);
  c.tokenizer = absolute_path(path) + c.tokenizer.substr(path.size());
}

/// Has a run that goes on with another number of processes compute as many batches in each step as
/// before, unless the command line says otherwise.
void keep_batches(const CommandLine& line, const Beginning& beginning, int64_t processes,
                  Settings& settings) {
  if (beginning.checkpoint.empty() || last_setting(line.settings, "accumulate") != nullptr) return;
  const Json values = read_values(beginning.checkpoint);
  const Json* const batches = values.find("batches_per_step");
  if (batches == nullptr && processes == 1) return;
  const Setting* const before = last_setting(settings, "accumulate");
  const int64_t all = batches != nullptr  ? batches->integer()
                      : before != nullptr ? before->value.integer()
                                          : 1;
  RunConfig::Ranks ranks;  // of the command line, as a text, or of the run
  if (const Setting* sequence = last_setting(settings, "ranks.sequence")) {
    set_fields(ranks, {{"sequence", sequence->value, sequence->origin, sequence->text}});
  }
  const int64_t groups = std::max<int64_t>(processes / ranks.sequence, 1);
  require(all % groups == 0, "--resume",
          "the run in {} has {} batches in each step, and {} processes compute {} at a time; "
          "expected a number of processes that divides them, or --set accumulate=N for another "
          "number of batches",
          beginning.out, all, processes, groups);
  settings.push_back({"accumulate", Json(all / groups), "--resume"});
}

/// Returns the configuration of the run: that of the run folder if it continues, changed by the
/// command line.
TrainingPlan plan_of(const CommandLine& line, const Beginning& beginning, int64_t processes) {
  Settings settings;
  const std::string config_path = beginning.out + "/config.toml";
  if (beginning.resume && kind_of_path(config_path, "train") != PathKind::nothing) {
    settings = settings_of_run(beginning.out);
  }
  const double planned_seconds = number_of(settings, "seconds");
  require_same_model(settings, line.settings, beginning.out);
  const Setting *const from = last_setting(line.settings, "start.from"), *const began =
                                                                             last_setting(
                                                                                 settings,
                                                                                 "start.from");
  const auto path_of = [](const Setting* s) {
    return s != nullptr && s->value.is_string() ? absolute_path(s->value.string()) : std::string();
  };
  const bool same = from == nullptr || path_of(from) == path_of(began);
  require(same || beginning.checkpoint.empty(), "--from",
          "is for the first step, and the run in {} has gone on from its own: leave it out, or "
          "choose another --out",
          beginning.out);
  settings.insert(settings.end(), line.settings.begin(), line.settings.end());
  keep_batches(line, beginning, processes, settings);
  const std::optional<Choice> automatic = take_auto(settings);
  require(
      automatic != Choice::any || beginning.checkpoint.empty(), "--memory",
      "auto:reversible may choose another network than that of the run in {}; expected auto, or "
      "the policy it has",
      beginning.out);
  TrainingPlan plan{make_config(settings), planned_seconds};
  plan.config.processes = processes;
  make_absolute(plan.config);
  plan.remark = fill_sizes(plan.config, settings);
  require_used(line, plan.config);
  to_toml(to_json(plan.config));  // says now what cannot be written to config.toml
  set_process(plan.config);       // what a step needs depends on it
  const std::string of_memory = choose_policy(line, settings, automatic, plan.config);
  if (!plan.remark.empty() && !of_memory.empty()) plan.remark += "\n";
  plan.remark += of_memory;
  return plan;
}

/// Returns the number of a flag, from 1 to `most`; 0 if it was not given.
int64_t number_of_flag(const CommandLine& line, std::string_view flag, int64_t most) {
  const std::string* const text = line.value(flag);
  if (text == nullptr) return 0;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  require(
      error == std::errc{} && end == text->data() + text->size() && number >= 1 && number <= most,
      flag, "got {}; expected a number of steps from 1 to {}", *text, most);
  return number;
}

/// Sets what --until, --profile and --json ask for.
void set_steps(const CommandLine& line, Prepared& prepared) {
  prepared.until = number_of_flag(line, "--until", int64_t{1} << 40);
  prepared.json = is_on(line, "--json");
  const int64_t steps = number_of_flag(line, "--profile", 1000);
  if (steps == 0) return;
  require(!prepared.run.config.graph, "--profile",
          "recorded steps (graph) run as a whole; expected --set graph=false");
  prepared.profiled.emplace(steps, prepared.run.device);
}

/// Returns the facts that must be equal in all processes.
Facts identity_of(Prepared& p) {
  Facts facts;
  const Json config = to_json(p.run.config);
  for (const JsonMember& m : config.object()) {
    // Data may lie elsewhere on another host: their fingerprint is compared.
    if (m.name == "threads" || m.name == "data" || m.name == "data_root") continue;
    facts.emplace_back(m.name, to_string(m.value));
  }
  for (const JsonMember& m : p.provenance.values()) facts.emplace_back(m.name, to_string(m.value));
  facts.emplace_back("checkpoint", p.beginning.checkpoint);
  facts.emplace_back("step", std::to_string(p.at.step));
  facts.emplace_back("checksum of the parameters", checksum_of(p.state));
  return facts;
}

/// Trains in several processes, of which the first writes.
int train_together(Communicator& ranks, const CommandLine& line) {
  const std::string said = share_processors(ranks);
  share_devices(ranks);
  std::optional<Prepared> prepared;
  std::optional<Training> training;
  try {
    start_together(ranks, [&] {
      const Beginning beginning = beginning_of(line);
      TrainingPlan plan = plan_of(line, beginning, ranks.size());
      ranks.timeout = plan.config.ranks.timeout;
      plan.remark = said + (plan.remark.empty() ? "" : "\n") + plan.remark;
      prepared.emplace(beginning, std::move(plan), &ranks);
      set_steps(line, *prepared);
    });
    start_together(ranks, [&] { require_equal(ranks, identity_of(*prepared)); });
  } catch (const Silent&) {
    return 0;  // mpirun ends all when the first process fails, the one that prints the error
  }
  try {
    training.emplace(*prepared);
    training->run();
    ranks.gather("", "the end");  // the first has written everything
  } catch (const std::exception& e) {
    end_together(ranks, e.what());
  }
  return 0;
}

}  // namespace

int train_command(int argc, const char* const* argv) {
  const Flag own[] = {
      {"--out", "", "the run folder"},
      {"--resume", "", "go on from the newest checkpoint in --out", true},
      {"--step", "", "with --resume: go on from the checkpoint of this step"},
      {"--rewarm", "", "with --resume: begin the schedule of the learning rate anew", true},
      {"--other-data", "", "with --resume or --from: other data or splits than before", true},
      {"--until", "", "stop after this step, as a signal does; the schedule goes by --steps"},
      {"--profile", "", "profile so many steps, after two others: where their time goes"},
      {"--json", "", "end with the line of summary.json, for programs", true},
      {"--budget", "",
       "bytes that the run may need, as 4GiB: choose the --memory that fits and runs "
       "the least again"}};
  const CommandLine line = read_command_line(
      argc, argv, own,
      "longspan train --model NAME --data bytes=FILE --out DIR: trains a model and leaves a run "
      "folder with checkpoints, figures and pictures.");
  const std::unique_ptr<Communicator> ranks = open_communicator();
  if (ranks->size() > 1) return train_together(*ranks, line);
  const Beginning beginning = beginning_of(line);
  Prepared prepared(beginning, plan_of(line, beginning, 1));
  set_steps(line, prepared);
  Training(prepared).run();
  return 0;
}

}  // namespace longspan
