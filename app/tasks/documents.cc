#include "app/tasks/documents.h"

#include <algorithm>
#include <cmath>

#include "autograd/mode.h"
#include "core/error.h"
#include "core/scope.h"
#include "data/draws.h"
#include "models/scoring.h"
#include "nn/objective.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"
#include "ops/softmax.h"

namespace longspan {
namespace {

const ReadsDocuments& model_of(const TrainingRun& run) {
  const auto* const model = ask<ReadsDocuments>(std::as_const(*run.model));
  require(model != nullptr, "task",
          "{} has documents of sentences, and {} reads none; choose hibert", run.config.task,
          run.config.model_name);
  require(model->labels() == 0 || model->labels() == 2, "model.labels",
          "got {}; expected 2, whether a sentence belongs to an extract, or 0 to write masked ones",
          model->labels());
  return *model;
}

PackedDocuments packed(const std::vector<TokenDocument>& batch) {
  PackedDocuments in;
  for (const TokenDocument& document : batch) in.add(document.sentences);
  return in;
}

/// Returns the sentences that are masked as what the model has to write.
SentenceTargets written_of(const MaskedDocuments& all, const DocumentTokens& special) {
  SentenceTargets to;
  for (const MaskedSentence& m : all.masked) to.add(m.slot, m.original, special);
  return to;
}

std::vector<int32_t> labels_of(const std::vector<TokenDocument>& batch) {
  std::vector<int32_t> all;
  for (const TokenDocument& d : batch) all.insert(all.end(), d.labels.begin(), d.labels.end());
  return all;
}

}  // namespace

void DocumentOptions::visit(Fields& v) {
  v("documents", documents, range::between(0, range::many), "train on so many; 0: all");
  v.enter("extracts");
  v("chunk", chunk, range::between(1, range::many),
    "sentences of a document that are read together");
  v("take", take);
  v("oracle", oracle, range::between(1, range::many),
    "maximum sentences of an oracle, which labels those without labels");
  v("mask_share", mask_share, range::fraction, "fraction of a document's sentences that is masked");
  v("mask_most", mask_most, range::between(1, range::many), "maximum sentences that are masked");
  v.leave();
}

void DocumentTask::visit(Fields& v) {
  v("target_length", pairs_.target_length, range::between(0, range::many),
    "encoder-decoders: maximum tokens to write; 0: 512, or what the model has positions for");
  v("gap_sentences", pairs_.gap_sentences, range::between(0, 0.99),
    "encoder-decoders: leave out this fraction of the sentences and write them; 0: summaries");
  sentences_.visit(v);
}

bool DocumentTask::suits(const LanguageModel& model) const {
  return ask<WritesSequences>(model) != nullptr || ask<ReadsDocuments>(model) != nullptr;
}

void DocumentTask::require_suited(const RunConfig& c, const LanguageModel& model) const {
  if (!suits(model)) {
    refuse_without<WritesSequences>(
        c, model,
        fmt::format("{} has documents and summaries, and {} reads one sequence; choose an "
                    "encoder-decoder such as led or transformer:base, or hibert, which finds the "
                    "sentences of a summary",
                    c.task, c.model_name));
  }
  const bool writes = ask<WritesSequences>(model) != nullptr;
  for (const auto& [name, given] : {std::pair{"target_length", pairs_.target_length > 0},
                                    {"gap_sentences", pairs_.gap_sentences > 0}}) {
    require(writes || !given, name,
            "is for encoder-decoders such as led, and {} is none: leave it out", c.model_name);
  }
}

TaskSizes DocumentTask::sizes(const RunConfig& c, const LanguageModel& model) const {
  const auto tokenizer = open_tokenizer(c.tokenizer.empty() ? "bytes" : c.tokenizer);
  if (ask<ReadsDocuments>(model) != nullptr) {
    return {.vocabulary = tokenizer->vocabulary() + sentence_marks};
  }
  return {.vocabulary = SequenceIds(*tokenizer).vocabulary};
}

/// Documents of files have the tokens of their sentences, whatever the length of the run is.
int64_t DocumentTask::longest_sample(int64_t length, const LanguageModel& model) const {
  const auto* const reads = ask<ReadsDocuments>(model);
  return reads != nullptr ? sentences_.chunk * (reads->max_sentence() - 1) : length;
}

std::vector<std::string> DocumentTask::order_keys() const {
  return {"documents", "gap_sentences", "extracts.chunk"};
}

std::vector<std::string> DocumentTask::function_keys() const {
  return {"target_length", "gap_sentences", "extracts."};
}

PairOptions DocumentTask::pair_options() const {
  PairOptions options = pairs_;
  options.documents = sentences_.documents;
  return options;
}

std::unique_ptr<TaskData> DocumentTask::open(const TrainingRun& run, bool reads) const {
  if (ask<ReadsDocuments>(*run.model) != nullptr) {
    return std::make_unique<DocumentData>(run, sentences_, nullptr);
  }
  std::array<std::vector<Document>, 3> documents;
  for (int part = 0; reads && part < 3; ++part) {
    documents[static_cast<size_t>(part)] =
        open_documents(run.config.task, data_place(run.config), part, run.config.split);
  }
  return std::make_unique<PairData>(run, pair_options(), std::move(documents));
}

LanguageModel::Losses DocumentTask::synthetic_loss(const SyntheticStep& step) const {
  if (ask<WritesSequences>(step.model) == nullptr) return synthetic_token_loss(step);
  return synthetic_pair_loss(step, pairs_);
}

void DocumentTask::require_search(const BeamSearch& search, const TrainingRun& run) const {
  if (ask<WritesSequences>(*run.model) == nullptr || pairs_.gap_sentences > 0) return;
  if (search.beams == 0) return;
  const int64_t most = target_limit(run.config, *run.model, pairs_.target_length);
  longspan::require(search.min_count < most, "--min-tokens",
                    "got {}; texts of {} have at most {} tokens with their end: expected fewer",
                    search.min_count, run.config.model_name, most);
}

std::unique_ptr<const Tokenizer> document_tokenizer(const TrainingRun& run) {
  const std::string& name = run.config.tokenizer;
  auto tokenizer = open_tokenizer(name.empty() ? "bytes" : name);
  const int64_t expected = tokenizer->vocabulary() + sentence_marks;
  require(run.model->vocab() >= expected, "model.vocab",
          "got {}; {} has {} tokens, and {} more mark sentences: expected {} or more",
          run.model->vocab(), name.empty() ? "bytes" : name, tokenizer->vocabulary(),
          sentence_marks, expected);
  return tokenizer;
}

std::vector<double> sentence_scores(const ReadsDocuments& model, const TokenDocument& document,
                                    int64_t sentences) {
  const NoGrad off;
  std::vector<double> scores;
  for (const TokenDocument& piece : pieces_of(document, sentences)) {
    const Tensor p = softmax(cast(model.label_logits(packed({piece}), Pass{}), DType::f64));
    for (const double x : contiguous(select(p, 1, 1)).to_vector<double>()) scores.push_back(x);
  }
  return scores;
}

DocumentData::DocumentData(const TrainingRun& run, const DocumentOptions& options,
                           const SampleTask* task)
    : run_(run), options_(options), model_(model_of(run)) {
  const RunConfig& c = run.config;
  if (task != nullptr) {
    task_ = task->fitted(c.length, run.model->vocab());
    const int64_t expected = task_->shape().vocabulary + sentence_marks;
    require(run.model->vocab() >= expected, "model.vocab",
            "got {}; {} has {} tokens, and {} more mark sentences: expected {} or more",
            run.model->vocab(), c.task, task_->shape().vocabulary, sentence_marks, expected);
    return;
  }
  tokenizer_ = document_tokenizer(run);
  for (size_t part = 0; part < 3; ++part) read(part);
}

void DocumentData::read(size_t part) {
  const RunConfig& c = run_.config;
  std::vector<Document>& texts = texts_[part];
  texts = open_documents(c.task, data_place(c), static_cast<int>(part), c.split);
  const int64_t expected = c.of_task->set().counts[part], found = std::ssize(texts);
  if (expected >= 0 && found != expected) {
    warnings_.push_back(fmt::format("{}: the {} part has {} documents; expected {}", c.task,
                                    part_names[part], found, expected));
  }
  if (part == 0) {
    require(options_.documents <= found, "documents", "got {}; the training part of {} has {}",
            options_.documents, c.task, found);
    if (options_.documents > 0) texts.resize(static_cast<size_t>(options_.documents));
  }
  const auto empty = std::erase_if(texts, [](const Document& d) { return d.article.empty(); });
  if (empty > 0) {
    warnings_.push_back(
        fmt::format("{}: {} of {} documents of the {} part have no sentences and "
                    "are left out",
                    c.task, empty, found, part_names[part]));
  }
  int64_t cut = 0, sentences = 0;
  for (Document& text : texts) {
    if (!writes() && text.labels.empty() && !text.summary.empty()) {
      text.labels.assign(text.article.size(), 0);
      for (const int64_t i : greedy_oracle(text.article, text.summary, options_.oracle)) {
        text.labels[static_cast<size_t>(i)] = 1;
      }
    }
    whole_[part].push_back(
        token_document(text, *tokenizer_, model_.special().sentence_end, model_.max_sentence()));
    cut += whole_[part].back().cut;
    sentences += std::ssize(text.article);
    for (TokenDocument& piece : pieces_of(whole_[part].back(), options_.chunk)) {
      pieces_[part].push_back(std::move(piece));
    }
  }
  if (cut > 0) {
    warnings_.push_back(fmt::format(
        "{}: {} of {} sentences of the {} part have more than {} tokens and are cut after them; a "
        "larger model.sentence_length reads more",
        c.task, cut, sentences, part_names[part], model_.max_sentence() - 1));
  }
}

int64_t DocumentData::size(const std::string& part) const {
  const size_t which = part_index(part);
  if (!task_) return std::ssize(pieces_[which]);
  const RunConfig& c = run_.config;
  if (which > 0) return task_->held_out;
  return options_.documents > 0 ? options_.documents : c.steps * c.batch * c.batches_per_step();
}

TokenDocument DocumentData::generated(const std::string& part, int64_t i) const {
  const Sample s =
      task_->sample({.seed = run_.config.seed, .split = part, .index = static_cast<uint64_t>(i)});
  TokenDocument out;
  std::vector<int32_t> sentence;
  for (size_t k = 0; k < s.tokens.size(); ++k) {
    sentence.push_back(s.tokens[k] == 0 ? model_.special().sentence_end : s.tokens[k]);
    if (s.tokens[k] != 0) continue;
    out.sentences.push_back(std::exchange(sentence, {}));
    out.labels.push_back(s.targets[k]);
  }
  return out;
}

TokenDocument DocumentData::item(const std::string& part, int64_t i) const {
  return task_ ? generated(part, i) : pieces_[part_index(part)][static_cast<size_t>(i)];
}

TokenDocument DocumentData::training_item(int64_t row) const {
  const bool endless = task_ && options_.documents == 0;
  return item("train", endless ? row : item_of_row(row, size("train"), run_.config.seed));
}

SentenceMasking DocumentData::masking() const {
  const DocumentOptions& e = options_;
  return {.share = e.mask_share, .most = e.mask_most, .token = model_.special().mask};
}

void DocumentData::prepare() {
  require(task_ || size("train") > 0, "split", "the training part of {} has no documents",
          data_name(run_.config));
  if (task_) {
    training_item(0);
    return;
  }
  for (size_t i = 0; i < whole_[0].size() && !writes(); ++i) {
    require(!whole_[0][i].labels.empty(), "data",
            "document {} of {} has neither labels nor a summary to make some of; expected "
            "train.label or train.summary",
            i, data_name(run_.config));
  }
}

DocumentData::Loss DocumentData::loss_of(const std::vector<TokenDocument>& batch, Generator masks,
                                         Pass pass) const {
  Loss result;
  if (!writes()) {
    const PackedDocuments in = packed(batch);
    result.losses = model_.label_loss(in, labels_of(batch), pass);
    result.tokens = std::ssize(in.tokens);
    result.counted = std::ssize(in.sentences);
    return result;
  }
  return loss_of(masked(batch, masks), pass);
}

DocumentData::Loss DocumentData::loss_of(const MaskedDocuments& masked, Pass pass) const {
  PackedDocuments in;
  for (const auto& document : masked.documents) in.add(document);
  const SentenceTargets written = written_of(masked, model_.special());
  return {.losses = model_.sentence_loss(in, written, pass),
          .tokens = std::ssize(in.tokens) + std::ssize(written.inputs),
          .counted = std::ssize(written.targets)};
}

MaskedDocuments DocumentData::masked(const std::vector<TokenDocument>& batch,
                                     Generator masks) const {
  std::vector<const TokenDocument*> all;
  for (const TokenDocument& document : batch) all.push_back(&document);
  return mask_sentences(all, masking(), masks);
}

void DocumentData::each_masked(const std::string& part,
                               const std::function<void(const MaskedDocuments&)>& visit) const {
  const Generator masks = Generator{run_.config.seed}.fork("masks").fork(part);
  const int64_t count = size(part);
  const EvaluatedItems items(count, run_.config.length);
  for (int64_t k = 0; k < items.size(); ++k) {
    const int64_t i = items[k];
    const Generator own = masks.fork(static_cast<uint64_t>(i));
    const int64_t step = count > 1 ? 1 + Draws(own.fork("other")).below(count - 1) : 0;
    visit(mask_sentences(item(part, i), item(part, (i + step) % count), masking(), own));
    Evaluating::see(k + 1, items.size());
  }
}

TaskData::Forward DocumentData::forward(int64_t i, const SegmentMemory& /*memory*/,
                                        Pass pass) const {
  std::vector<TokenDocument> batch;
  const int64_t first = run_.samples_before(i);
  for (int64_t row = first; row < first + run_.config.batch; ++row) {
    const Phase phase("data");
    batch.push_back(training_item(row));
  }
  const Generator masks = Generator{run_.config.seed}.fork("masks").fork(static_cast<uint64_t>(i));
  Loss loss = loss_of(batch, masks, pass);
  return {std::move(loss.losses), loss.tokens, loss.counted};
}

double DocumentData::bits(const std::string& part) const {
  if (!writes()) {
    const Labelled all = label(part);
    return all.sentences > 0 ? all.nats / static_cast<double>(all.sentences) / std::log(2.0)
                             : std::nan("");
  }
  const NoGrad off;
  const Scoring exact;
  Score total;
  each_masked(part, [&](const MaskedDocuments& one) {
    const Loss loss = loss_of(one, Pass{});
    total += {loss.losses.loss.item() * static_cast<double>(loss.counted), loss.counted};
  });
  return total.count > 0 ? total.bits() : std::nan("");
}

Answers DocumentData::right(const std::string& part) const {
  const NoGrad off;
  Answers all;
  each_masked(part, [&](const MaskedDocuments& one) {
    PackedDocuments in;
    in.add(one.documents[0]);
    const SentenceTargets written = written_of(one, model_.special());
    const Tensor targets =
        Tensor::from(written.targets, {std::ssize(written.targets)}, run_.device);
    all += count_right(model_.sentence_logits(in, written, Pass{}), targets);
  });
  return all;
}

std::vector<int32_t> DocumentData::first_tokens(int64_t count) const {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < size("valid") && std::ssize(tokens) < count; ++i) {
    for (const auto& s : item("valid", i).sentences)
      tokens.insert(tokens.end(), s.begin(), s.end());
  }
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(std::max<int64_t>(count, 0))));
  return tokens;
}

