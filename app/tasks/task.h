#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/data_sets.h"
#include "data/tokenizers/tokenizer.h"
#include "models/generate.h"
#include "models/model.h"
#include "nn/fields.h"
#include "nn/module.h"

namespace longspan {

namespace range {
/// The largest number of things that are counted.
inline constexpr double many = std::numeric_limits<int32_t>::max();

}  // namespace range

class TaskData;
enum class HubTask : uint8_t;
struct RunConfig;
struct TrainingRun;

/// A training step, or a batch of validation, of a run whose data nobody has read: the shapes that
/// a task makes inputs of.
struct SyntheticStep {
  const LanguageModel& model;
  const RunConfig& config;
  Device device;       ///< on meta_device, inputs have no values
  int64_t length = 0;  ///< tokens of a segment, where samples are one sequence
  const SegmentMemory& memory;
  Pass pass;
  std::vector<Tensor>* kept = nullptr;  ///< receives the inputs, if they must outlive the pass
};

/// Returns ids below `vocab`, i32 [rows, length], in Category::data.
Tensor synthetic_ids(int64_t rows, int64_t length, int64_t vocab, Device device);

/// The sizes of a model that follow from a task and its tokens.
struct TaskSizes {
  int64_t vocabulary = 0;      ///< `vocab` must be as large; 0: unknown before the data are read
  int64_t classes = 0;         ///< `classes` must be equal; 0: any
  int64_t tags = 0;            ///< `tags` must be equal; 0: any
  std::string_view head = {};  ///< the field that gives the model a head for the task; empty: none
};

/// What --task names: the options of a task, what it needs of a model, and how its data are read,
/// learnt and scored. One exists for each configuration, before any data are opened.
class Task {
 public:
  explicit Task(const DataSet& set) : set_(set) {}
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  const DataSet& set() const { return set_; }

  /// Names the options, where they are in config.toml, each with its range and its meaning.
  virtual void visit(Fields& /*v*/) {}
  /// Says which models the task is for, as in "decoders".
  virtual std::string models() const = 0;
  /// Whether a model has what the task needs of it.
  virtual bool suits(const LanguageModel& model) const = 0;
  /// Throws ValueError, with what the task needs and what to choose, if the model or the
  /// configuration does not suit it.
  virtual void require_suited(const RunConfig& config, const LanguageModel& model) const = 0;

  /// Returns the sizes that the task requires of its model, as far as the configuration determines
  /// them.
  virtual TaskSizes sizes(const RunConfig& /*config*/, const LanguageModel& /*model*/) const {
    return {};
  }

  /// Sets options that follow from the data and are not set: names of labels. Called before the
  /// model is built. Throws IoError and ValueError about the data.
  virtual void settle(const RunConfig& /*config*/) {}
  /// The names of the classes that the model tells apart; empty if they have none.
  virtual std::vector<std::string> label_names() const { return {}; }
  /// How checkpoints of the package transformers call what is learnt of labels; empty: the number
  /// of labels says it.
  virtual std::string problem_type() const { return {}; }
  /// The head that checkpoints of that package have for it; nothing: any.
  virtual std::optional<HubTask> hub_task() const { return {}; }
  /// Returns all files that the data are read from. Throws IoError.
  virtual std::vector<std::string> paths(const RunConfig& config) const;

  /// What tokens stand for without a tokenizer that is read: equal texts mean that equal ids are
  /// equal tokens, unless symbols_follow_data(). `tokenizer`: the name that was given.
  virtual std::string symbols(std::string_view tokenizer) const;
  /// Whether symbols are numbered by the data that a run reads.
  virtual bool symbols_follow_data() const { return false; }
  /// Whether a configuration may name a tokenizer.
  virtual bool takes_tokenizer() const { return false; }
  /// The tokenizer that a run reads, for open_tokenizer(), if `given` is named; empty: none.
  virtual std::string tokenizer(std::string_view given) const;
  /// The tokenizer of the data if they are a text, of which `generate` writes more; null: they are
  /// not. Bytes have one too.
  virtual std::unique_ptr<const Tokenizer> text_tokenizer(std::string_view given) const;
  /// The token that ends a text which is written; -1: none does.
  virtual int64_t end_token(const RunConfig& /*config*/) const { return -1; }
  /// Whether the data are one long text.
  virtual bool is_one_text() const { return false; }
  /// Whether the files are cut into splits. `apart`: each file belongs to one already.
  virtual bool cuts_files(bool apart) const { return !apart; }
  /// The maximum number of tokens of a sample, for runs with segments of `length`.
  virtual int64_t longest_sample(int64_t length, const LanguageModel& model) const;
  /// The options that decide which samples come when, and the options that decide what is computed
  /// from them. Commands that read a run compare them with the run's.
  virtual std::vector<std::string> order_keys() const { return {}; }
  virtual std::vector<std::string> function_keys() const { return {}; }
  /// Whether a key decides which samples are generated.
  virtual bool decides_samples(std::string_view /*key*/) const { return false; }

  /// Whether TaskData::predict() predicts something of inputs.
  virtual bool predicts() const { return false; }
  /// Returns the inputs for TaskData::predict() that a table of examples has, whose labels may be
  /// missing. Throws NotImplemented if the task has none, IoError and ValueError about the file.
  virtual std::vector<std::string> read_inputs(const std::string& table) const;

  /// Opens the data. `reads`: false to answer only inputs that are given, without files. Throws
  /// IoError, and ValueError if the data do not suit the model.
  virtual std::unique_ptr<TaskData> open(const TrainingRun& run, bool reads) const = 0;
  /// Runs the task's own forward pass on synthetic inputs.
  virtual LanguageModel::Losses synthetic_loss(const SyntheticStep& step) const = 0;

  /// Whether processes may split its sequences (RunConfig::Ranks::sequence): its losses are means
  /// over tokens, by LanguageModel::loss() or sequence_loss().
  virtual bool splits_sequences() const { return false; }

  /// Whether `longspan eval` searches for texts to score.
  virtual bool scores_texts() const { return false; }
  /// Throws ValueError if the texts of a run are too short for this search.
  virtual void require_search(const BeamSearch& /*search*/, const TrainingRun& /*run*/) const {}

 private:
  DataSet set_;
};

}  // namespace longspan
