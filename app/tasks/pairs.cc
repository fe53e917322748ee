#include "app/tasks/pairs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/error.h"
#include "core/scope.h"
#include "models/evaluate.h"
#include "ops/copy.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr int64_t default_target = 512;

/// Returns the bytes of target text per target token, if there are any.
LossUnit unit_of(const std::vector<SequencePair>& pairs) {
  double bytes = 0, tokens = 0;
  for (const SequencePair& pair : pairs) {
    bytes += static_cast<double>(pair.bytes);
    tokens += static_cast<double>(pair.target.size());
  }
  return bytes > 0 ? LossUnit{"byte", bytes / tokens} : LossUnit{"token", 1};
}

/// Returns pairs [from, from + count) as a batch.
SequenceBatch some_of(const std::vector<SequencePair>& pairs, size_t from, size_t count,
                      const SequenceIds& ids, Device device) {
  std::vector<const SequencePair*> rows;
  for (size_t i = from; i < std::min(from + count, pairs.size()); ++i) rows.push_back(&pairs[i]);
  return stack(rows, ids, device);
}

}  // namespace

int64_t target_limit(const RunConfig& config, const LanguageModel& model, int64_t wanted) {
  const int64_t longest = model.max_length();
  require(wanted <= longest, "target_length",
          "got {}; {} writes at most {} tokens: choose fewer or a larger table of positions",
          wanted, config.model_name, longest);
  return wanted > 0 ? wanted : std::min(default_target, longest);
}

LanguageModel::Losses synthetic_pair_loss(const SyntheticStep& s, const PairOptions& options) {
  const int64_t longest = std::min(default_target, s.model.max_length());
  const int64_t length = options.target_length > 0 ? options.target_length : longest;
  const auto ids = [&](int64_t n) {
    return synthetic_ids(s.config.batch, n, s.model.vocab(), s.device);
  };
  const Tensor tokens = ids(length), targets = ids(length);
  const Tensor source = ids(s.config.length);
  if (s.kept != nullptr) *s.kept = {tokens, targets, source};
  return need<WritesSequences>(s.model).sequence_loss({source}, tokens, targets, s.pass);
}

PairData::PairData(const TrainingRun& run, const PairOptions& options,
                   std::array<std::vector<Document>, 3> documents, const PairForm& form)
    : run_(run),
      options_(options),
      form_(form),
      maker_(run.config.tokenizer),
      target_maker_(maker_.of_targets()),
      ids_(maker_.tokenizer()),
      documents_(std::move(documents)),
      limits_{run.config.length, target_limit(run.config, *run.model, options.target_length)} {
  const RunConfig& c = run.config;
  const DataSet& set = c.of_task->set();
  const bool reads = std::any_of(documents_.begin(), documents_.end(),
                                 [](const auto& some) { return !some.empty(); });
  for (size_t part = 0; reads && part < 3; ++part) {
    const int64_t found = std::ssize(documents_[part]), expected = set.counts[part];
    if (expected >= 0 && found != expected) {
      warnings_.push_back(fmt::format("{}: the {} part has {} documents; expected {}", c.task,
                                      part_names[part], found, expected));
    }
  }
  require(!reads || options.documents <= std::ssize(documents_[0]), "documents",
          "got {}; the training part of {} has {}", options.documents, c.task,
          documents_[0].size());
  if (reads && options.documents > 0) {
    documents_[0].resize(static_cast<size_t>(options.documents));
  }
  form_.templated = form.templated && maker_.templated();
  if (form_.templated) {
    // The template has its own tokens, and none are added to them.
    ids_.vocabulary = maker_.tokenizer().vocabulary();
    const int32_t end = maker_.named_id("eos_token");
    if (end >= 0) ids_.end = end;
    require(ids_.end < ids_.vocabulary, "tokenizer",
            "{} has no token that ends a text; expected eos_token or sep_token", c.tokenizer);
    ids_.start = form.start >= 0 ? static_cast<int32_t>(form.start) : ids_.end;
    ids_.last_first = form.last_first;
  }
  require(run.model->vocab() >= ids_.vocabulary, "model.vocab",
          "got {}; {} has {} tokens with those around a text: expected {} or more",
          run.model->vocab(), c.tokenizer.empty() ? "bytes" : c.tokenizer, ids_.vocabulary,
          ids_.vocabulary);
}

std::vector<int32_t> PairData::source(const std::string& text) const {
  if (form_.templated) return maker_.text(text, limits_.source).tokens.ids;
  return source_tokens(text, maker_.tokenizer(), limits_.source);
}

std::string PairData::text_of(std::span<const int64_t> ids) const {
  if (!form_.templated) return written_text(ids, maker_.tokenizer(), ids_);
  std::vector<int32_t> text;
  for (const int64_t id : ids) {
    if (id == ids_.end) break;
    if (id < maker_.tokenizer().vocabulary()) text.push_back(static_cast<int32_t>(id));
  }
  return target_maker_.text_of(text);
}

