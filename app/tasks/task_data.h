#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/run.h"
#include "app/tasks/evaluating.h"
#include "app/tasks/task.h"
#include "data/sample_task.h"
#include "data/streams.h"
#include "models/all/registry.h"
#include "models/capabilities.h"
#include "models/evaluate.h"
#include "models/generate.h"

namespace longspan {

/// The splits of data, and the index of one. Throws ValueError on another name.
inline constexpr const char* part_names[] = {"train", "valid", "test"};
size_t part_index(const std::string& part);

/// Returns the number of targets [..] i32 that count.
int64_t counted_targets(const Tensor& targets);

/// Returns the losses of a batch after the segments in `memory`, which is empty if the model keeps
/// none.
LanguageModel::Losses losses_of(const TrainingRun& run, const Batch& batch,
                                const SegmentMemory& memory, Pass pass);

/// Returns the inputs for samples, padded at their ends to the longest: with lengths if they
/// differ, and with the samples' global tokens if there are any and the model `takes_global` ones.
EncoderInputs inputs_of(std::span<const Sample> samples, bool takes_global, Device device);

/// Throws ValueError: `why`, what the model has in place of a capability, and which models have it.
template <class Capability>
[[noreturn]] void refuse_without(const RunConfig& config, const LanguageModel& model,
                                 const std::string& why) {
  fail("task", "{}. {} has {}; models with {}: {}", why, config.model_name, capabilities_of(model),
       Capability::capability, fmt::join(models_with<Capability>(), ", "));
}

/// A task for the models with one capability.
template <class Capability>
class TaskFor : public Task {
 public:
  using Task::Task;
  bool suits(const LanguageModel& model) const final { return ask<Capability>(model) != nullptr; }
};

/// Throws ValueError if the model reads a source, of which only documents have one.
void refuse_writers(const RunConfig& config, const LanguageModel& model);

/// Runs LanguageModel::loss() on synthetic tokens and targets.
LanguageModel::Losses synthetic_token_loss(const SyntheticStep& step);
/// Returns synthetic inputs of encoders; `takes_global`: the first token of each row is global.
EncoderInputs synthetic_inputs(const SyntheticStep& step, bool takes_global);

/// Calls visit(items) for `count` items that get(i) makes, some neighbours at a time: at most
/// `most`, and of one length(item). Padding may change which blocks or buckets a model makes of a
/// sequence, and a score must not depend on what its samples are read beside. Tells Evaluating.
void visit_alike(int64_t count, int64_t most, const auto& get, const auto& length,
                 const auto& visit) {
  std::vector<std::remove_cvref_t<decltype(get(int64_t{0}))>> some;
  for (int64_t i = 0; i < count; ++i) {
    auto next = get(i);
    if (!some.empty() && (std::ssize(some) == most || length(next) != length(some[0]))) {
      visit(some);
      Evaluating::see(i, count);
      some.clear();
    }
    some.push_back(std::move(next));
  }
  if (!some.empty()) visit(some);
  Evaluating::see(count, count);
}

/// The data of a run: training and evaluation of a model with its objective.
class TaskData {
 public:
  virtual ~TaskData() = default;

  /// Warnings to print before training: sizes that differ from the expected ones.
  virtual const std::vector<std::string>& warnings() const = 0;
  /// Number of items of a split, and their name: "bytes", "tokens", "pairs".
  virtual int64_t size(const std::string& part) const = 0;
  virtual std::string items() const = 0;
  /// Unit that bits are counted per: "byte", "hidden byte", "answer".
  virtual std::string unit() const = 0;
  /// Units per target of a split, where the task knows them without reading it.
  virtual std::optional<double> units_per_target(const std::string& /*part*/) const {
    return std::nullopt;
  }
  /// Returns the perplexity of a target that bits per unit of a split mean; `unit`, the unit of the
  /// training split, stands in for splits with an unknown one.
  double perplexity(const std::string& part, double bits, const LossUnit& unit) const {
    return LossUnit{unit.name, units_per_target(part).value_or(unit.per_target)}.perplexity(bits);
  }
  /// The unit of training losses, with the bytes per token as measured on the training split.
  virtual LossUnit loss_unit() const { return {unit(), 1}; }

