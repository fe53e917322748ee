#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/matmul_library.h"
#include "core/precision.h"
#include "data/data_sets.h"
#include "data/profiles.h"
#include "data/tasks.h"
#include "models/convert.h"
#include "models/registry.h"
#include "nn/fields.h"
#include "train/config.h"
#include "train/step_memory.h"

namespace longspan {

template <>
inline constexpr std::array<std::string_view, 3> value_names<MatmulPrecision>{"f32", "tf32",
                                                                              "bf16"};
template <>
inline constexpr std::array<std::string_view, 2> value_names<MatmulLibrary>{"own", "openblas"};

/// How parameters are updated.
enum class OptimizerName : uint8_t { adam, adamw, adafactor, adagrad, sgd, lamb };
template <>
inline constexpr std::array<std::string_view, 6> value_names<OptimizerName>{
    "adam", "adamw", "adafactor", "adagrad", "sgd", "lamb"};

/// How the learning rate changes after the warm-up.
enum class ScheduleName : uint8_t { cosine, linear, inverse_sqrt, step, constant };
template <>
inline constexpr std::array<std::string_view, 5> value_names<ScheduleName>{
    "cosine", "linear", "inverse_sqrt", "step", "constant"};

/// Everything that makes a run what it is: config.toml is its visit().
struct RunConfig {
  std::string task = "bytes", data, data_root;
  std::string split;          ///< empty: the data set's own
  std::string tokenizer;      ///< of bytes; empty: bytes themselves
  bool whole_words = false;   ///< masked models hide whole words
  int64_t documents = 0;      ///< encoder-decoders: train on the first ones alone; 0: all
  int64_t target_length = 0;  ///< and write so many tokens at most; 0: 512, or what the model can
  double gap_sentences = 0;   ///< this share of an article's sentences is left out and written; 0:
                              ///< summaries
  int64_t length = 0, batch = 0, accumulate = 1;
  int64_t steps = 0;   ///< 0: no end but `seconds`
  double seconds = 0;  ///< 0: no end but `steps`
  uint64_t seed = 1;
  int64_t threads = 0;  ///< 0: the processors that there are
  std::string device = "cpu";
  MatmulPrecision matmul_precision = MatmulPrecision::f32;
  MatmulLibrary matmul_library = MatmulLibrary::own;
  ByteSize memory_limit;       ///< 0: what the machine has
  bool graph = false;          ///< submit steps of one shape to a device as a whole
  bool check_replays = false;  ///< layers that run again are held to the numbers of their first run
  bool anomaly = false;        ///< the first op of a step that gives NaN or Inf is an error

  int64_t save_every = 0;  ///< steps; 0: at the end only
  int64_t keep = 0;        ///< newest checkpoints that stay; 0: all
  int64_t log_every = 10, eval_every = 0;

  /// Of motif-dna; the length of its samples is `length`.
  struct Motifs {
    MotifTask task{.mismatches = 0, .kmer = 6};  // what a small model learns in minutes
    double positive_weight = 1;                  ///< factor on what positive answers cost
    int64_t held_out = 512;                      ///< samples of the validation and of the test part
    void visit(auto& v) {
      v("pairs", task.pairs)("motif", task.motif)("mismatches", task.mismatches)(
          "nearest", task.nearest)("furthest", task.furthest)("kmer", task.kmer)(
          "positive_weight", positive_weight)("held_out", held_out);
    }
  } motifs;

  /// Of promoter and chromatin.
  struct Profiles {
    KmerTokens tokens;           ///< of bases, where there is no tokenizer
    double positive_weight = 1;  ///< as above
    void visit(auto& v) {
      v("kmer", tokens.k)("stride", tokens.stride)("positive_weight", positive_weight);
    }
  } profiles;

  /// Of triviaqa.
  struct Questions {
    int64_t most = 64;            ///< tokens of a question; what is beyond is left out
    int64_t longest = 30;         ///< tokens of an answer that is looked for
    bool two_separators = false;  ///< between question and text, as of RoBERTa
    void visit(auto& v) { v("most", most)("longest", longest)("two_separators", two_separators); }
  } questions;

  /// Of duplicate: its words have (length - 2) / 2 symbols of the model's vocabulary.
  struct Duplicate {
    int64_t held_out = 256;  ///< samples of the validation and of the test part
    void visit(auto& v) { v("held_out", held_out); }
  } duplicate;

  struct Optimizer {
    OptimizerName name = OptimizerName::adam;
    double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, momentum = 0.9, weight_decay = 0;
    double clip = 0;        ///< of the global gradient norm; 0: none
    double loss_scale = 0;  ///< 0: only where f16 needs it
    void visit(auto& v) {
      v("name", name)("lr", lr)("beta1", beta1)("beta2", beta2)("eps", eps)("momentum", momentum)(
          "weight_decay", weight_decay)("clip", clip)("loss_scale", loss_scale);
    }
  } optimizer;

  struct Schedule {
    ScheduleName name = ScheduleName::cosine;
    int64_t warmup = 0;    ///< steps
    double floor = 0.05;   ///< end, as a share of the peak
    int64_t every = 1000;  ///< step: steps between drops
    double factor = 0.5;   ///< step: what each drop multiplies by
    void visit(auto& v) {
      v("name", name)("warmup", warmup)("floor", floor)("every", every)("factor", factor);
    }
  } schedule;

  /// The parameters of another run instead of drawn ones; of use once, before the first step.
  struct Start {
    std::string from;  ///< its folder; empty: parameters are drawn
    NewPositions positions = NewPositions::repeat;
    void visit(auto& v) { v("from", from)("positions", positions); }
  } start;

  std::string model_name;
  std::unique_ptr<ModelSpec> model;
  /// Fields of the model's positions as the preset has them, where nobody has set how many there
  /// are: follow_length() makes others of them. Else empty.
  Settings free_positions = {};

  void visit(Fields& v);
  /// Gives the model at least `length` positions where nobody has set how many it has. Throws
  /// ValueError where the axes of a grid would have to be chosen.
  void follow_length();
  /// A line on what follow_length() has changed; empty where it is nothing.
  std::string remark_on_positions();
};

/// The defaults of the model that the settings name, changed by the settings. Throws ValueError on
/// an unknown key or model, a wrong type and a number outside its range.
RunConfig make_config(const Settings& settings);

/// Gives the process the threads and the products of a configuration.
void set_process(const RunConfig& config);

/// Prints remark_on_positions() to standard error.
void say_positions(RunConfig& config);

/// Where the data is.
DataPlace data_place(const RunConfig& config);

}  // namespace longspan
