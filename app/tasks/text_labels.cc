#include "app/tasks/text_labels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autograd/mode.h"
#include "core/error.h"
#include "data/scores/classes.h"
#include "hub/type.h"
#include "models/encoder.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/loss.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
namespace {

LabelSurvey survey_of(const TextLabelOptions& o) {
  return {.labels = Labels(o.labels), .several = o.several};
}

/// Returns the rows that have an answer.
std::vector<LabelledText> answered(std::vector<LabelledText> rows, bool number) {
  std::erase_if(rows, [&](const LabelledText& row) {
    return number ? std::isnan(row.number) : !row.labelled;
  });
  return rows;
}

double sigmoid_of(float z) { return 1 / (1 + std::exp(-static_cast<double>(z))); }

/// Returns the member of that name, or null.
const Json* find_member(const Members& members, std::string_view name) {
  const auto at = std::find_if(members.begin(), members.end(),
                               [&](const JsonMember& m) { return m.name == name; });
  return at == members.end() ? nullptr : &at->value;
}

/// Figures of one class each, in percent but for the correlation.
void add_class_scores(const ConfusionMatrix& matrix, TaskData::Report& report) {
  std::vector<std::pair<std::string, double>> all{{"accuracy", 100 * matrix.accuracy()}};
  if (matrix.classes() == 2) {
    all.emplace_back("f1", 100 * matrix.of(1).f1());
  } else {
    all.emplace_back("f1_macro", 100 * matrix.average(Average::macro).f1);
    all.emplace_back("f1_micro", 100 * matrix.average(Average::micro).f1);
  }
  all.emplace_back("matthews", matrix.matthews());
  add_scores(report, all);
}

/// Returns a run's model as a classifier. Without names of classes, says first what is wrong with
/// the data, as whoever chose the model has left that out.
const ClassifiesSequences& classifier_of(const TrainingRun& run, const TextLabelTask& task,
                                         bool reads) {
  if (reads && !task.is_number() && task.options().labels.empty()) {
    const auto sources = task.sources(run.config);
    survey_text_labels(std::span(sources.data(), 2),
                       task.is_pair() ? TextCount::two : TextCount::one);
  }
  return need<ClassifiesSequences>(*run.model);
}

}  // namespace

std::string TextLabelTask::problem_type() const {
  if (is_number()) return "regression";
  return options_.several ? "multi_label_classification" : "single_label_classification";
}

void TextLabelTask::settle(const RunConfig& c) {
  if (is_number() || !options_.labels.empty()) return;
  const auto sources = this->sources(c);
  const LabelSurvey survey =
      survey_text_labels(std::span(sources.data(), 2), is_pair() ? TextCount::two : TextCount::one);
  options_.labels = survey.labels.names();
  options_.several = survey.several;
}

TaskSizes TextLabelTask::sizes(const RunConfig& c, const LanguageModel& /*model*/) const {
  return {.vocabulary = RowMaker(c.tokenizer).vocabulary(),
          .classes = is_number() ? 1 : label_count(options_.labels)};
}

std::optional<HubTask> TextLabelTask::hub_task() const { return HubTask::classes; }

std::vector<std::string> TextLabelTask::read_inputs(const std::string& table) const {
  std::vector<std::string> inputs;
  const TextCount count = is_pair() ? TextCount::two : TextCount::one;
  // Labels are not looked at: they may be others than the model's.
  TableSource source = unlabelled(table);
  for (const LabelledText& row : read_plain_texts(source, count)) {
    inputs.push_back(is_pair() ? without_tabs(row.text) + "\t" + row.second : row.text);
  }
  return inputs;
}

std::unique_ptr<TaskData> TextLabelTask::open(const TrainingRun& run, bool reads) const {
  return std::make_unique<TextLabelData>(run, *this, reads);
}