Tensor PairData::beginning(int64_t rows) const {
  int32_t first = ids_.start;
  if (ids_.last_first && form_.start < 0) {
    first = target_maker_.text("", limits_.target).tokens.ids.back();
  }
  return Tensor::from(std::vector<int32_t>(static_cast<size_t>(rows), first), {rows, 1},
                      run_.device);
}

const std::vector<Document>& PairData::documents(const std::string& part) const {
  return documents_[part_index(part)];
}

int64_t PairData::size(const std::string& part) const {
  const double share = options_.gap_sentences;
  return static_cast<int64_t>(share > 0 ? pairs(part).size() : documents(part).size());
}

std::vector<SequencePair> PairData::pairs(const std::string& part) const {
  const double share = options_.gap_sentences;
  if (share == 0 && !form_.templated) {
    return summary_pairs(documents(part), maker_.tokenizer(), limits_);
  }
  std::vector<SequencePair> all;
  for (const Document& document : documents(part)) {
    if (form_.templated) {
      const std::string summary = summary_text(document);
      TextRow target = target_maker_.text(summary, limits_.target);
      int64_t bytes = target.cut ? 0 : std::ssize(summary);
      for (const TextSpan& span : target.tokens.spans) bytes = std::max(bytes, span.end);
      all.push_back({source(article_text(document)), std::move(target.tokens.ids), bytes});
      continue;
    }
    for (SequencePair& pair : gap_pairs(document, share, maker_.tokenizer(), limits_)) {
      all.push_back(std::move(pair));
    }
  }
  return all;
}

void PairData::prepare() {
  const RunConfig& c = run_.config;
  const bool summarised = std::any_of(documents_[0].begin(), documents_[0].end(),
                                      [](const Document& d) { return !d.summary.empty(); });
  require(summarised || documents_[0].empty() || options_.gap_sentences > 0, "data",
          "none of the {} training documents of {} has a summary; expected train.summary, or "
          "--gap-sentences, which leaves sentences out and needs none",
          documents_[0].size(), data_name(c));
  if (form_.templated) warn_of_cuts();
  std::vector<SequencePair> all = pairs("train");
  require(!all.empty(), "data", "the training part of {} has no documents", data_name(c));
  loss_unit_ = unit_of(all);
  batches_ = std::make_unique<SequenceBatches>(std::move(all), c.batch, ids_, c.seed, run_.device);
}

void PairData::warn_of_cuts() {
  int64_t sources = 0, targets = 0;
  for (const Document& d : documents_[0]) {
    sources += maker_.text(article_text(d), limits_.source).cut ? 1 : 0;
    targets += target_maker_.text(summary_text(d), limits_.target).cut ? 1 : 0;
  }
  for (const auto& [cut, what, most, option] :
       {std::tuple{sources, "documents", limits_.source, "--length"},
        {targets, "summaries", limits_.target, "--target-length"}}) {
    if (cut == 0) continue;
    warnings_.push_back(fmt::format("{} of {} {} are cut at {} tokens, {}", cut,
                                    documents_[0].size(), what, most, option));
  }
}

LossUnit PairData::loss_unit() const { return batches_ ? loss_unit_ : unit_of(pairs("train")); }

TaskData::Forward PairData::forward(int64_t i, const SegmentMemory& /*memory*/, Pass pass) const {
  const SequenceBatch b = [&] {
    const Phase phase("data");
    return batches_->from_row(run_.samples_before(i));
  }();
  const auto& writer = need<WritesSequences>(*run_.model);
  return {writer.sequence_loss({b.source, b.lengths}, b.tokens, b.targets, pass), b.count,
          b.counted};
}

double PairData::bits(const std::string& part) const {
  const std::vector<SequencePair> made = pairs(part);
  const EvaluatedRows<SequencePair> all(made, run_.config.length);
  ScoreSum sum;
  double bytes = 0;
  for (size_t i = 0; i < all.size(); ++i) bytes += static_cast<double>(all[i].bytes);
  const auto add = [&](const std::vector<const SequencePair*>& rows) {
    sum.add([&] {
      const SequenceBatch b = stack(rows, ids_, run_.device);
      return score(*run_.model, {b.source, b.lengths}, b.tokens, b.targets);
    });
  };
  visit_alike(
      std::ssize(all), run_.config.batch, [&](int64_t i) { return &all[static_cast<size_t>(i)]; },
      [](const SequencePair* p) { return p->source.size(); }, add);
  const Score total = sum.total();
  return bytes > 0 ? total.bits() * static_cast<double>(total.count) / bytes : std::nan("");
}

std::string PairData::input(const std::string& part, int64_t index) const {
  const std::vector<Document>& all = documents(part);
  require(index < std::ssize(all), "--index", "got {}; expected 0 to {}", index,
          std::ssize(all) - 1);
  return article_text(all[static_cast<size_t>(index)]);
}

std::vector<std::string> PairData::answer(const std::string& text, const BeamSearch& search) const {
  return summaries({text}, search)[0];
}

