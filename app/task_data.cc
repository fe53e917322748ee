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
const FindsSpans* encoder_for(const TrainingRun& run) {
  const RunConfig& c = run.config;
  if (c.generated->targets() != TargetKind::span) {
    require(run.model->objective() == Objective::next_token, "task",
            "{} is for decoders, and {} is none; choose one such as transformer", c.task,
            c.model_name);
    return nullptr;
  }
  const auto* const encoder = ask<FindsSpans>(std::as_const(*run.model));
  require(
      encoder != nullptr, "task",
      "{} asks for the place of an answer, and {} has no head for it; choose an encoder such as "
      "longformer, with model.span_head=true",
      c.task, c.model_name);
  return encoder;
}

/// Returns target `i` of each sample, i64 [B].
Tensor column(const std::vector<Sample>& samples, size_t i, Device device) {
  std::vector<int64_t> values;
  for (const Sample& s : samples) values.push_back(s.targets.at(i));
  return Tensor::from(values, {std::ssize(samples)}, device);
}

}  // namespace

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
  options.mask_token = mask >= 0 ? mask : std::max(mask_token(*run_.model), corpus_.vocabulary);
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
  if (streams()) {
    streams_ = std::make_unique<TextStreams>(corpus_.train, c.batch * c.accumulate, c.length,
                                             c.seed, run_.device);
    return;
  }
  batches_ = std::make_unique<SegmentBatches>(corpus_.train, c.batch, c.length, options());
}

TaskData::Forward TextData::forward(int64_t i, const SegmentMemory& memory, Pass pass) const {
  const Batch b = batch_of(i);
  const int64_t all = b.tokens.numel();
  return {losses_of(run_, b, memory, pass), all, alike() ? all : counted_targets(b.targets)};
}

Tensor TextData::reset(int64_t i) const {
  return streams() ? streams_->reset(run_.segment_of(i), run_.config.batch) : Tensor{};
}

Batch TextData::batch_of(int64_t i) const {
  const int64_t batch = run_.config.batch, accumulate = run_.config.accumulate;
  if (!streams()) return batches_->from_row(run_.samples_before(i));
  return streams_->at(run_.segment_of(i), i % accumulate * batch, batch);
}

std::optional<Batch> TextData::batch(int64_t i) const {
  if (!alike()) return std::nullopt;
  return batch_of(i);
}

// Counting reads from the device, so it happens only if batches differ and are accumulated.
bool TextData::alike() const { return all_are_targets() || run_.config.accumulate == 1; }

TaskData::Evaluation TextData::evaluate(const std::string& name) const {
  Evaluation result = TaskData::evaluate(name);
  if (streams()) {
    const int64_t many = evaluation_streams(corpus_.part(name)).streams();
    result.report.figures.push_back({"streams", many});
  }
  if (corpus_.kind != DataKind::fasta || streams()) return result;
  const NoGrad off;
  Answers all;
  const EvaluationSegments segments(corpus_.part(name), together(), run_.config.length, options());
  for (int64_t i = 0; i < segments.size(); ++i) {
    const Batch b = segments[i];
    all += count_right(run_.model->logits(b.tokens, Pass{}), b.targets);
  }
  const double right = all.percent();
  result.report.lines.push_back(fmt::format("{:.2f} % of {}s right", right, unit()));
  result.report.figures.push_back({"accuracy", right});
  return result;
}

double TextData::bits(const std::string& name) const {
  const CorpusPart& part = corpus_.part(name);
  const auto all = [&] {
    return score_all(*run_.model,
                     EvaluationSegments(part, together(), run_.config.length, options()));
  };
  const Score total = streams() ? score_streams(part) : all();
  if (total.count == 0) return std::nan("");
  const bool symbols = all_are_targets() && part.symbols > 0;
  const auto per = static_cast<double>(symbols ? part.symbols : total.count);
  return total.bits() * static_cast<double>(total.count) / per;
}

/// As many streams that what they read beforehand is little beside what they score. Their number is
/// part of the figure, so it depends on nothing else.
EvaluationStreams TextData::evaluation_streams(const CorpusPart& part) const {
  const int64_t length = run_.config.length;
  const int64_t warm_up = (memory_tokens(*run_.model) + length - 1) / length * length;
  const int64_t many = part.size() / (16 * (warm_up + length));
  return {part, std::clamp<int64_t>(many, 1, most_together()), length, warm_up, run_.device};
}

Score TextData::score_streams(const CorpusPart& part) const {
  const EvaluationStreams batches = evaluation_streams(part);
  Score all;
  for (int64_t first = 0; first < batches.streams(); first += together()) {
    const int64_t count = std::min(together(), batches.streams() - first);
    all += longspan::score_streams(*run_.model, batches.some(first, count), count);
  }
  return all;
}

std::string TextData::protocol(const std::string& part) const {
  if (!streams()) return {};
  const int64_t length = run_.config.length, rows = memory_tokens(*run_.model);
  const EvaluationStreams batches = evaluation_streams(corpus_.part(part));
  const bool warm = batches.streams() > 1;
  return fmt::format(
      "segments of {} tokens after a memory of {}, in {} {}{}", length, rows, batches.streams(),
      warm ? "streams" : "stream",
      warm ? fmt::format(" that read {} tokens before they count", batches.warm_up()) : "");
}

