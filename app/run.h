#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/run_config.h"
#include "core/memory.h"
#include "data/corpus.h"
#include "data/io/bytes.h"
#include "data/io/json.h"
#include "models/model.h"
#include "train/loss_unit.h"
#include "train/optimizer.h"
#include "train/weight_average.h"

namespace longspan {

class OwnedParameters;

/// The state of a run that training, evaluation and sampling share.
struct TrainingRun {
  RunConfig config;
  std::string out;  ///< the run folder
  Device device;
  std::unique_ptr<LanguageModel> model;
  /// Where the order of the training data begins: at step `step`, before which `samples` samples
  /// were read. Not at {0, 0} once a run has gone on with another batch, or its streams anew.
  struct Origin {
    int64_t step = 0, samples = 0;
  } origin = {};

  /// Builds the model and applies threads, precision, device and memory limit. Parameters are
  /// initialized from the seed.
  /// `blank`: nothing is drawn, as the weights are read next (Init::blank).
  TrainingRun(RunConfig config, std::string out, bool blank = false);

  Generator generator() const { return Generator{config.seed}; }
  /// Returns how many samples (segments, pairs, documents) were read before batch i of the run.
  int64_t samples_before(int64_t i) const {
    return origin.samples + (i - origin.step * config.batches_per_step()) * config.batch;
  }
  /// Returns which segment of their streams a batch of the run has.
  int64_t segment_of(int64_t i) const { return i / config.batches_per_step() - origin.step; }
};

/// Returns the moving average of these weights that a configuration asks for.
std::optional<WeightAverage> average_of(const RunConfig& config, const TensorList& weights);

/// Reads the average of the weights (RunConfig::Optimizer::average) into the parameters of a
/// checkpoint. Throws IoError.
void read_average(const std::string& checkpoint, const TensorList& parameters);

/// Builds the optimizer that a configuration names, of the parameters that it trains; freezes the
/// others. `owned`, if not null, divides them among several processes.
std::unique_ptr<Optimizer> make_optimizer(const RunConfig::Optimizer& options,
                                          const TensorList& weights,
                                          OwnedParameters* owned = nullptr);

/// Returns the initial loss scale of a run: f16 needs one; f32 and bf16 do not.
LossScale make_loss_scale(const RunConfig& config);

/// Returns the fingerprint of all files of a run's task; empty for generated samples. Throws
/// IoError.
Fingerprint fingerprint_of_data(const RunConfig& config);

/// Returns the shares of the splits of a run's task; generated tasks have none.
std::optional<Split> split_of(const RunConfig& config);

/// The meaning of a run's token ids.
struct RunTokens {
  std::string name;      ///< of the tokenizer, or of what ids stand for
  std::string identity;  ///< equal ones mean equal ids; see same_tokens()
};
/// Reads the tokenizer or, if the vocabulary is made of the data, these.
RunTokens tokens_of(const RunConfig& config);
/// Returns their name alone, without reading anything.
std::string name_of_tokens(const RunConfig& config);

/// Whether the targets of a run are tokens of a text, so that the perplexity of one is of interest.
bool predicts_tokens(const TrainingRun& run);

/// Whether two such strings mean equal ids. Earlier versions stored "words of ID" without the text
/// that the vocabulary was made of.
bool same_tokens(const std::string& stored, const std::string& now);

/// Throws ValueError if the stored settings of a run, from its config.toml, name another model than
/// the command line; presets of one model are the same.
void require_same_model(const Settings& stored, const Settings& asked, const std::string& out);

/// Throws IoError if a file of a run's data is missing.
void require_data(const RunConfig& config);

/// Throws ValueError if segments, or sources, are longer than the model takes.
void require_length(const RunConfig& config, const LanguageModel& model);
/// Throws ValueError if the processes of the run cannot divide sequences as ranks.sequence says.
void require_sequence(const RunConfig& config, const LanguageModel& model);

/// The progress of a run. With the tensors and the loss scale, it is everything needed to resume.
struct Position {
  int64_t step = 0, tokens = 0;
  double seconds = 0;            ///< spent training, including earlier starts of the run
  std::deque<double> recent;     ///< losses of the last steps, in nats
  Usage peak;                    ///< of training
  std::optional<LossUnit> unit;  ///< unit in which its losses are shown, if known

  void add(double loss);
  void see(const Usage& usage);  ///< keeps the larger peak
  /// Returns the mean of the recent losses in bits per unit, NaN if there are none.
  double train_bpb() const;
  /// Returns its members of state.json.
  Members values() const;
  /// Reads the position of a checkpoint. Throws IoError that names the checkpoint if state.json
  /// lacks a member.
  static Position read(const Json& values, const std::string& checkpoint);
};

/// Returns the figures of summary.json: those of training, and `valid_bpb`, which is null if it is
/// NaN; the perplexity where targets are tokens.
Members summary(const TrainingRun& run, const Position& at, double valid_bpb,
                double valid_perplexity);

}  // namespace longspan
