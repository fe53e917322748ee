#include "app/tasks/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "autograd/mode.h"
#include "core/error.h"
#include "core/scope.h"
#include "models/evaluate.h"

namespace longspan {

void TextTask::visit(Fields& v) {
  v("whole_words", whole_words_, "encoders: hide all tokens of a word or none");
}

bool TextTask::suits(const LanguageModel& model) const {
  const auto* const reads = ask<ReadsInputs>(model);
  return ask<WritesSequences>(model) == nullptr && (reads == nullptr || reads->predicts_tokens());
}

void TextTask::require_suited(const RunConfig& c, const LanguageModel& model) const {
  refuse_writers(c, model);
  if (!suits(model)) {
    fail("task",
         "{} has tokens to predict, and {} has no head for them, but {}; choose --set "
         "model.mlm_head=true, or a task for its heads",
         c.task, c.model_name, capabilities_of(model));
  }
  const bool masked = model.objective() == Objective::masked_token;
  const bool any_bytes = set().id == "bytes" && c.tokenizer.empty();
  require(!(masked && any_bytes) || model.vocab() > 256, "model.vocab",
          "got {}; expected 257 or more, the bytes and a token that hides them", model.vocab());
  require(!(masked && any_bytes) || mask_token(model) >= 256, "model.mask_id",
          "got {}, which is a byte; expected 256 or more, of which no text has any",
          mask_token(model));
  require(!any_bytes || model.vocab() >= 256, "model.vocab",
          "got {}; expected 256 or more, one for each byte", model.vocab());
}

TaskSizes TextTask::sizes(const RunConfig& c, const LanguageModel& model) const {
  const std::unique_ptr<const Tokenizer> tokenizer = text_tokenizer(c.tokenizer);
  if (!tokenizer) return {};
  const bool masked = model.objective() == Objective::masked_token;
  const bool own_mask = tokenizer->special().mask >= 0;
  return {.vocabulary = tokenizer->vocabulary() + (masked && !own_mask ? 1 : 0)};
}

std::string TextTask::symbols(std::string_view tokenizer) const {
  if (set().kind == DataKind::words) return fmt::format("words of {}", set().id);
  return Task::symbols(tokenizer);
}

std::string TextTask::tokenizer(std::string_view given) const {
  return set().kind == DataKind::chars ? "char27" : Task::tokenizer(given);
}

std::unique_ptr<const Tokenizer> TextTask::text_tokenizer(std::string_view given) const {
  if (set().kind == DataKind::chars) return char27_tokenizer();
  if (set().kind != DataKind::bytes) return nullptr;
  return open_tokenizer(given.empty() ? "bytes" : std::string(given));
}

std::unique_ptr<TaskData> TextTask::open(const TrainingRun& run, bool /*reads*/) const {
  return std::make_unique<TextData>(run, whole_words_);
}

LanguageModel::Losses TextTask::synthetic_loss(const SyntheticStep& step) const {
  return synthetic_token_loss(step);
}

void TextProgress::operator()(const char* split, int64_t done, int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (split != split_) {
    begin_ = now;
    last_ = 0;
    split_ = split;
  }
  const int64_t part = total > 0 ? 20 * done / total : 20;
  const bool late = std::chrono::duration<double>(now - begin_).count() >= patience_;
  if (part == last_ || !late) return;
  last_ = part;
  std::fprintf(stderr, "tokens of %s: %lld %% of %lld MB\n", split,
               static_cast<long long>(5 * part), static_cast<long long>(total >> 20));
}

TextData::TextData(const TrainingRun& run, bool whole_words)
    : run_(run),
      whole_words_(whole_words),
      corpus_(open_corpus(run.config.task, data_place(run.config),
                          {run.config.split, run.config.tokenizer, TextProgress(2)})) {
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
  options.mask_token =
      mask >= 0 ? mask : std::max(longspan::mask_token(*run_.model), corpus_.vocabulary);
  if (whole_words_) options.words = corpus_.words;
  return options;
}

std::string TextData::items() const {
  return corpus_.train.symbols < 0 ? corpus_.unit + "s" : "tokens";
}

std::string TextData::unit() const {
  if (all_are_targets()) return corpus_.unit;
  return "hidden " + (corpus_.train.symbols < 0 ? corpus_.unit : "token");
}

LossUnit TextData::loss_unit() const { return {unit(), *units_per_target("train")}; }

std::optional<double> TextData::units_per_target(const std::string& name) const {
  const CorpusPart& part = corpus_.part(name);
  if (!all_are_targets() || part.symbols <= 0 || part.size() == 0) return 1;
  return static_cast<double>(part.symbols) / static_cast<double>(part.size());
}

void TextData::prepare() {
  const RunConfig& c = run_.config;
  if (streams()) {
    streams_ = std::make_unique<TextStreams>(corpus_.train, c.batch * c.batches_per_step(),
                                             c.length, c.seed, run_.device);
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
  const Phase phase("data");
  const int64_t batch = run_.config.batch, batches = run_.config.batches_per_step();
  if (!streams()) return batches_->from_row(run_.samples_before(i));
  return streams_->at(run_.segment_of(i), i % batches * batch, batch);
}

std::optional<Batch> TextData::batch(int64_t i) const {
  if (!alike()) return std::nullopt;
  return batch_of(i);
}

// Counting reads from the device, so it happens only if batches differ and are accumulated.
bool TextData::alike() const { return all_are_targets() || run_.config.batches_per_step() == 1; }

TaskData::Evaluation TextData::evaluate(const std::string& name) const {
  Evaluation result = TaskData::evaluate(name);
  if (streams()) {
    const int64_t many = evaluation_streams(corpus_.part(name)).streams();
    result.report.figures.push_back({"streams", many});
  }
  if (corpus_.kind != DataKind::fasta || streams()) return result;
  const NoGrad off;
  Answers all;
  const EvaluationSegments segments = segments_of(corpus_.part(name));
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
  const Score total = streams() ? score_streams(part) : score_segments(part);
  if (total.count == 0) return std::nan("");
  if (!all_are_targets() || part.symbols <= 0) return total.bits();
  // A token of a sample counts as the mean number of symbols of a token of the split.
  const auto read = static_cast<double>(total.count), all = static_cast<double>(part.size()),
             symbols = static_cast<double>(part.symbols);
  return total.bits() * read / (total.count == part.size() ? symbols : symbols * read / all);
}

EvaluationSegments TextData::segments_of(const CorpusPart& part) const {
  const int64_t length = run_.config.length;
  const EvaluatedItems items(part.size() / length, length);
  if (!items.is_sample()) return {part, together(), length, options()};
  std::vector<int64_t> segments;
  for (int64_t i = 0; i < items.size(); ++i) segments.push_back(items[i]);
  return {part, together(), length, options(), std::move(segments)};
}

Score TextData::score_segments(const CorpusPart& part) const {
  const EvaluationSegments batches = segments_of(part);
  ScoreSum all;
  for (int64_t i = 0; i < batches.size(); ++i) {
    all.add([&] {
      const Batch batch = batches[i];
      return score(*run_.model, batch.tokens, batch.targets);
    });
    Evaluating::see(i + 1, batches.size());
  }
  return all.total();
}

/// Makes only so many streams that they read few tokens beforehand compared with the tokens that
/// they score. The number of streams changes the figure, so it depends on nothing else.
EvaluationStreams TextData::evaluation_streams(const CorpusPart& part) const {
  const int64_t length = run_.config.length;
  const int64_t warm_up = (memory_tokens(*run_.model) + length - 1) / length * length;
  const int64_t many = part.size() / (16 * (warm_up + length));
  return {part, std::clamp<int64_t>(many, 1, most_together()), length, warm_up, run_.device};
}

// All processes score all streams: there are few, so that others would wait for one as long as it
// takes.
Score TextData::score_streams(const CorpusPart& part) const {
  EvaluationStreams batches = evaluation_streams(part);
  if (const int64_t tokens = Evaluating::tokens(); tokens > 0) {
    batches = batches.shortened(std::max<int64_t>(tokens / batches.streams(), 1));
  }
  Score all;
  int64_t done = 0;
  const int64_t turns = (batches.streams() + together() - 1) / together();
  for (int64_t first = 0; first < batches.streams(); first += together()) {
    const int64_t count = std::min(together(), batches.streams() - first);
    const EvaluationStreams some = batches.some(first, count);
    SegmentMemory memory = scoring_memory(*run_.model, count);
    for (int64_t i = 0; i < some.size(); ++i) {
      const Batch batch = some[i];
      all += score(*run_.model, batch.tokens, batch.targets, memory);
      Evaluating::see(++done, turns * some.size());
    }
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

std::string TextData::decoded(std::span<const int32_t> ids) const {
  if (!corpus_.tokenizer) return {};
  const int64_t known = corpus_.tokenizer->vocabulary();
  std::vector<int32_t> text;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(text),
               [&](int32_t id) { return id < known; });
  return corpus_.tokenizer->decode(text);
}

std::vector<int32_t> TextData::first_tokens(int64_t count) const {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < std::min(count, corpus_.valid.size()); ++i) {
    ids.push_back(corpus_.valid[i]);
  }
  return ids;
}

}  // namespace longspan
