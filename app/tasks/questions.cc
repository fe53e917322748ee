#include "app/tasks/questions.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "autograd/mode.h"
#include "core/error.h"
#include "data/io/bytes.h"
#include "data/io/files.h"
#include "data/metrics.h"
#include "models/encoder.h"
#include "ops/copy.h"
#include "ops/loss.h"
#include "ops/shape.h"

namespace longspan {
namespace {

/// Throws ValueError unless the model has the head that `option` sets.
template <class Head>
void require_head(const RunConfig& c, const LanguageModel& model, const char* option) {
  const auto* const head = implements<Head>(model);
  if (head == nullptr) {
    refuse_without<Head>(
        c, model,
        fmt::format("{} asks for answers within texts, and {} has no head for them; choose an "
                    "encoder such as longformer:{}",
                    c.task, c.model_name, c.task));
  }
  require(head->Head::available(), option, "got false; {} needs the head: expected true", c.task);
}

/// Throws ValueError unless the model's vocabulary has room for that of the data.
void require_vocabulary(const TrainingRun& run, int64_t vocabulary) {
  require(run.model->vocab() >= vocabulary, "model.vocab",
          "got {}; {} has {} tokens with those around questions: expected {} or more",
          run.model->vocab(), run.config.tokenizer.empty() ? "bytes" : run.config.tokenizer,
          vocabulary, vocabulary);
}

std::unique_ptr<const Tokenizer> tokenizer_of(const RunConfig& c) {
  return open_tokenizer(c.tokenizer.empty() ? "bytes" : c.tokenizer);
}

/// Returns `global` if the model has global tokens, else nothing.
Tensor for_globals(const ReadsInputs& encoder, const Tensor& global) {
  return encoder.takes_global_tokens() ? global : Tensor{};
}

void warn_of_counts(const DataSet& set, size_t part, size_t found,
                    std::vector<std::string>& warnings) {
  const int64_t expected = set.counts[part];
  if (expected < 0 || static_cast<int64_t>(found) == expected) return;
  warnings.push_back(fmt::format("{}: the {} part has {} questions; expected {}", set.id,
                                 part_names[part], found, expected));
}

std::vector<int32_t> first_few(std::vector<int32_t> tokens, int64_t count) {
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(count)));
  return tokens;
}

double bits_of(const Score& s) { return s.count > 0 ? s.bits() : std::nan(""); }

}  // namespace

void ChoiceTask::require_suited(const RunConfig& c, const LanguageModel& model) const {
  refuse_writers(c, model);
  require_head<ChoosesCandidates>(c, model, "model.choice_head");
}

TaskSizes ChoiceTask::sizes(const RunConfig& c, const LanguageModel& /*model*/) const {
  return {.vocabulary = ChoiceIds(*tokenizer_of(c)).vocabulary, .head = "choice_head"};
}

std::unique_ptr<TaskData> ChoiceTask::open(const TrainingRun& run, bool /*reads*/) const {
  return std::make_unique<ChoiceData>(run);
}

/// Two candidates, marked at the beginning of each row.
LanguageModel::Losses ChoiceTask::synthetic_loss(const SyntheticStep& s) const {
  const auto& chooser = need<ChoosesCandidates>(s.model);
  const int64_t batch = s.config.batch;
  const EncoderInputs in = synthetic_inputs(s, chooser.takes_global_tokens());
  std::vector<int64_t> begins;
  for (int64_t b = 0; b < batch; ++b) begins.insert(begins.end(), 2, b * s.length);
  const Shape two{batch, 2, 1};
  const Tensor places = s.device == meta_device ? Tensor::empty(two, DType::i64, s.device)
                                                : Tensor::from(begins, two, s.device);
  const Tensor answers = reshape(synthetic_ids(batch, 1, 1, s.device), {batch});
  LanguageModel::Losses result;
  result.loss = cross_entropy(chooser.candidate_scores(in, places, s.pass), answers);
  return result;
}

void SpanTask::visit(Fields& v) {
  v.enter("questions");
  v("most", options_.most, range::between(1, range::many),
    "maximum tokens of a question; the rest is cut off");
  v("longest", options_.longest, range::between(1, range::many), "maximum tokens of an answer");
  v("two_separators", options_.two_separators, "between question and text, as in RoBERTa");
  v.leave();
}

void SpanTask::require_suited(const RunConfig& c, const LanguageModel& model) const {
  refuse_writers(c, model);
  require_head<FindsSpans>(c, model, "model.span_head");
}

TaskSizes SpanTask::sizes(const RunConfig& c, const LanguageModel& /*model*/) const {
  return {.vocabulary = QuestionIds(*tokenizer_of(c)).vocabulary, .head = "span_head"};
}

