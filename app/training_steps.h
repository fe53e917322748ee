#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "app/ranks/batch_report.h"
#include "app/run.h"
#include "app/tasks/task_data.h"
#include "core/ranks/communicator.h"
#include "core/ranks/sequence_split.h"
#include "nn/after_step.h"
#include "train/log.h"
#include "train/optimizer.h"
#include "train/owned_parameters.h"
#include "train/step_graph.h"

namespace longspan {

/// The outcome of the forward and backward passes of one training step.
struct StepResult {
  double loss = 0;         ///< mean over all targets of the step, in nats
  NamedNumbers auxiliary;  ///< auxiliary losses, averaged over batches as `loss` is
  int64_t tokens = 0;      ///< read by the forward passes
  int64_t peak = 0;        ///< of several processes: bytes that the fullest has needed so far
  bool scored = true;      ///< whether any target counted; else the loss is 0
  bool trains = true;      ///< whether any did since the last update; else the gradients are 0
  double rescale = 1;      ///< factor by which the gradients must still be multiplied, if an update
                           ///< follows
};

/// What several processes of a run share.
struct SharedTraining {
  /// `together`: so many processes compute each batch (RunConfig::Ranks::sequence).
  SharedTraining(Communicator& of, int together)
      : ranks(of), owned(of, together), group(of.group(together)), sequence(*group) {}
  /// Has devices exchange what they have without the host, if they can. Returns a remark if not.
  std::string open(Device device);
  /// What the passes of models get: null if each process computes batches by itself.
  const SequenceSplit* split() const { return sequence.size() > 1 ? &sequence : nullptr; }
  /// The batch of each round that this process computes, or takes part in.
  int index() const { return ranks.rank() / sequence.size(); }

  /// What this process has sent so far, to all and within its group.
  int64_t sent_bytes() const { return ranks.sent_bytes() + group->sent_bytes(); }
  int64_t sent_messages() const { return ranks.sent_messages() + group->sent_messages(); }

  Communicator& ranks;
  OwnedParameters owned;
  std::unique_ptr<Communicator> group;  ///< the processes that compute the same batches
  SequenceSplit sequence;
};

/// Whether this process computes batch i of a step.
bool is_own_batch(const SharedTraining* shared, int64_t i);

/// Runs the forward and backward passes of a run's training steps, kernel by kernel or, with
/// `graph = true`, as a recorded step (train/step_graph.h).
class TrainingSteps {
 public:
  /// Keeps references to all four.
  ///   memories  what streams have kept, one for each batch of a step; empty unless the data are
  ///             streams. Each step that is updated or skipped moves them on by a segment.
  ///   shared    with several processes: what they own, of which the optimizer has this one's part.
  ///             It uses only the memories of its own batches.
  TrainingSteps(const TrainingRun& run, const TaskData& task_data, Optimizer& optimizer,
                std::vector<SegmentMemory>& memories, SharedTraining* shared = nullptr)
      : run_(run),
        task_data_(task_data),
        memories_(memories),
        shared_(shared),
        modules_(*run.model),
        parameters_(optimizer.parameters()),
        graph_(run.device, optimizer),
        end_(*run.model) {}

  /// What waits for an update (UpdatePeriod) besides the gradients, which the parameters have.
  struct Waiting {
    static constexpr const char* mark = ".statistics.";  ///< in the names of sums
    double unit = 0, all = 0;    ///< what a batch's targets are weighed by, and targets so far
    TensorList statistics = {};  ///< sums since the last update, as "MODULE.statistics.0"
  };
  Waiting waiting() const;
  /// Goes on from a checkpoint between two updates. Throws IoError if the model has no such module.
  void wait_for_update(const Waiting& waiting);
  /// Returns the factor on a gradient of step `step`, besides its fraction of the targets:
  /// gradients of different settings can be added only if their factors agree.
  static double scale_of(const RunConfig& config, int64_t step, double factor) {
    return factor /
           static_cast<double>(config.batches_per_step() * config.optimizer.period().at(step));
  }

  /// Returns the number of targets with which a batch weighs 1, if several batches make an update;
  /// else 0.
  static double unit_of(const RunConfig& config, const TaskData& data);

  /// Adds the gradients of step `step` to the parameters, multiplied by `factor` (the loss scale).
  /// `last` is the number of the last step; step / last is the progress that layers see.
  StepResult gradients(int64_t step, int64_t last, double factor);
  /// Returns the loss of the first batch of step `step` in nats, computed without gradients.
  double loss_of(int64_t step) const;
  /// Updates the parameters by the optimizer with learning rate `lr`, and ends step `step` with the
  /// statistics of the last gradients().
  void update(int64_t step, double lr);
  /// Ends a step without an update, or whose update is left out: streams go on all the same.
  /// update() does it too.
  void pass_memories_on();

  /// Says why the passes are not recorded; empty if they are.
  const std::string& refusal() const { return refusal_.empty() ? graph_.refusal() : refusal_; }
  /// Says why the updates are not recorded; empty if they are.
  const std::string& update_refusal() const { return graph_.update_refusal(); }

 private:
  StepResult run(int64_t step, const Pass& pass, double factor);
  StepResult recorded(int64_t step, const Pass& pass, double factor);
  std::vector<Tensor> record(const std::vector<Tensor>& in,
                             const std::vector<SegmentMemory>& before, const Pass& pass,
                             double factor);
  /// The weight of one of several batches that are accumulated.
  double share() const { return 1.0 / static_cast<double>(run_.config.batches_per_step()); }
  /// Makes streams that begin with a step forget what they have kept.
  void begin_streams(int64_t step);
  /// Adds what the passes of one batch, of any process, have found.
  void add_report(BatchReport report, double unit, StepResult& done, double& all);
  /// Adds what all processes have found of the batches of a round.
  void add_reports(BatchReport own, double unit, StepResult& done, double& all);
  /// The pass of a model that this process computes, or its share of.
  Pass pass_of(const Pass& step, int64_t batch) const;
  /// Returns the memory of batch i of a step before the step.
  const SegmentMemory& memory_of(int64_t i) const;

  const TrainingRun& run_;
  const TaskData& task_data_;
  std::vector<SegmentMemory>& memories_;
  std::vector<SegmentMemory> next_;  // after the last gradients()
  SharedTraining* shared_;
  ModuleList modules_;
  TensorList parameters_;
  StepGraph graph_;
  EndOfStep end_;
  std::string refusal_;
  double targets_ = 0;                  // that counted since the last update
  std::vector<Statistics> statistics_;  // sums over the batches since the last update
  // Of the recorded step: its factor, the names of its auxiliary losses in order ("": the loss),
  // and the modules with statistics with their numbers of sums.
  double factor_ = 1;
  std::vector<std::string> recorded_;
  std::vector<std::pair<const Module*, size_t>> counted_;
};

}  // namespace longspan
