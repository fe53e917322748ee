#include "app/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "app/commands.h"
#include "app/pictures.h"
#include "app/ranks/processes.h"
#include "app/runs/samples.h"
#include "app/start.h"
#include "app/step.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/error.h"
#include "core/kernels/copy.h"
#include "data/io/files.h"
#include "data/tokenizers/hub_processor.h"
#include "models/scoring.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/optim.h"
#include "train/state.h"

namespace longspan {
namespace {

/// A relative reconstruction error of reversible layers above which a run warns.
constexpr double kDrift = 1e-2;

constexpr const char* kGradient = ".gradient";  // ends the names of gradients in a checkpoint

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Returns a line for each of the tensors that take most memory, to be appended to a message.
std::string largest_tensors(RunConfig& c) {
  try {
    return "\n" + largest_terms(StepPlanner(c));
  } catch (const std::exception&) {  // the message is useful without it
    return {};
  }
}

/// Returns the validation score of a step in the run's metrics.jsonl as text; "" if it has none.
std::string validation_of(const std::string& out, int64_t step) {
  std::string found;
  for (const Json& row : read_rows(out + "/metrics.jsonl")) {
    const Json* score = row.find("valid_bpb");
    if (score != nullptr && row["step"] == Json(step)) found = to_string(*score);
  }
  return found;
}

/// Returns what is lowest for the best validation: a figure, or its negative where more is better.
/// Throws ValueError if there is no such figure.
double score_of(const Members& figures, const std::string& name) {
  std::vector<std::string> known;
  for (const JsonMember& m : figures) {
    if (!m.value.is_number()) continue;
    if (m.name != name) {
      known.push_back(m.name);
      continue;
    }
    const bool less_is_better = name == "mse" || name == "perplexity" || name == "unread";
    return less_is_better ? m.value.number() : -m.value.number();
  }
  fail("best_by", "validation has no figure {}; expected {}", name,
       known.empty() ? "none: it has only the loss" : fmt::format("{}", fmt::join(known, ", ")));
}

/// Whether a tensor of a checkpoint is one of TrainingSteps::Waiting::statistics.
bool is_statistics(const std::string& name) {
  return name.find(TrainingSteps::Waiting::mark) != std::string::npos;
}

/// Throws ValueError unless a run trains the parameters that it has trained before: the optimizer
/// has states of these alone.
void require_same_parameters(const Before& before, const RunConfig& now) {
  const auto names = [](const std::vector<std::string>& all) {
    Json::Array list;
    for (const std::string& name : all) {
      if (!name.empty()) list.emplace_back(name);
    }
    return Json(std::move(list));
  };
  const Json* averaged = before.find("optimizer.average");
  const bool had = averaged != nullptr && averaged->number() > 0;
  require(
      had || now.optimizer.average == 0, "optimizer.average",
      "got {}, and the run has averaged no weights; expected 0, or a new run that starts --from "
      "this one",
      now.optimizer.average);
  require(!had || now.optimizer.average > 0, "optimizer.average",
          "got 0, and the run averages its weights; expected another decay, or a new run that "
          "starts --from this one");
  const ParameterChoice& choice = now.optimizer.parameters;
  for (const auto& [key, value] : {std::pair{"optimizer.freeze", names(choice.freeze)},
                                   {"optimizer.train", names(choice.train)}}) {
    const Json* found = before.find(key);
    const Json then = found != nullptr ? *found : Json(Json::Array{});
    require(then == value, key,
            "got {}, and the run has trained with {}; expected the same, or a new run that starts "
            "--from this one",
            to_string(value), to_string(then));
  }
}

/// JSON has null in place of NaN.
double number_of(const Json& value) { return value.is_null() ? std::nan("") : value.number(); }

Members members_of(const NamedNumbers& numbers) {
  Members all;
  for (const auto& [name, value] : numbers) all.emplace_back(name, value);
  return all;
}

NamedNumbers numbers_of(const Json& members) {
  NamedNumbers all;
  for (const JsonMember& m : members.object()) all.emplace_back(m.name, number_of(m.value));
  return all;
}

/// Returns the memory of streams that begin, for each batch of a step that this process computes,
/// and nothing for the batches of others.
std::vector<SegmentMemory> empty_memories(const LanguageModel& model, int64_t batches,
                                          int64_t batch, const SharedTraining* shared) {
  std::vector<SegmentMemory> all(static_cast<size_t>(batches));
  for (int64_t i = 0; i < batches; ++i) {
    if (is_own_batch(shared, i)) all[static_cast<size_t>(i)] = empty_memory(model, batch);
  }
  return all;
}

/// The samples of a step.
struct Sizes {
  int64_t batch = 0, batches = 0;
};

/// Returns the sizes that a run had, or those that it has if that is unknown.
Sizes sizes_of(const Before& before, const RunConfig& now) {
  const Json *batch = before.find("batch"), *accumulate = before.find("accumulate"),
             *all = before.values.find("batches_per_step");
  if (all == nullptr) all = accumulate;  // of earlier versions, which had one process
  return {batch != nullptr ? batch->integer() : now.batch,
          all != nullptr ? all->integer() : now.batches_per_step()};
}

/// Returns "nan" whatever its sign, "inf" or "-inf".
std::string nonfinite_text(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{}", value);
}

/// Throws ValueError if a budget has no room for the data beside a step: packed files, records and
/// ids of tokens are in tensors, and how many there are is known when they have been read. What is
/// small is a part of the process.
void make_room_for_data(const RunConfig& c, Device device) {
  if (c.tensor_limit == 0) return;
  constexpr int64_t spare = int64_t{1} << 20;  // of the process: layouts that are kept, and ids
  const int64_t data = memory_tracker(device).live()[Category::data];
  if (data <= small_data || c.planned_peak + data <= c.tensor_limit) {
    const int64_t given = c.memory_limit.bytes;
    const int64_t limit = c.tensor_limit + spare + (data <= small_data ? data : 0);
    set_memory_limit(device, given > 0 ? std::min(given, limit) : limit);
    return;
  }
  fail("--budget",
       "a step needs {}, the data {} and the process itself {}; expected a budget of {}, or a "
       "--memory that needs less. Files that are not packed, and token files, need none",
       bytes_text(c.planned_peak), bytes_text(data), bytes_text(process_bytes(c)),
       bytes_text(c.planned_peak + data + process_bytes(c)));
}

}  // namespace

Prepared::Prepared(Beginning from, TrainingPlan plan, Communicator* ranks)
    : beginning(std::move(from)),
      remark(std::move(plan.remark)),
      run(std::move(plan.config), beginning.out, continues()),
      data(open_task_data(run)),
      loss_scale(make_loss_scale(run.config)) {
  const RunConfig& c = run.config;
  require_sequence(c, *run.model);
  data->prepare();
  make_room_for_data(c, run.device);
  state = named_state(*run.model);
  if (ranks != nullptr && ranks->size() > 1) {
    shared = std::make_unique<SharedTraining>(*ranks, static_cast<int>(c.ranks.sequence));
    shared->owned.overlap = c.ranks.overlap;
    if (const std::string said = shared->open(run.device); !said.empty()) {
      remark += (remark.empty() ? "" : "\n") + said;
    }
  }
  optimizer =
      make_optimizer(c.optimizer, named_parameters(*run.model), shared ? &shared->owned : nullptr);
  average = average_of(c, trained());
  if (data->streams())
    memories = empty_memories(*run.model, c.batches_per_step(), c.batch, shared.get());
  provenance = provenance_of(c);
  if (continues()) restore(plan.planned_seconds);
  unit = data->loss_unit();
  at.unit = unit;
  if (!continues() && !c.start.from.empty()) {
    started = start_from_run(run);
    const std::string checkpoint = newest_checkpoint(c.start.from);
    if (!beginning.other_data && !checkpoint.empty()) {
      const Before before(read_values(checkpoint), c.start.from, checkpoint);
      require_same_split(before, c, "--from");
    }
  }
  if (!continues() && !started) {
    if (auto* const begins = ask<BeginsWithData>(*run.model)) {
      const Tensor tokens = data->first_batch();
      if (tokens) begins->begin_training(tokens, run.generator().fork("begin_training"));
    }
  }
  require(c.best_by.empty() || c.keep_best || c.patience > 0, "best_by",
          "nothing asks for the best validation; expected --keep-best or --patience too");
  if (average && !continues()) average->restart();  // of the parameters that the run begins with
  require((!c.keep_best && c.patience == 0) || data->size("valid") > 0,
          c.keep_best ? "keep_best" : "patience",
          "no {} are left to validate with; choose another --split", data->items());
  require(c.steps == 0 || at.step <= c.steps, "steps",
          "got {}, and the run in {} has {} behind it; expected as many or more", c.steps,
          beginning.out, at.step);
}

void Prepared::restore(double planned_seconds) {
  std::optional<Before> before;
  TensorList all, waits;
  Json values;
  const auto read = [&](const std::string& path) {
    beginning.checkpoint = path;
    before.emplace(read_values(path), beginning.out, path);
    require_same_parameters(*before, run.config);
    if (!memories.empty()) {
      const Sizes old = sizes_of(*before, run.config);
      memories = empty_memories(*run.model, old.batches, old.batch, shared.get());
    }
    waits = waiting_tensors();
    if (shared) {
      all = all_of_checkpoint();
      for (NamedTensor& w : waits) {
        w.tensor = std::find_if(all.begin(), all.end(), [&](const NamedTensor& t) {
                     return t.name == w.name;
                   })->tensor;
      }
    } else {
      all = progress();
      all.insert(all.end(), waits.begin(), waits.end());
    }
    values = read_state(path, state, all);
    if (shared) take(all);
  };
  const std::string first = beginning.checkpoint;
  if (read_checkpoint(beginning.out, first, beginning.chosen, read) != first) {
    beginning.newest = beginning.checkpoint;
  }
  at = Position::read(values, beginning.checkpoint);
  loss_scale.restore(values);
  require_finite(beginning.out, beginning.checkpoint, state,
                 loss_scale.adapts() ? own_progress() : all);
  go_on_after(*before);
  wait_for_update(values, waits);
  if (const Json* last = values.find("figures")) figures = *last;
  if (const Json* kept = values.find("validations")) validations = *kept;
  schedule = ScheduleState::read(values, at.seconds, planned_seconds);
  if (beginning.rewarm) schedule = {.start = at.step, .began = at.seconds, .rate = schedule.rate};
}

TensorList Prepared::waiting_tensors() const {
  TensorList all;
  const TensorList parameters = optimizer->parameters();
  for (const TensorEntry& entry : read_optimizer_header(beginning.checkpoint).entries) {
    const std::string& name = entry.name;
    const auto of = std::find_if(parameters.begin(), parameters.end(),
                                 [&](const NamedTensor& p) { return name == p.name + kGradient; });
    if (of != parameters.end()) all.push_back({name, zeros_like(of->tensor.detach())});
    if (is_statistics(name)) {
      all.push_back({name, Tensor::empty(entry.shape, entry.dtype, run.device)});
    }
  }
  return all;
}

void Prepared::wait_for_update(const Json& values, const TensorList& tensors) {
  const Json* now = values.find("waiting");
  const Json* before = values.find("waiting_first");  // of earlier versions
  if (now == nullptr && before == nullptr) return;
  const RunConfig& c = run.config;
  if (!c.optimizer.period().waits(at.step)) {
    remarks.push_back(
        fmt::format("the gradients that waited for an update after step {} are left out, since "
                    "optimizer.update_period is another",
                    at.step));
    return;
  }
  const double here = TrainingSteps::scale_of(c, at.step, loss_scale.value());
  double there = here;
  if (now != nullptr) {
    waiting = {(*now)["first"].number(), (*now)["targets"].number()};
    there = (*now)["scale"].number();
  } else {
    waiting = {before->number(), values["waiting_targets"].number()};
  }
  // Earlier versions weighed by the targets of the first batch.
  const double own = TrainingSteps::unit_of(c, *data);
  const double by = here / there * (waiting.unit > 0 ? waiting.unit / own : 1);
  waiting.unit = own;
  for (const NamedTensor& t : tensors) {
    if (is_statistics(t.name)) {
      waiting.statistics.push_back({t.name, to_device(t.tensor, run.device)});
    }
  }
  for (const NamedTensor& p : optimizer->parameters()) {
    for (const NamedTensor& t : tensors) {
      if (t.name != p.name + kGradient) continue;
      // In earlier versions zeros stand for no gradient.
      if (now == nullptr && global_norm(std::vector{t.tensor}) == 0) continue;
      Tensor part = to_device(t.tensor, run.device);
      if (shared) {
        part = zeros_like(p.tensor.detach());
        shared->owned.take({t}, {{t.name, part}});
        if (part.numel() == 0) continue;
      }
      set_grad(p.tensor, by == 1 ? part : mul(part, by));
    }
  }
}

void Prepared::go_on_after(const Before& before) {
  RunConfig& c = run.config;
  const Sizes old = sizes_of(before, c);
  const std::vector<std::string> others =
      compare_inputs(before, c, Reads::data, "--resume", beginning.other_data, &provenance);
  remarks = compare_settings(before, c);
  remarks.insert(remarks.end(), others.begin(), others.end());
  for (std::string& line : compare_machines(before, provenance)) remarks.push_back(std::move(line));

  std::vector<std::string> changed = other_order(before, c);
  other_data = !others.empty();
  const Json* best_by = before.find("best_by");
  const Json* sample = before.find("eval_tokens");
  other_best = (best_by != nullptr ? best_by->string() : "") != c.best_by ||
               (sample != nullptr ? sample->integer() : 0) != c.eval_tokens;
  if (other_data) changed.emplace_back("the data");
  const Json* segment = before.values.find("segment");  // of earlier versions, for streams
  if (changed.empty() && segment != nullptr && segment->integer() != c.length) {
    changed.emplace_back("length");
  }
  const bool other_steps = old.batch != c.batch || old.batches != c.batches_per_step();
  const Json *samples = before.values.find("samples"), *origin = before.values.find("origin");
  const int64_t read = samples != nullptr ? samples->integer() : at.step * old.batch * old.batches;
  if (origin != nullptr) run.origin = {(*origin)["step"].integer(), (*origin)["samples"].integer()};
  if (other_steps || (!memories.empty() && !changed.empty())) run.origin = {at.step, read};
  if (!memories.empty()) {
    if (other_steps) changed.emplace_back("the batch of a step");
    if (changed.empty()) return;
    memories = empty_memories(*run.model, c.batches_per_step(), c.batch, shared.get());
    remarks.push_back(
        fmt::format("the streams begin anew, with empty memories, at the beginning of their parts "
                    "of the data, since other than before are: {}",
                    fmt::join(changed, ", ")));
  } else if (!changed.empty()) {
    remarks.push_back(
        fmt::format("the samples are others, or in another order, so that some of this epoch may "
                    "be read again or left out, since other than before are: {}",
                    fmt::join(changed, ", ")));
  } else if (other_steps) {
    remarks.push_back(fmt::format("the training data go on after the {} samples read", read));
  }
}

TensorList Prepared::trained() const {
  return shared ? shared->owned.parameters() : optimizer->parameters();
}

TensorList Prepared::own_progress() const {
  TensorList all = optimizer->state();
  if (average) {
    for (NamedTensor& t : average->state()) all.push_back(std::move(t));
  }
  for (size_t i = 0; i < memories.size(); ++i) {
    if (!is_own_batch(shared.get(), static_cast<int64_t>(i))) continue;
    for (const NamedTensor& m : named_tensors(memories[i])) {
      all.push_back({fmt::format("memory.{}.{}", i, m.name), m.tensor});
    }
  }
  return all;
}

TensorList Prepared::progress() const {
  TensorList own = own_progress();
  if (!shared) return own;
  TensorList states = optimizer->state(), memory;
  const NamedTensor step = states.front();
  states.erase(states.begin());
  TensorList all{step};
  for (NamedTensor& t : shared->owned.whole(states, "the state of the optimizer")) {
    all.push_back(std::move(t));
  }
  if (average) {
    for (NamedTensor& t : average->state()) all.push_back(std::move(t));
  }
  // Processes that compute a batch together have equal memories: one of them saves them.
  const int together = shared->sequence.size();
  if (shared->sequence.index() == 0) {
    std::copy_if(own.begin(), own.end(), std::back_inserter(memory),
                 [](const NamedTensor& t) { return t.name.starts_with("memory."); });
  }
  const std::vector<TensorList> memories_of =
      to_first(shared->ranks, memory, "the memories of streams");
  if (!is_first()) return {};
  for (size_t i = 0; i < memories.size(); ++i) {
    const std::string prefix = fmt::format("memory.{}.", i);
    const size_t rank = i * static_cast<size_t>(together) % memories_of.size();
    for (const NamedTensor& t : memories_of[rank]) {
      if (t.name.starts_with(prefix)) all.push_back(t);
    }
  }
  return all;
}

TensorList Prepared::all_of_checkpoint() const {
  TensorList all;
  for (const TensorEntry& entry : read_optimizer_header(beginning.checkpoint).entries) {
    all.push_back({entry.name, Tensor::empty(entry.shape, entry.dtype, {})});
  }
  return all;
}

void Prepared::take(const TensorList& all) const {
  TensorList states;
  const auto found = [&](const std::string& name) {
    const auto place =
        std::find_if(all.begin(), all.end(), [&](const NamedTensor& t) { return t.name == name; });
    require<IoError>(place != all.end(), "state", "{} lacks \"{}\"", beginning.checkpoint, name);
    return place->tensor;
  };
  const size_t parts = optimizer->state().size();
  TensorList own = own_progress();
  for (size_t i = 0; i < own.size(); ++i) {
    if (i > 0 && i < parts) {
      states.push_back(own[i]);
      continue;
    }
    const Tensor from = found(own[i].name);
    require_same_shape("state", {own[i].name.c_str(), own[i].tensor}, {"of the file", from});
    kernels::copy(own[i].tensor.device(), to_device(from, own[i].tensor.device()).view(),
                  own[i].tensor.mut());
  }
  shared->owned.take(all, states);
}

Training::Training(Prepared& prepared)
    : p_(prepared),
      c_(p_.run.config),
      at_(p_.at),
      lock_(p_.is_first() ? std::make_optional<FolderLock>(p_.run.out, "train") : std::nullopt),
      aside_(p_.is_first() ? set_aside_later_steps() : ""),
      log_(p_.run.out, {.resume_step = p_.continues() ? at_.step : -1,
                        .silent = !p_.is_first(),
                        .tensorboard = c_.tensorboard}),
      learning_rate_(c_, p_.schedule, at_.seconds),
      tracker_(memory_tracker(p_.run.device)),
      valid_(std::nan("")),
      logged_step_(at_.step),
      to_validate_(p_.data->size("valid")),
      checkpoints_(
          p_.run.out, c_.keep, p_.state, [this] { return std::exchange(progress_, {}); },
          p_.continues() ? at_.step : -1),
      steps_(p_.run, *p_.data, *p_.optimizer, p_.memories, p_.shared.get()) {
  steps_.wait_for_update(std::exchange(p_.waiting, {}));
  if (!p_.figures.is_null()) go_on_from(p_.figures);
  log_.write_config(to_json(p_.run.config));
  if (p_.is_first()) {
    for (const char* part : {"/checkpoints", "/pictures"}) sweep(p_.run.out + part);
  }
  say_beginning();
  if (p_.shared) p_.shared->ranks.gather("", "the first of the processes");  // it has the files
  tracker_.reset_peak();
  at_.see(tracker_.peak());
  first_ = at_;
  begin_ = now();
  looked_ = begin_;
  if (p_.continues()) {
    known_valid_ = validation_of(p_.run.out, at_.step);
    best_ = continued_validations(p_.run.out, p_.validations.is_null() ? nullptr : &p_.validations);
    // Scores on other data, or of another figure, cannot be compared; their best checkpoint stays.
    if (p_.other_data || p_.other_best) best_ = {.from = at_.step, .before = best_.step};
  }
  if (c_.check_replays) replays_.emplace();
}

std::string Training::set_aside_later_steps() {
  const std::string newest = newest_checkpoint(p_.run.out);
  require<IoError>(newest == p_.beginning.newest, "train",
                   "another process has just written {}: start again", newest);
  return p_.beginning.chosen ? set_aside(p_.run.out, at_.step) : "";
}

void Training::say_beginning() {
  const auto say = [this](const std::string& line) {
    if (!line.empty()) log_.say(line);
  };
  for (const std::string& warning : p_.data->warnings()) log_.say(warning);
  int64_t trained = 0;
  const TensorList updated = p_.trained();
  for (const NamedTensor& p : updated) trained += p.tensor.numel();
  const int64_t all = parameter_count(*p_.run.model);
  const bool chosen = updated.size() < named_parameters(*p_.run.model).size();
  say(fmt::format("{}: {} parameters{}, {} {} to train on, {} to validate", c_.model_name, all,
                  chosen ? fmt::format(", {} of them trained", trained) : "",
                  p_.data->size("train"), p_.data->items(), to_validate_));
  if (c_.of_task->set().kind == DataKind::tables && c_.steps > 0) {
    const double read = static_cast<double>(c_.steps * c_.batch * c_.batches_per_step());
    say(fmt::format("{} steps of {} rows: {:.1f} times the training data, --steps", c_.steps,
                    c_.batch * c_.batches_per_step(),
                    read / static_cast<double>(p_.data->size("train"))));
  }
  if (c_.matmul_library == MatmulLibrary::openblas) {
    say(fmt::format("products by {}: bits depend on it, and on the row's position",
                    openblas_description()));
  }
  say(p_.remark);
  say(remark(*p_.run.model, c_.length));
  if (p_.started) {
    say(fmt::format("starting from step {} of {}", p_.started->step, c_.start.from));
  }
  say(p_.run.config.remark_on_positions());
  say(p_.run.config.remark_on_length());
  if (p_.unit.per_target != 1) {
    say(fmt::format("a token stands for {:.3f} {}s; losses are nats per token", p_.unit.per_target,
                    p_.unit.name));
  }
  if (p_.started && !p_.started->heads.empty()) {
    say(fmt::format("drawn anew: {}", fmt::join(p_.started->heads, ", ")));
  }
  if (at_.step > 0) say(fmt::format("continuing from step {}", at_.step));
  if (!aside_.empty()) say(fmt::format("what lay beyond step {} is in {}", at_.step, aside_));
  for (const std::string& remark : p_.remarks) log_.say(remark);
  if (at_.step > 0 && at_.step != c_.steps) log_.say(learning_rate_.outlook(at_.step));
  if (at_.step < c_.steps) say(remark_on_warmup(c_, p_.schedule.start, c_.steps));
  if (at_.step > 0 && at_.step == c_.steps) log_.say("no step is left: more with --steps");
}

void Training::run() {
  // A run may have been killed between a checkpoint and its validation, or after both.
  const bool owed =
      at_.step > 0 && c_.eval_every > 0 && at_.step % c_.eval_every == 0 && known_valid_.empty();
  if (!p_.shared) require_best_by();  // before the steps that would be in vain
  see_patience();                     // of a run that goes on
  if (p_.started || owed) {           // started: what the other run's parameters are worth here
    const double pause = now();
    validate();
    paused_ += now() - pause;
  }
  while (true) {
    double elapsed = now() - begin_ - paused_;
    if (!goes_on(elapsed)) break;
    profile();
    one_step(elapsed);
    if (at_.step % c_.log_every == 0 || at_.step == c_.steps) log_step();
    show();
    const double pause = now();
    if (c_.save_every > 0 && at_.step % c_.save_every == 0) save();
    if (c_.eval_every > 0 && at_.step % c_.eval_every == 0) {
      validate();
      look();
    }
    paused_ += now() - pause;
  }
  finish_run();
}

// The tables of a profile are worth less than the run.
void Training::profile(bool last) try {
  if (!p_.profiled || !p_.is_first()) return;
  const double pause = now();
  const std::string tables = p_.profiled->before_step(
      at_.step - first_.step, fmt::format("{}/profile-{}", p_.run.out, at_.step), last);
  if (!tables.empty()) log_.say(tables);
  paused_ += now() - pause;
} catch (const IoError& e) {
  p_.profiled.reset();
  log_.say(fmt::format("no profile: {}", e.what()));
}

bool Training::goes_on(double& elapsed) {
  const bool enough =
      (c_.steps > 0 && at_.step >= c_.steps) || (p_.until > 0 && at_.step >= p_.until);
  const bool late = c_.seconds > 0 && elapsed >= c_.seconds;
  stopped_ = stop_.requested();
  bool goes_on = !(enough || late || stale_ || stopped_);
  if (!p_.shared) return goes_on;
  // The first process's clock decides for all, and a signal to any process stops all.
  const std::vector<std::string> all = p_.shared->ranks.gather(
      fmt::format("{}{} {:.17g}", goes_on ? 1 : 0, stopped_ ? 1 : 0, elapsed),
      fmt::format("step {}", at_.step + 1));
  elapsed = std::strtod(all[0].c_str() + 3, nullptr);
  for (const std::string& one : all) {
    goes_on &= one[0] == '1';
    stopped_ |= one[1] == '1';
  }
  return goes_on;
}

void Training::one_step(double elapsed) {
  rate_ = learning_rate_.at(at_.step, elapsed);
  const StepResult done = gradients();
  if (!std::isfinite(done.loss)) {
    log_step();
    checkpoints_.diverged(
        fmt::format("the loss of step {} is {}", at_.step + 1, nonfinite_text(done.loss)), rate_);
  }
  // NaN if no update follows, or one in f16 must be left out. A step without a target keeps the
  // figures of the last.
  const bool waits = c_.optimizer.period().waits(at_.step + 1);
  const Phase update("update");
  const double norm = !waits && done.trains ? clipped_norm(done) : std::nan("");
  if (done.scored) {
    loss_ = done.loss;
    auxiliary_ = done.auxiliary;
  }
  if (!waits && done.trains) {
    norm_ = norm;
  } else if (!waits) {
    p_.optimizer->clear_gradients();
  }
  if (!std::isnan(norm)) {
    if (p_.is_first()) checkpoints_.confirm(at_.step, spared());  // of before the update
    steps_.update(at_.step, rate_);
    if (p_.average) p_.average->update(p_.optimizer->steps());
  } else {
    steps_.pass_memories_on();
  }
  if (c_.graph) say_why_not_recorded();
  ++at_.step;
  at_.tokens += done.tokens;
  fullest_ = std::max(fullest_, done.peak);
  if (done.scored) at_.add(loss_);
  at_.see(tracker_.peak());
  at_.seconds = first_.seconds + (now() - begin_ - paused_);
  speed_ = static_cast<double>(at_.tokens - first_.tokens) /
           std::max(1e-9, at_.seconds - first_.seconds);
}

StepResult Training::gradients() {
  std::optional<AnomalyMode> anomaly;
  if (c_.anomaly) anomaly.emplace();
  try {
    return with_memory_for("train", [&] {
      return steps_.gradients(at_.step, learning_rate_.last(), p_.loss_scale.value());
    });
  } catch (const OutOfMemory& e) {
    throw OutOfMemory(e.what() + largest_tensors(p_.run.config));
  }
}

double Training::clipped_norm(const StepResult& done) {
  try {
    if (!p_.loss_scale.accept(*p_.optimizer)) return std::nan("");
    p_.optimizer->scale_gradients(done.rescale);
    const std::vector<GroupNorm> norms = clip_by_group(*p_.optimizer, c_.optimizer.clip);
    norms_.clear();
    for (size_t i = 1; i < norms.size(); ++i) norms_.emplace_back(norms[i].group, norms[i].norm);
    return norms[0].norm;
  } catch (const ValueError& e) {
    log_step();
    checkpoints_.diverged(fmt::format("step {}: {}", at_.step + 1, e.what()), rate_);
  }
}

void Training::show() {
  const double left_by_steps = c_.steps > 0 ? static_cast<double>(c_.steps - at_.step) *
                                                  (at_.seconds - first_.seconds) /
                                                  static_cast<double>(at_.step - first_.step)
                                            : HUGE_VAL;
  const double left_by_time = c_.seconds > 0 ? c_.seconds - (now() - begin_ - paused_) : HUGE_VAL;
  log_.show({.step = at_.step,
             .steps = c_.steps,
             .loss = loss_,
             .auxiliary = auxiliary_,
             .unit = &p_.unit,
             .gradient_norm = norm_,
             .learning_rate = rate_,
             .perplexity = predicts_tokens(p_.run),
             .tokens_per_second = speed_,
             .seconds_left = std::max(0.0, std::min(left_by_steps, left_by_time)),
             .peak_bytes = std::max(fullest_, at_.peak.total())},
            at_.step == c_.steps);
}

std::optional<double> Training::living_memories() const {
  const auto* const forgets = ask<ForgetsTokens>(std::as_const(*p_.run.model));
  if (forgets == nullptr) return std::nullopt;
  double sum = 0, count = 0;
  for (size_t i = 0; i < p_.memories.size(); ++i) {
    if (!is_own_batch(p_.shared.get(), static_cast<int64_t>(i))) continue;
    const SegmentMemory& memory = p_.memories[i];
    for (const double rows : forgets->living(memory)) {
      sum += rows;
      count += 1;
    }
  }
  return count > 0 ? std::optional(sum / count) : std::nullopt;
}

void Training::log_step() {
  if (logged_step_ == at_.step) return;
  Members values{{"loss", loss_},
                 {"bpb", p_.unit.bits(loss_)},
                 {"unit", p_.unit.name},
                 {"gradient_norm", norm_},
                 {"lr", rate_},
                 {"tokens", at_.tokens},
                 {"seconds", at_.seconds},
                 {"tokens_per_second", speed_},
                 {"peak_bytes", std::max(fullest_, at_.peak.total())}};
  for (const auto& [name, value] : auxiliary_) values.emplace_back("loss_" + name, value);
  for (const auto& [group, norm] : norms_) values.emplace_back("gradient_norm_" + group, norm);
  if (const auto living = living_memories()) values.emplace_back("living_memories", *living);
  if (const auto* const remarks = ask<Remarks>(*p_.run.model)) {
    for (const auto& [name, value] : remarks->log_values()) values.emplace_back(name, value);
  }
  if (p_.shared) {
    const SharedTraining& s = *p_.shared;
    values.emplace_back("exposed_seconds", s.owned.exposed_seconds() + s.group->waited_seconds());
    values.emplace_back("sent_bytes", s.sent_bytes());
  }
  if (inversion_.inversions > 0) values.emplace_back("inversion_error", inversion_.largest);
  row(at_.step, values);
  if (inversion_.largest > kDrift && !drift_said_) {
    drift_said_ = true;
    log_.say(
        fmt::format("inverting the layers ends {:.2g} beside their input, relative to it, and "
                    "gradients are no better: --memory reversible:exact, or reversible:K "
                    "with a small K, prevents it",
                    inversion_.largest));
  }
  inversion_.largest = 0;
  inversion_.inversions = 0;  // replayed steps are not watched
  logged_step_ = at_.step;
}

void Training::row(int64_t step, const Members& figures) {
  log_.row(step, figures);
  if (p_.is_first() && on_row()) on_row()(p_.run.out, step, figures);
}

void Training::say_why_not_recorded() {
  const bool of_steps = !steps_.refusal().empty();
  const std::string& why = of_steps ? steps_.refusal() : steps_.update_refusal();
  if (why == unsaid_) return;
  unsaid_ = why;
  log_.say(fmt::format("{} run kernel by kernel: {}", of_steps ? "steps" : "updates", why));
}

Members Training::with_perplexity(Members figures, double bits) const {
  const bool is_there = std::any_of(figures.begin(), figures.end(),
                                    [](const JsonMember& m) { return m.name == "perplexity"; });
  if (predicts_tokens(p_.run) && !is_there) {
    figures.emplace_back("perplexity", p_.data->perplexity("valid", bits, p_.unit));
  }
  return figures;
}

// One item is enough to know which figures there are.
void Training::require_best_by() {
  if (c_.best_by.empty() || to_validate_ == 0) return;
  const double pause = now();
  const Evaluating one(1);
  const TaskData::Evaluation all = p_.data->evaluate("valid");
  if (std::isfinite(all.bits)) score_of(with_perplexity(all.report.figures, all.bits), c_.best_by);
  tracker_.reset_peak();
  paused_ += now() - pause;
}

void Training::validate() {
  if (valid_step_ == at_.step || to_validate_ == 0) return;
  const Phase phase("validation");
  at_.see(tracker_.peak());
  Members figures;
  {
    const WeightAverage::Instead instead(p_.average);
    if (p_.is_first() && (at_.step > 0 || p_.started)) write_sample();
    std::optional<DividedScoring> divided;
    if (p_.shared) divided.emplace(p_.shared->ranks, p_.shared->sequence);
    const Evaluating evaluating(c_.eval_tokens, [this](int64_t done, int64_t all) {
      log_.show_line(fmt::format("step {}: validation {} %", at_.step,
                                 100 * done / std::max<int64_t>(all, 1)));
    });
    if (c_.best_by.empty()) {
      valid_ = p_.data->bits("valid");
      figures = with_perplexity({}, valid_);
    } else {
      TaskData::Evaluation all = p_.data->evaluate("valid");
      valid_ = all.bits;
      figures = with_perplexity(std::move(all.report.figures), valid_);
    }
  }
  tracker_.reset_peak();
  valid_step_ = at_.step;
  double score = valid_;
  if (!c_.best_by.empty()) {
    try {
      score = score_of(figures, c_.best_by);
    } catch (const ValueError&) {
      save();  // the steps so far are good
      throw;
    }
  }
  if (at_.step != first_.step || to_string(Json(valid_)) != known_valid_) {
    Members found{{"valid_bpb", valid_}, {"unit", p_.unit.name}};
    if (!c_.best_by.empty()) found.emplace_back("score", score);
    for (const JsonMember& m : figures) {
      if (m.value.is_number()) found.emplace_back("valid_" + m.name, m.value);
    }
    row(at_.step, found);
    best_.add(at_.step, score);
  }
  const std::string by =
      c_.best_by.empty() ? "" : fmt::format(", {} {:.4f}", c_.best_by, std::abs(score));
  log_.say(fmt::format("step {}: {}{} on {}", at_.step, figure("valid", valid_), by, scored()));
  require_finite_loss();
  if (c_.keep_best && best_.step == at_.step) save();
  see_patience();
}

std::string Training::figure(const std::string& part, double bits) const {
  std::string text = fmt::format("{:.4f} bits per {}", bits, p_.unit.name);
  if (predicts_tokens(p_.run)) {
    text += fmt::format(" (perplexity {:.4g}{})", p_.data->perplexity(part, bits, p_.unit),
                        p_.unit.per_target != 1 ? " per token" : "");
  }
  return text;
}

std::string Training::scored() const {
  const std::string all = fmt::format("{} {} of validation", to_validate_, p_.data->items());
  return c_.eval_tokens == 0
             ? all
             : fmt::format("a sample of about {} tokens of {}", c_.eval_tokens, all);
}

// Written before the row of metrics.jsonl, so that a run which is killed in between writes it
// again.
void Training::write_sample() try {
  const std::string text = with_replacement_characters(sample_of(p_.run, *p_.data));
  if (text.empty()) return;
  make_folders(p_.run.out + "/samples", "samples");
  replace_file(fmt::format("{}/samples/step-{}.txt", p_.run.out, at_.step), text, "samples");
} catch (const Error& e) {
  log_.say(fmt::format("no sample of step {}: {}", at_.step, e.what()));
}

void Training::look(bool last) {
  constexpr double share = 0.05;  // of the time, at most, before the end
  const double begin = now();
  if (!p_.is_first() || (!last && begin - looked_ < looking_ / share)) return;
  try {
    draw_run(p_.run, *p_.data, p_.unit);
  } catch (const Error& e) {
    log_.say(fmt::format("no pictures of step {}: {}", at_.step, e.what()));
  }
  tracker_.reset_peak();
  looked_ = now();
  looking_ = looked_ - begin;
}

std::vector<int64_t> Training::spared() const {
  return c_.keep_best ? std::vector{best_.step, best_.before} : std::vector<int64_t>{};
}

void Training::see_patience() {
  stale_ = c_.patience > 0 && best_.since >= c_.patience;
  if (!stale_) return;
  log_.say(
      best_.step < 0
          ? fmt::format("{} validations without a finite score: --patience", best_.since)
          : fmt::format("{} validations without one better than the {:.4f} of step {}: --patience",
                        best_.since, std::abs(best_.score), best_.step));
}

// A validation part in which nothing counts has no finite score; then the next training batch says
// whether the parameters are good.
void Training::require_finite_loss() {
  const double next = std::isfinite(valid_) ? valid_ : steps_.loss_of(at_.step);
  if (!std::isfinite(next)) {
    checkpoints_.diverged(
        fmt::format("after step {} the loss is {}", at_.step, nonfinite_text(next)), rate_);
  }
}

TensorList Training::waiting() const {
  TensorList all;
  if (!c_.optimizer.period().waits(at_.step)) return all;
  for (const NamedTensor& p : p_.optimizer->parameters()) {
    if (const Tensor g = grad(p.tensor)) all.push_back({p.name + kGradient, contiguous(g)});
  }
  if (p_.shared) all = p_.shared->owned.whole(all, "gradients that wait");
  for (NamedTensor& t : steps_.waiting().statistics) all.push_back(std::move(t));
  return all;
}

Members Training::figures() const {
  return {{"loss", loss_},
          {"losses", members_of(auxiliary_)},
          {"gradient_norm", norm_},
          {"gradient_norms", members_of(norms_)},
          {"inversions", inversion_.inversions},
          {"inversion_error", inversion_.largest}};
}

void Training::go_on_from(const Json& figures) {
  loss_ = number_of(figures["loss"]);
  auxiliary_ = numbers_of(figures["losses"]);
  norm_ = number_of(figures["gradient_norm"]);
  norms_ = numbers_of(figures["gradient_norms"]);
  inversion_.inversions = figures["inversions"].integer();
  inversion_.largest = number_of(figures["inversion_error"]);
}

// All processes call it: each has parts of what is saved.
void Training::save() {
  const Phase phase("saving");
  if (p_.shared) {
    Communicator& ranks = p_.shared->ranks;
    for (const std::string& peak : ranks.gather(to_string(Json(to_members(at_.peak))), "memory")) {
      at_.see(to_usage(parse_json(peak)));  // that of the fullest
    }
    const std::string after = fmt::format("after step {}", at_.step);
    require_equal(ranks, {{"the checksum of the parameters " + after, checksum_of(p_.state)},
                          {"the learning rate " + after, fmt::format("{}", rate_)}});
  }
  Members values = at_.values();
  for (const JsonMember& m : p_.loss_scale.values()) values.push_back(m);
  values.emplace_back("figures", figures());
  values.emplace_back("validations", best_.values());
  if (c_.optimizer.period().waits(at_.step)) {
    const TrainingSteps::Waiting w = steps_.waiting();
    const double scale = TrainingSteps::scale_of(c_, at_.step, p_.loss_scale.value());
    values.emplace_back("waiting",
                        Members{{"first", w.unit}, {"targets", w.all}, {"scale", scale}});
  }
  values.emplace_back("schedule", learning_rate_.state().value());
  for (const JsonMember& m : p_.provenance.values()) values.push_back(m);
  const TrainingRun::Origin& origin = p_.run.origin;
  values.emplace_back("samples", p_.run.samples_before(at_.step * c_.batches_per_step()));
  values.emplace_back("origin", Members{{"step", origin.step}, {"samples", origin.samples}});
  values.emplace_back("config", to_json(p_.run.config));
  values.emplace_back("batches_per_step", c_.batches_per_step());
  progress_ = p_.progress();
  TensorList waits = waiting();
  if (!p_.is_first()) return;
  // Gradients in f16 may overflow before the update that is then left out.
  TensorList overflowing;
  (p_.loss_scale.adapts() ? overflowing : progress_)
      .insert((p_.loss_scale.adapts() ? overflowing : progress_).end(), waits.begin(), waits.end());
  checkpoints_.save(at_.step, values, rate_, overflowing);
  progress_.clear();
}

void Training::finish_run() {
  log_.end_line();
  profile(true);
  if (stopped_) log_.say(fmt::format("stopped after step {}", at_.step));
  if (c_.steps == 0 && !stopped_) {
    const std::string rising = remark_on_warmup(c_, p_.schedule.start, at_.step);
    if (!rising.empty()) log_.say(rising);
  }
  log_step();
  save();
  if (stopped_ && valid_step_ != at_.step && to_validate_ > 0) {
    log_.say(
        fmt::format("step {} is saved; now {} {} of validation are scored. Another signal leaves "
                    "that out, with pictures and summary.json",
                    at_.step, to_validate_, p_.data->items()));
  }
  validate();
  if (at_.step > first_.step || p_.continues()) {  // a kill may have left older checkpoints
    require_finite_loss();
    if (p_.is_first()) checkpoints_.confirm(at_.step, spared());
  }
  if (!p_.is_first()) return;
  look(true);
  Members figures = summary(p_.run, at_, valid_, p_.data->perplexity("valid", valid_, p_.unit));
  const bool until = p_.until > 0 && at_.step >= p_.until && at_.step < c_.steps;
  if (stopped_ || until) figures.emplace_back("stopped", true);
  const std::string line = write_summary(p_.run.out, figures);
  for (const std::string& text : p_.json ? std::vector{line} : outcome()) std::puts(text.c_str());
  std::fflush(stdout);
}

std::vector<std::string> Training::outcome() const {
  const double train = at_.train_bpb();
  const double speed = at_.seconds > 0 ? static_cast<double>(at_.tokens) / at_.seconds : 0;
  std::string losses = std::isfinite(train) ? "training " + figure("train", train) : "";
  if (std::isfinite(valid_)) {
    losses += fmt::format("{}validation {}", losses.empty() ? "" : ", ", figure("valid", valid_));
    if (best_.step >= 0 && best_.step != at_.step && c_.best_by.empty()) {
      losses += fmt::format(", at best {:.4f} at step {}", best_.score, best_.step);
    }
  }
  return {fmt::format("{}: {} steps, {} tokens in {} ({:.0f} tokens/s), peak memory {}",
                      c_.model_name, at_.step, at_.tokens, format_seconds(at_.seconds), speed,
                      format_bytes(std::max(fullest_, at_.peak.total()))),
          fmt::format("{}{}the run is in {}", losses, losses.empty() ? "" : "; ", p_.run.out)};
}

}  // namespace longspan
