#include "app/tasks/spans.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "autograd/mode.h"
#include "core/error.h"
#include "data/code_points.h"
#include "data/tokenizers/hub_processor.h"
#include "hub/type.h"
#include "models/encoder.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr size_t together = 256;  // questions that are scored before their answers are chosen

bool lacks_answers(std::span<const LabelledQuestion> rows) {
  return std::any_of(rows.begin(), rows.end(),
                     [](const LabelledQuestion& q) { return q.labelled && q.references.empty(); });
}

/// Returns the best candidate with a text; null if there is none.
const AnswerCandidate* best_text(const FoundAnswer& found) {
  const auto at = std::find_if(found.candidates.begin(), found.candidates.end(),
                               [](const AnswerCandidate& c) { return !c.text.empty(); });
  return at == found.candidates.end() ? nullptr : &*at;
}

/// Returns the candidate that was chosen.
const AnswerCandidate* chosen_of(const FoundAnswer& found) {
  const auto at = std::find_if(found.candidates.begin(), found.candidates.end(),
                               [&](const AnswerCandidate& c) { return c.text == found.text; });
  return at == found.candidates.end() ? nullptr : &*at;
}

/// A text in JSON, where bytes that are no UTF-8 cannot stand.
Json in_json(const std::string& text) { return Json(with_replacement_characters(text)); }

std::string answer_in_words(const std::string& answer) {
  return answer.empty() ? "no answer" : shortened(answer);
}

void add_figures(const SquadFigures& f, bool no_answer, TaskData::Report& r) {
  std::vector<std::pair<std::string, double>> all{{"exact", f.all.exact}, {"f1", f.all.f1}};
  if (no_answer) {
    if (f.has_answer) {
      all.emplace_back("HasAns_exact", f.has_answer->exact);
      all.emplace_back("HasAns_f1", f.has_answer->f1);
    }
    if (f.no_answer) {
      all.emplace_back("NoAns_exact", f.no_answer->exact);
      all.emplace_back("NoAns_f1", f.no_answer->f1);
    }
    all.emplace_back("best_exact", f.best_exact);
    all.emplace_back("best_exact_thresh", f.best_exact_threshold);
    all.emplace_back("best_f1", f.best_f1);
    all.emplace_back("best_f1_thresh", f.best_f1_threshold);
  }
  add_scores(r, all);
}

}  // namespace

void AnswerTask::visit_options(Fields& v) {
  AnswerOptions& o = options_;
  constexpr Range count = range::between(1, range::many);
  v("no_answer", o.no_answer, "there are questions without an answer, as the data tell too");
  v("stride", o.stride, range::between(0, range::many),
    "tokens of the text that adjacent windows share; of short windows at most half");
  v("most_question", o.most_question, count, "maximum tokens of a question; the rest is cut off");
  v("longest", o.longest, count, "maximum tokens of an answer");
  v("threshold", o.threshold,
    "no_answer: there is none if its score exceeds that of the best answer by more than this");
}

void AnswerTask::settle(const RunConfig& c) {
  if (options_.no_answer) return;
  const auto all = sources(c);
  for (size_t part = 0; part < 2 && !options_.no_answer; ++part) {
    if (!all[part].paths.empty())
      options_.no_answer = lacks_answers(read_questions(all[part]).rows);
  }
}

TaskSizes AnswerTask::sizes(const RunConfig& c, const LanguageModel& /*model*/) const {
  return {.vocabulary = RowMaker(c.tokenizer, true).vocabulary(), .head = "span_head"};
}

std::optional<HubTask> AnswerTask::hub_task() const { return HubTask::spans; }

std::unique_ptr<TaskData> AnswerTask::open(const TrainingRun& run, bool reads) const {
  return std::make_unique<AnswerData>(run, *this, reads);
}

LanguageModel::Losses AnswerTask::synthetic_loss(const SyntheticStep& s) const {
  const auto& finder = need<FindsSpans>(s.model);
  const EncoderInputs in = synthetic_inputs(s, finder.takes_global_tokens());
  if (s.kept != nullptr) *s.kept = {in.tokens};
  const Tensor places = Tensor::zeros({s.config.batch}, DType::i64);
  LanguageModel::Losses result;
  result.loss = span_loss(finder.span_logits(in, s.pass), places, places);
  return result;
}