  /// Result of a training forward pass: its losses, the number of tokens it reads, and the number
  /// of targets, answers or questions that the loss is averaged over.
  struct Forward {
    LanguageModel::Losses losses;
    int64_t tokens = 0, counted = 0;
  };
  /// Must be called before the first forward(). Throws ValueError if there is too little training
  /// data.
  virtual void prepare() = 0;
  /// Runs the forward pass of batch `i` of the run. If streams(), it follows `memory`, which holds
  /// the segments of batch i - accumulate, but nothing of the streams that reset() names.
  virtual Forward forward(int64_t i, const SegmentMemory& memory, Pass pass) const = 0;
  /// Whether batches are segments of streams, so that the model's memory passes from one to the
  /// next. Batch k of each step then continues batch k of the step before.
  virtual bool streams() const { return false; }
  /// Returns which streams begin with batch i (StreamBatch::reset); undefined: none does.
  virtual Tensor reset(int64_t /*i*/) const { return {}; }
  /// Returns how many targets (Forward::counted) a batch of the configuration has, or may have
  /// where they differ; no batch is read. By default every token is one.
  virtual int64_t targets_of_batch(const RunConfig& c) const { return c.batch * c.length; }
  /// Whether there may be a batch in which nothing is a target.
  virtual bool batches_may_lack_targets() const { return false; }
  /// Returns batch `i` if forward() reads only tokens and targets, of one shape, with the same
  /// number of counted targets in every batch; else nothing.
  virtual std::optional<Batch> batch(int64_t /*i*/) const { return std::nullopt; }
  /// Returns the tokens [B, L] of the first batch; undefined if batches are not of tokens alone.
  virtual Tensor first_batch() const { return {}; }
  /// Returns the bits of a split per unit(); NaN if it is empty.
  virtual double bits(const std::string& part) const = 0;
  /// Whether bits() of a split that is not empty may be NaN, because nothing in it is a target.
  virtual bool may_lack_targets() const { return false; }
  /// Says how bits() of a split reads it, if a model's memory makes that matter; else empty.
  virtual std::string protocol(const std::string& /*part*/) const { return {}; }
  /// Returns bits() with windows of the run's length that move by `stride`, so that every token but
  /// the first ones has a context of at least length - stride; nothing unless the data are one
  /// text. Throws NotImplemented unless the model predicts its next tokens.
  virtual std::optional<double> sliding_bits(const std::string& /*part*/,
                                             int64_t /*stride*/) const {
    return std::nullopt;
  }

  /// What `longspan eval` reports about a split besides bits.
  struct Report {
    std::vector<std::string> lines;  ///< for people
    Members figures;                 ///< for evals.jsonl, by name without the split
    /// What was predicted for each sample, after a row of names; empty: it is no table.
    std::vector<std::vector<std::string>> rows = {};
    /// How often each class was predicted for each label, row by row, and their names; for a
    /// picture. Empty: there are no classes.
    std::vector<double> confusions = {};
    std::vector<std::string> classes = {};
  };
  struct Evaluation {
    double bits = 0;
    Report report;
  };
  /// Returns bits() of a split, and what there is to report when the model has read it once.
  virtual Evaluation evaluate(const std::string& part) const { return {bits(part), {}}; }
  /// Returns the report on what an encoder-decoder writes. `search`: how it writes; with 0 beams it
  /// does not.
  virtual Report written(const std::string& /*part*/, const BeamSearch& /*search*/) const {
    return {};
  }
  /// Returns the text of item `index` of a split, counted from 0, which answer() takes. Throws
  /// NotImplemented if items are no such texts, and ValueError on an index out of range.
  virtual std::string input(const std::string& part, int64_t index) const;
  /// What a model predicts of an input.
  struct Prediction {
    std::string label;       ///< or a number
    double probability = 0;  ///< of that label; NaN of a number
    Members figures;         ///< all of it, by name
  };
  /// Returns predictions for inputs, as the lines of a file have them. Throws NotImplemented if the
  /// task has none.
  virtual std::vector<Prediction> predict(std::span<const std::string> lines) const;
  /// Returns the answers to questions that stand in a text. Throws NotImplemented if the task has
  /// none.
  virtual std::vector<Prediction> find_answers(const std::string& text,
                                               std::span<const std::string> questions) const;
  /// Returns the lines of the model's answer to a text. Throws NotImplemented if the task has none.
  virtual std::vector<std::string> answer(const std::string& text, const BeamSearch& search) const;
  /// Returns up to `count` of the first tokens of the validation split, for pictures; may be empty.
  virtual std::vector<int32_t> first_tokens(int64_t count) const = 0;
  /// Returns the text of tokens; empty if the tokens of the task stand for none.
  virtual std::string decoded(std::span<const int32_t> /*ids*/) const { return {}; }
  /// Returns the token that hides another; -1: there is none.
  virtual int32_t mask_token() const { return -1; }
  /// Returns up to `count` of the inputs of the decoder after them; empty unless there is one.
  virtual std::vector<int32_t> first_decoded(int64_t /*count*/) const { return {}; }
};

/// Opens the data of a run's task; throws as Task::open().
inline std::unique_ptr<TaskData> open_task_data(const TrainingRun& run) {
  return run.config.of_task->open(run, true);
}

}  // namespace longspan