LanguageModel::Losses TextLabelTask::synthetic_loss(const SyntheticStep& s) const {
  const auto& classifier = need<ClassifiesSequences>(s.model);
  const EncoderInputs in = synthetic_inputs(s, classifier.takes_global_tokens());
  if (s.kept != nullptr) *s.kept = {in.tokens};
  const Tensor logits = classifier.class_logits(in, s.pass);
  LanguageModel::Losses result;
  const int64_t batch = s.config.batch;
  if (is_number()) {
    result.loss = mse(squeeze(logits, 1), zeros({batch}, logits.dtype(), logits.device()));
  } else if (options_.several) {
    result.loss = binary_cross_entropy_with_logits(logits, zeros_like(logits.detach()), {});
  } else {
    result.loss = cross_entropy(logits, reshape(synthetic_ids(batch, 1, 1, s.device), {batch}));
  }
  return result;
}

TextLabelData::TextLabelData(const TrainingRun& run, const TextLabelTask& task, bool reads)
    : TableData(run, classifier_of(run, task, reads), RowMaker(run.config.tokenizer)), task_(task) {
  const TextCount count = task.is_pair() ? TextCount::two : TextCount::one;
  const int64_t needed = task.is_number() ? 1 : std::ssize(task.options().labels);
  require(model_.classes() == needed, "model.classes", "got {}; expected {}{}", model_.classes(),
          needed,
          needed > 0 && !task.is_number()
              ? fmt::format(", one for each of {}", fmt::join(task.options().labels, ", "))
              : "");
  require_vocabulary(run, maker_);
  if (!reads) return;
  rows_ = read_splits<LabelledText>(
      run.config, task.sources(run.config), [&](const TableSource& source) {
        return answered(task.is_number() ? read_number_texts(source, count)
                                         : read_texts(source, count, survey_of(task.options())),
                        task.is_number());
      });
  if (task.options().weights == ClassWeights::balanced && !task.is_number()) {
    weights_ = balanced_weights(count_labels(rows_[0], needed));
  }
}

/// Says how many texts are longer than a sample.
void TextLabelData::prepare() {
  require(!rows_[0].empty(), "data", "{} has no text with a label to train on",
          data_name(run_.config));
  int64_t cut_texts = 0;
  for (const LabelledText& text : rows_[0]) cut_texts += row_of(text).cut ? 1 : 0;
  warn_of_cut(cut_texts, size("train"), "texts");
}

TextRow TextLabelData::row_of(const LabelledText& text) const {
  const int64_t longest = run_.config.length;
  return task_.is_pair() ? maker_.pair(text.text, text.second, longest)
                         : maker_.text(text.text, longest);
}

std::vector<TextRow> TextLabelData::rows_of(std::span<const LabelledText> texts) const {
  std::vector<TextRow> rows;
  for (const LabelledText& text : texts) rows.push_back(row_of(text));
  return rows;
}

Tensor TextLabelData::logits(std::span<const TextRow> rows, Pass pass) const {
  return model_.class_logits(inputs_of(rows, model_, maker_.padding(), run_.device), pass);
}

/// The mean over texts, in training weighted by their own weights and those of their classes.
Tensor TextLabelData::loss(const Tensor& z, std::span<const LabelledText> texts,
                           bool training) const {
  std::vector<float> weights;
  for (const LabelledText& text : texts) {
    double weight = text.weight;
    for (const int32_t label : text.labels) {
      if (!weights_.empty() && !task_.options().several)
        weight *= weights_[static_cast<size_t>(label)];
    }
    weights.push_back(static_cast<float>(weight));
  }
  const auto count = static_cast<int64_t>(texts.size());
  const bool weighted =
      training && std::any_of(weights.begin(), weights.end(), [](float w) { return w != 1; });
  const Reduction how = weighted ? Reduction::none : Reduction::mean;
  Tensor each;
  if (task_.is_number()) {
    std::vector<float> numbers;
    for (const LabelledText& text : texts) numbers.push_back(static_cast<float>(text.number));
    each = mse(squeeze(z, 1), cast(Tensor::from(numbers, {count}, z.device()), z.dtype()), how);
  } else if (task_.options().several) {
    std::vector<float> wanted(static_cast<size_t>(count * z.dim(1)), 0);
    for (size_t b = 0; b < texts.size(); ++b) {
      for (const int32_t label : texts[b].labels) {
        wanted[b * static_cast<size_t>(z.dim(1)) + static_cast<size_t>(label)] = 1;
      }
    }
    const Tensor targets = cast(Tensor::from(wanted, z.shape(), z.device()), z.dtype());
    each = binary_cross_entropy_with_logits(z, targets, {.reduction = how});
    if (weighted) each = mean(each, {1});
  } else {
    std::vector<int32_t> labels;
    for (const LabelledText& text : texts) labels.push_back(text.labels.at(0));
    each = cross_entropy(z, Tensor::from(labels, {count}, z.device()), {.reduction = how});
  }
  if (!weighted) return each;
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const Tensor w = cast(Tensor::from(weights, {count}, z.device()), each.dtype());
  return mul(sum(mul(each, w)), total > 0 ? 1 / total : 0);
}