std::vector<int32_t> PairData::first_tokens(int64_t count) const {
  if (documents_[1].empty() || count < 1) return {};
  std::vector<int32_t> tokens = source(article_text(documents_[1][0]));
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(count)));
  return tokens;
}

std::vector<int32_t> PairData::first_decoded(int64_t count) const {
  if (documents_[1].empty() || count < 1) return {};
  const std::vector<SequencePair> all = pairs("valid");
  if (all.empty()) return {};
  const Tensor tokens = stack(std::vector<const SequencePair*>{&all[0]}, ids_).tokens;  // [1, L]
  std::vector<int32_t> ids = tokens.to_vector<int32_t>();
  ids.resize(std::min(ids.size(), static_cast<size_t>(count)));
  return ids;
}

std::vector<std::vector<std::string>> PairData::summaries(const std::vector<std::string>& texts,
                                                          BeamSearch search) const {
  search.end = ids_.end;
  search.force_begin = form_.forced;
  search.force_end = form_.force_end;
  std::vector<SequencePair> all;
  for (const std::string& text : texts) all.push_back({source(text), {ids_.end}, 0});
  std::vector<std::vector<std::string>> result;
  const auto together = static_cast<size_t>(run_.config.batch);
  const auto& writer = need<WritesSequences>(*run_.model);
  for (size_t from = 0; from < all.size(); from += together) {
    const SequenceBatch b = some_of(all, from, together, ids_, run_.device);
    const Tensor begin = beginning(b.source.dim(0));
    const int64_t most = limits_.target;
    const Beams beams =
        beam_search(*run_.model, begin, writer.start_after({b.source, b.lengths}), most, search);
    const std::vector<int64_t> ids = contiguous(select(beams.tokens, 1, 0)).to_vector<int64_t>();
    for (int64_t row = 0; row < b.source.dim(0); ++row) {
      const auto own =
          std::span(ids).subspan(static_cast<size_t>(row * most), static_cast<size_t>(most));
      result.push_back(summary_sentences(text_of(own)));
    }
  }
  return result;
}

SummaryScores PairData::scores(const std::string& part, const BeamSearch& search,
                               std::vector<std::vector<std::string>>* all) const {
  std::vector<std::string> texts;
  for (const Document& document : documents(part)) texts.push_back(article_text(document));
  const std::vector<std::vector<std::string>> written = summaries(texts, search);
  SummaryScores scores;
  scores.stemmed.stem = Stem::porter;
  for (size_t i = 0; i < written.size(); ++i) {
    const Document& document = documents(part)[i];
    const std::span<const std::string> article = document.article;
    if (!form_.leads) {
      const std::vector<std::string> reference = rouge_sentences(summary_text(document));
      scores.summaries.add(written[i], reference);
      scores.stemmed.add(written[i], reference);
      continue;
    }
    scores.summaries.add(written[i], document.summary);
    scores.lead3.add(article.first(std::min<size_t>(3, article.size())), document.summary);
    scores.lead10.add(article.first(std::min<size_t>(10, article.size())), document.summary);
  }
  if (all != nullptr) *all = written;
  return scores;
}

TaskData::Report PairData::written(const std::string& part, const BeamSearch& search) const {
  if (options_.gap_sentences != 0 || search.beams == 0) return {};
  std::vector<std::vector<std::string>> written;
  const SummaryScores all = scores(part, search, &written);
  Report r{{fmt::format("{:<20} {:>7} {:>7} {:>10}", "", "ROUGE-1", "ROUGE-2", "ROUGE-Lsum")}, {}};
  const auto add = [&r](const char* key, const char* name, const RougeScores& mean) {
    const double one = 100 * mean.rouge1, two = 100 * mean.rouge2, sum = 100 * mean.rouge_lsum;
    r.lines.push_back(fmt::format("{:<20} {:7.2f} {:7.2f} {:10.2f}", name, one, two, sum));
    r.figures.emplace_back(key, Members{{"rouge1", one}, {"rouge2", two}, {"rouge_lsum", sum}});
  };
  add("rouge", "summaries", all.summaries);
  if (!form_.leads) {
    Json& own = r.figures.back().value;
    Members figures = own.object();
    figures.emplace_back("rouge_l", 100 * all.summaries.rouge_l);
    for (const auto& [name, value] : {std::pair{"rouge1_stem", all.stemmed.rouge1},
                                      {"rouge2_stem", all.stemmed.rouge2},
                                      {"rouge_l_stem", all.stemmed.rouge_l},
                                      {"rouge_lsum_stem", all.stemmed.rouge_lsum}}) {
      figures.emplace_back(name, 100 * value);
    }
    own = Json(std::move(figures));
    r.rows.push_back({"document", "summary", "predicted"});
    for (size_t i = 0; i < written.size(); ++i) {
      const Document& d = documents(part)[i];
      r.rows.push_back(
          {article_text(d), summary_text(d), fmt::format("{}", fmt::join(written[i], "\n"))});
    }
    return r;
  }
  add("lead3", "first 3 sentences", all.lead3);
  add("lead10", "first 10 sentences", all.lead10);
  return r;
}

}  // namespace longspan
