#include "app/tasks/endings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/mode.h"
#include "core/error.h"
#include "data/tokenizers/hub_processor.h"
#include "hub/type.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/shape.h"

namespace longspan {
namespace {

/// Returns the loss of an answer in nats.
double nats_of(std::span<const float> scores, int32_t answer) {
  return -std::log(softmax_of(scores)[static_cast<size_t>(answer)]);
}

size_t best_of(std::span<const float> scores) {
  return static_cast<size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

}  // namespace

TaskSizes EndingTask::sizes(const RunConfig& c, const LanguageModel& /*model*/) const {
  return {.vocabulary = RowMaker(c.tokenizer).vocabulary(), .classes = 1};
}

std::optional<HubTask> EndingTask::hub_task() const { return HubTask::choice; }

std::vector<std::string> EndingTask::read_inputs(const std::string& table) const {
  std::vector<std::string> inputs;
  for (const ChoiceExample& row : read_choices(unlabelled(table))) {
    std::string input = without_tabs(row.first);
    for (size_t i = 0; i < row.endings.size(); ++i) input += "\t" + without_tabs(row.candidate(i));
    inputs.push_back(std::move(input));
  }
  return inputs;
}

std::unique_ptr<TaskData> EndingTask::open(const TrainingRun& run, bool reads) const {
  return std::make_unique<EndingData>(run, *this, reads);
}

/// Two candidates for each question.
LanguageModel::Losses EndingTask::synthetic_loss(const SyntheticStep& s) const {
  constexpr int64_t candidates = 2;
  const auto& classifier = need<ClassifiesSequences>(s.model);
  const int64_t batch = s.config.batch;
  RunConfig wide;
  wide.batch = batch * candidates;
  const SyntheticStep step{s.model, wide, s.device, s.length, s.memory, s.pass};
  const EncoderInputs in = synthetic_inputs(step, classifier.takes_global_tokens());
  if (s.kept != nullptr) *s.kept = {in.tokens};
  const Tensor z = reshape(classifier.class_logits(in, s.pass), {batch, candidates});
  LanguageModel::Losses result;
  result.loss = cross_entropy(z, reshape(synthetic_ids(batch, 1, 1, s.device), {batch}));
  return result;
}

EndingData::EndingData(const TrainingRun& run, const EndingTask& task, bool reads)
    : TableData(run, need<ClassifiesSequences>(*run.model), RowMaker(run.config.tokenizer)) {
  require(model_.classes() == 1, "model.classes",
          "got {}; {} scores candidates one by one: expected 1", model_.classes(), run.config.task);
  require_vocabulary(run, maker_);
  if (!reads) return;
  rows_ = read_splits<ChoiceExample>(
      run.config, task.sources(run.config), [](const TableSource& source) {
        std::vector<ChoiceExample> all = read_choices(source);
        std::erase_if(all, [](const ChoiceExample& row) { return row.answer < 0; });
        return all;
      });
}

void EndingData::prepare() {
  require(!rows_[0].empty(), "data", "{} has no question with an answer to train on",
          data_name(run_.config));
  int64_t cut = 0;
  for (const ChoiceExample& example : rows_[0]) {
    const std::vector<TextRow> rows = rows_of(example);
    cut += std::any_of(rows.begin(), rows.end(), [](const TextRow& r) { return r.cut; }) ? 1 : 0;
  }
  warn_of_cut(cut, size("train"), "questions");
}

std::vector<TextRow> EndingData::rows_of(const ChoiceExample& example) const {
  std::vector<TextRow> rows;
  for (size_t i = 0; i < example.endings.size(); ++i) {
    rows.push_back(maker_.pair(example.first, example.candidate(i), run_.config.length));
    // The candidate's tokens are global, as in Longformer's head for multiple choice.
    TextRow& row = rows.back();
    const auto second = std::find(row.tokens.sequences.begin(), row.tokens.sequences.end(), 1);
    row.global_begin = second - row.tokens.sequences.begin();
    row.global_end = row.length();
  }
  return rows;
}

Tensor EndingData::scores(std::span<const ChoiceExample> examples, Pass pass) const {
  std::vector<TextRow> rows;
  size_t most = 0;
  for (const ChoiceExample& e : examples) most = std::max(most, e.endings.size());
  std::vector<int64_t> places;
  std::vector<float> missing;
  for (const ChoiceExample& e : examples) {
    for (size_t i = 0; i < most; ++i) {
      const bool is_there = i < e.endings.size();
      places.push_back(is_there ? std::ssize(rows) + static_cast<int64_t>(i) : 0);
      missing.push_back(is_there ? 0 : -std::numeric_limits<float>::infinity());
    }
    for (TextRow& row : rows_of(e)) rows.push_back(std::move(row));
  }
  const Tensor z =
      model_.class_logits(inputs_of(rows, model_, maker_.padding(), run_.device), pass);
  const Shape shape{std::ssize(examples), static_cast<int64_t>(most)};
  const Tensor picked =
      take(squeeze(z, 1), Tensor::from(places, {std::ssize(places)}, run_.device));
  return add(reshape(picked, shape), cast(Tensor::from(missing, shape, run_.device), z.dtype()));
}

std::vector<float> EndingData::scores_of(const ChoiceExample& example) const {
  std::vector<float> all;
  for (const TextRow& row : rows_of(example)) {
    const Tensor z = model_.class_logits(
        inputs_of(std::span(&row, 1), model_, maker_.padding(), run_.device), Pass{});
    all.push_back(to_floats(z)[0]);
  }
  return all;
}

TaskData::Forward EndingData::forward(int64_t i, const SegmentMemory& /*memory*/, Pass pass) const {
  const std::vector<ChoiceExample> examples = batch_of(rows_[0], run_, i);
  Forward f;
  std::vector<int32_t> answers;
  for (const ChoiceExample& e : examples) {
    answers.push_back(e.answer);
    for (const TextRow& row : rows_of(e)) f.tokens += row.length();
  }
  f.losses.loss = cross_entropy(scores(examples, pass),
                                Tensor::from(answers, {std::ssize(answers)}, run_.device));
  f.counted = std::ssize(examples);
  return f;
}

TaskData::Evaluation EndingData::evaluate(const std::string& part) const {
  const NoGrad off;
  const EvaluatedRows<ChoiceExample> examples(rows_[part_index(part)], run_.config.length);
  if (examples.empty()) return {std::nan(""), {}};
  Misses misses;
  Report r;
  r.rows.push_back({"sent1", "sent2", "label", "predicted", "probability", "loss"});
  double nats = 0, right = 0;
  for (size_t i = 0; i < examples.size(); ++i) {
    Evaluating::see(static_cast<int64_t>(i), std::ssize(examples));
    const ChoiceExample& e = examples[i];
    const std::vector<float> z = scores_of(e);
    const size_t best = best_of(z);
    const double own = nats_of(z, e.answer);
    nats += own;
    right += static_cast<int32_t>(best) == e.answer ? 1 : 0;
    r.rows.push_back({e.first, e.second.value_or(""), std::to_string(e.answer),
                      std::to_string(best), fmt::format("{:.6f}", softmax_of(z)[best]),
                      fmt::format("{:.6f}", own)});
    if (static_cast<int32_t>(best) != e.answer)
      misses.add(own,
                 fmt::format("{} as {}: {}", shortened(e.endings[static_cast<size_t>(e.answer)]),
                             shortened(e.endings[best]), shortened(e.first)));
  }
  const auto count = static_cast<double>(examples.size());
  add_scores(r, {{"accuracy", 100 * right / count}});
  misses.report(r);
  return {nats / count / std::log(2.0), r};
}

std::vector<TaskData::Prediction> EndingData::predict(std::span<const std::string> lines) const {
  const NoGrad off;
  std::vector<Prediction> all;
  for (const std::string& line : lines) {
    ChoiceExample e;
    size_t begin = 0;
    for (size_t field = 0; begin <= line.size(); ++field) {
      const size_t end = std::min(line.find('\t', begin), line.size());
      (field == 0 ? e.first : e.endings.emplace_back()) = line.substr(begin, end - begin);
      begin = end + 1;
    }
    require(e.endings.size() >= 2, "predict",
            "a line has {} endings; expected a text and two or more, with tabs between them: {}",
            e.endings.size(), shortened(line));
    const std::vector<float> z = scores_of(e);
    const std::vector<double> p = softmax_of(z);
    const size_t best = best_of(z);
    Prediction found{std::to_string(best), p[best], {}};
    found.figures.emplace_back("label", static_cast<int64_t>(best));
    found.figures.emplace_back("ending", with_replacement_characters(e.endings[best]));
    found.figures.emplace_back("probability", p[best]);
    found.figures.emplace_back("probabilities", Json::Array(p.begin(), p.end()));
    all.push_back(std::move(found));
  }
  return all;
}

}  // namespace longspan