std::optional<double> TextData::sliding_bits(const std::string& name, int64_t stride) const {
  require<NotImplemented>(run_.model->objective() == Objective::next_token, "--stride",
                          "{} predicts hidden bytes; expected a decoder", run_.config.model_name);
  const CorpusPart& part = corpus_.part(name);
  std::vector<int32_t> text{part.before};
  for (int64_t i = 0; i < part.size(); ++i) text.push_back(part[i]);
  const Score score = score_sliding(*run_.model, Tensor::from(text, {part.size() + 1}),
                                    run_.config.length, stride, together());
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
  const int64_t tokens = std::max<int64_t>(task_->shape().length, 1);
  const auto sample = [this](int64_t i) { return samples("train", run_.origin.samples + i, 1)[0]; };
  streams_.emplace(sample, tokens, run.config.batch * run.config.accumulate,
                   memory_length(*run.model) > 0 ? run.config.length : tokens, run.device);
}

int64_t SampleData::size(const std::string& part) const {
  const RunConfig& c = run_.config;
  const int64_t turns = (c.steps + segments() - 1) / segments();
  return part_index(part) == 0 ? turns * c.batch * c.accumulate : task_->held_out;
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
  visit_alike(
      size(part), run_.config.batch, [&](int64_t i) { return samples(part, i, 1)[0]; },
      [](const Sample& s) { return s.tokens.size(); }, visit);
}

SpanLogits SampleData::spans(const std::vector<Sample>& rows, Pass pass) const {
  const EncoderInputs in = inputs_of(rows, encoder_->takes_global_tokens(), run_.device);
  return encoder_->span_logits(in, pass);
}

Tensor SampleData::answer_loss(const std::vector<Sample>& rows, const SpanLogits& found) const {
  return span_loss(found, column(rows, 0, run_.device), column(rows, 1, run_.device));
}

TaskData::Forward SampleData::forward(int64_t i, const SegmentMemory& memory, Pass pass) const {
  Forward f;
  if (finds_answers()) {
    const std::vector<Sample> rows = samples("train", run_.samples_before(i), run_.config.batch);
    for (const Sample& s : rows) f.tokens += std::ssize(s.tokens);
    f.losses.loss = answer_loss(rows, spans(rows, pass));
    f.counted = run_.config.batch;
  } else {
    const Batch b = batch_of(i);
    f.tokens = b.tokens.numel();
    f.losses = losses_of(run_, b, memory, pass);
    f.counted = counted_targets(b.targets);
  }
  return f;
}

Tensor SampleData::reset(int64_t i) const {
  return streams() ? streams_->reset(run_.segment_of(i), run_.config.batch) : Tensor{};
}

int64_t SampleData::segments() const { return finds_answers() ? 1 : streams_->segments(); }

/// Batch k of a step reads the k-th part of the streams.
Batch SampleData::batch_of(int64_t i) const {
  const int64_t batch = run_.config.batch, accumulate = run_.config.accumulate;
  return streams_->at(run_.segment_of(i), i % accumulate * batch, batch);
}

void SampleData::each_segment(
    const std::vector<Sample>& rows,
    const std::function<void(const Batch&, SegmentMemory&)>& visit) const {
  SegmentMemory memory = evaluation_memory(*run_.model, std::ssize(rows));
  if (segments() == 1) return visit(stack(rows, run_.device), memory);
  for (int64_t s = 0; s < segments(); ++s) {
    visit(stack_segment(rows, s, run_.config.length, run_.device), memory);
  }
}

std::optional<Batch> SampleData::batch(int64_t i) const {
  const bool alike = task_->shape().scored >= 0 || run_.config.accumulate == 1;
  if (finds_answers() || !alike) return std::nullopt;
  return batch_of(i);
}

/// The most likely tokens come from a pass of their own: the loss does not make all logits.
SampleData::Scores SampleData::scores(const std::string& part, bool ask_right) const {
  const NoGrad off;
  const auto most_likely = [](const Tensor& z) {
    return cast(argmax(z, -1), DType::i32).to_vector<int32_t>();
  };
  Scores all;
  each(part, [&](const std::vector<Sample>& rows) {
    if (finds_answers()) {
      const SpanLogits z = spans(rows, Pass{});
      const SpanLogits exact{cast(z.start, DType::f64), cast(z.end, DType::f64)};
      const int64_t count = std::ssize(rows);
      all.score += {answer_loss(rows, exact).item() * static_cast<double>(count), count};
      if (!ask_right) return;
      const std::vector<int32_t> starts = most_likely(z.start), ends = most_likely(z.end);
      for (size_t i = 0; i < rows.size(); ++i) {
        const bool right = starts[i] == rows[i].targets[0] && ends[i] == rows[i].targets[1];
        all.answers += {right ? 1 : 0, 1};
      }
      return;
    }
    each_segment(rows, [&](const Batch& b, SegmentMemory& memory) {
      all.score += score(*run_.model, b.tokens, b.targets, memory);
    });
    if (!ask_right) return;
    each_segment(rows, [&](const Batch& b, SegmentMemory& memory) {
      const Tensor z = streams() ? need<Streams>(*run_.model).logits_after(memory, b.tokens)
                                 : run_.model->logits(b.tokens, Pass{});
      all.answers += count_right(z, b.targets);
    });
  });
  return all;
}

double SampleData::bits(const std::string& part) const {
  const Score s = scores(part, false).score;
  return s.count > 0 ? s.bits() : std::nan("");
}

TaskData::Evaluation SampleData::evaluate(const std::string& part) const {
  const Scores s = scores(part, true);
  if (s.answers.counted == 0) return {std::nan(""), {}};
  const double right = s.answers.percent();
  return {s.score.bits(),
          {{fmt::format("{:.2f} % of {}s right", right, finds_answers() ? "answer" : unit())},
           {{"accuracy", right}}}};
}

std::vector<int32_t> SampleData::first_tokens(int64_t count) const {
  std::vector<int32_t> tokens = samples("valid", 0, 1)[0].tokens;
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(count)));
  return tokens;
}

}  // namespace longspan