TaskData::Forward TextLabelData::forward(int64_t i, const SegmentMemory& /*memory*/,
                                         Pass pass) const {
  const std::vector<LabelledText> texts = batch_of(rows_[0], run_, i);
  const std::vector<TextRow> rows = rows_of(texts);
  Forward f;
  for (const TextRow& row : rows) f.tokens += row.length();
  f.losses.loss = loss(logits(rows, pass), texts, pass.training);
  f.counted = run_.config.batch;
  return f;
}

TextLabelData::Prediction TextLabelData::prediction(std::span<const float> z) const {
  if (task_.is_number()) {
    const auto number = static_cast<double>(z[0]);
    return {fmt::format("{}", z[0]), std::nan(""), {{"number", number}}};
  }
  const std::vector<std::string>& names = task_.options().labels;
  std::vector<double> p;
  if (task_.options().several) {
    for (const float value : z) p.push_back(sigmoid_of(value));
  } else {
    p = softmax_of(z);
  }
  const auto best = static_cast<size_t>(std::max_element(p.begin(), p.end()) - p.begin());
  Prediction result{names[best], p[best], {}};
  Members probabilities;
  std::vector<std::string> chosen;
  for (size_t c = 0; c < p.size(); ++c) {
    probabilities.emplace_back(names[c], p[c]);
    if (p[c] > task_.options().threshold) chosen.push_back(names[c]);
  }
  if (task_.options().several) {
    result.label = fmt::format("{}", fmt::join(chosen, ","));
    result.figures.emplace_back("labels", Json::Array(chosen.begin(), chosen.end()));
  } else {
    result.figures.emplace_back("label", result.label);
    result.figures.emplace_back("probability", result.probability);
  }
  result.figures.emplace_back("probabilities", Json(std::move(probabilities)));
  return result;
}

std::vector<TaskData::Prediction> TextLabelData::predict(std::span<const std::string> lines) const {
  const NoGrad off;
  std::vector<LabelledText> texts;
  for (const std::string& line : lines) {
    LabelledText text{.text = line};
    if (task_.is_pair()) {
      const size_t tab = line.find('\t');
      require(tab != std::string::npos, "predict",
              "a line has one text; expected two with a tab between them: {}", shortened(line));
      text.text = line.substr(0, tab);
      text.second = line.substr(tab + 1);
    }
    texts.push_back(std::move(text));
  }
  std::vector<Prediction> all;
  const std::vector<TextRow> rows = rows_of(texts);
  visit_alike(
      std::ssize(rows), std::max<int64_t>(run_.config.batch, 1),
      [&](int64_t i) { return rows[static_cast<size_t>(i)]; },
      [](const TextRow& row) { return row.length(); },
      [&](const std::vector<TextRow>& some) {
        const Tensor z = logits(some, Pass{});
        const std::vector<float> values = to_floats(z);
        const auto width = static_cast<size_t>(z.dim(1));
        for (size_t b = 0; b < some.size(); ++b) {
          all.push_back(prediction(std::span(values).subspan(b * width, width)));
        }
      });
  return all;
}

