#include "app/runs/samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "autograd/mode.h"
#include "core/error.h"
#include "models/generate.h"
#include "ops/copy.h"
#include "ops/reduce.h"

namespace longspan {
namespace {

constexpr int64_t shown_tokens = 64;     // read
constexpr int64_t written_tokens = 128;  // of a decoder
constexpr int64_t masked_length = 128;
constexpr std::chrono::seconds most_time{20};
constexpr size_t shown_bytes = 600;  // of a source

/// Whether token i of a text is hidden from an encoder.
bool is_hidden(int64_t i) { return i % 8 == 4; }

std::string continued(const TrainingRun& run, const TaskData& task_data) {
  const int64_t length = std::min(shown_tokens, run.config.length);
  const std::vector<int32_t> prompt = task_data.first_tokens(length);
  if (prompt.empty() || task_data.decoded(prompt).empty()) return {};
  // Other processes wait meanwhile, so a slow model writes less.
  const auto begin = std::chrono::steady_clock::now();
  std::vector<int64_t> ids;
  struct Late {};
  try {
    generate(*run.model, {&prompt, 1}, written_tokens, Sampling{},
             Generator{run.config.seed}.fork("sample"), -1, [&](size_t, int64_t token) {
               ids.push_back(token);
               if (std::chrono::steady_clock::now() - begin > most_time) throw Late{};
             });
  } catch (const Late&) {
  }
  return fmt::format(
      "-- read: the first {} tokens of the validation part\n{}\n"
      "-- written: {} tokens, drawn at temperature 1\n{}\n",
      prompt.size(), task_data.decoded(prompt), ids.size(),
      task_data.decoded(std::vector<int32_t>(ids.begin(), ids.end())));
}

/// Returns the most likely token at each place of a text [1, L].
std::vector<int64_t> guesses(const LanguageModel& model, const std::vector<int32_t>& ids) {
  const NoGrad off;
  const Tensor tokens = Tensor::from(ids, {1, std::ssize(ids)}, model.device());
  return argmax(model.logits(tokens, Pass{}), -1).to_vector<int64_t>();
}

std::string filled(const TrainingRun& run, const TaskData& task_data) {
  const std::vector<int32_t> right =
      task_data.first_tokens(std::min(masked_length, run.config.length));
  if (right.empty() || task_data.decoded(right).empty()) return {};
  std::vector<int32_t> read = right;
  for (int64_t i = 0; i < std::ssize(read); ++i) {
    if (is_hidden(i)) read[static_cast<size_t>(i)] = task_data.mask_token();
  }
  const std::vector<int64_t> found = guesses(*run.model, read);
  std::string text;
  int64_t hidden = 0, same = 0;
  for (int64_t i = 0; i < std::ssize(read); ++i) {
    const auto at = static_cast<size_t>(i);
    const std::string own = task_data.decoded(std::span(&right[at], 1));
    if (!is_hidden(i)) {
      text += own;
      continue;
    }
    const auto guess = static_cast<int32_t>(found[at]);
    text += fmt::format("[{}|{}]", task_data.decoded(std::span(&guess, 1)), own);
    ++hidden;
    same += guess == right[at] ? 1 : 0;
  }
  return fmt::format(
      "-- the beginning of the validation part; hidden: [guess|right], {} of {} right\n{}\n", same,
      hidden, text);
}

std::string about_document(const TaskData& task_data) {
  if (task_data.size("valid") == 0) return {};
  const std::string source = task_data.input("valid", 0);
  const BeamSearch greedy{.beams = 1};
  std::string text =
      fmt::format("-- read: the first document of the validation part\n{}{}\n-- written\n",
                  source.substr(0, shown_bytes), source.size() > shown_bytes ? " ..." : "");
  for (const std::string& sentence : task_data.answer(source, greedy)) text += sentence + "\n";
  return text;
}

}  // namespace

std::string sample_of(const TrainingRun& run, const TaskData& task_data) try {
  switch (run.model->objective()) {
    case Objective::next_token:
      return ask<ContinuesSequences>(*run.model) != nullptr ? continued(run, task_data) : "";
    case Objective::masked_token:
      return mask_token(*run.model) >= 0 ? filled(run, task_data) : "";
    case Objective::sequence:  // which takes as long as it takes
      return run.config.processes == 1 ? about_document(task_data) : "";
  }
  return {};
} catch (const NotImplemented&) {  // items of the task are no texts
  return {};
}

// Decoding reads a token at a time after the prompt; all at once need no less.
void rehearse_sample(const LanguageModel& model, int64_t length) try {
  const NoGrad off;
  const auto zeros = [&](int64_t count) {
    return Tensor::zeros({1, count}, DType::i64, model.device());
  };
  const auto* const reads = ask<ReadsInputs>(model);
  const bool guesses_tokens = reads == nullptr || reads->predicts_tokens();
  if (model.objective() == Objective::masked_token && guesses_tokens && mask_token(model) >= 0) {
    argmax(model.logits(zeros(std::min(masked_length, length)), Pass{}), -1);
  }
  const auto* const decoder = ask<ContinuesSequences>(model);
  if (model.objective() != Objective::next_token || decoder == nullptr) return;
  const int64_t all = std::min(std::min(shown_tokens, length) + written_tokens, model.max_length());
  const auto state = decoder->start_decoding(1);
  decoder->decode(zeros(all), *state);
} catch (const Error&) {  // the model decodes nothing, or is for other inputs: there is no sample
}

}  // namespace longspan
