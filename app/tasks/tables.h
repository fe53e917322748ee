#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/tasks/task_data.h"
#include "core/error.h"
#include "data/corpus.h"
#include "data/labelled/examples.h"
#include "data/labelled/rows.h"
#include "data/scores/classes.h"

namespace longspan {

// What tasks over tables of labelled examples (data/labelled/examples.h) have in common.

/// Returns the files of --data by split: training, validation, test. Only the first two must have
/// labels. Throws IoError.
std::array<TableSource, 3> table_sources(const RunConfig& config, const DataSet& set,
                                         const std::string& columns);

/// A task whose data are tables.
template <class Capability>
class TableTask : public TaskFor<Capability> {
 public:
  using TaskFor<Capability>::TaskFor;

  void visit(Fields& v) override {
    v.enter("labelled");
    v("columns", columns_,
      "columns of the table where they have other names: text=review,label=stars");
    visit_options(v);
    v.leave();
  }
  void require_suited(const RunConfig& config, const LanguageModel& model) const override {
    refuse_writers(config, model);
    if (implements<Capability>(model) != nullptr) return;
    refuse_without<Capability>(config, model,
                               fmt::format("{} asks for {}, and {} has no head for them",
                                           config.task, wanted(), config.model_name));
  }

  std::vector<std::string> paths(const RunConfig& config) const final {
    std::vector<std::string> all;
    for (const TableSource& source : sources(config)) {
      all.insert(all.end(), source.paths.begin(), source.paths.end());
    }
    return all;
  }
  bool takes_tokenizer() const final { return true; }
  bool cuts_files(bool /*apart*/) const final { return true; }
  std::vector<std::string> order_keys() const override { return {"labelled.columns"}; }
  std::vector<std::string> function_keys() const override { return {"labelled."}; }

  /// The tables of the three splits.
  std::array<TableSource, 3> sources(const RunConfig& config) const {
    return table_sources(config, this->set(), columns_);
  }

  /// The table of a file whose rows need no labels.
  TableSource unlabelled(const std::string& path) const {
    return {{path}, columns_.empty() ? ColumnNames{} : ColumnNames(columns_), false};
  }

 protected:
  /// Names the options besides `columns`.
  virtual void visit_options(Fields& /*v*/) {}
  /// What the task asks a model for, as in "a tag of each word".
  virtual std::string_view wanted() const { return Capability::capability; }

