#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "app/tasks/task.h"
#include "core/matmul_library.h"
#include "core/precision.h"
#include "data/data_sets.h"
#include "models/all/registry.h"
#include "models/convert.h"
#include "nn/fields.h"
#include "train/config.h"
#include "train/parameter_groups.h"
#include "train/plot.h"
#include "train/schedule.h"
#include "train/step_memory.h"

namespace longspan {

template <>
inline constexpr std::array<std::string_view, 3> value_names<MatmulPrecision>{"f32", "tf32",
                                                                              "bf16"};
template <>
inline constexpr std::array<std::string_view, 2> value_names<MatmulLibrary>{"own", "openblas"};

/// The optimizers.
enum class OptimizerName : uint8_t { adam, adamw, adafactor, adagrad, sgd, lamb };
template <>
inline constexpr std::array<std::string_view, 6> value_names<OptimizerName>{
    "adam", "adamw", "adafactor", "adagrad", "sgd", "lamb"};

/// The learning rate schedules after the warm-up.
enum class ScheduleName : uint8_t { cosine, linear, inverse_sqrt, step, constant };
template <>
inline constexpr std::array<std::string_view, 5> value_names<ScheduleName>{
    "cosine", "linear", "inverse_sqrt", "step", "constant"};

/// The complete configuration of a run; visit() defines config.toml.
struct RunConfig {
  std::string task = "bytes", data, data_root;
  std::unique_ptr<Task> of_task;  ///< that task with its options; set with `task` alone
  std::string split;              ///< empty: the data set's own
  std::string tokenizer;          ///< for bytes; empty: raw bytes
  int64_t length = 0, batch = 0, accumulate = 1;
  int64_t processes = 1;  ///< that mpirun has started; no part of config.toml
  /// Number of batches that are computed at once: one for each process, or for each group of
  /// `ranks.sequence` processes.
  int64_t groups() const { return std::max<int64_t>(processes / ranks.sequence, 1); }
  /// Batches of a step, of all processes together.
  int64_t batches_per_step() const { return accumulate * groups(); }
  int64_t steps = 0;   ///< 0: no limit except `seconds`
  double seconds = 0;  ///< 0: no limit except `steps`
  uint64_t seed = 1;
  int64_t threads = 0;  ///< 0: the number of available processors
  std::string device = "cpu";
  MatmulPrecision matmul_precision = MatmulPrecision::f32;
  MatmulLibrary matmul_library = MatmulLibrary::own;
  ByteSize memory_limit;     ///< 0: no limit
  bool graph = false;        ///< record steps of one shape and submit them to the device as a whole
  int64_t planned_peak = 0;  ///< of tensors, with --budget; not in config.toml
  int64_t tensor_limit = 0;  ///< what --budget leaves for tensors; 0: none; not in config.toml
  bool sparing = false;      ///< see sparing_evaluation(); no part of config.toml
  bool check_replays = false;  ///< check that recomputed layers give the same values again
  bool anomaly = false;        ///< throw at the first op of a step that produces NaN or Inf

  int64_t save_every = 0;  ///< steps; 0: at the end only
  int64_t keep = 0;        ///< number of newest checkpoints to keep; 0: all
  bool keep_best = false;  ///< save where a validation is the best so far, and keep that one
  std::string best_by;     ///< the figure that makes one the best; empty: the loss
  int64_t patience = 0;    ///< validations without a better one after which to stop; 0: never
  int64_t log_every = 10, eval_every = 0;
  bool tensorboard = false;  ///< also write figures for TensorBoard
  int64_t eval_tokens = 0;   ///< of the sample that a validation reads; 0: the whole split
  PictureFormats pictures;

