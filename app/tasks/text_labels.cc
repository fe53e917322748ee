#include "app/tasks/text_labels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autograd/mode.h"
#include "core/error.h"
#include "data/corpus.h"
#include "data/scores/classes.h"
#include "data/tokenizers/hub_tokenizer.h"
#include "models/encoder.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/loss.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr uint64_t order_of_splits = 1;  // the order in which rows are cut into splits
constexpr size_t shown_texts = 3, shown_classes = 12;

/// Returns the paths of --data, which commas separate.
std::vector<std::string> named_paths(const RunConfig& c, const DataSet& set) {
  const std::string list = find_files(set, data_place(c)).at(0).path;
  std::vector<std::string> all;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) all.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return all;
}

/// Returns the tables of the splits, in their order.
std::array<TableSource, 3> sources_of(const RunConfig& c, const DataSet& set,
                                      const TextLabelOptions& o) {
  const TableFiles files = find_tables(named_paths(c, set));
  const ColumnNames columns = o.columns.empty() ? ColumnNames{} : ColumnNames(o.columns);
  return {TableSource{files.train, columns, true}, TableSource{files.valid, columns, true},
          TableSource{files.test, columns, false}};
}

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

/// Cuts rows that are all for training into splits, in an order that does not depend on the run.
void cut(LabelledTextRows& rows, const Split& split) {
  std::vector<LabelledText> all = std::move(rows.parts[0]);
  const auto count = static_cast<int64_t>(all.size());
  const auto cuts = split.cuts(count);
  const int64_t bounds[] = {0, cuts[0], cuts[1], count};
  for (size_t part = 0; part < 3; ++part) {
    if (part == 2 && !rows.parts[2].empty()) continue;  // it has files of its own
    std::vector<LabelledText>& own = rows.parts[part];
    own.clear();
    for (int64_t i = bounds[part]; i < bounds[part + 1]; ++i) {
      own.push_back(all[static_cast<size_t>(item_of_row(i, count, order_of_splits))]);
    }
  }
}

std::vector<float> to_floats(const Tensor& x) { return cast(x, DType::f32).to_vector<float>(); }

double sigmoid_of(float z) { return 1 / (1 + std::exp(-static_cast<double>(z))); }

std::vector<double> softmax_of(std::span<const float> z) {
  const double most = *std::max_element(z.begin(), z.end());
  std::vector<double> p;
  for (const float value : z) p.push_back(std::exp(static_cast<double>(value) - most));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= sum;
  return p;
}

/// Returns the member of that name, or null.
const Json* find_member(const Members& members, std::string_view name) {
  const auto at = std::find_if(members.begin(), members.end(),
                               [&](const JsonMember& m) { return m.name == name; });
  return at == members.end() ? nullptr : &at->value;
}

/// The beginning of a text, on one line.
std::string shortened(const std::string& text) {
  constexpr size_t longest = 60;
  std::string line = text.substr(0, longest);
  for (char& c : line) {
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  }
  return text.size() > longest ? line + "..." : line;
}

/// Which text, what it should have been, and how far off the model was: its loss.
struct Miss {
  double nats;
  std::string line;
};

void add_misses(std::vector<Miss>& misses, TaskData::Report& report) {
  const size_t shown = std::min(shown_texts, misses.size());
  std::partial_sort(misses.begin(), misses.begin() + static_cast<long>(shown), misses.end(),
                    [](const Miss& a, const Miss& b) { return a.nats > b.nats; });
  for (size_t i = 0; i < shown; ++i) report.lines.push_back("furthest off: " + misses[i].line);
}

/// A table of confusions: a row for each label, with how often each class was predicted for it.
void add_confusions(const ConfusionMatrix& matrix, const std::vector<std::string>& names,
                    TaskData::Report& report) {
  const auto count = static_cast<int32_t>(matrix.classes());
  if (static_cast<size_t>(count) > shown_classes) return;
  report.lines.push_back("label: predicted");
  Json::Array rows;
  for (int32_t label = 0; label < count; ++label) {
    std::vector<std::string> cells;
    Json::Array row;
    for (int32_t c = 0; c < count; ++c) {
      row.push_back(Json(matrix(label, c)));
      if (matrix(label, c) > 0) {
        cells.push_back(fmt::format("{} {}", names[static_cast<size_t>(c)], matrix(label, c)));
      }
    }
    report.lines.push_back(
        fmt::format("  {}: {}", names[static_cast<size_t>(label)], fmt::join(cells, ", ")));
    rows.push_back(Json(std::move(row)));
  }
  report.figures.emplace_back("confusions", Json(std::move(rows)));
}

void add_scores(TaskData::Report& report,
                const std::vector<std::pair<std::string, double>>& scores) {
  std::vector<std::string> words;
  for (const auto& [name, value] : scores) {
    report.figures.emplace_back(name, value);
    words.push_back(fmt::format("{} {:.2f}", name, value));
  }
  report.lines.insert(report.lines.begin(), fmt::format("{}", fmt::join(words, ", ")));
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
    const auto tables = sources_of(run.config, task.set(), task.options());
    survey_text_labels(std::span(tables.data(), 2),
                       task.is_pair() ? TextCount::two : TextCount::one);
  }
  return need<ClassifiesSequences>(*run.model);
}

}  // namespace