 private:
  std::string columns_;  ///< ColumnNames
};

/// Returns the row, of `count`, at place `i` of the order in which rows of a file are cut into
/// splits. The order never changes.
int64_t row_at(int64_t i, int64_t count);

/// The examples of the three splits.
template <class Example>
using Splits = std::array<std::vector<Example>, 3>;

/// Reads the examples of all splits with read(source). Where no file is for validation, those for
/// training are cut into splits; a test split with files of its own keeps them. Neighbours with
/// together(a, b) stay in one split.
template <class Example>
Splits<Example> read_splits(const RunConfig& config, const std::array<TableSource, 3>& sources,
                            const auto& read, const auto& together) {
  Splits<Example> parts;
  for (size_t part = 0; part < 3; ++part) {
    if (!sources[part].paths.empty()) parts[part] = read(sources[part]);
  }
  const std::vector<std::string>& validation = sources[1].paths;
  require<IoError>(validation.empty() || !parts[1].empty(), "data",
                   "{} has no row that can be validated with",
                   validation.empty() ? "" : validation[0]);
  require(validation.empty() || config.split.empty(), "--split",
          "is for data whose files are not the splits, and {} is for validation; leave it out",
          validation.empty() ? "" : validation[0]);
  if (!parts[1].empty()) return parts;
  const std::vector<Example> all = std::move(parts[0]);
  std::vector<size_t> begins;  // of groups that stay together
  for (size_t i = 0; i < all.size(); ++i) {
    if (i == 0 || !together(all[i - 1], all[i])) begins.push_back(i);
  }
  if (begins.size() < 3) {  // too few to be split
    begins.resize(all.size());
    std::iota(begins.begin(), begins.end(), size_t{0});
  }
  const auto count = static_cast<int64_t>(begins.size());
  begins.push_back(all.size());
  const auto cuts = split_of(config)->cuts(count);
  const bool tested = !parts[2].empty();  // by files of its own: all others are for the rest
  const int64_t bounds[] = {0, cuts[0], tested ? count : cuts[1], count};
  for (size_t part = 0; part < 3; ++part) {
    if (part == 2 && tested) continue;
    parts[part].clear();
    for (int64_t i = bounds[part]; i < bounds[part + 1]; ++i) {
      const auto group = static_cast<size_t>(row_at(i, count));
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(begins[group]);
      const auto to = all.begin() + static_cast<std::ptrdiff_t>(begins[group + 1]);
      parts[part].insert(parts[part].end(), from, to);
    }
  }
  return parts;
}
template <class Example>
Splits<Example> read_splits(const RunConfig& config, const std::array<TableSource, 3>& sources,
                            const auto& read) {
  return read_splits<Example>(config, sources, read,
                              [](const Example&, const Example&) { return false; });
}

/// Returns the examples of a split that `run` trains on with batch `i`.
template <class Example>
std::vector<Example> batch_of(const std::vector<Example>& all, const TrainingRun& run, int64_t i) {
  std::vector<Example> some;
  for (int64_t b = 0; b < run.config.batch; ++b) {
    const int64_t at = item_of_row(run.samples_before(i) + b, std::ssize(all), run.config.seed);
    some.push_back(all[static_cast<size_t>(at)]);
  }
  return some;
}

/// Returns rows as the inputs of a model: with lengths if they differ, with types and global tokens
/// if the model takes them.
EncoderInputs inputs_of(std::span<const TextRow> rows, const ReadsInputs& model, int32_t padding,
                        Device device);

/// The data of a run of a TableTask.
template <class Capability, class Example>
class TableData : public TaskData {
 public:
  const std::vector<std::string>& warnings() const final { return warnings_; }
  int64_t size(const std::string& part) const final { return std::ssize(rows_[part_index(part)]); }
  double bits(const std::string& part) const final { return evaluate(part).bits; }
  std::vector<int32_t> first_tokens(int64_t count) const final {
    const std::vector<Example>& all = rows_[1].empty() ? rows_[0] : rows_[1];
    if (all.empty()) return {};
    std::vector<int32_t> tokens = tokens_of(all[0]);
    tokens.resize(std::min(tokens.size(), static_cast<size_t>(count)));
    return tokens;
  }

 protected:
  TableData(const TrainingRun& run, const Capability& model, RowMaker maker)
      : run_(run), model_(model), maker_(std::move(maker)) {}
  /// The tokens of an example, or the first row of them.
  virtual std::vector<int32_t> tokens_of(const Example& example) const = 0;
  /// Warns if `cut` of `all` examples are longer than a row. `items`: what they are, as in "texts".
  void warn_of_cut(int64_t cut, int64_t all, std::string_view items) {
    if (cut == 0) return;
    warnings_.push_back(fmt::format("{} of {} {} are cut at {} tokens, --length", cut, all, items,
                                    run_.config.length));
  }

  const TrainingRun& run_;
  const Capability& model_;
  RowMaker maker_;
  Splits<Example> rows_;
  std::vector<std::string> warnings_;
};

/// The number of classes to plan with: those of the data, or two before they are known.
inline int64_t label_count(const std::vector<std::string>& labels) {
  return labels.empty() ? 2 : std::ssize(labels);
}

/// Throws ValueError unless a model's vocabulary has all ids of rows.
void require_vocabulary(const TrainingRun& run, const RowMaker& maker);

/// Returns the logits as f32.
std::vector<float> to_floats(const Tensor& x);
/// Returns the probabilities of classes.
std::vector<double> softmax_of(std::span<const float> logits);

/// Returns a text without tabs, which separate the fields of an input.
std::string without_tabs(std::string text);

/// Returns the beginning of a text, on one line.
std::string shortened(const std::string& text);

/// Collects the examples that a model was furthest off at.
class Misses {
 public:
  /// Adds an example with its loss.
  void add(double nats, std::string line);
  /// Adds the worst ones to the lines of a report.
  void report(TaskData::Report& report);

 private:
  struct Miss {
    double nats;
    std::string line;
  };
  std::vector<Miss> misses_;
};

/// Adds a table of confusions, for the picture of it and, of few classes, in lines: for each label
/// how often each class was predicted.
void add_confusions(const ConfusionMatrix& matrix, const std::vector<std::string>& names,
                    TaskData::Report& report);

/// Puts figures in front of the lines of a report.
void add_scores(TaskData::Report& report,
                const std::vector<std::pair<std::string, double>>& scores);

}  // namespace longspan
