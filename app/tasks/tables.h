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

/// The value of such a task's option --columns.
inline constexpr const char* columns_meaning =
    "columns of the table where they have other names: text=review,label=stars";

/// Returns the files of --data by split: training, validation, test. Only the first two must have
/// labels. Throws IoError.
std::array<TableSource, 3> table_sources(const RunConfig& config, const DataSet& set,
                                         const std::string& columns);

/// A task whose data are tables.
template <class Capability>
class TableTask : public TaskFor<Capability> {
 public:
  using TaskFor<Capability>::TaskFor;

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
    return table_sources(config, this->set(), columns());
  }

  /// The table of a file whose rows need no labels.
  TableSource unlabelled(const std::string& path) const {
    return {{path}, columns().empty() ? ColumnNames{} : ColumnNames(columns()), false};
  }

 protected:
  /// The value of --columns.
  virtual const std::string& columns() const = 0;
};

/// Returns the order in which rows of a file are cut into splits: a number below `count`, that of
/// the row which comes at place `i`. It is the same in all runs.
int64_t row_at(int64_t i, int64_t count);

/// The examples of the three splits.
template <class Example>
using Splits = std::array<std::vector<Example>, 3>;

/// Reads the examples of all splits with read(source). Where no file is for validation, those for
/// training are cut into splits; a test split with files of its own keeps them. Neighbours that
/// together(a, b) says belong together come into the same split.
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
  std::vector<size_t> begins;  // of those that belong together
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
