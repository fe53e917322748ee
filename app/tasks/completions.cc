#include "app/tasks/completions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "autograd/mode.h"
#include "core/error.h"
#include "hub/type.h"
#include "models/evaluate.h"

namespace longspan {
namespace {

/// Returns the id that ends a text, which may be the one behind a vocabulary.
int32_t end_of(const RowMaker& maker) {
  if (const int32_t named = maker.named_id("eos_token"); named >= 0) return named;
  const int32_t separator = maker.tokenizer().special().separator;
  return separator >= 0 ? separator : static_cast<int32_t>(maker.tokenizer().vocabulary());
}

}  // namespace

void CompletionTask::require_suited(const RunConfig& c, const LanguageModel& model) const {
  refuse_writers(c, model);
  if (suits(model)) return;
  refuse_without<ContinuesSequences>(
      c, model,
      fmt::format("{} asks for what follows a prompt, and {} continues nothing", c.task,
                  c.model_name));
}

TaskSizes CompletionTask::sizes(const RunConfig& c, const LanguageModel& /*model*/) const {
  const RowMaker maker(c.tokenizer);
  return {.vocabulary = std::max<int64_t>(maker.tokenizer().vocabulary(), end_of(maker) + 1)};
}

std::unique_ptr<const Tokenizer> CompletionTask::text_tokenizer(std::string_view given) const {
  return open_tokenizer(given.empty() ? "bytes" : std::string(given));
}

int64_t CompletionTask::end_token(const RunConfig& c) const {
  return end_of(RowMaker(c.tokenizer));
}

std::optional<HubTask> CompletionTask::hub_task() const { return HubTask::next_token; }

std::unique_ptr<TaskData> CompletionTask::open(const TrainingRun& run, bool reads) const {
  return std::make_unique<CompletionData>(run, *this, reads);
}

LanguageModel::Losses CompletionTask::synthetic_loss(const SyntheticStep& step) const {
  return synthetic_token_loss(step);
}

CompletionData::CompletionData(const TrainingRun& run, const CompletionTask& task, bool reads)
    : TableData(run, need<ContinuesSequences>(*run.model), RowMaker(run.config.tokenizer)),
      end_(end_of(maker_)) {
  const int64_t needed = std::max<int64_t>(maker_.tokenizer().vocabulary(), end_ + 1);
  require(run.model->vocab() >= needed, "model.vocab",
          "got {}; expected {} or more, the tokens of {} and one that ends a text",
          run.model->vocab(), needed,
          run.config.tokenizer.empty() ? "bytes" : run.config.tokenizer);
  if (!reads) return;
  rows_ = read_splits<CompletionExample>(
      run.config, task.sources(run.config),
      [](const TableSource& source) { return read_completions(source); });
}

CompletionData::Row CompletionData::row_of(const CompletionExample& text) const {
  Row row{maker_.tokenizer().encode(text.prompt + text.completion)};
  // The tokens of the prompt are as many as it has alone.
  const size_t asked = text.prompt.empty() ? 0 : maker_.tokenizer().encode(text.prompt).size();
  row.tokens.push_back(end_);
  const auto most = static_cast<size_t>(run_.config.length) + 1;
  row.cut = row.tokens.size() > most;
  row.tokens.resize(std::min(row.tokens.size(), most));
  // The first token follows nothing.
  row.begin = std::min(std::max<size_t>(asked, 1), row.tokens.size());
  return row;
}

/// Says how many texts are longer than a row, and leaves out those without anything to train on.
void CompletionData::prepare() {
  int64_t cut = 0, all = std::ssize(rows_[0]);
  const auto empty = std::erase_if(rows_[0], [&](const CompletionExample& text) {
    const Row row = row_of(text);
    cut += row.cut ? 1 : 0;
    return row.targets() == 0;
  });
  require(!rows_[0].empty(), "data",
          "{} has no text with a token to train on; {} of {} are cut at {} tokens, --length",
          data_name(run_.config), cut, all, run_.config.length);
  warn_of_cut(cut, all, "texts");
  if (empty > 0) {
    warnings_.push_back(
        fmt::format("{} of {} texts have nothing to train on and are left out", empty, all));
  }
}

Batch CompletionData::batch_of_rows(std::span<const Row> rows) const {
  size_t longest = 1;
  for (const Row& row : rows) longest = std::max(longest, row.tokens.size() - 1);
  std::vector<int32_t> tokens(rows.size() * longest, end_);
  std::vector<int32_t> targets(tokens.size(), ignored_target);
  for (size_t b = 0; b < rows.size(); ++b) {
    const Row& row = rows[b];
    for (size_t i = 0; i + 1 < row.tokens.size(); ++i) {
      tokens[b * longest + i] = row.tokens[i];
      if (i + 1 >= row.begin) targets[b * longest + i] = row.tokens[i + 1];
    }
  }
  const Shape shape{std::ssize(rows), static_cast<int64_t>(longest)};
  return {Tensor::from(tokens, shape, run_.device), Tensor::from(targets, shape, run_.device)};
}

TaskData::Forward CompletionData::forward(int64_t i, const SegmentMemory& memory, Pass pass) const {
  std::vector<Row> rows;
  Forward f;
  for (const CompletionExample& text : batch_of(rows_[0], run_, i)) {
    rows.push_back(row_of(text));
    f.tokens += std::ssize(rows.back().tokens) - 1;
  }
  const Batch batch = batch_of_rows(rows);
  f.losses = losses_of(run_, batch, memory, pass);
  f.counted = counted_targets(batch.targets);
  return f;
}

TaskData::Evaluation CompletionData::evaluate(const std::string& part) const {
  const NoGrad off;
  std::vector<Row> rows;
  std::vector<size_t> of;  // the text of each row
  const EvaluatedRows<CompletionExample> texts(rows_[part_index(part)], run_.config.length);
  for (size_t i = 0; i < texts.size(); ++i) {
    Row row = row_of(texts[i]);
    if (row.targets() == 0) continue;
    rows.push_back(std::move(row));
    of.push_back(i);
  }
  if (rows.empty()) return {std::nan(""), {}};
  Score all;
  Misses misses;
  Report r;
  r.rows.push_back({"prompt", "completion", "tokens", "loss"});
  size_t at = 0;
  visit_alike(
      std::ssize(rows), 1, [&](int64_t i) { return rows[static_cast<size_t>(i)]; },
      [](const Row& row) { return row.tokens.size(); },
      [&](const std::vector<Row>& some) {
        const Batch batch = batch_of_rows(some);
        const Score own = score(*run_.model, batch.tokens, batch.targets);
        all += own;
        const CompletionExample& text = texts[of[at++]];
        r.rows.push_back({text.prompt, text.completion, std::to_string(own.count),
                          fmt::format("{:.6f}", own.mean())});
        misses.add(own.mean(),
                   fmt::format("{} -> {}", shortened(text.prompt), shortened(text.completion)));
      });
  if (rows.size() < texts.size()) {
    r.lines.push_back(fmt::format("{} of {} texts have nothing that counts in a row (--length {})",
                                  texts.size() - rows.size(), texts.size(), run_.config.length));
  }
  add_scores(r, {{"perplexity", std::exp(all.mean())}});
  misses.report(r);
  return {all.bits(), r};
}

std::string CompletionData::decoded(std::span<const int32_t> ids) const {
  std::vector<int32_t> text;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(text),
               [&](int32_t id) { return id < maker_.tokenizer().vocabulary() && id != end_; });
  return maker_.tokenizer().decode(text);
}

}  // namespace longspan
