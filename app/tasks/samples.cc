#include "app/tasks/samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/tasks/labels.h"
#include "autograd/mode.h"
#include "core/error.h"
#include "core/scope.h"
#include "models/encoder.h"
#include "models/evaluate.h"
#include "ops/copy.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
namespace {

/// Returns target `i` of each sample, i64 [B].
Tensor column(const std::vector<Sample>& samples, size_t i, Device device) {
  std::vector<int64_t> values;
  for (const Sample& s : samples) values.push_back(s.targets.at(i));
  return Tensor::from(values, {std::ssize(samples)}, device);
}

}  // namespace

void GeneratedTask::visit(Fields& v) {
  if (samples_->targets() == TargetKind::sentences) documents_.visit(v);
  v.enter(section_);
  samples_->visit(v);
  v.leave();
}

std::string GeneratedTask::models() const {
  switch (samples_->targets()) {
    case TargetKind::tokens:
      return "decoders";
    case TargetKind::labels:
      return "encoders that answer yes or no about a sequence";
    case TargetKind::span:
      return "encoders that find the positions of an answer";
    case TargetKind::sentences:
      break;
  }
  return "hibert";
}

bool GeneratedTask::suits(const LanguageModel& model) const {
  switch (samples_->targets()) {
    case TargetKind::tokens:
      return model.objective() == Objective::next_token;
    case TargetKind::labels:
      return ask<ClassifiesSequences>(model) != nullptr;
    case TargetKind::span:
      return ask<FindsSpans>(model) != nullptr;
    case TargetKind::sentences:
      break;
  }
  return ask<ReadsDocuments>(model) != nullptr;
}

void GeneratedTask::require_suited(const RunConfig& c, const LanguageModel& model) const {
  refuse_writers(c, model);
  const TargetKind targets = samples_->targets();
  if (targets == TargetKind::labels) return require_classifier(c, model);
  if (suits(model)) return;
  if (targets == TargetKind::tokens) {
    refuse_without<ContinuesSequences>(
        c, model,
        fmt::format("{} is for decoders, and {} is none; choose one such as transformer", c.task,
                    c.model_name));
  }
  if (targets == TargetKind::span) {
    refuse_without<FindsSpans>(
        c, model,
        fmt::format("{} asks for the place of an answer, and {} has no head for it; choose an "
                    "encoder such as longformer, with model.span_head=true",
                    c.task, c.model_name));
  }
  refuse_without<ReadsDocuments>(
      c, model,
      fmt::format("{} has documents of sentences, and {} reads one sequence; choose hibert", c.task,
                  c.model_name));
}

TaskSizes GeneratedTask::sizes(const RunConfig& c, const LanguageModel& model) const {
  const SampleShape shape = samples_->fitted(c.length, model.vocab())->shape();
  switch (samples_->targets()) {
    case TargetKind::tokens:
      return {.vocabulary = shape.vocabulary};
    case TargetKind::labels:
      return {.vocabulary = shape.vocabulary, .classes = shape.scored};
    case TargetKind::span:
      return {.vocabulary = shape.vocabulary, .head = "span_head"};
    case TargetKind::sentences:
      break;
  }
  return {.vocabulary = shape.vocabulary + sentence_marks};
}

std::string GeneratedTask::symbols(std::string_view /*tokenizer*/) const {
  return samples_->tokens();
}

bool GeneratedTask::decides_samples(std::string_view key) const {
  return key == "task" || (key.starts_with(section_ + ".") && !key.ends_with(".held_out") &&
                           !key.ends_with(".positive_weight"));
}

std::vector<std::string> GeneratedTask::order_keys() const {
  if (samples_->targets() != TargetKind::sentences) return {};
  return {"documents", "extracts.chunk"};
}