std::unique_ptr<TaskData> SpanTask::open(const TrainingRun& run, bool /*reads*/) const {
  return std::make_unique<SpanData>(run, options_);
}

/// Each window has one answer, its first token.
LanguageModel::Losses SpanTask::synthetic_loss(const SyntheticStep& s) const {
  const auto& finder = need<FindsSpans>(s.model);
  const EncoderInputs in = synthetic_inputs(s, finder.takes_global_tokens());
  const Tensor places = Tensor::zeros({s.config.batch, 1}, DType::i64);
  LanguageModel::Losses result;
  result.loss = any_span_loss(finder.span_logits(in, s.pass), places, places);
  return result;
}

ChoiceData::ChoiceData(const TrainingRun& run)
    : run_(run),
      tokenizer_(tokenizer_of(run.config)),
      ids_(*tokenizer_),
      encoder_(need<ChoosesCandidates>(*run.model)) {
  require_vocabulary(run, ids_.vocabulary);
  const DataSet& set = run.config.of_task->set();
  for (size_t part = 0; part < 3; ++part) {
    const PartFile file = open_part(set, data_place(run.config), static_cast<int>(part));
    if (file.path.empty()) continue;
    questions_[part] = read_wikihop(file.content.text(), file.path);
    warn_of_counts(set, part, questions_[part].size(), warnings_);
    for (const ChoiceQuestion& q : questions_[part]) {
      require<IoError>(q.answer >= 0, "wikihop", "{}: question {} has no answer", file.path, q.id);
    }
  }
}

int64_t ChoiceData::size(const std::string& part) const {
  return static_cast<int64_t>(questions_[part_index(part)].size());
}

void ChoiceData::prepare() {
  require(size("train") > 0, "data", "the training part of {} has no questions",
          data_name(run_.config));
  for (const std::vector<ChoiceQuestion>& some : questions_) {
    for (const ChoiceQuestion& q : some) {
      ChoicePieces p{tokenizer_->pieces(q.query), {}, {}};
      for (const std::string& c : q.candidates) p.candidates.push_back(tokenizer_->pieces(c));
      const int64_t taken = choice_overhead(p);
      require(taken < run_.config.length, "length",
              "got {}; question {} and its {} candidates are {} tokens, which leaves no room for "
              "texts: expected {} or more",
              run_.config.length, q.id, q.candidates.size(), taken, taken + 1);
    }
  }
}

std::vector<ChoiceWindow> ChoiceData::windows(const ChoiceQuestion& question) const {
  ChoicePieces p{tokenizer_->pieces(question.query), {}, {}};
  for (const std::string& c : question.candidates) p.candidates.push_back(tokenizer_->pieces(c));
  for (const std::string& s : question.supports) p.supports.push_back(tokenizer_->pieces(s));
  return choice_windows(p, ids_.tokens, run_.config.length);
}

Tensor ChoiceData::choose(const ChoiceBatch& b, Pass pass) const {
  const Device device = run_.device;
  const EncoderInputs in{.tokens = to_device(b.tokens, device),
                         .lengths = to_device(b.lengths, device),
                         .types = {},
                         .global = for_globals(encoder_, b.global)};
  return encoder_.candidate_scores(in, to_device(b.places, device), pass);
}

TaskData::Forward ChoiceData::forward(int64_t i, const SegmentMemory& /*memory*/, Pass pass) const {
  std::vector<std::vector<ChoiceWindow>> rows;
  std::vector<int64_t> answers;
  Forward f;
  for (int64_t b = 0; b < run_.config.batch; ++b) {
    const int64_t item = item_of_row(run_.samples_before(i) + b, size("train"), run_.config.seed);
    const ChoiceQuestion& q = questions_[0][static_cast<size_t>(item)];
    rows.push_back(windows(q));
    answers.push_back(q.answer);
    for (const ChoiceWindow& w : rows.back()) f.tokens += static_cast<int64_t>(w.tokens.size());
  }
  const Tensor right = Tensor::from(answers, {run_.config.batch}, run_.device);
  f.losses.loss = cross_entropy(choose(choice_batch(rows), pass), right);
  f.counted = run_.config.batch;
  return f;
}

