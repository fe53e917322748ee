#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/run_config.h"
#include "train/step_memory.h"

namespace longspan {

/// Where a run stands in what memory depends on; the rest of its configuration stays as it is.
struct StepShape {
  std::string memory;
  int64_t chunks = 1, layers = 0, length = 0, batch = 0;
};
/// That of a configuration.
StepShape shape_of(RunConfig& config);

/// The memory of training steps of one configuration in other shapes.
class StepPlanner {
 public:
  /// Gives the configuration other shapes while it lives, and its own back at the end. `recorded`:
  /// whether steps are those of a device that records them (MeasureOptions::graph).
  StepPlanner(RunConfig& config, bool recorded)
      : config_(config), own_(shape_of(config)), recorded_(recorded) {}
  explicit StepPlanner(RunConfig& config) : StepPlanner(config, config.graph) {}
  ~StepPlanner();
  StepPlanner(const StepPlanner&) = delete;
  StepPlanner& operator=(const StepPlanner&) = delete;

  const StepShape& own() const { return own_; }
  const RunConfig& config() const { return config_; }

  /// Builds the model on the device and takes a step: on meta_device a prediction, elsewhere a
  /// measurement, of the second step, after one that fills caches. `inspect`, where given, sees
  /// what happened in it, and what was live before. Throws where the model cannot be built in this
  /// shape.
  StepMemory step(const StepShape& shape, Device device = meta_device,
                  const std::function<void(const MemoryTrace&, const Usage& before)>& inspect = {},
                  bool macs = true) const;
  /// The same on the plan, but nothing where the model cannot be built so; `reason` is the message.
  std::optional<StepMemory> predict(const StepShape& shape, std::string* reason = nullptr,
                                    bool macs = true) const;

  /// The largest multiple of `unit` up to `limit` of a part of the shape with which the peak stays
  /// within `budget`; 0: none does.
  int64_t largest(StepShape shape, int64_t StepShape::*part, int64_t unit, int64_t limit,
                  int64_t budget) const;
  /// Most tokens that the model takes; 65,536, or what it has, where its positions may be extended.
  int64_t longest_possible() const;
  /// LanguageModel::reversible_layers().
  bool reversible_layers() const;

 private:
  RunConfig& config_;
  StepShape own_;
  bool recorded_;
};

/// What layers compute in, by the fields of a model.
DType element_of(const Json& fields);

/// ceil(F / D): chunks in which a feed-forward layer needs no more room than the stream.
int64_t usual_chunks(const RunConfig& config);

/// A strategy of --memory, and what a step needs with it.
struct Strategy {
  StepShape shape;
  std::optional<StepMemory> memory;
  std::string refused;  ///< why there is none
  /// "checkpoint:2, 4 chunks".
  std::string name() const;
  /// "--memory checkpoint:2 --chunks 4".
  std::string options() const;
};

/// Every strategy that suits the depth of a configuration, with its prediction, in the order in
/// which tables list them.
std::vector<Strategy> strategies(const StepPlanner& planner);

/// What a strategy is chosen from.
enum class Choice : uint8_t {
  own,   ///< the configuration's own alone
  same,  ///< all that compute the same function: --memory auto
  any    ///< reversible ones as well, though they make another network: --memory auto:reversible
};

/// Sets config.model to the strategy that fits in `budget` bytes and runs the least again. Throws
/// ValueError where none does, with settings that would fit. Returns the choice.
Strategy choose_strategy(RunConfig& config, int64_t budget, Choice from);

/// What `reversible` would mean for the model of the plan, and whether auto may take it.
std::string reversible_note(const StepPlanner& planner);

/// The phases of a step of the configuration and the largest of what its forward pass keeps, for
/// messages where memory runs out.
std::string largest_terms(const StepPlanner& planner);

/// What the last setting of the memory policy lets be chosen, if it is "auto" or "auto:reversible",
/// which the settings then lose; a policy that stands before it stays, as the function to keep.
/// Throws ValueError on any other that begins with "auto".
std::optional<Choice> take_auto(Settings& settings);

}  // namespace longspan
