#include "app/tasks/tags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "autograd/mode.h"
#include "core/error.h"
#include "data/scores/classes.h"
#include "data/scores/entities.h"
#include "data/tokenizers/hub_processor.h"
#include "hub/type.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/loss.h"
#include "ops/shape.h"

namespace longspan {
namespace {

/// Returns, for each word that has tokens in a row, the place of its first one.
std::vector<std::pair<size_t, size_t>> first_tokens_of(const TextRow& row) {
  std::vector<std::pair<size_t, size_t>> all;
  int32_t before = -1;
  for (size_t i = 0; i < row.tokens.words.size(); ++i) {
    const int32_t word = row.tokens.words[i];
    if (word >= 0 && word != before) all.emplace_back(static_cast<size_t>(word), i);
    if (word >= 0) before = word;
  }
  return all;
}

/// Whether tags are of entities, as B-PER.
bool are_entities(const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name.size() > 2 && name[1] == '-' && std::string("BIES").find(name[0]) < 4;
  });
}

std::vector<std::string> words_of(const std::string& line) {
  constexpr const char* spaces = " \t\r\n";
  std::vector<std::string> words;
  for (size_t at = line.find_first_not_of(spaces); at != std::string::npos;) {
    const size_t end = std::min(line.find_first_of(spaces, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(spaces, end);
  }
  return words;
}

/// What was predicted and what is right of the words of a split.
struct TagScores {
  explicit TagScores(int64_t tags) : matrix(tags) {}
  ConfusionMatrix matrix;
  EntityScores entities;
};

/// Returns a run's model as one that tags. Without names of tags, says first what is wrong with the
/// data, as whoever chose the model has left that out.
const TagsTokens& tagger_of(const TrainingRun& run, const TagTask& task, bool reads) {
  if (reads && task.labels().empty()) {
    const auto sources = task.sources(run.config);
    survey_tags(std::span(sources.data(), 2));
  }
  return need<TagsTokens>(*run.model);
}

void add_figures(const TagScores& scores, bool of_entities, TaskData::Report& r) {
  if (!of_entities) {
    add_scores(r, {{"accuracy", 100 * scores.matrix.accuracy()},
                   {"f1_macro", 100 * scores.matrix.average(Average::macro).f1}});
    return;
  }
  const ClassCounts all = scores.entities.overall();
  Members types;
  for (const auto& [type, counts] : scores.entities.by_type()) {
    const double p = 100 * counts.precision(), c = 100 * counts.recall(), f = 100 * counts.f1();
    types.emplace_back(type, Members{{"precision", p}, {"recall", c}, {"f1", f}});
    r.lines.push_back(
        fmt::format("  {}: precision {:.2f}, recall {:.2f}, f1 {:.2f}", type, p, c, f));
  }
  add_scores(r, {{"precision", 100 * all.precision()},
                 {"recall", 100 * all.recall()},
                 {"f1", 100 * all.f1()},
                 {"accuracy", 100 * scores.entities.accuracy()}});
  r.figures.emplace_back("types", Json(std::move(types)));
}

}  // namespace

void TagTask::settle(const RunConfig& c) {
  if (!labels_.empty()) return;
  const auto all = sources(c);
  labels_ = survey_tags(std::span(all.data(), 2)).names();
}

TaskSizes TagTask::sizes(const RunConfig& c, const LanguageModel& /*model*/) const {
  return {.vocabulary = RowMaker(c.tokenizer).vocabulary(), .tags = label_count(labels_)};
}

std::optional<HubTask> TagTask::hub_task() const { return HubTask::tags; }

std::vector<std::string> TagTask::read_inputs(const std::string& table) const {
  std::vector<std::string> inputs;
  for (const TaggedWords& row : read_words(unlabelled(table))) {
    inputs.push_back(fmt::format("{}", fmt::join(row.words, " ")));
  }
  return inputs;
}

std::unique_ptr<TaskData> TagTask::open(const TrainingRun& run, bool reads) const {
  return std::make_unique<TagData>(run, *this, reads);
}

LanguageModel::Losses TagTask::synthetic_loss(const SyntheticStep& s) const {
  const auto& tagger = need<TagsTokens>(s.model);
  const EncoderInputs in = synthetic_inputs(s, tagger.takes_global_tokens());
  const Tensor targets = synthetic_ids(s.config.batch, s.length, 1, s.device);
  if (s.kept != nullptr) *s.kept = {in.tokens, targets};
  LanguageModel::Losses result;
  result.loss = cross_entropy(tagger.tag_logits(in, s.pass), targets);
  return result;
}

TagData::TagData(const TrainingRun& run, const TagTask& task, bool reads)
    : TableData(run, tagger_of(run, task, reads), RowMaker(run.config.tokenizer)), task_(task) {
  const std::vector<std::string>& names = task.labels();
  require(model_.tags() == std::ssize(names), "model.tags",
          "got {}; expected {}, one for each of {}", model_.tags(), names.size(),
          fmt::join(names, ", "));
  require_vocabulary(run, maker_);
  maker_.require_words();
  if (!reads) return;
  rows_ = read_splits<TaggedWords>(
      run.config, task.sources(run.config), [&](const TableSource& source) {
        std::vector<TaggedWords> all = read_tagged(source, Labels(names));
        std::erase_if(all, [](const TaggedWords& s) {
          return std::all_of(s.tags.begin(), s.tags.end(), [](int32_t tag) { return tag < 0; });
        });
        return all;
      });
}

/// Says how many sentences are longer than a row.
void TagData::prepare() {
  require(!rows_[0].empty(), "data", "{} has no sentence with a tag to train on",
          data_name(run_.config));
  int64_t cut = 0;
  bool any = false;
  for (const TaggedWords& sentence : rows_[0]) {
    const TextRow row = row_of(sentence);
    cut += row.cut ? 1 : 0;
    any = any || !first_tokens_of(row).empty();
  }
  require(any, "data", "no word of {} has a token in a row of {} tokens, --length",
          data_name(run_.config), run_.config.length);
  warn_of_cut(cut, size("train"), "sentences");
}

TextRow TagData::row_of(const TaggedWords& sentence) const {
  TextRow row = maker_.words(sentence.words, run_.config.length);
  row.global_end = 0;
  return row;
}

std::vector<TextRow> TagData::rows_of(std::span<const TaggedWords> sentences) const {
  std::vector<TextRow> rows;
  for (const TaggedWords& sentence : sentences) rows.push_back(row_of(sentence));
  return rows;
}

Tensor TagData::logits(std::span<const TextRow> rows, Pass pass) const {
  return model_.tag_logits(inputs_of(rows, model_, maker_.padding(), run_.device), pass);
}

Tensor TagData::targets(std::span<const TextRow> rows,
                        std::span<const TaggedWords> sentences) const {
  int64_t longest = 1;
  for (const TextRow& row : rows) longest = std::max(longest, row.length());
  std::vector<int32_t> all(rows.size() * static_cast<size_t>(longest), ignored_target);
  for (size_t b = 0; b < rows.size(); ++b) {
    for (const auto& [word, at] : first_tokens_of(rows[b])) {
      const int32_t tag = sentences[b].tags.empty() ? -1 : sentences[b].tags[word];
      if (tag >= 0) all[b * static_cast<size_t>(longest) + at] = tag;
    }
  }
  return Tensor::from(all, {std::ssize(rows), longest}, run_.device);
}

TaskData::Forward TagData::forward(int64_t i, const SegmentMemory& /*memory*/, Pass pass) const {
  const std::vector<TaggedWords> sentences = batch_of(rows_[0], run_, i);
  const std::vector<TextRow> rows = rows_of(sentences);
  Forward f;
  for (const TextRow& row : rows) f.tokens += row.length();
  const Tensor right = targets(rows, sentences);
  f.losses.loss = cross_entropy(logits(rows, pass), right);
  f.counted = counted_targets(right);
  return f;
}

TaskData::Prediction TagData::prediction(const std::vector<std::string>& words, const TextRow& row,
                                         std::span<const float> z) const {
  const std::vector<std::string>& names = task_.labels();
  const size_t width = names.size();
  std::vector<std::string> tags(words.size());
  Json::Array probabilities(words.size());
  for (const auto& [word, at] : first_tokens_of(row)) {
    const std::vector<double> p = softmax_of(z.subspan(at * width, width));
    const auto best = std::max_element(p.begin(), p.end()) - p.begin();
    tags[word] = names[static_cast<size_t>(best)];
    probabilities[word] = p[static_cast<size_t>(best)];
  }
  Prediction result{.label = {}, .probability = std::nan(""), .figures = {}};
  Json::Array tags_or_null;
  for (const std::string& tag : tags) {
    tags_or_null.push_back(tag.empty() ? Json() : Json(tag));
    result.label += fmt::format("{}{}", result.label.empty() ? "" : " ", tag.empty() ? "-" : tag);
  }
  Json::Array spelled;
  for (const std::string& word : words) spelled.emplace_back(with_replacement_characters(word));
  result.figures.emplace_back("words", Json(std::move(spelled)));
  result.figures.emplace_back("tags", Json(std::move(tags_or_null)));
  result.figures.emplace_back("probabilities", Json(std::move(probabilities)));
  return result;
}

std::vector<TaskData::Prediction> TagData::predict(std::span<const std::string> lines) const {
  const NoGrad off;
  std::vector<TaggedWords> sentences;
  for (const std::string& line : lines) sentences.push_back({words_of(line), {}});
  std::vector<Prediction> all;
  visit_alike(
      std::ssize(sentences), std::max<int64_t>(run_.config.batch, 1),
      [&](int64_t i) { return row_of(sentences[static_cast<size_t>(i)]); },
      [](const TextRow& row) { return row.length(); },
      [&](const std::vector<TextRow>& some) {
        const Tensor z = logits(some, Pass{});
        const std::vector<float> values = to_floats(z);
        const auto size = static_cast<size_t>(z.dim(1) * z.dim(2));
        for (size_t b = 0; b < some.size(); ++b) {
          all.push_back(prediction(sentences[all.size()].words, some[b],
                                   std::span(values).subspan(b * size, size)));
        }
      });
  return all;
}

TaskData::Evaluation TagData::evaluate(const std::string& part) const {
  const NoGrad off;
  const EvaluatedRows<TaggedWords> sentences(rows_[part_index(part)], run_.config.length);
  if (sentences.empty()) return {std::nan(""), {}};
  const std::vector<std::string>& names = task_.labels();
  const size_t width = names.size();
  TagScores scores(std::ssize(names));
  Misses misses;
  Report r;
  r.rows.push_back({"sentence", "word", "label", "predicted"});
  double nats = 0;
  int64_t counted = 0, unread = 0;
  size_t at = 0;
  const auto score = [&](const std::vector<TextRow>& some) {
    const Tensor z = cast(logits(some, Pass{}), DType::f64);
    const std::vector<float> values = to_floats(z);
    const auto size = static_cast<size_t>(z.dim(1)) * width;
    for (size_t b = 0; b < some.size(); ++b, ++at) {
      const TaggedWords& sentence = sentences[at];
      const Tensor right = targets(std::span(&some[b], 1), std::span(&sentence, 1));
      const int64_t count = counted_targets(right);
      const double mean =
          count == 0 ? 0 : cross_entropy(narrow(z, 0, static_cast<int64_t>(b), 1), right).item();
      nats += mean * static_cast<double>(count);
      counted += count;
      unread += std::count_if(sentence.tags.begin(), sentence.tags.end(),
                              [](int32_t tag) { return tag >= 0; }) -
                count;
      std::vector<std::string> predicted, labels, text;
      for (const auto& [word, token] : first_tokens_of(some[b])) {
        if (sentence.tags[word] < 0) continue;
        const auto own = std::span(values).subspan(b * size + token * width, width);
        const auto best =
            static_cast<int32_t>(std::max_element(own.begin(), own.end()) - own.begin());
        scores.matrix.add(best, sentence.tags[word]);
        predicted.push_back(names[static_cast<size_t>(best)]);
        labels.push_back(names[static_cast<size_t>(sentence.tags[word])]);
        text.push_back(fmt::format("{}/{}", sentence.words[word], predicted.back()));
        r.rows.push_back(
            {std::to_string(at + 1), sentence.words[word], labels.back(), predicted.back()});
      }
      scores.entities.add(predicted, labels);
      if (predicted != labels) misses.add(mean, shortened(fmt::format("{}", fmt::join(text, " "))));
    }
  };
  visit_alike(
      std::ssize(sentences), run_.config.batch,
      [&](int64_t i) { return row_of(sentences[static_cast<size_t>(i)]); },
      [](const TextRow& row) { return row.length(); }, score);
  add_confusions(scores.matrix, names, r);
  add_figures(scores, are_entities(names), r);
  if (unread > 0) {
    r.lines.push_back(fmt::format(
        "{} words count nowhere: they have no token, or are behind the end of a row (--length {})",
        unread, run_.config.length));
    r.figures.emplace_back("unread", unread);
  }
  misses.report(r);
  const double mean = counted > 0 ? nats / static_cast<double>(counted) : std::nan("");
  return {mean / std::log(2.0), r};
}

}  // namespace longspan