void TextLabelTask::visit(Fields& v) {
  v.enter("labelled");
  options_.visit(v);
  v.leave();
}

void TextLabelTask::require_suited(const RunConfig& c, const LanguageModel& model) const {
  refuse_writers(c, model);
  if (implements<ClassifiesSequences>(model) == nullptr) {
    refuse_without<ClassifiesSequences>(
        c, model,
        fmt::format("{} asks for classes of a whole text, and {} has no head for them", c.task,
                    c.model_name));
  }
}

std::string TextLabelTask::problem_type() const {
  if (is_number()) return "regression";
  return options_.several ? "multi_label_classification" : "single_label_classification";
}

std::vector<std::string> TextLabelTask::paths(const RunConfig& c) const {
  std::vector<std::string> all;
  for (const TableSource& source : sources_of(c, set(), options_)) {
    all.insert(all.end(), source.paths.begin(), source.paths.end());
  }
  return all;
}

void TextLabelTask::settle(const RunConfig& c) {
  if (is_number() || !options_.labels.empty()) return;
  const auto sources = sources_of(c, set(), options_);
  const LabelSurvey survey =
      survey_text_labels(std::span(sources.data(), 2), is_pair() ? TextCount::two : TextCount::one);
  options_.labels = survey.labels.names();
  options_.several = survey.several;
}

