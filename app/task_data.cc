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

/// Returns the encoder of a task that asks for answers within its samples, null for other tasks.
const Encoder* encoder_for(const TrainingRun& run) {
  const RunConfig& c = run.config;
  if (c.generated->targets() != TargetKind::span) {
    require(run.model->objective() == Objective::next_token, "task",
            "{} is for decoders, and {} is none; choose one such as transformer", c.task,
            c.model_name);
    return nullptr;
  }
  const Encoder* encoder = run.model->as_encoder();
  require(
      encoder != nullptr && encoder->encoder_config().span_head, "task",
      "{} asks for the place of an answer, and {} has no head for it; choose an encoder such as "
      "longformer, with model.span_head=true",
      c.task, c.model_name);
  return encoder;
}

/// Returns how many targets of the samples are scored.
int64_t counted_targets(const std::vector<Sample>& samples) {
  int64_t count = 0;
  for (const Sample& s : samples) {
    count += std::ssize(s.targets) - std::count(s.targets.begin(), s.targets.end(), ignored_target);
  }
  return count;
}

/// Returns target `i` of each sample, i64 [B].
Tensor column(const std::vector<Sample>& samples, size_t i, Device device) {
  std::vector<int64_t> values;
  for (const Sample& s : samples) values.push_back(s.targets.at(i));
  return Tensor::from(values, {std::ssize(samples)}, device);
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

SampleData::SampleData(const TrainingRun& run)
    : run_(run),
      encoder_(encoder_for(run)),
      task_(run.config.generated->fitted(run.config.length, run.model->vocab())) {
  const int64_t expected = task_->shape().vocabulary;
  require(run.model->vocab() >= expected, "model.vocab",
          "got {}; {} has {} tokens: expected {} or more", run.model->vocab(), run.config.task,
          expected, expected);
}

int64_t SampleData::size(const std::string& part) const {
  const RunConfig& c = run_.config;
  return part_index(part) == 0 ? c.steps * c.batch * c.accumulate : task_->held_out;
}

std::string SampleData::unit() const {
  return std::string(unit_of(find_data_set(run_.config.task).kind));
}

std::vector<Sample> SampleData::samples(const std::string& part, int64_t first,
                                        int64_t count) const {
  std::vector<Sample> rows;
  for (int64_t i = first; i < first + count; ++i) {
    rows.push_back(task_->sample(
        {.seed = run_.config.seed, .split = part, .index = static_cast<uint64_t>(i)}));
  }
  return rows;
}

void SampleData::each(const std::string& part,
                      const std::function<void(const std::vector<Sample>&)>& visit) const {
  for (int64_t i = 0; i < size(part); i += run_.config.batch) {
    visit(samples(part, i, std::min(run_.config.batch, size(part) - i)));
  }
}

SpanLogits SampleData::spans(const std::vector<Sample>& rows, Pass pass) const {
  const int64_t length = std::ssize(rows[0].tokens), count = std::ssize(rows);
  std::vector<int32_t> tokens;
  std::vector<uint8_t> global(static_cast<size_t>(count * length), 0);
  for (int64_t row = 0; row < count; ++row) {
    const Sample& s = rows[static_cast<size_t>(row)];
    tokens.insert(tokens.end(), s.tokens.begin(), s.tokens.end());
    for (const int32_t at : s.global) global[static_cast<size_t>(row * length + at)] = 1;
  }
  EncoderInputs in{.tokens = Tensor::from(tokens, {count, length}, run_.device)};
  if (encoder_->takes_global_tokens()) in.global = Tensor::from(global, {count, length});
  return encoder_->spans(encoder_->forward(in, pass), {});
}

Tensor SampleData::answer_loss(const std::vector<Sample>& rows, Pass pass) const {
  return span_loss(spans(rows, pass), column(rows, 0, run_.device), column(rows, 1, run_.device));
}

TaskData::Forward SampleData::forward(int64_t i, Pass pass) const {
  const std::vector<Sample> rows = samples("train", i * run_.config.batch, run_.config.batch);
  Forward f;
  for (const Sample& s : rows) f.tokens += std::ssize(s.tokens);
  if (finds_answers()) {
    f.losses.loss = answer_loss(rows, pass);
    f.counted = run_.config.batch;
  } else {
    f.losses = losses_of(run_, stack(rows, run_.device), pass);
    f.counted = counted_targets(rows);
  }
  return f;
}

std::optional<Batch> SampleData::batch(int64_t i) const {
  const bool alike = task_->shape().scored >= 0 || run_.config.accumulate == 1;
  if (finds_answers() || !alike) return std::nullopt;
  return stack(samples("train", i * run_.config.batch, run_.config.batch), run_.device);
}

double SampleData::bits(const std::string& part) const {
  const NoGrad off;
  Score total;
  each(part, [&](const std::vector<Sample>& rows) {
    if (finds_answers()) {
      const int64_t count = std::ssize(rows);
      total += {answer_loss(rows, Pass{}).item() * static_cast<double>(count), count};
    } else {
      const Batch b = stack(rows, run_.device);
      total += score(*run_.model, b.tokens, b.targets);
    }
  });
  return total.count > 0 ? total.bits() : std::nan("");
}

double SampleData::accuracy(const std::string& part) const {
  const NoGrad off;
  const auto most_likely = [](const Tensor& scores) {
    return cast(argmax(scores, -1), DType::i32).to_vector<int32_t>();
  };
  int64_t right = 0, counted = 0;
  each(part, [&](const std::vector<Sample>& rows) {
    if (finds_answers()) {
      const SpanLogits z = spans(rows, Pass{});
      const std::vector<int32_t> starts = most_likely(z.start), ends = most_likely(z.end);
      for (size_t i = 0; i < rows.size(); ++i) {
        ++counted;
        right += starts[i] == rows[i].targets[0] && ends[i] == rows[i].targets[1] ? 1 : 0;
      }
      return;
    }
    const Batch b = stack(rows, run_.device);
    const std::vector<int32_t> said = most_likely(run_.model->logits(b.tokens, Pass{}));  // [B L]
    const std::vector<int32_t> wanted = b.targets.to_vector<int32_t>();
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] == ignored_target) continue;
      ++counted;
      right += said[i] == wanted[i] ? 1 : 0;
    }
  });
  return static_cast<double>(right) / static_cast<double>(counted);
}

TaskData::Report SampleData::report(const std::string& part, const BeamSearch&) const {
  const double right = 100 * accuracy(part);
  return {{fmt::format("{:.2f} % of {}s right", right, finds_answers() ? "answer" : unit())},
          {{"accuracy", right}}};
}

std::vector<int32_t> SampleData::first_tokens(int64_t count) const {
  std::vector<int32_t> tokens = samples("valid", 0, 1)[0].tokens;
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(count)));
  return tokens;
}

}  // namespace longspan
