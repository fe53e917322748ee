#include "app/tasks/tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <numeric>

#include "core/error.h"
#include "data/io/listed_files.h"
#include "hub/folder.h"
#include "hub/settings.h"
#include "ops/copy.h"
#include "ops/elementwise.h"

namespace longspan {
namespace {

constexpr uint64_t order_of_splits = 1;  // the order in which rows are cut into splits
constexpr size_t shown_texts = 3, shown_classes = 12;

}  // namespace

std::array<TableSource, 3> table_sources(const RunConfig& c, const DataSet& set,
                                         const std::string& columns) {
  const TableFiles files = find_tables(listed_paths(find_files(set, data_place(c)).at(0).path));
  const ColumnNames names = columns.empty() ? ColumnNames{} : ColumnNames(columns);
  return {TableSource{files.train, names, true}, TableSource{files.valid, names, true},
          TableSource{files.test, names, false}};
}

int64_t row_at(int64_t i, int64_t count) { return item_of_row(i, count, order_of_splits); }

EncoderInputs inputs_of(std::span<const TextRow> rows, const ReadsInputs& model, int32_t padding,
                        Device device) {
  const TextBatch batch = text_batch(rows, padding);
  EncoderInputs in{.tokens = to_device(batch.tokens, device)};
  if (!batch.equal) in.lengths = to_device(batch.lengths, device);
  if (batch.typed && model.token_types() > 1) in.types = to_device(batch.types, device);
  if (model.takes_global_tokens()) in.global = batch.global;
  return in;
}

void require_vocabulary(const TrainingRun& run, const RowMaker& maker) {
  const int64_t more = maker.vocabulary() - maker.tokenizer().vocabulary();
  for (const std::string& folder : {run.config.start.from, run.out}) {
    const bool silent = run.config.tokenizer.empty() && !folder.empty() && is_hub_folder(folder);
    require(!silent || has_tokenizer(folder), "tokenizer",
            "{} has none (tokenizer.json, vocab.txt, vocab.json, *.model), and none is named; "
            "expected --tokenizer, which may be bytes",
            folder);
  }
  require(run.model->vocab() >= maker.vocabulary(), "model.vocab",
          "got {}; expected {} or more, the tokens of {}{}", run.model->vocab(), maker.vocabulary(),
          run.config.tokenizer.empty() ? "bytes" : run.config.tokenizer,
          more > 1   ? " and those around texts"
          : more > 0 ? " and one before each text"
                     : "");
}

std::vector<float> to_floats(const Tensor& x) { return cast(x, DType::f32).to_vector<float>(); }

std::vector<double> softmax_of(std::span<const float> z) {
  const double most = *std::max_element(z.begin(), z.end());
  std::vector<double> p;
  for (const float value : z) p.push_back(std::exp(static_cast<double>(value) - most));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= sum;
  return p;
}

std::string without_tabs(std::string text) {
  std::replace(text.begin(), text.end(), '\t', ' ');
  return text;
}

std::string shortened(const std::string& text) {
  constexpr size_t longest = 60;
  std::string line = text.substr(0, longest);
  for (char& c : line) {
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  }
  return text.size() > longest ? line + "..." : line;
}

void Misses::add(double nats, std::string line) { misses_.push_back({nats, std::move(line)}); }

void Misses::report(TaskData::Report& report) {
  const size_t shown = std::min(shown_texts, misses_.size());
  std::partial_sort(misses_.begin(), misses_.begin() + static_cast<long>(shown), misses_.end(),
                    [](const Miss& a, const Miss& b) { return a.nats > b.nats; });
  for (size_t i = 0; i < shown; ++i) report.lines.push_back("furthest off: " + misses_[i].line);
}

void add_confusions(const ConfusionMatrix& matrix, const std::vector<std::string>& names,
                    TaskData::Report& report) {
  const auto count = static_cast<int32_t>(matrix.classes());
  for (int32_t label = 0; label < count; ++label) {
    for (int32_t c = 0; c < count; ++c) {
      report.confusions.push_back(static_cast<double>(matrix(label, c)));
    }
  }
  report.classes = names;
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

}  // namespace longspan
