#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/provenance.h"
#include "app/rate.h"
#include "app/run.h"
#include "app/run_folder.h"
#include "app/runs/profile.h"
#include "app/start.h"
#include "app/tasks/task_data.h"
#include "app/training_steps.h"
#include "autograd/checkpoint_scope.h"
#include "nn/reversible.h"
#include "train/log.h"
#include "train/optimizer.h"
#include "train/weight_average.h"

namespace longspan {

/// The state from which a run starts, as its command line says.
struct Beginning {
  std::string out;              ///< the run folder
  std::string checkpoint = {};  ///< to continue from; empty for a new run
  std::string newest = {};      ///< checkpoint in the folder
  bool resume = false;          ///< --resume was given
  bool chosen = false;          ///< --step was given
  bool rewarm = false;          ///< --rewarm was given
  bool other_data = false;      ///< --other-data was given
};

/// The configuration of a run before its model is built.
struct TrainingPlan {
  RunConfig config;
  double planned_seconds = 0;  ///< --seconds of the run that is continued
  std::string remark = {};     ///< on what `longspan train` chose: sizes, the memory policy
};

/// Holds what a run trains with: model, data, optimizer, and the state of the checkpoint that it
/// continues from. Nothing has been written yet.
struct Prepared {
  /// Builds and reads everything. Throws ValueError if the configuration does not fit the data
  /// or the checkpoint, and IoError if a file cannot be read.
  /// `ranks`: the processes of the run, if they are several.
  Prepared(Beginning from, TrainingPlan plan, Communicator* ranks = nullptr);

  bool continues() const { return !beginning.checkpoint.empty(); }
  /// The parameters that are trained.
  TensorList trained() const;
  /// Whether this is the process that writes.
  bool is_first() const { return !shared || shared->ranks.rank() == 0; }
  /// What every checkpoint holds besides the model: the optimizer's state and the memories. Of
  /// several processes all must call it; the first gets everything, and others nothing.
  TensorList progress() const;

  Beginning beginning;
  std::string remark;
  TrainingRun run;
  std::unique_ptr<TaskData> data;
  std::optional<ProfiledSteps> profiled;   ///< --profile
  bool json = false;                       ///< --json
  int64_t until = 0;                       ///< --until; 0: not given
  std::unique_ptr<SharedTraining> shared;  ///< with several processes; before the optimizer
  TensorList state;                        ///< of the model: parameters and buffers
  std::unique_ptr<Optimizer> optimizer;
  std::vector<SegmentMemory> memories;  ///< of streams, one for each batch of a step
  LossScale loss_scale;
  Provenance provenance;
  Position at;
  ScheduleState schedule;
  std::vector<std::string> remarks;  ///< on the checkpoint that the run continues from
  LossUnit unit;
  std::optional<Started> started;  ///< with --from: what the parameters were taken from
  TrainingSteps::Waiting waiting;  ///< for an update, besides the gradients
  Json figures;                    ///< of the last step, as Training::figures(); null: none
  Json validations;                ///< BestValidation::values(); null: none
  std::optional<WeightAverage> average;
  bool other_data = false;  ///< validations of before are of other data
  bool other_best = false;  ///< they were compared by another figure

 private:
  void restore(double planned_seconds);
  /// Tensors in which a process has its own part of what progress() returns.
  TensorList own_progress() const;
  /// Returns tensors for everything that a checkpoint holds besides the model.
  TensorList all_of_checkpoint() const;
  /// Takes this process's part of them.
  void take(const TensorList& all) const;
  /// Returns tensors for what the checkpoint holds between two updates: "PARAMETER.gradient" and
  /// "MODULE.statistics.0"; none if it has not been written there.
  TensorList waiting_tensors() const;
  /// Goes on between two updates with these tensors.
  void wait_for_update(const Json& values, const TensorList& tensors);
  /// Goes on in the training data after the samples that were read, and says what has changed.
  /// Streams of other samples, or in other batches, begin anew: their memories do not fit.
  void go_on_after(const Before& before);
};

/// The training loop of `longspan train`, with its checkpoints, validations, log and pictures.
class Training {
 public:
  /// Locks the run folder and writes its first files. Keeps a reference to `prepared`. Throws
  /// IoError, also if another process has written a checkpoint in the meantime.
  explicit Training(Prepared& prepared);