AnswerData::AnswerData(const TrainingRun& run, const AnswerTask& task, bool reads)
    : TableData(run, need<FindsSpans>(*run.model), RowMaker(run.config.tokenizer, true)),
      task_(task),
      no_answer_(task.options().no_answer) {
  require_vocabulary(run, maker_);
  if (!reads) return;
  rows_ = read_splits<LabelledQuestion>(
      run.config, task.sources(run.config),
      [&](const TableSource& source) {
        QuestionRows found = read_questions(source);
        if (found.misplaced > 0) {
          warnings_.push_back(fmt::format(
              "{} of {} answers do not stand where they should and are not trained on; the first: "
              "{}",
              found.misplaced, found.answers, found.first_misplaced));
        }
        std::erase_if(found.rows, [](const LabelledQuestion& q) { return !q.labelled; });
        return std::move(found.rows);
      },
      [](const LabelledQuestion& a, const LabelledQuestion& b) {
        return a.question.context == b.question.context;
      });
  for (const std::vector<LabelledQuestion>& some : rows_) {
    no_answer_ = no_answer_ || lacks_answers(some);
  }
}

QuestionRow AnswerData::row_of(const Question& question) const {
  const AnswerOptions& o = task_.options();
  return maker_.question(question.text, question.context, run_.config.length, o.stride,
                         o.most_question);
}

/// Finds the windows to train on.
void AnswerData::prepare() {
  items_.clear();
  int64_t cut = 0;
  for (size_t q = 0; q < rows_[0].size(); ++q) {
    const LabelledQuestion& question = rows_[0][q];
    if (question.misplaced) continue;
    const QuestionRow row = row_of(question.question);
    cut += row.cut ? 1 : 0;
    for (size_t w = 0; w < row.windows.size(); ++w) items_.push_back({q, w});
  }
  for (size_t part = 1; part < 3; ++part) {  // says now what has no room
    for (const LabelledQuestion& question : rows_[part]) row_of(question.question);
  }
  require(!items_.empty(), "data", "{} has no question to train on", data_name(run_.config));
  if (cut > 0) {
    warnings_.push_back(fmt::format("{} of {} questions are cut at {} tokens", cut, rows_[0].size(),
                                    task_.options().most_question));
  }
}

SpanLogits AnswerData::logits(std::span<const TextRow> rows, Pass pass) const {
  return model_.span_logits(inputs_of(rows, model_, maker_.padding(), run_.device), pass);
}

SpanPlace AnswerData::target(const Question& question, const QuestionRow& row, size_t window) {
  if (question.answers.empty()) return {};
  const std::vector<SpanPlace> places =
      answers_in(row.windows[window], row.pieces, std::span(question.answers).first(1));
  return places.empty() ? SpanPlace{} : places[0];
}

TaskData::Forward AnswerData::forward(int64_t i, const SegmentMemory& /*memory*/, Pass pass) const {
  std::vector<TextRow> rows;
  std::vector<int64_t> starts, ends;
  Forward f;
  for (const Item& item : batch_of(items_, run_, i)) {
    const Question& question = rows_[0][item.question].question;
    const QuestionRow row = row_of(question);
    const SpanPlace place = target(question, row, item.window);
    starts.push_back(place.start);
    ends.push_back(place.end);
    rows.push_back(row.row(item.window));
    f.tokens += rows.back().length();
  }
  const Shape shape{std::ssize(rows)};
  f.losses.loss = span_loss(logits(rows, pass), Tensor::from(starts, shape, run_.device),
                            Tensor::from(ends, shape, run_.device));
  f.counted = shape[0];
  return f;
}

std::vector<AnswerData::WindowScores> AnswerData::scores_of(
    std::span<const QuestionRow> rows) const {
  std::vector<Item> items;
  for (size_t q = 0; q < rows.size(); ++q) {
    for (size_t w = 0; w < rows[q].windows.size(); ++w) items.push_back({q, w});
  }
  std::vector<WindowScores> all(rows.size());
  const Evaluating silent(Evaluating::tokens());  // evaluate() says how far it is
  size_t at = 0;
  visit_alike(
      std::ssize(items), std::max<int64_t>(run_.config.batch, 1),
      [&](int64_t i) {
        const Item& item = items[static_cast<size_t>(i)];
        return rows[item.question].row(item.window);
      },
      [](const TextRow& row) { return row.length(); },
      [&](const std::vector<TextRow>& some) {
        const SpanLogits z = logits(some, Pass{});
        std::vector<std::vector<float>> starts = score_rows(cast(z.start, DType::f32));
        std::vector<std::vector<float>> ends = score_rows(cast(z.end, DType::f32));
        for (size_t b = 0; b < some.size(); ++b, ++at) {
          WindowScores& own = all[items[at].question];
          own.starts.push_back(std::move(starts[b]));
          own.ends.push_back(std::move(ends[b]));
        }
      });
  return all;
}

FoundAnswer AnswerData::found(const Question& question, const QuestionRow& row,
                              const WindowScores& scores) const {
  const AnswerOptions& o = task_.options();
  return find_answer(question.context, row.windows, row.pieces, scores.starts, scores.ends,
                     {.longest = o.longest, .no_answer = no_answer_, .threshold = o.threshold});
}

