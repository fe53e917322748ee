#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/matmul_library.h"
#include "core/precision.h"
#include "data/data_sets.h"
#include "data/extracts.h"
#include "data/profiles.h"
#include "data/sample_task.h"
#include "models/all/registry.h"
#include "models/convert.h"
#include "nn/fields.h"
#include "train/config.h"
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
  std::string split;          ///< empty: the data set's own
  std::string tokenizer;      ///< for bytes; empty: raw bytes
  bool whole_words = false;   ///< masked models mask whole words
  int64_t documents = 0;      ///< encoder-decoders: train on the first ones only; 0: all
  int64_t target_length = 0;  ///< maximum tokens of a target; 0: min(512, model's maximum)
  double gap_sentences = 0;   ///< share of sentences to mask and predict; 0: predict summaries
  int64_t length = 0, batch = 0, accumulate = 1;
  int64_t steps = 0;   ///< 0: no limit except `seconds`
  double seconds = 0;  ///< 0: no limit except `steps`
  uint64_t seed = 1;
  int64_t threads = 0;  ///< 0: the number of available processors
  std::string device = "cpu";
  MatmulPrecision matmul_precision = MatmulPrecision::f32;
  MatmulLibrary matmul_library = MatmulLibrary::own;
  ByteSize memory_limit;  ///< 0: no limit
  bool graph = false;     ///< record steps of one shape and submit them to the device as a whole
  bool sparing = false;   ///< see sparing_evaluation(); no part of config.toml
  bool check_replays = false;  ///< check that recomputed layers give the same values again
  bool anomaly = false;        ///< throw at the first op of a step that produces NaN or Inf

  int64_t save_every = 0;  ///< steps; 0: at the end only
  int64_t keep = 0;        ///< number of newest checkpoints to keep; 0: all
  int64_t log_every = 10, eval_every = 0;

  /// Options of promoter and chromatin.
  struct Profiles {
    KmerTokens tokens;           ///< of bases, if there is no tokenizer
    double positive_weight = 1;  ///< as above
    void visit(auto& v) {
      v("kmer", tokens.k, "bases that a token represents");
      v("stride", tokens.stride, "bases from the start of a token to that of the next");
      v("positive_weight", positive_weight, "factor on the training loss of positive answers");
    }
  } profiles;

  /// Options of triviaqa.
  struct Questions {
    int64_t most = 64;            ///< maximum tokens of a question; the rest is cut off
    int64_t longest = 30;         ///< maximum tokens of a predicted answer
    bool two_separators = false;  ///< between question and text, as in RoBERTa
    void visit(auto& v) {
      v("most", most, "maximum tokens of a question; the rest is cut off");
      v("longest", longest, "maximum tokens of an answer");
      v("two_separators", two_separators, "between question and text, as in RoBERTa");
    }
  } questions;

  /// Options of models over documents.
  struct Extracts {
    int64_t chunk = 30;        ///< sentences of a document that are read together
    ExtractOptions take;       ///< how a summary is made of scores
    int64_t oracle = 3;        ///< most sentences of an oracle, which labels sentences
    double mask_share = 0.15;  ///< SentenceMasking::share
    int64_t mask_most = 5;     ///< SentenceMasking::most
    void visit(auto& v) {
      v("chunk", chunk, "sentences of a document that are read together");
      v("take", take);
      v("oracle", oracle, "maximum sentences of an oracle, which labels those without labels");
      v("mask_share", mask_share, "fraction of a document's sentences that is masked");
      v("mask_most", mask_most, "maximum sentences that are masked");
    }
  } extracts;

  /// Options of a generated task, in a section of its own; null for other tasks.
  std::unique_ptr<SampleTask> generated;

  struct Optimizer {
    OptimizerName name = OptimizerName::adam;
    double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, momentum = 0.9, weight_decay = 0;
    double clip = 0;                             ///< maximum global gradient norm; 0: no clipping
    double step_clip = 0;                        ///< adagrad: AdagradOptions::step_clip
    double loss_scale = 0;                       ///< 0: only if f16 needs it
    int64_t update_period = 1, update_from = 0;  ///< UpdatePeriod
    UpdatePeriod period() const { return {update_period, update_from}; }
    void visit(auto& v) {
      v("name", name, "adam, adamw, adafactor, adagrad, sgd or lamb")("lr", lr);
      v("beta1", beta1, "decay of the mean of gradients: adam, adamw, lamb");
      v("beta2", beta2, "decay of the mean of their squares: adam, adamw, lamb");
      v("eps", eps, "added to the root of that mean: adam, adamw, lamb");
      v("momentum", momentum, "of sgd");
      v("weight_decay", weight_decay,
        "times the weights: taken off them (adamw, lamb) or added to gradients");
      v("clip", clip, "maximum norm of the gradients; 0: none");
      v("step_clip", step_clip,
        "adagrad: a rate is multiplied by min(1, this / norm of the gradient); 0: never");
      v("loss_scale", loss_scale, "factor on the loss before the backward pass; 0: f16 finds one");
      v("update_period", update_period, "steps whose mean gradient makes an update");
      v("update_from", update_from, "the step from which on update_period holds");
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
      v("warmup", warmup, "steps in which the rate rises from 0");
      v("floor", floor, "cosine and linear: the final rate, as a fraction of the peak");
      v("every", every, "step: steps between drops");
      v("factor", factor, "step: what each drop multiplies the rate by");
    }
  } schedule;

  /// Starts from the parameters of another run instead of random ones; used once, before the first
  /// step.
  struct Start {
    std::string from;  ///< its folder; empty: random initialization
    NewPositions positions = NewPositions::repeat;
    void visit(auto& v) {
      v("from", from);
      v("positions", positions,
        "of positions beyond those of the other run: repeat its rows, or keep");
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
  /// Sets `task` and makes `generated` accordingly.
  void set_task(const std::string& id);
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

/// Applies the settings to the defaults of the model that they name. Throws ValueError on an
/// unknown key or model, a wrong type, or a number outside its range.
RunConfig make_config(const Settings& settings);

/// Reads the settings of a run from its config.toml, with what its model derives from the length
/// that it was trained with: earlier versions left that open. Throws IoError, ValueError.
Settings settings_of_run(const std::string& out);

/// Applies the thread count and the matmul settings of a configuration to the process.
void set_process(const RunConfig& config);

/// Prints remark_on_positions() to standard error.
void say_positions(RunConfig& config);

/// Returns the data locations.
DataPlace data_place(const RunConfig& config);

/// Names the data of a run in messages: "bytes=FILE" as given, or the task.
std::string data_name(const RunConfig& config);

}  // namespace longspan