ChoiceData::Scores ChoiceData::scores(const std::string& part) const {
  const NoGrad off;
  double nats = 0, right = 0;
  const EvaluatedRows<ChoiceQuestion> all(questions_[part_index(part)], run_.config.length);
  for (size_t i = 0; i < all.size(); ++i) {
    Evaluating::see(static_cast<int64_t>(i), std::ssize(all));
    const ChoiceQuestion& q = all[i];
    const std::vector<std::vector<ChoiceWindow>> one{windows(q)};
    const std::vector<double> z =
        cast(choose(choice_batch(one), Pass{}), DType::f64).to_vector<double>();
    const double best = *std::max_element(z.begin(), z.end());
    double sum = 0;
    for (const double score : z) sum += std::exp(score - best);
    const double own = z[static_cast<size_t>(q.answer)];
    nats += best - own + std::log(sum);
    right += std::max_element(z.begin(), z.end()) - z.begin() == q.answer ? 1 : 0;
  }
  const auto count = static_cast<double>(all.size());
  return {nats / count / std::log(2.0), right / count};
}

TaskData::Evaluation ChoiceData::evaluate(const std::string& part) const {
  const Scores s = scores(part);
  const double right = 100 * s.accuracy;
  return {s.bits, {{fmt::format("{:.2f} % of questions right", right)}, {{"accuracy", right}}}};
}

std::vector<int32_t> ChoiceData::first_tokens(int64_t count) const {
  const auto& some = questions_[questions_[1].empty() ? 0 : 1];
  return some.empty() ? std::vector<int32_t>{} : first_few(windows(some[0])[0].tokens, count);
}

SpanData::SpanData(const TrainingRun& run, const SpanOptions& options)
    : run_(run),
      options_(options),
      tokenizer_(tokenizer_of(run.config)),
      ids_(*tokenizer_),
      encoder_(need<FindsSpans>(*run.model)) {
  require_vocabulary(run, ids_.vocabulary);
  const DataSet& set = run.config.of_task->set();
  const int64_t most = options.most;
  require(run.config.length >= most + 5, "length",
          "got {}; questions have up to questions.most = {} tokens, and some stand around them: "
          "expected {} or more",
          run.config.length, most, most + 5);
  for (size_t part = 0; part < 3; ++part) {
    const PartFile file = open_part(set, data_place(run.config), static_cast<int>(part));
    if (file.path.empty()) continue;
    evidence_ =
        (std::filesystem::path(file.path).parent_path().parent_path() / "evidence/wikipedia")
            .string();
    questions_[part] = read_triviaqa(file.content.text(), file.path);
    warn_of_counts(set, part, questions_[part].size(), warnings_);
    for (size_t q = 0; q < questions_[part].size(); ++q) {
      for (size_t d = 0; d < questions_[part][q].documents.size(); ++d) {
        items_[part].push_back({q, d});
      }
    }
  }
}

int64_t SpanData::size(const std::string& part) const {
  return static_cast<int64_t>(items_[part_index(part)].size());
}

std::string SpanData::path_of(const Item& item, size_t part) const {
  return evidence_ + "/" + questions_[part][item.question].documents[item.document];
}

void SpanData::prepare() {
  require(size("train") > 0, "data", "the training part of {} has no documents",
          data_name(run_.config));
  for (size_t part = 0; part < 3; ++part) {
    for (const Item& item : items_[part]) {
      const std::string path = path_of(item, part);
      require<IoError>(kind_of_path(path, "triviaqa") == PathKind::file, "triviaqa",
                       "question {} has a document {}, which is not there",
                       questions_[part][item.question].id, path);
    }
  }
}

SpanData::Window SpanData::window(const Item& item, size_t part) const {
  const RunConfig& c = run_.config;
  const TriviaQuestion& q = questions_[part][item.question];
  const FileBytes file = open_bytes(path_of(item, part), "triviaqa");
  Window w;
  w.text = without_byte_order_mark(file.text());
  w.pieces = first_pieces(w.text, *tokenizer_, c.length);
  const WindowOptions options{.length = c.length,
                              .stride = c.length,
                              .most_question = options_.most,
                              .two_separators = options_.two_separators};
  w.window = span_windows(tokenizer_->pieces(q.text), w.pieces, nullptr, ids_.special, options)[0];
  w.pieces.resize(static_cast<size_t>(w.window.count));
  const int64_t end = w.pieces.empty() ? 0 : w.pieces.back().end;
  const std::vector<Answer> found = find_aliases(w.text, q.aliases, static_cast<size_t>(end));
  w.places = answers_in(w.window, w.pieces, found);
  return w;
}

