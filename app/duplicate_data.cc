#include <algorithm>
#include <cmath>

#include "app/task_data.h"
#include "autograd/mode.h"
#include "core/error.h"
#include "models/evaluate.h"
#include "ops/copy.h"
#include "ops/reduce.h"

namespace longspan {
namespace {

DuplicateTask task_of(const TrainingRun& run) {
  const int64_t length = run.config.length;
  require(run.model->objective() == Objective::next_token, "task",
          "{} is for decoders, and {} is none; choose one such as transformer", run.config.task,
          run.config.model_name);
  require(length >= 4 && length % 2 == 0, "length",
          "got {}; expected an even number from 4 on: a zero and a word, twice", length);
  return {.symbols = (length - 2) / 2, .vocabulary = run.model->vocab()};
}

}  // namespace

DuplicateData::DuplicateData(const TrainingRun& run) : run_(run), task_(task_of(run)) {}

int64_t DuplicateData::size(const std::string& part) const {
  const RunConfig& c = run_.config;
  return part_index(part) == 0 ? c.steps * c.batch * c.accumulate : c.duplicate.held_out;
}

Batch DuplicateData::samples(const std::string& part, int64_t first, int64_t count) const {
  std::vector<Sample> rows;
  for (int64_t i = first; i < first + count; ++i) {
    rows.push_back(
        task_.sample({.seed = run_.config.seed, .split = part, .index = static_cast<uint64_t>(i)}));
  }
  return stack(rows, run_.device);
}

TaskData::Forward DuplicateData::forward(int64_t i, Pass pass) const {
  const Batch rows = *batch(i);
  return {losses_of(run_, rows, pass), rows.tokens.numel(), run_.config.batch * task_.symbols};
}

std::optional<Batch> DuplicateData::batch(int64_t i) const {
  return samples("train", i * run_.config.batch, run_.config.batch);
}

void DuplicateData::each(const std::string& part,
                         const std::function<void(const Batch&)>& visit) const {
  for (int64_t i = 0; i < size(part); i += run_.config.batch) {
    visit(samples(part, i, std::min(run_.config.batch, size(part) - i)));
  }
}

double DuplicateData::bits(const std::string& part) const {
  Score total;
  each(part, [&](const Batch& rows) { total += score(*run_.model, rows.tokens, rows.targets); });
  return total.count > 0 ? total.bits() : std::nan("");
}

double DuplicateData::accuracy(const std::string& part) const {
  const NoGrad off;
  int64_t right = 0, counted = 0;
  each(part, [&](const Batch& rows) {
    const auto said = cast(argmax(run_.model->logits(rows.tokens, Pass{}), -1), DType::i32)
                          .to_vector<int32_t>();  // [B L]
    const auto wanted = rows.targets.to_vector<int32_t>();
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] == ignored_target) continue;
      ++counted;
      right += said[i] == wanted[i] ? 1 : 0;
    }
  });
  return static_cast<double>(right) / static_cast<double>(counted);
}

std::vector<int32_t> DuplicateData::first_tokens(int64_t count) const {
  std::vector<int32_t> tokens = samples("valid", 0, 1).tokens.to_vector<int32_t>();
  tokens.resize(static_cast<size_t>(std::min<int64_t>(count, task_.length())));
  return tokens;
}

}  // namespace longspan