DocumentData::Labelled DocumentData::label(const std::string& part) const {
  Labelled all;
  const bool whole = !task_;
  const EvaluatedItems items(whole ? std::ssize(whole_[part_index(part)]) : size(part),
                             run_.config.length);
  for (int64_t at = 0; at < items.size(); ++at) {
    const int64_t i = items[at];
    Evaluating::see(at, items.size());
    const TokenDocument document =
        whole ? whole_[part_index(part)][static_cast<size_t>(i)] : item(part, i);
    if (document.labels.empty()) continue;
    const std::vector<double> p = sentence_scores(model_, document, options_.chunk);
    for (size_t k = 0; k < p.size(); ++k) {
      all.nats -= std::log(std::max(document.labels[k] == 1 ? p[k] : 1 - p[k], 1e-300));
      all.counts.add(p[k] > 0.5 ? 1 : 0, document.labels[k]);
    }
    all.sentences += std::ssize(p);
  }
  return all;
}

ExtractScores DocumentData::extract_scores(const std::string& part) const {
  const DocumentOptions& e = options_;
  const size_t which = part_index(part);
  ExtractScores scores;
  const EvaluatedItems items(std::ssize(texts_[which]), run_.config.length);
  for (int64_t k = 0; k < items.size(); ++k) {
    const auto i = static_cast<size_t>(items[k]);
    const Document& text = texts_[which][i];
    if (text.summary.empty()) continue;
    const std::vector<double> p = sentence_scores(model_, whole_[which][i], e.chunk);
    const std::span<const std::string> article = text.article;
    const auto lead =
        article.first(std::min(article.size(), static_cast<size_t>(e.take.sentences)));
    const std::vector<std::string> oracle =
        sentences_at(article, greedy_oracle(article, text.summary, e.take.sentences));
    scores.extracts.add(sentences_at(article, select_sentences(p, article, e.take)), text.summary);
    scores.oracle.add(oracle, text.summary);
    scores.lead.add(lead, text.summary);
    scores.behind +=
        oracle_overlap(oracle, text.summary) < oracle_overlap(lead, text.summary) ? 1 : 0;
  }
  return scores;
}

