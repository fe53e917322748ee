#include "ops/patterns/edge_builder.h"

#include <algorithm>
#include <utility>

#include "autograd/mode.h"
#include "core/error.h"
#include "ops/patterns/edge_blocks.h"

namespace longspan {
namespace {

constexpr const char* kEdgeLayout = "edge layout";

}  // namespace

int64_t EdgeLayoutBuilder::label_list(std::span<const int32_t> labels) {
  const auto [at, made] =
      lists_.emplace(std::vector<int32_t>(labels.begin(), labels.end()), std::ssize(labels_));
  if (made) labels_.insert(labels_.end(), labels.begin(), labels.end());
  return at->second;
}

void EdgeLayoutBuilder::add_row(std::span<const EdgeRun> runs) {
  runs_.insert(runs_.end(), runs.begin(), runs.end());
  row_begin_.push_back(std::ssize(runs_));
}

void EdgeLayoutBuilder::start_block() { starts_.push_back(std::ssize(row_begin_) - 1); }

void EdgeLayoutBuilder::end_group() { groups_.push_back(std::ssize(row_begin_) - 1); }

std::shared_ptr<const EdgeLayout> EdgeLayoutBuilder::build(int64_t keys, int64_t labels) const {
  const int64_t rows = std::ssize(row_begin_) - 1;
  for (const int32_t x : labels_) {
    require(x >= 0 && x < labels, kEdgeLayout, "label {}; expected 0 to {}", x, labels - 1);
  }
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int64_t r = 0; r < rows; ++r) {
    ranges.clear();
    for (int64_t i = row_begin_[static_cast<size_t>(r)]; i < row_begin_[static_cast<size_t>(r) + 1];
         ++i) {
      const EdgeRun& x = runs_[static_cast<size_t>(i)];
      require(x.keys >= 0 && x.first >= 0 && x.first + x.keys <= keys, kEdgeLayout,
              "row {} has a run of {} keys from {} on; there are {}", r, x.keys, x.first, keys);
      require(x.label < 0 ? -1 - x.label < labels : x.label + x.keys <= std::ssize(labels_),
              kEdgeLayout, "row {} has a run of {} keys whose labels begin at {} of {}", r, x.keys,
              x.label, std::ssize(labels_));
      if (x.keys > 0) ranges.emplace_back(x.first, x.first + x.keys);
    }
    std::sort(ranges.begin(), ranges.end());
    for (size_t i = 1; i < ranges.size(); ++i) {
      require(ranges[i - 1].second <= ranges[i].first, kEdgeLayout,
              "row {} attends to key {} twice", r, ranges[i].first);
    }
  }

  auto layout = std::make_shared<EdgeLayout>();
  const NoGrad off;
  detail::EdgeBlocks blocks(runs_, row_begin_, labels_);
  int64_t from = 0;
  for (const int64_t end : groups_) blocks.append(std::exchange(from, end), end, starts_);
  blocks.append(from, rows, starts_);
  blocks.fill(*layout);
  layout->labels = detail::edge_table(labels_, 1);
  layout->n_rows = rows;
  layout->n_keys = keys;
  layout->n_labels = labels;
  return layout;
}

}  // namespace longspan