TaskSizes TextLabelTask::sizes(const RunConfig& c, const LanguageModel& /*model*/) const {
  const std::unique_ptr<const Tokenizer> tokenizer =
      open_tokenizer(c.tokenizer.empty() ? "bytes" : c.tokenizer);
  const int64_t begin = tokenizer->special().begin < 0 ? 1 : 0;
  return {.vocabulary = tokenizer->vocabulary() + begin,
          .classes = is_number() ? 1 : std::ssize(options_.labels)};
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
    : run_(run),
      task_(task),
      model_(classifier_of(run, task, reads)),
      tokenizer_(open_tokenizer(run.config.tokenizer.empty() ? "bytes" : run.config.tokenizer)) {
  const TextCount count = task.is_pair() ? TextCount::two : TextCount::one;
  const int64_t needed = task.is_number() ? 1 : std::ssize(task.options().labels);
  require(model_.classes() == needed, "model.classes", "got {}; expected {}{}", model_.classes(),
          needed,
          needed > 0 && !task.is_number()
              ? fmt::format(", one for each of {}", fmt::join(task.options().labels, ", "))
              : "");
  const int64_t begin = tokenizer_->special().begin < 0 ? 1 : 0;
  require(run.model->vocab() >= tokenizer_->vocabulary() + begin, "model.vocab",
          "got {}; expected {} or more, the tokens of {}{}", run.model->vocab(),
          tokenizer_->vocabulary() + begin,
          run.config.tokenizer.empty() ? "bytes" : run.config.tokenizer,
          begin > 0 ? " and one before each text" : "");
  if (!reads) return;
  const auto sources = sources_of(run.config, task.set(), task.options());
  for (size_t part = 0; part < 3; ++part) {
    if (sources[part].paths.empty()) continue;
    rows_.parts[part] =
        answered(task.is_number() ? read_number_texts(sources[part], count)
                                  : read_texts(sources[part], count, survey_of(task.options())),
                 task.is_number());
  }
  if (rows_.parts[1].empty()) cut(rows_, *split_of(run.config));
  if (task.options().weights == ClassWeights::balanced && !task.is_number()) {
    weights_ = balanced_weights(count_labels(rows_.parts[0], needed));
  }
}

/// Says how many texts are longer than a sample.
void TextLabelData::prepare() {
  require(!rows_.parts[0].empty(), "data", "{} has no text with a label to train on",
          data_name(run_.config));
  int64_t cut_texts = 0;
  for (const LabelledText& text : rows_.parts[0]) cut_texts += row_of(text).cut ? 1 : 0;
  if (cut_texts > 0) {
    warnings_.push_back(fmt::format("{} of {} texts are cut at {} tokens, --length", cut_texts,
                                    rows_.parts[0].size(), run_.config.length));
  }
}

TextLabelData::Row TextLabelData::row_of(const LabelledText& text) const {
  const int64_t longest = run_.config.length;
  if (const auto* hub = dynamic_cast<const HubTokenizer*>(tokenizer_.get())) {
    const auto encode = [&](const HubEncodeOptions& o) {
      return task_.is_pair() ? hub->encode_pair(text.text, text.second, o)
                             : hub->encode_text(text.text, o);
    };
    HubEncoding e = encode({});
    const bool too_long = std::ssize(e.ids) > longest;
    if (too_long) e = encode({.max_length = longest});
    return {std::move(e.ids), std::move(e.types), too_long};
  }
  const SpecialIds& special = tokenizer_->special();
  Row row;
  row.tokens.push_back(special.begin >= 0 ? special.begin
                                          : static_cast<int32_t>(tokenizer_->vocabulary()));
  const auto add = [&](const std::string& more) {
    for (const int32_t id : tokenizer_->encode(more)) row.tokens.push_back(id);
    if (special.separator >= 0) row.tokens.push_back(special.separator);
  };
  add(text.text);
  row.types.assign(row.tokens.size(), 0);
  if (task_.is_pair()) add(text.second);
  row.types.resize(row.tokens.size(), 1);
  row.cut = std::ssize(row.tokens) > longest;
  row.tokens.resize(std::min(row.tokens.size(), static_cast<size_t>(longest)));
  row.types.resize(row.tokens.size());
  return row;
}

std::vector<TextLabelData::Row> TextLabelData::rows_of(std::span<const LabelledText> texts) const {
  std::vector<Row> rows;
  for (const LabelledText& text : texts) rows.push_back(row_of(text));
  return rows;
}

EncoderInputs TextLabelData::inputs(std::span<const Row> rows) const {
  size_t longest = 1;
  bool equal = true, typed = false;
  for (const Row& row : rows) {
    longest = std::max(longest, row.tokens.size());
    equal = equal && row.tokens.size() == rows[0].tokens.size();
    typed =
        typed || std::any_of(row.types.begin(), row.types.end(), [](int32_t t) { return t != 0; });
  }
  const auto* hub = dynamic_cast<const HubTokenizer*>(tokenizer_.get());
  const int32_t padding = hub != nullptr ? hub->pad_id() : 0;
  std::vector<int32_t> tokens(rows.size() * longest, padding), types(tokens.size(), 0);
  std::vector<uint8_t> marks(tokens.size(), 0);
  std::vector<int64_t> lengths;
  for (size_t b = 0; b < rows.size(); ++b) {
    std::copy(rows[b].tokens.begin(), rows[b].tokens.end(), tokens.data() + b * longest);
    std::copy(rows[b].types.begin(), rows[b].types.end(), types.data() + b * longest);
    lengths.push_back(std::ssize(rows[b].tokens));
    marks[b * longest] = 1;
  }
  const Shape shape{std::ssize(rows), static_cast<int64_t>(longest)};
  EncoderInputs in{.tokens = Tensor::from(tokens, shape, run_.device)};
  if (!equal) in.lengths = Tensor::from(lengths, {shape[0]}, run_.device);
  if (typed && model_.token_types() > 1) in.types = Tensor::from(types, shape, run_.device);
  if (model_.takes_global_tokens()) in.global = Tensor::from(marks, shape);
  return in;
}

Tensor TextLabelData::logits(std::span<const Row> rows, Pass pass) const {
  return model_.class_logits(inputs(rows), pass);
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
  const std::vector<LabelledText>& all = rows_.parts[0];
  std::vector<LabelledText> texts;
  const int64_t first = run_.samples_before(i);
  for (int64_t b = 0; b < run_.config.batch; ++b) {
    const int64_t at = item_of_row(first + b, std::ssize(all), run_.config.seed);
    texts.push_back(all[static_cast<size_t>(at)]);
  }
  const std::vector<Row> rows = rows_of(texts);
  Forward f;
  for (const Row& row : rows) f.tokens += std::ssize(row.tokens);
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
  const std::vector<Row> rows = rows_of(texts);
  visit_alike(
      std::ssize(rows), std::max<int64_t>(run_.config.batch, 1),
      [&](int64_t i) { return rows[static_cast<size_t>(i)]; },
      [](const Row& row) { return row.tokens.size(); },
      [&](const std::vector<Row>& some) {
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
  const std::vector<LabelledText>& texts = rows_.parts[part_index(part)];
  if (texts.empty()) return {std::nan(""), {}};
  const TextLabelOptions& o = task_.options();
  const bool number = task_.is_number();
  ConfusionMatrix matrix(std::max<int64_t>(model_.classes(), 1));
  LabelCounts several(std::max<int64_t>(model_.classes(), 1));
  std::vector<double> given, wanted;
  std::vector<Miss> misses;
  Report r;
  r.rows.push_back({"text", "label", "predicted", "probability", "loss"});
  if (task_.is_pair()) r.rows[0].insert(r.rows[0].begin() + 1, "second");
  double nats = 0;
  size_t at = 0;
  const auto score = [&](const std::vector<Row>& some) {
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
      misses.push_back(
          {loss_here, fmt::format("{} as {}: {}", right.empty() ? "no label" : right,
                                  p.label.empty() ? "none" : p.label, shortened(text.text))});
    }
  };
  visit_alike(
      std::ssize(texts), run_.config.batch,
      [&](int64_t i) { return row_of(texts[static_cast<size_t>(i)]); },
      [](const Row& row) { return row.tokens.size(); }, score);
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
  add_misses(misses, r);
  return {nats / static_cast<double>(texts.size()) / std::log(2.0), r};
}

std::vector<int32_t> TextLabelData::first_tokens(int64_t count) const {
  const std::vector<LabelledText>& texts = rows_.parts[1].empty() ? rows_.parts[0] : rows_.parts[1];
  if (texts.empty()) return {};
  std::vector<int32_t> tokens = row_of(texts[0]).tokens;
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(count)));
  return tokens;
}

}  // namespace longspan
