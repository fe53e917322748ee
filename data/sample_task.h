#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/corpus.h"
#include "data/draws.h"
#include "nn/fields.h"

namespace longspan {

// Generated tasks. Sample i of a split depends only on (task, seed, split, i), on every machine.

/// The meanings of options that several tasks have.
namespace meaning {
/// One line each, for visit().
inline constexpr std::string_view sample_length = "tokens of a sample; 0: the run's length";
inline constexpr std::string_view noise_symbols = "different tokens of noise";

}  // namespace meaning

/// What the targets of a sample are.
enum class TargetKind : uint8_t {
  tokens,    ///< one for each token, at its position; ignored_target where nothing is scored
  labels,    ///< 0 or 1 for each of some questions about the whole sequence
  span,      ///< the positions of the first and the last token of an answer
  sentences  ///< 0 or 1 for each sentence of a document, at its last token, which is 0; else
             ///< ignored_target
};

/// A sequence and what is to be said about it.
struct Sample {
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  std::vector<int32_t> global = {};  ///< ascending positions of the tokens that see and are seen by
                                     ///< all, such as a question's; models without any ignore them
  friend bool operator==(const Sample&, const Sample&) = default;
};

/// Identifies a sample.
struct SampleKey {
  uint64_t seed = 1;
  std::string_view split = "train";
  uint64_t index = 0;
};

/// Returns the random stream of a sample of a task.
Draws draws_of(std::string_view task, const SampleKey& key);

/// Stacks samples of one length with a target for each token into i32 [B, L]. Throws ShapeError if
/// the lengths differ or there are no samples.
Batch stack(std::span<const Sample> samples, Device device = {});
/// Stacks tokens segment * length to (segment + 1) * length - 1 of samples, as far as they have
/// them. Throws as stack().
Batch stack_segment(std::span<const Sample> samples, int64_t segment, int64_t length,
                    Device device = {});

/// The sizes of a task's samples.
struct SampleShape {
  int64_t length = 0;      ///< maximum tokens of a sample
  int64_t vocabulary = 0;  ///< all tokens, and targets that are tokens, are smaller
  /// Targets of every sample that are scored; -1 if samples differ.
  int64_t scored = -1;
};

/// A generated task, as programs see it: its options, its sizes and its samples.
class SampleTask {
 public:
  virtual ~SampleTask() = default;
  virtual void visit(Fields& v) = 0;
  /// Returns the task with its samples fitted to a model: of at most `length` tokens, unless an
  /// option sets their length, and of `vocabulary` tokens where the task can have any number.
  /// Throws ValueError if they do not fit.
  virtual std::unique_ptr<SampleTask> fitted(int64_t length, int64_t vocabulary) const = 0;
  virtual TargetKind targets() const = 0;
  virtual SampleShape shape() const = 0;
  /// Says what tokens stand for, such as "symbols": equal texts mean that equal ids are equal
  /// tokens.
  virtual std::string tokens() const = 0;
  /// Throws ValueError if the options allow no sample.
  virtual Sample sample(const SampleKey& key) const = 0;

  int64_t held_out = 256;      ///< samples of the validation and of the test split
  double positive_weight = 1;  ///< weight of the loss of labels that are 1
};

/// A generated task that programs find by name.
struct SampleTaskEntry {
  std::string_view id;       ///< the value of --task
  std::string_view section;  ///< of the configuration, with the task's options
  std::string_view about;    ///< one line
  std::unique_ptr<SampleTask> (*make)() = nullptr;
};

/// A task from a struct of options with
///   static constexpr TargetKind kind
///   void visit(auto& v)                            names the options
///   void fit(int64_t length, int64_t vocabulary)   sets the sizes that follow a model
///   SampleShape shape() const
///   std::string token_kind() const                 if tokens are more than symbols
///   Sample sample(const SampleKey& key) const
template <class Task>
class SampleTaskOf final : public SampleTask {
 public:
  SampleTaskOf(Task task, int64_t apart) : task_(std::move(task)) { held_out = apart; }

  void visit(Fields& v) override {
    task_.visit(v);
    if constexpr (Task::kind == TargetKind::labels) {
      v("positive_weight", positive_weight, range::not_negative,
        "factor on the training loss of positive answers");
    }
    v("held_out", held_out, range::not_negative, "samples of the validation and of the test split");
  }
  std::unique_ptr<SampleTask> fitted(int64_t length, int64_t vocabulary) const override {
    auto copy = std::make_unique<SampleTaskOf>(*this);
    copy->task_.fit(length, vocabulary);
    return copy;
  }
  TargetKind targets() const override { return Task::kind; }
  SampleShape shape() const override { return task_.shape(); }
  std::string tokens() const override {
    if constexpr (requires { task_.token_kind(); }) return task_.token_kind();
    return "symbols";
  }
  Sample sample(const SampleKey& key) const override { return task_.sample(key); }

 private:
  Task task_;
};

}  // namespace longspan
