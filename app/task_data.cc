#include <fmt/format.h>

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

int64_t counted_targets(const Tensor& targets) {
  const std::vector<int32_t> all = targets.to_vector<int32_t>();
  return std::ssize(all) - std::count(all.begin(), all.end(), ignored_target);
}

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

LanguageModel::Losses losses_of(const TrainingRun& run, const Batch& batch, Pass pass) {
  const SegmentMemory memory = run.model->empty_memory(batch.tokens.dim(0));
  return run.model->loss(batch.tokens, batch.targets, memory, pass);
}

TextData::TextData(const TrainingRun& run)
    : run_(run),
      corpus_(open_corpus(run.config.task, data_place(run.config),
                          {run.config.split, run.config.tokenizer})) {
  const bool masked = run.model->objective() == Objective::masked_token;
  const int64_t extra = masked && options().mask_token >= corpus_.vocabulary ? 1 : 0;
  require(run.model->vocab() >= corpus_.vocabulary + extra, "model.vocab",
          "got {}; {} has {} tokens{}: expected {} or more", run.model->vocab(), corpus_.id,
          corpus_.vocabulary, extra > 0 ? " and one that hides them" : "",
          corpus_.vocabulary + extra);
}

BatchOptions TextData::options() const {
  BatchOptions options{
      .objective = run_.model->objective(), .seed = run_.config.seed, .device = run_.device};
  if (options.objective != Objective::masked_token) return options;
  const int32_t mask = corpus_.tokenizer ? corpus_.tokenizer->special().mask : -1;
  options.mask_token = mask >= 0 ? mask : std::max(run_.model->mask_token(), corpus_.vocabulary);
  if (run_.config.whole_words) options.words = corpus_.words;
  return options;
}

std::string TextData::items() const {
  return corpus_.train.symbols < 0 ? corpus_.unit + "s" : "tokens";
}

std::string TextData::unit() const {
  if (all_are_targets()) return corpus_.unit;
  return "hidden " + (corpus_.train.symbols < 0 ? corpus_.unit : "token");
}

LossUnit TextData::loss_unit() const {
  const CorpusPart& train = corpus_.train;
  if (!all_are_targets() || train.symbols <= 0) return {unit(), 1};
  return {unit(), static_cast<double>(train.symbols) / static_cast<double>(train.size())};
}

void TextData::prepare() {
  const RunConfig& c = run_.config;
  batches_ = std::make_unique<SegmentBatches>(corpus_.train, c.batch, c.length, options());
}

TaskData::Forward TextData::forward(int64_t i, Pass pass) const {
  const Batch batch = batches_->at(i);
  const int64_t all = batch.tokens.numel();
  return {losses_of(run_, batch, pass), all, alike() ? all : counted_targets(batch.targets)};
}

std::optional<Batch> TextData::batch(int64_t i) const {
  if (!alike()) return std::nullopt;
  return batches_->at(i);
}

// Counting reads from the device, so it happens only if batches differ and are accumulated.
bool TextData::alike() const { return all_are_targets() || run_.config.accumulate == 1; }

double TextData::bits(const std::string& name) const {
  const CorpusPart& part = corpus_.part(name);
  const int64_t together = std::max<int64_t>(1, 4096 / run_.config.length);
  const EvaluationSegments segments(part, together, run_.config.length, options());
  const Score total = score_all(*run_.model, segments);
  if (total.count == 0) return std::nan("");
  const bool symbols = all_are_targets() && part.symbols > 0;
  const auto per = static_cast<double>(symbols ? part.symbols : total.count);
  return total.bits() * static_cast<double>(total.count) / per;
}

std::optional<double> TextData::sliding_bits(const std::string& name, int64_t stride) const {
  require<NotImplemented>(run_.model->objective() == Objective::next_token, "--stride",
                          "{} predicts hidden bytes; expected a decoder", run_.config.model_name);
  const CorpusPart& part = corpus_.part(name);
  std::vector<int32_t> text{part.before};
  for (int64_t i = 0; i < part.size(); ++i) text.push_back(part[i]);
  const int64_t together = std::max<int64_t>(1, 4096 / run_.config.length);
  const Score score = score_sliding(*run_.model, Tensor::from(text, {part.size() + 1}),
                                    run_.config.length, stride, together);
  const double symbols = static_cast<double>(part.symbols > 0 ? part.symbols : part.size());
  return score.bits() * static_cast<double>(score.count) / symbols;
}

std::vector<int32_t> TextData::first_tokens(int64_t count) const {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < std::min(count, corpus_.valid.size()); ++i) {
    ids.push_back(corpus_.valid[i]);
  }
  return ids;
}

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

TaskData::Report DuplicateData::report(const std::string& part, const BeamSearch&) const {
  const double right = 100 * accuracy(part);
  return {{fmt::format("{:.2f} % of symbols right", right)}, {{"accuracy", right}}};
}

std::vector<int32_t> DuplicateData::first_tokens(int64_t count) const {
  std::vector<int32_t> tokens = samples("valid", 0, 1).tokens.to_vector<int32_t>();
  tokens.resize(static_cast<size_t>(std::min<int64_t>(count, task_.length())));
  return tokens;
}

}  // namespace longspan
