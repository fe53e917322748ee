#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/run_config.h"
#include "core/memory.h"
#include "data/io/json.h"
#include "models/model.h"
#include "train/loss_unit.h"
#include "train/optimizer.h"

namespace longspan {

/// The parts of a run that training, scoring and sampling have in common.
struct TrainingRun {
  RunConfig config;
  std::string out;  ///< the run folder
  Device device;
  std::unique_ptr<LanguageModel> model;

  /// Builds the model and applies threads, precision, device and memory limit. Parameters are drawn
  /// from the seed.
  TrainingRun(RunConfig config, std::string out);

  Generator generator() const { return Generator{config.seed}; }
};

/// The optimiser that a configuration names.
std::unique_ptr<Optimizer> make_optimizer(const RunConfig::Optimizer& options,
                                          const TensorList& weights);

/// The factor on the loss that a run begins with: f16 needs one; f32 and bf16 do not.
LossScale make_loss_scale(const RunConfig& config);

/// What the numbers of a run's tokens stand for: equal where they stand for the same.
std::string identity_of_tokens(const RunConfig& config);

/// Gives the model the parameters of the newest checkpoint of the run in config.start.from, by name
/// (start_from() of models/convert.h); returns the step of that checkpoint, and the names of heads
/// that are new. Throws IoError where
/// there is none, ValueError and ShapeError where the two models have other parameters, or the two
/// runs other tokens.
struct Started {
  int64_t step = 0;
  std::vector<std::string> heads;
};
Started start_from_run(const TrainingRun& run);

/// Throws ValueError where the model of a run, in the settings of its config.toml, is another than
/// the one that the command line asks for; presets of one model are the same.
void require_same_model(const Settings& stored, const Settings& asked, const std::string& out);

/// Throws ValueError where segments, or sources, are longer than the model takes.
void require_length(const RunConfig& config, const LanguageModel& model);

/// How far a run has come. With the tensors and the loss scale, all that it goes on from.
struct Position {
  int64_t step = 0, tokens = 0;
  double seconds = 0;            ///< spent training, earlier parts of the run included
  std::deque<double> recent;     ///< losses of the last steps, in nats
  Usage peak;                    ///< of training
  std::optional<LossUnit> unit;  ///< what its losses are shown in, where that is known

  void add(double loss);
  void see(const Usage& usage);  ///< keeps the larger peak
  /// The mean of the recent losses in bits per unit, NaN where there are none.
  double train_bpb() const;
  /// What state.json holds of it.
  Members values() const;
  /// The position of a checkpoint. Throws IoError that names it where state.json lacks something.
  static Position read(const Json& values, const std::string& checkpoint);
};

/// The figures of summary.json: those of training, and a NaN `valid_bpb` as null.
Members summary(const TrainingRun& run, const Position& at, double valid_bpb);
/// Writes summary.json and prints the same line, the last on standard output.
void finish(const std::string& out, const Members& figures);

}  // namespace longspan