TaskData::Evaluation TextLabelData::evaluate(const std::string& part) const {
  const NoGrad off;
  const EvaluatedRows<LabelledText> texts(rows_[part_index(part)], run_.config.length);
  if (texts.empty()) return {std::nan(""), {}};
  const TextLabelOptions& o = task_.options();
  const bool number = task_.is_number();
  ConfusionMatrix matrix(std::max<int64_t>(model_.classes(), 1));
  LabelCounts several(std::max<int64_t>(model_.classes(), 1));
  std::vector<double> given, wanted;
  Misses misses;
  Report r;
  r.rows.push_back({"text", "label", "predicted", "probability", "loss"});
  if (task_.is_pair()) r.rows[0].insert(r.rows[0].begin() + 1, "second");
  double nats = 0;
  size_t at = 0;
  const auto score = [&](const std::vector<TextRow>& some) {
    const Tensor z = cast(logits(some, Pass{}), DType::f64);
    const std::vector<double> values = z.to_vector<double>();
    const auto width = static_cast<size_t>(z.dim(1));
    for (size_t b = 0; b < some.size(); ++b, ++at) {
      const LabelledText& text = texts[at];
      const double loss_here =
          loss(narrow(z, 0, static_cast<int64_t>(b), 1), std::span(&text, 1), false).item();
      nats += loss_here;
      const std::vector<float> scores(values.begin() + static_cast<long>(b * width),
                                      values.begin() + static_cast<long>((b + 1) * width));
      const Prediction p = prediction(scores);
      std::string right = number ? fmt::format("{}", text.number) : "";
      if (number) {
        given.push_back(values[b * width]);
        wanted.push_back(text.number);
      } else if (o.several) {
        std::vector<float> probabilities;
        for (const float s : scores) probabilities.push_back(static_cast<float>(sigmoid_of(s)));
        std::vector<int32_t> labels(width, 0);
        for (const int32_t label : text.labels) labels[static_cast<size_t>(label)] = 1;
        const float threshold[] = {static_cast<float>(o.threshold)};
        several.add(probabilities, threshold, labels);
      } else {
        const auto best = std::max_element(scores.begin(), scores.end()) - scores.begin();
        matrix.add(static_cast<int32_t>(best), text.labels.at(0));
      }
      std::vector<std::string> names;
      for (const int32_t label : text.labels) names.push_back(o.labels[static_cast<size_t>(label)]);
      if (!number) right = fmt::format("{}", fmt::join(names, ","));
      const Json* chosen = find_member(p.figures, "labels");
      std::vector<std::string> row = {
          text.text,
          chosen == nullptr ? right : to_string(Json(Json::Array(names.begin(), names.end()))),
          chosen == nullptr ? p.label : to_string(*chosen),
          number || chosen != nullptr ? "" : fmt::format("{:.6f}", p.probability),
          fmt::format("{:.6f}", loss_here)};
      if (task_.is_pair()) row.insert(row.begin() + 1, text.second);
      r.rows.push_back(std::move(row));
      if (number || right != p.label)
        misses.add(loss_here,
                   fmt::format("{} as {}: {}", right.empty() ? "no label" : right,
                               p.label.empty() ? "none" : p.label, shortened(text.text)));
    }
  };
  visit_alike(
      std::ssize(texts), run_.config.batch,
      [&](int64_t i) { return row_of(texts[static_cast<size_t>(i)]); },
      [](const TextRow& row) { return row.length(); }, score);
  if (number) {
    add_scores(r, {{"mse", nats / static_cast<double>(texts.size())},
                   {"pearson", pearson(given, wanted)},
                   {"spearman", spearman(given, wanted)}});
  } else if (o.several) {
    add_scores(r, {{"accuracy", 100 * several.accuracy()},
                   {"f1_micro", 100 * several.average(Average::micro).f1},
                   {"f1_macro", 100 * several.average(Average::macro).f1}});
  } else {
    add_confusions(matrix, o.labels, r);
    add_class_scores(matrix, r);
  }
  misses.report(r);
  return {nats / static_cast<double>(texts.size()) / std::log(2.0), r};
}

}  // namespace longspan
