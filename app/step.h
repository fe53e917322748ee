#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/run_config.h"
#include "train/step_memory.h"

namespace longspan {

struct SharedTraining;

/// The settings of a run that determine its memory; the rest of its configuration is fixed.
struct StepShape {
  std::string memory;
  int64_t chunks = 1, layers = 0, length = 0, batch = 0;
};
/// Returns the shape of a configuration. Throws ValueError if a model of one's own lacks a field.
StepShape shape_of(RunConfig& config);

/// Computes the memory of training steps of one configuration in other shapes.
class StepPlanner {
 public:
  /// Changes the shape of the configuration while it lives and restores it in the destructor.
  /// `recorded`: whether steps are recorded on the device (MeasureOptions::graph).
  StepPlanner(RunConfig& config, bool recorded)
      : config_(config), own_(shape_of(config)), recorded_(recorded) {}
  explicit StepPlanner(RunConfig& config) : StepPlanner(config, config.graph) {}
  ~StepPlanner();
  StepPlanner(const StepPlanner&) = delete;
  StepPlanner& operator=(const StepPlanner&) = delete;

  const StepShape& own() const { return own_; }
  const RunConfig& config() const { return config_; }

  /// Builds the model on the device and takes a step: on meta_device this is a prediction,
  /// elsewhere a measurement of the second step, after a first one that fills caches. Then it runs
  /// what a run does between steps: a batch of validation and the pictures. `inspect`, if set,
  /// receives the step's trace and the usage before it, and the step is all that runs. Throws if
  /// the model cannot be built in this shape.
  ///
  /// Of several processes (RunConfig::processes) it is the fullest one's step, among ranks that are
  /// not there.
  using Inspect = std::function<void(const MemoryTrace&, const Usage& before)>;
  StepMemory step(const StepShape& shape, Device device = meta_device, const Inspect& inspect = {},
                  bool macs = true) const;
  /// Predicts step() on the meta device. Returns nothing if the model cannot be built in this
  /// shape; `reason` receives the message.
  std::optional<StepMemory> predict(const StepShape& shape, std::string* reason = nullptr,
                                    bool macs = true) const;

  /// Builds the model of the configuration on the device, and returns what takes one training step
  /// of it on synthetic inputs, at learning rate 0 and kernel by kernel. Its phases (Phase) are
  /// "forward", "backward" and "update".
  std::function<void()> steps_on(Device device) const { return steps_on(own_, device); }
  /// The same in another shape. To be called no more once the planner takes another one.
  std::function<void()> steps_on(const StepShape& shape, Device device) const;

  /// Builds the model of the configuration in another shape. Throws if it cannot be built.
  std::unique_ptr<LanguageModel> build(const StepShape& shape, const Init& init) const;
  /// Returns the loss of a batch of training on synthetic inputs, of a model that build() has made
  /// in the shape that the planner took last.
  Tensor synthetic_loss(const LanguageModel& model, Device device, const Pass& pass) const;

  /// Returns the largest multiple of `unit` up to `limit` of one field of the shape for which the
  /// peak stays within `budget`; 0 if there is none.
  int64_t largest(StepShape shape, int64_t StepShape::*part, int64_t unit, int64_t limit,
                  int64_t budget) const;
  /// Returns the maximum number of tokens that the model takes. If its positions may be extended,
  /// it is the larger of that and 65,536.
  int64_t longest_possible() const;
  /// Whether the model has ReversibleLayers.
  bool reversible_layers() const;
  /// Returns the model's Remarks::remark() for the length of the configuration.
  std::string remark() const;
  /// Returns the bytes that a batch of streams keeps from segment to segment, on this device: on
  /// meta_device they are predicted. 0 for a model without a memory.
  int64_t memory_of_streams(Device device = meta_device) const;

 private:
  /// The step of the configuration as it is; `owned`: of one of several processes.
  StepMemory step_of(SharedTraining* shared, Device device, const Inspect& inspect,
                     bool macs) const;

  RunConfig& config_;
  StepShape own_;
  bool recorded_;
};

/// The largest sizes of a shape that fit in a budget; -1: not computed.
struct Largest {
  int64_t length = -1, layers = -1;
};

/// The most layers that largest_within() tries.
inline constexpr int64_t most_layers = 4096;
/// Returns the longest length that it tries.
int64_t longest_tried(const StepPlanner& planner);
/// Returns the longest sequence with the layers of the shape, and the deepest model with its
/// length, for which the predicted peak and the process itself stay within `budget` bytes; 0: not
/// even the smallest.
Largest largest_within(const StepPlanner& planner, const StepShape& shape, int64_t budget);

/// Returns the compute dtype of the layers, from the fields of a model.
DType element_of(const Json& fields);

/// Returns ceil(F / D), 2 or more: with so many chunks, a feed-forward layer needs no more memory
/// than the residual stream. 2 for a model without these widths.
int64_t usual_chunks(const RunConfig& config);

/// A strategy of --memory, and the memory of a step with it.
struct Strategy {
  StepShape shape;
  std::optional<StepMemory> memory;
  std::string refused;  ///< the reason why there is none
  /// Returns e.g. "checkpoint:2, 4 chunks".
  std::string name() const;
  /// Returns e.g. "--memory checkpoint:2 --chunks 4".
  std::string options() const;
};

/// Returns every strategy that suits the depth of a configuration, with its prediction, in table
/// order.
std::vector<Strategy> strategies(const StepPlanner& planner);

/// Returns what a process of a run needs besides its tensors: the program and its libraries, the
/// picture that is being drawn, text and buffers of files (docs/memory.md has the measurements). 0
/// where tensors have a memory of their own, on a GPU.
int64_t process_bytes(const RunConfig& config);
/// Data of so many bytes in tensors count as a part of the process.
inline constexpr int64_t small_data = int64_t{4} << 20;

/// The candidates for a strategy.
enum class Choice : uint8_t {
  own,   ///< only the configuration's own
  same,  ///< all strategies with the configuration's function: --memory auto
  any    ///< reversible ones too, although they define another network: --memory auto:reversible
};

/// Sets config.model to the strategy that fits in `budget` bytes, the process itself included, with
/// the least recomputation, and on the CPU config.tensor_limit to what is left for tensors. Throws
/// ValueError, with settings that would fit, if none does. Returns the choice.
Strategy choose_strategy(RunConfig& config, int64_t budget, Choice from);

/// Returns a note on what `reversible` would mean for the planner's model, and whether auto may
/// choose it.
std::string reversible_note(const StepPlanner& planner);

/// Returns the phases of a step of the configuration and the largest tensors that its forward pass
/// saves, for out-of-memory messages.
std::string largest_terms(const StepPlanner& planner);

/// Removes "auto" or "auto:reversible" from the settings if it is the last setting of the memory
/// policy, and returns the choice that it allows; an earlier policy setting stays, as the function
/// to keep. Throws ValueError on any other policy that begins with "auto".
std::optional<Choice> take_auto(Settings& settings);

}  // namespace longspan