TaskData::Evaluation DocumentData::evaluate(const std::string& part) const {
  Evaluation result;
  result.bits = bits(part);
  Report& r = result.report;
  if (writes()) {
    const double share = right(part).percent();
    r.lines.push_back(fmt::format("{:.2f} % of hidden tokens right", share));
    r.figures = {{"accuracy", share}};
    return result;
  }
  const Labelled all = label(part);
  if (all.sentences > 0) {
    const double right = 100 * all.counts.accuracy(), f1 = 100 * all.counts.overlap().f1();
    r.lines.push_back(
        fmt::format("{:.2f} % of {} sentences right, F1 {:.2f} %", right, all.sentences, f1));
    r.figures = {{"accuracy", right}, {"f1", f1}};
  }
  report_extracts(part, r);
  return result;
}

void DocumentData::report_extracts(const std::string& part, Report& r) const {
  const ExtractScores scores = extract_scores(part);
  if (scores.extracts.documents == 0) return;
  r.lines.push_back(fmt::format("{:<20} {:>7} {:>7} {:>7} {:>10}", "", "ROUGE-1", "ROUGE-2",
                                "ROUGE-L", "ROUGE-Lsum"));
  const auto add = [&r](const char* key, const std::string& name, const RougeScores& mean) {
    const double one = 100 * mean.rouge1, two = 100 * mean.rouge2, l = 100 * mean.rouge_l,
                 sum = 100 * mean.rouge_lsum;
    r.lines.push_back(
        fmt::format("{:<20} {:7.2f} {:7.2f} {:7.2f} {:10.2f}", name, one, two, l, sum));
    r.figures.emplace_back(
        key, Members{{"rouge1", one}, {"rouge2", two}, {"rouge_l", l}, {"rouge_lsum", sum}});
  };
  add("rouge", "extracts", scores.extracts);
  add("oracle", "greedy oracle", scores.oracle);
  add("lead", fmt::format("first {} sentences", options_.take.sentences), scores.lead);
  r.lines.push_back(fmt::format("{} of {} oracles overlap less than the first sentences",
                                scores.behind, scores.oracle.documents));
  r.figures.emplace_back("oracles_behind", scores.behind);
}

}  // namespace longspan