  /// Trains until the steps or the time are over or a signal asks it to stop, and writes the last
  /// checkpoint, pictures and summary. Throws ValueError if the run diverges.
  void run();

 private:
  std::string set_aside_later_steps();
  void say_beginning();
  void one_step(double elapsed);
  void profile(bool last = false);
  StepResult gradients();
  double clipped_norm(const StepResult& done);
  void show();
  void log_step();
  /// Adds a row to metrics.jsonl, and tells on_row().
  void row(int64_t step, const Members& figures);
  /// Returns how many memories the next token sees, a mean over layers and samples; nothing unless
  /// the model deletes them one by one.
  std::optional<double> living_memories() const;
  void say_why_not_recorded();
  void validate();
  /// Adds the perplexity to the figures of an evaluation, where they have none and there is one.
  Members with_perplexity(Members figures, double bits) const;
  /// Throws ValueError unless an evaluation has the figure that best_by names.
  void require_best_by();
  /// Writes what the model writes now to samples/. What fails is said, and left out.
  void write_sample();
  /// Renews the pictures if that takes little time beside training, or at the end. What fails is
  /// said, and left out.
  void look(bool last = false);
  /// What validations are of, and their figures, for people.
  std::string scored() const;
  std::string figure(const std::string& part, double bits) const;
  /// The two lines that end a run.
  std::vector<std::string> outcome() const;
  void require_finite_loss();
  /// Stops the run if its validations have not become better for too long, and says so.
  void see_patience();
  /// Returns the steps whose checkpoints stay whatever `keep` says.
  std::vector<int64_t> spared() const;
  /// Returns what waits for an update, for a checkpoint between two; else nothing.
  TensorList waiting() const;
  /// Returns what the next row of metrics.jsonl has of the steps so far.
  Members figures() const;
  void go_on_from(const Json& figures);
  void save();
  void finish_run();

  /// Whether the run goes on, at this time; the first of several processes decides.
  bool goes_on(double& elapsed);

  Prepared& p_;
  const RunConfig& c_;
  Position& at_;
  StopSignal stop_;
  std::optional<FolderLock> lock_;
  std::string aside_;  // folder of what lay beyond the step that the run continues from
  Log log_;
  LearningRate learning_rate_;
  MemoryTracker& tracker_;
  Position first_;
  double begin_, paused_ = 0;        // seconds: start, and time spent outside of training steps
  double looked_ = 0, looking_ = 0;  // when pictures were drawn last, and how long that took
  // Of the last step. norms_: of the named clip groups; norm_: of the default one.
  double loss_ = 0, norm_ = 0, rate_ = 0, speed_ = 0;
  int64_t fullest_ = 0;  // of several processes: bytes that one has needed so far
  NamedNumbers auxiliary_, norms_;
  double valid_;
  int64_t valid_step_ = -1, logged_step_, to_validate_;
  Checkpoints checkpoints_;
  TrainingSteps steps_;
  std::string known_valid_;  // score of first_.step in metrics.jsonl, as text
  ReconstructionErrorMonitor inversion_;
  std::optional<autograd::CheckReplays> replays_;
  std::string unsaid_;  // the reason that say_why_not_recorded() gave last
  bool drift_said_ = false;
  BestValidation best_;
  bool stale_ = false;    // the last `patience` validations were not better
  bool stopped_ = false;  // a signal has asked for it
  TensorList progress_;   // of a checkpoint that is being written
};

}  // namespace longspan