std::unique_ptr<TaskData> GeneratedTask::open(const TrainingRun& run, bool /*reads*/) const {
  switch (samples_->targets()) {
    case TargetKind::labels:
      return std::make_unique<LabelData>(run, generated_labels(run, *samples_),
                                         samples_->positive_weight);
    case TargetKind::sentences:
      return std::make_unique<DocumentData>(run, documents_, samples_.get());
    case TargetKind::tokens:
    case TargetKind::span:
      break;
  }
  return std::make_unique<SampleData>(run, *samples_);
}

LanguageModel::Losses GeneratedTask::synthetic_loss(const SyntheticStep& s) const {
  if (samples_->targets() == TargetKind::labels) {
    return synthetic_label_loss(s, samples_->positive_weight);
  }
  if (samples_->targets() != TargetKind::span) return synthetic_token_loss(s);
  const auto& finder = need<FindsSpans>(s.model);
  const EncoderInputs in = synthetic_inputs(s, finder.takes_global_tokens());
  const Tensor answers = reshape(synthetic_ids(s.config.batch, 1, 1, s.device), {s.config.batch});
  LanguageModel::Losses result;
  result.loss = span_loss(finder.span_logits(in, s.pass), answers, answers);
  return result;
}

const SampleTask& samples_of(const RunConfig& config) {
  const auto* const task = dynamic_cast<const GeneratedTask*>(config.of_task.get());
  require(task != nullptr, "task", "the samples of {} are not generated", config.task);
  return task->samples();
}

SampleData::SampleData(const TrainingRun& run, const SampleTask& task)
    : run_(run),
      encoder_(ask<FindsSpans>(std::as_const(*run.model))),
      task_(task.fitted(run.config.length, run.model->vocab())) {
  const int64_t expected = task_->shape().vocabulary;
  require(run.model->vocab() >= expected, "model.vocab",
          "got {}; {} has {} tokens: expected {} or more", run.model->vocab(), run.config.task,
          expected, expected);
  const int64_t tokens = std::max<int64_t>(task_->shape().length, 1);
  const auto sample = [this](int64_t i) { return samples("train", run_.origin.samples + i, 1)[0]; };
  streams_.emplace(sample, tokens, run.config.batch * run.config.batches_per_step(),
                   memory_length(*run.model) > 0 ? run.config.length : tokens, run.device);
}

int64_t SampleData::size(const std::string& part) const {
  const RunConfig& c = run_.config;
  const int64_t turns = (c.steps + segments() - 1) / segments();
  return part_index(part) == 0 ? turns * c.batch * c.batches_per_step() : task_->held_out;
}

std::string SampleData::unit() const {
  return std::string(unit_of(run_.config.of_task->set().kind));
}

std::vector<Sample> SampleData::samples(const std::string& part, int64_t first,
                                        int64_t count) const {
  const Phase phase("data");
  std::vector<Sample> rows;
  for (int64_t i = first; i < first + count; ++i) {
    rows.push_back(task_->sample(
        {.seed = run_.config.seed, .split = part, .index = static_cast<uint64_t>(i)}));
  }
  return rows;
}

void SampleData::each(const std::string& part,
                      const std::function<void(const std::vector<Sample>&)>& visit) const {
  const EvaluatedItems items(size(part), run_.config.length);
  visit_alike(
      items.size(), run_.config.batch, [&](int64_t i) { return samples(part, items[i], 1)[0]; },
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
  const Phase phase("data");
  const int64_t batch = run_.config.batch, batches = run_.config.batches_per_step();
  return streams_->at(run_.segment_of(i), i % batches * batch, batch);
}

void SampleData::each_segment(
    const std::vector<Sample>& rows,
    const std::function<void(const Batch&, SegmentMemory&)>& visit) const {
  SegmentMemory memory = scoring_memory(*run_.model, std::ssize(rows));
  if (segments() == 1) return visit(stack(rows, run_.device), memory);
  for (int64_t s = 0; s < segments(); ++s) {
    visit(stack_segment(rows, s, run_.config.length, run_.device), memory);
  }
}

std::optional<Batch> SampleData::batch(int64_t i) const {
  const bool alike = task_->shape().scored >= 0 || run_.config.batches_per_step() == 1;
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