  struct Optimizer {
    OptimizerName name = OptimizerName::adam;
    double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, momentum = 0.9, weight_decay = 0;
    double clip = 0;                             ///< maximum global gradient norm; 0: no clipping
    double step_clip = 0;                        ///< adagrad: AdagradOptions::step_clip
    double loss_scale = 0;                       ///< 0: only if f16 needs it
    int64_t update_period = 1, update_from = 0;  ///< UpdatePeriod
    ParameterChoice parameters;
    double average = 0;  ///< decay of WeightAverage; 0: none
    UpdatePeriod period() const { return {update_period, update_from}; }
    void visit(auto& v) {
      v("name", name, "adam, adamw, adafactor, adagrad, sgd or lamb");
      v("lr", lr, range::not_negative, "the peak of the learning rate");
      v("beta1", beta1, range::fraction, "decay of the mean of gradients: adam, adamw, lamb");
      v("beta2", beta2, range::fraction, "decay of the mean of their squares: adam, adamw, lamb");
      v("eps", eps, range::not_negative, "added to the root of that mean: adam, adamw, lamb");
      v("momentum", momentum, range::fraction, "of sgd");
      v("weight_decay", weight_decay, range::not_negative,
        "times the weights: taken off them (adamw, lamb) or added to gradients");
      v("clip", clip, range::not_negative, "maximum norm of the gradients; 0: none");
      v("step_clip", step_clip, range::not_negative,
        "adagrad: a rate is multiplied by min(1, this / norm of the gradient); 0: never");
      v("loss_scale", loss_scale, range::not_negative,
        "factor on the loss before the backward pass; 0: f16 finds one");
      v("update_period", update_period, range::between(1, range::many),
        "steps whose mean gradient makes an update");
      v("update_from", update_from, range::not_negative,
        "the step from which on update_period holds");
      parameters.visit(v);
      v("average", average, range::between(0, 0.999999999),
        "decay of a moving average of the weights, which is validated and exported; 0: none");
    }
  } optimizer;

  struct Schedule {
    ScheduleName name = ScheduleName::cosine;
    int64_t warmup = 0;    ///< steps
    double floor = 0.05;   ///< final rate, as a share of the peak
    int64_t every = 1000;  ///< step: steps between drops
    double factor = 0.5;   ///< step: factor of each drop
    void visit(auto& v) {
      v("name", name, "cosine, linear, inverse_sqrt, step or constant");
      v("warmup", warmup, range::not_negative, "steps in which the rate rises from 0");
      v("floor", floor, range::fraction,
        "cosine and linear: the final rate, as a fraction of the peak");
      v("every", every, range::positive, "step: steps between drops");
      v("factor", factor, range::fraction, "step: what each drop multiplies the rate by");
    }
  } schedule;

  /// Several processes that train together.
  struct Ranks {
    double timeout = 300;
    int64_t sequence = 1;  ///< processes that compute each batch together
    bool overlap = true;   ///< gradients go out during the backward pass
    void visit(auto& v) {
      v("timeout", timeout, range::positive,
        "seconds after which a process that does not answer ends the run");
      v("sequence", sequence, range::positive,
        "processes that compute each sequence together, with some of its rows each");
      v("overlap", overlap, "send gradients during the backward pass, not after it");
    }
  } ranks;

  /// Starts from the parameters of another run instead of random ones; used once, before the first
  /// step.
  struct Start {
    std::string from;  ///< its folder; empty: random initialization
    NewPositions positions = NewPositions::repeat;
    bool new_head = false;  ///< the task's head is drawn even if the other run has it
    void visit(auto& v) {
      v("from", from);
      v("positions", positions,
        "of positions beyond those of the other run: repeat its rows, or keep");
      v("new_head", new_head, "draw the task's head, with the labels of the data");
    }
  } start;

  std::string model_name;
  std::unique_ptr<ModelSpec> model;
  /// The preset's position fields, if the user has not set the number of positions: follow_length()
  /// then adapts them. Else empty.
  Settings free_positions = {};
  /// The field, if the user has not set it, that follow_length() sets by
  /// ModelSpec::settle_length(), with its value before.
  std::optional<Setting> open_field = {};

  void visit(Fields& v);
  /// Gives the model at least `length` positions, unless the user has set their number, and what it
  /// derives from that length. Throws ValueError if the user has to choose the axes of a grid.
  void follow_length();
  /// Whether evaluation reads no more rows at a time than a step, so that it fits where steps do:
  /// memory_limit is set, or --budget was given.
  bool sparing_evaluation() const { return sparing || memory_limit.bytes > 0; }
  /// Return a line about the changes of follow_length(); empty if there are none.
  std::string remark_on_positions();
  std::string remark_on_length();
};

/// Applies the thread count and the matmul settings of a configuration to the process.
void set_process(const RunConfig& config);

/// Prints remark_on_positions() to standard error.
void say_positions(RunConfig& config);

/// Returns the data locations.
DataPlace data_place(const RunConfig& config);

/// Names the data of a run in messages: "bytes=FILE" as given, or the task.
std::string data_name(const RunConfig& config);

}  // namespace longspan