SpanData::Rows SpanData::stacked(const std::vector<Window>& windows) const {
  std::vector<SpanWindow> some;
  size_t most = 1;
  Rows rows;
  for (const Window& w : windows) {
    some.push_back(w.window);
    most = std::max(most, w.places.size());
    rows.tokens += static_cast<int64_t>(w.window.tokens.size());
    rows.answered += w.places.empty() ? 0 : 1;
  }
  std::vector<int64_t> starts, ends;
  for (const Window& w : windows) {
    for (size_t i = 0; i < most; ++i) {
      const bool there = i < w.places.size();
      starts.push_back(there ? w.places[i].start : ignored_target);
      ends.push_back(there ? w.places[i].end : ignored_target);
    }
  }
  const SpanBatch batch = span_batch(some);
  rows.in.tokens = to_device(batch.tokens, run_.device);
  rows.in.lengths = to_device(batch.lengths, run_.device);
  if (encoder_.token_types() > 1) {
    rows.in.types = to_device(batch.types, run_.device);
  }
  rows.in.global = for_globals(encoder_, batch.global);
  const Shape places{static_cast<int64_t>(windows.size()), static_cast<int64_t>(most)};
  rows.starts = Tensor::from(starts, places);
  rows.ends = Tensor::from(ends, places);
  return rows;
}

SpanLogits SpanData::spans(const Rows& rows, Pass pass) const {
  return encoder_.span_logits(rows.in, pass);
}

TaskData::Forward SpanData::forward(int64_t i, const SegmentMemory& /*memory*/, Pass pass) const {
  std::vector<Window> windows;
  for (int64_t b = 0; b < run_.config.batch; ++b) {
    const int64_t item = item_of_row(run_.samples_before(i) + b, size("train"), run_.config.seed);
    windows.push_back(window(items_[0][static_cast<size_t>(item)], 0));
  }
  const Rows rows = stacked(windows);
  Forward f;
  f.losses.loss = any_span_loss(spans(rows, pass), rows.starts, rows.ends);
  f.tokens = rows.tokens;
  f.counted = rows.answered;
  return f;
}

Score SpanData::score_of(const Rows& rows, const SpanLogits& z) {
  return {any_span_loss(z, rows.starts, rows.ends).item(), 1};
}

double SpanData::bits(const std::string& part) const {
  const NoGrad off;
  const size_t which = part_index(part);
  Score total;
  const EvaluatedRows<Item> items(items_[which], run_.config.length);
  for (size_t i = 0; i < items.size(); ++i) {
    Evaluating::see(static_cast<int64_t>(i), std::ssize(items));
    const Rows rows = stacked({window(items[i], which)});
    if (rows.answered == 0) continue;
    total += score_of(rows, spans(rows, Pass{}));
  }
  return bits_of(total);
}

SpanData::Scores SpanData::scores(const std::string& part) const {
  const NoGrad off;
  const size_t which = part_index(part);
  struct Said {
    double score = -HUGE_VAL;
    std::string text;
    bool asked = false;  // else no document of it is in the sample
  };
  std::vector<Said> best(questions_[which].size());
  Score total;
  const EvaluatedRows<Item> items(items_[which], run_.config.length);
  for (size_t i = 0; i < items.size(); ++i) {
    Evaluating::see(static_cast<int64_t>(i), std::ssize(items));
    const Item& item = items[i];
    const Window w = window(item, which);
    const Rows rows = stacked({w});
    const SpanLogits z = spans(rows, Pass{});
    if (rows.answered > 0) total += score_of(rows, z);
    const std::vector<SpanWindow> windows{w.window};
    const BestSpan span = best_span(windows, w.pieces, score_rows(cast(z.start, DType::f32)),
                                    score_rows(cast(z.end, DType::f32)), options_.longest);
    Said& said = best[item.question];
    said.asked = true;
    if (span.window < 0 || span.score <= said.score) continue;
    said.score = span.score;
    said.text =
        w.text.substr(static_cast<size_t>(span.begin), static_cast<size_t>(span.end - span.begin));
  }
  Scores s{.bits = bits_of(total)};
  for (size_t q = 0; q < best.size(); ++q) {
    const std::vector<std::string>& right = questions_[which][q].aliases;
    if (right.empty() || (!best[q].asked && Evaluating::tokens() > 0)) continue;
    ++s.questions;
    s.exact += answer_matches(best[q].text, right) ? 1 : 0;
    s.f1 += answer_overlap(best[q].text, right).f1();
  }
  const auto count = static_cast<double>(std::max<int64_t>(s.questions, 1));
  s.exact /= count;
  s.f1 /= count;
  return s;
}

TaskData::Evaluation SpanData::evaluate(const std::string& part) const {
  const Scores s = scores(part);
  const double exact = 100 * s.exact, f1 = 100 * s.f1;
  return {s.bits,
          {{fmt::format("exact {:.2f} %, F1 {:.2f} % of {} questions", exact, f1, s.questions)},
           {{"exact", exact}, {"f1", f1}}}};
}

std::vector<int32_t> SpanData::first_tokens(int64_t count) const {
  const size_t part = items_[1].empty() ? 0 : 1;
  if (items_[part].empty()) return {};
  return first_few(window(items_[part][0], part).window.tokens, count);
}

}  // namespace longspan