TaskData::Evaluation AnswerData::evaluate(const std::string& part) const {
  const NoGrad off;
  const EvaluatedRows<LabelledQuestion> questions(rows_[part_index(part)], run_.config.length);
  if (questions.empty()) return {std::nan(""), {}};
  SquadScores scores;
  Misses misses;
  Report r;
  r.rows.push_back({"id", "question", "label", "predicted", "probability", "no_answer"});
  double nats = 0;
  int64_t windows = 0;
  for (size_t begin = 0; begin < questions.size(); begin += together) {
    Evaluating::see(static_cast<int64_t>(begin), std::ssize(questions));
    const size_t end = std::min(begin + together, questions.size());
    std::vector<QuestionRow> rows;
    for (size_t i = begin; i < end; ++i) rows.push_back(row_of(questions[i].question));
    const std::vector<WindowScores> all = scores_of(rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      const LabelledQuestion& q = questions[begin + i];
      const FoundAnswer answer = found(q.question, rows[i], all[i]);
      const AnswerCandidate* best = best_text(answer);
      const AnswerCandidate* chosen = chosen_of(answer);
      scores.add(best != nullptr ? best->text : "", q.references, answer.null_difference);
      double own = 0;
      for (size_t w = 0; w < rows[i].windows.size() && !q.misplaced; ++w) {
        const SpanPlace place = target(q.question, rows[i], w);
        const auto length = std::ssize(all[i].starts[w]);
        const SpanLogits z{cast(Tensor::from(all[i].starts[w], {1, length}), DType::f64),
                           cast(Tensor::from(all[i].ends[w], {1, length}), DType::f64)};
        own += span_loss(z, Tensor::from(std::vector<int64_t>{place.start}, {1}),
                         Tensor::from(std::vector<int64_t>{place.end}, {1}))
                   .item();
        ++windows;
      }
      nats += own;
      const std::string right = q.references.empty() ? "" : q.references[0];
      r.rows.push_back({q.question.id, q.question.text,
                        to_string(Json(Json::Array(q.references.begin(), q.references.end()))),
                        answer.text,
                        chosen != nullptr ? fmt::format("{:.6f}", chosen->probability) : "",
                        no_answer_ ? fmt::format("{:.6f}", answer.null_difference) : ""});
      if (!answer_matches(answer.text, q.references) && !(answer.text.empty() && right.empty()))
        misses.add(own / static_cast<double>(rows[i].windows.size()),
                   fmt::format("{} as {}: {}", answer_in_words(right), answer_in_words(answer.text),
                               shortened(q.question.text)));
    }
  }
  add_figures(scores.figures(no_answer_ ? task_.options().threshold : 1), no_answer_, r);
  misses.report(r);
  const double mean = windows > 0 ? nats / static_cast<double>(windows) : std::nan("");
  return {mean / std::log(2.0), r};
}

std::vector<TaskData::Prediction> AnswerData::find_answers(
    const std::string& text, std::span<const std::string> questions) const {
  const NoGrad off;
  const SharedText context(text);
  const auto code_point = [&](int64_t byte) {
    return in_code_points(text, std::vector<TextSpan>{{byte, byte}})[0].begin;
  };
  std::vector<Prediction> all;
  for (const std::string& one : questions) {
    const Question question{.id = {}, .text = one, .context = context, .answers = {}};
    const std::vector<QuestionRow> rows{row_of(question)};
    const FoundAnswer answer = found(question, rows[0], scores_of(rows)[0]);
    const AnswerCandidate* chosen = chosen_of(answer);
    Prediction p{answer.text, chosen != nullptr ? chosen->probability : std::nan(""), {}};
    p.figures.emplace_back("answer", answer.text.empty() ? Json() : in_json(answer.text));
    if (chosen != nullptr) {
      p.figures.emplace_back("probability", chosen->probability);
      if (chosen->begin >= 0) {
        p.figures.emplace_back("start", code_point(chosen->begin));
        p.figures.emplace_back("end", code_point(chosen->begin + std::ssize(chosen->text)));
      }
    }
    if (no_answer_) p.figures.emplace_back("null_difference", answer.null_difference);
    Json::Array others;
    for (const AnswerCandidate& c : answer.candidates) {
      others.push_back(Json(Members{{"text", in_json(c.text)}, {"probability", c.probability}}));
    }
    p.figures.emplace_back("candidates", Json(std::move(others)));
    p.figures.emplace_back("windows", std::ssize(rows[0].windows));
    all.push_back(std::move(p));
  }
  return all;
}

}  // namespace longspan
