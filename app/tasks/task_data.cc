#include "app/tasks/task_data.h"

#include <algorithm>

#include "core/error.h"

namespace longspan {

std::vector<std::string> Task::paths(const RunConfig& config) const {
  return paths_of(set(), data_place(config));
}

std::vector<std::string> Task::read_inputs(const std::string& table) const {
  fail<NotImplemented>("predict", "{} is a table, and the task {} predicts nothing of its rows",
                       table, set().id);
}

size_t part_index(const std::string& part) {
  for (size_t i = 0; i < 3; ++i) {
    if (part == part_names[i]) return i;
  }
  fail("--part", "got \"{}\"; expected train, valid or test", part);
}

int64_t counted_targets(const Tensor& targets) {
  const std::vector<int32_t> all = targets.to_vector<int32_t>();
  return std::ssize(all) - std::count(all.begin(), all.end(), ignored_target);
}

LanguageModel::Losses losses_of(const TrainingRun& run, const Batch& batch,
                                const SegmentMemory& memory, Pass pass) {
  return run.model->loss(batch.tokens, batch.targets, memory, pass);
}

EncoderInputs inputs_of(std::span<const Sample> samples, bool takes_global, Device device) {
  size_t longest = 0;
  bool equal = true, global = false;
  for (const Sample& s : samples) {
    equal = equal && s.tokens.size() == samples[0].tokens.size();
    global = global || !s.global.empty();
    longest = std::max(longest, s.tokens.size());
  }
  const size_t rows = samples.size();
  std::vector<int32_t> tokens(rows * longest, 0);
  std::vector<uint8_t> marks(rows * longest, 0);
  std::vector<int64_t> lengths;
  for (size_t row = 0; row < rows; ++row) {
    const Sample& s = samples[row];
    std::copy(s.tokens.begin(), s.tokens.end(), tokens.data() + row * longest);
    lengths.push_back(std::ssize(s.tokens));
    for (const int32_t at : s.global) marks[row * longest + static_cast<size_t>(at)] = 1;
  }
  const Shape shape{static_cast<int64_t>(rows), static_cast<int64_t>(longest)};
  EncoderInputs in{.tokens = Tensor::from(tokens, shape, device)};
  if (!equal) in.lengths = Tensor::from(lengths, {shape[0]}, device);
  if (global && takes_global) in.global = Tensor::from(marks, shape);
  return in;
}

void refuse_writers(const RunConfig& config, const LanguageModel& model) {
  require(ask<WritesSequences>(model) == nullptr, "task",
          "{} maps a sequence to another and the task {} has only one; choose a decoder or an "
          "encoder, or a task with documents and summaries such as wiki-leads",
          config.model_name, config.task);
}

LanguageModel::Losses synthetic_token_loss(const SyntheticStep& s) {
  const auto ids = [&] {
    return synthetic_ids(s.config.batch, s.length, s.model.vocab(), s.device);
  };
  const Tensor tokens = ids(), targets = ids();
  if (s.kept != nullptr) *s.kept = {tokens, targets};
  return s.model.loss(tokens, targets, s.memory, s.pass);
}

EncoderInputs synthetic_inputs(const SyntheticStep& s, bool takes_global) {
  const int64_t batch = s.config.batch, length = s.length;
  EncoderInputs in{.tokens = synthetic_ids(batch, length, s.model.vocab(), s.device)};
  if (!takes_global) return in;
  std::vector<uint8_t> first(static_cast<size_t>(batch * length), 0);
  for (int64_t b = 0; b < batch; ++b) first[static_cast<size_t>(b * length)] = 1;
  in.global = Tensor::from(first, {batch, length});
  return in;
}

std::string TaskData::input(const std::string& /*part*/, int64_t /*index*/) const {
  fail<NotImplemented>("task", "its samples are no texts that can be answered");
}

std::vector<TaskData::Prediction> TaskData::predict(std::span<const std::string> /*lines*/) const {
  fail<NotImplemented>("predict", "the task predicts nothing of inputs");
}

std::vector<TaskData::Prediction> TaskData::find_answers(
    const std::string& /*text*/, std::span<const std::string> /*questions*/) const {
  fail<NotImplemented>(
      "answer", "answers are found by models of the task spans; longspan predict says labels");
}

std::vector<std::string> TaskData::answer(const std::string& /*text*/,
                                          const BeamSearch& /*search*/) const {
  fail<NotImplemented>("task", "it has no answer to a text that is given");
}

}  // namespace longspan
