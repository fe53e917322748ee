#include "app/tasks/summaries.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "data/sequence_pairs.h"
#include "hub/type.h"

namespace longspan {
namespace {

constexpr int64_t usual_target = 128;

}  // namespace

void SummaryTask::visit(Fields& v) {
  v("target_length", target_length_, range::between(0, range::many),
    "maximum tokens to write; 0: 128, or what the model has positions for");
  TableTask::visit(v);
}

void SummaryTask::visit_options(Fields& v) {
  v("start_id", form_.start, range::between(-1, range::many),
    "the decoder's first input; -1: the token that ends a text");
  v("forced_id", form_.forced, range::between(-1, range::many),
    "the first token that is written; -1: any");
  v("force_end", form_.force_end, "what is written ends, however long it is");
  v("last_first", form_.last_first,
    "the decoder's first input is the last token of the target, as in mBART");
}

void SummaryTask::require_suited(const RunConfig& c, const LanguageModel& model) const {
  if (suits(model)) return;
  refuse_without<WritesSequences>(
      c, model,
      fmt::format("{} has documents and summaries, and {} reads one sequence; choose an "
                  "encoder-decoder such as led or transformer:base",
                  c.task, c.model_name));
}

TaskSizes SummaryTask::sizes(const RunConfig& c, const LanguageModel& /*model*/) const {
  const RowMaker maker(c.tokenizer);
  if (maker.templated()) return {.vocabulary = maker.vocabulary()};
  return {.vocabulary = SequenceIds(maker.tokenizer()).vocabulary};
}

std::optional<HubTask> SummaryTask::hub_task() const { return HubTask::sequence; }

PairOptions SummaryTask::options(const LanguageModel& model) const {
  return {.target_length =
              target_length_ > 0 ? target_length_ : std::min(usual_target, model.max_length())};
}

void SummaryTask::require_search(const BeamSearch& search, const TrainingRun& run) const {
  if (search.beams == 0) return;
  const int64_t most = target_limit(run.config, *run.model, options(*run.model).target_length);
  longspan::require(search.min_count < most, "--min-tokens",
                    "got {}; texts of {} have at most {} tokens with their end: expected fewer",
                    search.min_count, run.config.model_name, most);
}

std::vector<std::string> SummaryTask::read_inputs(const std::string& table) const {
  std::vector<std::string> inputs;
  for (const SummaryExample& row : read_summaries(unlabelled(table)))
    inputs.push_back(row.document);
  return inputs;
}

std::unique_ptr<TaskData> SummaryTask::open(const TrainingRun& run, bool reads) const {
  std::array<std::vector<Document>, 3> documents;
  if (reads) {
    documents =
        read_splits<Document>(run.config, sources(run.config), [](const TableSource& source) {
          std::vector<Document> all;
          for (const SummaryExample& row : read_summaries(source)) {
            if (!row.summary) continue;
            all.push_back({.article = {row.document}, .summary = {*row.summary}});
          }
          return all;
        });
  }
  return std::make_unique<PairData>(run, options(*run.model), std::move(documents), form_);
}

LanguageModel::Losses SummaryTask::synthetic_loss(const SyntheticStep& step) const {
  return synthetic_pair_loss(step, options(step.model));
}

}  // namespace longspan
