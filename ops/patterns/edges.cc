#include "ops/patterns/edges.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <mutex>
#include <numeric>
#include <utility>

#include "autograd/mode.h"
#include "core/divide.h"
#include "core/error.h"
#include "core/graph.h"
#include "ops/copy.h"

namespace longspan {
namespace {

constexpr const char* kOp = "edge layout";
/// Pairs of a block whose rows are computed one by one, and of a part, at most unless a row has
/// more.
constexpr int64_t kBlockPairs = 512, kPartPairs = 32768;
/// Rows are computed together if their keys, as one list for all, are at most this many times as
/// many pairs as there are.
constexpr int64_t kWaste = 4;

Tensor host(const std::vector<int32_t>& numbers, int64_t width) {
  const Shape shape =
      width == 1 ? Shape{std::ssize(numbers)} : Shape{std::ssize(numbers) / width, width};
  Tensor t = Tensor::from(numbers, shape);
  t.storage().set_category(Category::cache);
  return t;
}

int32_t narrow(int64_t x) {
  require(x <= std::numeric_limits<int32_t>::max(), kOp, "{} does not fit in 32 bits", x);
  return static_cast<int32_t>(x);
}

/// The part of the number line that some runs cover.
struct Range {
  int64_t lo = std::numeric_limits<int64_t>::max(), hi = 0;
  void add(int64_t from, int64_t to) {
    lo = std::min(lo, from);
    hi = std::max(hi, to);
  }
  int64_t size() const { return std::max<int64_t>(hi - lo, 0); }
};

/// Cuts the rows into blocks, and the blocks into parts.
class Blocks {
 public:
  Blocks(const std::vector<EdgeRun>& runs, const std::vector<int64_t>& row_begin)
      : given_(runs), begin_(row_begin) {}

  /// Appends rows from .. to, which no other rows are computed together with.
  void append(int64_t from, int64_t to) {
    while (from < to) {
      const int64_t most = std::min(to - from, kernels::kEdgeBlockRows);
      const Size size = size_of(from, from + most);
      const bool together = most > 1 && most_runs(from, from + most) <= kernels::kEdgeBlockRuns &&
                            size.keys <= kernels::kEdgeBlockKeys &&
                            size.labels <= kernels::kEdgeBlockKeys && size.mixed == 0 &&
                            size.keys * kernels::kEdgeBlockRows <= kWaste * size.pairs;
      int64_t rows = most;
      if (!together) {
        rows = 1;
        while (rows < most && size_of(from, from + rows + 1).pairs <= kBlockPairs) ++rows;
      } else {
        keys_ = std::max(keys_, size.keys);
        labels_ = std::max(labels_, size.labels);
      }
      add(from, rows, together);
      from += rows;
    }
  }

  /// Blocks that read the same keys first come after each other, so that they find them in a cache:
  /// in a tree the spans after the leaves that they cover.
  void fill(EdgeLayout& to) {
    std::stable_sort(blocks_.begin(), blocks_.end(),
                     [](const Block& a, const Block& b) { return a.reach < b.reach; });
    std::vector<int32_t> blocks, parts;
    int64_t pairs = kPartPairs;
    for (const Block& block : blocks_) {
      if (pairs >= kPartPairs) {
        parts.push_back(narrow(std::ssize(blocks) / 5));
        pairs = 0;
      }
      pairs += block.pairs;
      blocks.insert(blocks.end(), block.numbers.begin(), block.numbers.end());
    }
    parts.push_back(narrow(std::ssize(blocks) / 5));
    to.blocks = host(blocks, 5);
    to.runs = host(runs_, 3);
    to.parts = host(parts, 1);
    to.rows = host(rows_, 2);
    to.block_keys = keys_;
    to.block_labels = labels_;
    to.pairs = pairs_;
  }

 private:
  struct Size {
    int64_t pairs = 0, keys = 0, labels = 0, mixed = 0;
  };
  int64_t runs_of(int64_t row) const {
    return begin_[static_cast<size_t>(row) + 1] - begin_[static_cast<size_t>(row)];
  }
  const EdgeRun& run(int64_t row, int64_t o) const {
    return given_[static_cast<size_t>(begin_[static_cast<size_t>(row)] + o)];
  }
  int64_t most_runs(int64_t from, int64_t to) const {
    int64_t most = 0;
    for (int64_t r = from; r < to; ++r) most = std::max(most, runs_of(r));
    return most;
  }
  struct Block {
    std::array<int32_t, 5> numbers;
    int64_t reach;  // the end of its first runs
    int64_t pairs;
  };

  /// Pairs of rows, and what they read together: keys and labels for each number of a run. `mixed`
  /// counts numbers where some runs have one label and others a list.
  Size size_of(int64_t from, int64_t to) const {
    Size size;
    for (int64_t o = 0; o < most_runs(from, to); ++o) {
      Range keys, labels;
      int64_t single = 0, lists = 0;
      for (int64_t r = from; r < to; ++r) {
        if (o >= runs_of(r) || run(r, o).keys == 0) continue;
        const EdgeRun& x = run(r, o);
        size.pairs += x.keys;
        keys.add(x.first, x.first + x.keys);
        if (x.label < 0) {
          ++single;
        } else {
          ++lists;
          labels.add(x.label, x.label + x.keys);
        }
      }
      size.keys += keys.size();
      size.labels += single + labels.size();
      size.mixed += single > 0 && lists > 0 ? 1 : 0;
    }
    return size;
  }

  void add(int64_t from, int64_t rows, bool together) {
    const int64_t runs = most_runs(from, from + rows);
    Block block{
        {narrow(from), narrow(rows), narrow(std::ssize(runs_) / 3), narrow(runs), together}, 0, 0};
    for (int64_t r = from; r < from + rows; ++r) {
      rows_.push_back(narrow(std::ssize(runs_) / 3));
      rows_.push_back(narrow(runs));
      if (runs_of(r) > 0) block.reach = std::max(block.reach, run(r, 0).first + run(r, 0).keys);
      for (int64_t o = 0; o < runs; ++o) {
        const EdgeRun x = o < runs_of(r) ? run(r, o) : EdgeRun{};
        for (const int64_t n : {x.first, x.keys, x.label}) runs_.push_back(narrow(n));
        block.pairs += x.keys;
      }
    }
    pairs_ += block.pairs;
    blocks_.push_back(block);
  }

  const std::vector<EdgeRun>& given_;
  const std::vector<int64_t>& begin_;
  std::vector<Block> blocks_;
  std::vector<int32_t> runs_, rows_;
  int64_t keys_ = 0, labels_ = 0, pairs_ = 0;
};

/// Cuts rows or keys into pieces.
class Pieces {
 public:
  /// Adds an owner whose runs, from `first` on, have these numbers of pairs.
  void add(int64_t owner, int64_t first, std::span<const int64_t> sizes) {
    const int64_t pairs = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    const int64_t count = std::max<int64_t>(1, ceil_div(pairs, kernels::kEdgePiecePairs));
    if (count > 1) append(cuts_, {owner, cut_, count});
    size_t run = 0;
    int64_t before = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t n = pairs * (i + 1) / count - pairs * i / count;
      append(pieces_,
             {owner, first + static_cast<int64_t>(run), before, n, count > 1 ? cut_++ : -1});
      for (before += n; run < sizes.size() && before >= sizes[run]; ++run) before -= sizes[run];
    }
  }
  void fill(Tensor& pieces, Tensor& cuts, int64_t& slots) const {
    pieces = host(pieces_, 5);
    cuts = host(cuts_, 3);
    slots = cut_;
  }

 private:
  static void append(std::vector<int32_t>& to, std::initializer_list<int64_t> numbers) {
    for (const int64_t x : numbers) to.push_back(narrow(x));
  }

  std::vector<int32_t> pieces_, cuts_;
  int64_t cut_ = 0;
};

/// The rows that attend to each key, as runs of rows in which the same run holds it.
class Sources {
 public:
  explicit Sources(int64_t keys) : of_key_(static_cast<size_t>(keys)) {}

  void add(int64_t row, int64_t number, int64_t key) {
    std::vector<Run>& list = of_key_[static_cast<size_t>(key)];
    if (!list.empty() && list.back().number == number &&
        list.back().first + list.back().rows == row) {
      ++list.back().rows;
    } else {
      list.push_back({row, 1, number});
    }
  }
  void fill(Tensor& sources, Pieces& pieces) const {
    std::vector<int32_t> all;
    std::vector<int64_t> sizes;
    for (size_t key = 0; key < of_key_.size(); ++key) {
      const int64_t first = std::ssize(all) / 3;
      sizes.clear();
      for (const Run& x : of_key_[key]) {
        sizes.push_back(x.rows);
        for (const int64_t n : {x.first, x.rows, x.number}) all.push_back(narrow(n));
      }
      pieces.add(static_cast<int64_t>(key), first, sizes);
    }
    sources = host(all, 3);
  }

 private:
  struct Run {
    int64_t first, rows, number;
  };
  std::vector<std::vector<Run>> of_key_;
};

/// Adds the tables for devices that compute rows and keys apart.
void add_pieces(EdgeLayout& to) {
  const std::vector<int32_t> rows = to.rows.to_vector<int32_t>(),
                             runs = to.runs.to_vector<int32_t>();
  Pieces row_pieces, key_pieces;
  Sources sources(to.n_keys);
  std::vector<int64_t> sizes;
  for (int64_t r = 0; r < to.n_rows; ++r) {
    const int32_t first = rows[static_cast<size_t>(r) * 2],
                  n = rows[static_cast<size_t>(r) * 2 + 1];
    sizes.clear();
    for (int32_t o = 0; o < n; ++o) {
      const int32_t* const run = runs.data() + static_cast<size_t>(first + o) * 3;
      sizes.push_back(run[1]);
      for (int32_t j = run[0]; j < run[0] + run[1]; ++j) sources.add(r, o, j);
    }
    row_pieces.add(r, first, sizes);
  }
  sources.fill(to.sources, key_pieces);
  row_pieces.fill(to.row_pieces, to.row_cuts, to.row_slots);
  key_pieces.fill(to.key_pieces, to.key_cuts, to.key_slots);
}

}  // namespace

kernels::EdgeTables EdgeLayout::view() const {
  kernels::EdgeTables tables;
  visit_tensors([](const Tensor& from, ConstView& to) { to = from ? from.view() : ConstView{}; },
                *this, tables);
  return tables;
}

std::vector<Edge> edges_of(const EdgeLayout& layout) {
  const std::vector<int32_t> rows = layout.rows.to_vector<int32_t>(),
                             runs = layout.runs.to_vector<int32_t>(),
                             labels = layout.labels.to_vector<int32_t>();
  std::vector<Edge> edges;
  for (int64_t r = 0; r < layout.n_rows; ++r) {
    const int32_t first = rows[static_cast<size_t>(r) * 2],
                  n = rows[static_cast<size_t>(r) * 2 + 1];
    for (int32_t o = 0; o < n; ++o) {
      const int32_t* run = runs.data() + static_cast<size_t>(first + o) * 3;
      for (int32_t t = 0; t < run[1]; ++t) {
        const int32_t label =
            run[2] < 0 ? -1 - run[2] : labels[static_cast<size_t>(run[2]) + static_cast<size_t>(t)];
        edges.push_back({r, run[0] + t, label});
      }
    }
  }
  return edges;
}

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

void EdgeLayoutBuilder::end_group() { groups_.push_back(std::ssize(row_begin_) - 1); }

std::shared_ptr<const EdgeLayout> EdgeLayoutBuilder::build(int64_t keys, int64_t labels) const {
  const int64_t rows = std::ssize(row_begin_) - 1;
  for (const int32_t x : labels_) {
    require(x >= 0 && x < labels, kOp, "label {}; expected 0 to {}", x, labels - 1);
  }
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int64_t r = 0; r < rows; ++r) {
    ranges.clear();
    for (int64_t i = row_begin_[static_cast<size_t>(r)]; i < row_begin_[static_cast<size_t>(r) + 1];
         ++i) {
      const EdgeRun& x = runs_[static_cast<size_t>(i)];
      require(x.keys >= 0 && x.first >= 0 && x.first + x.keys <= keys, kOp,
              "row {} has a run of {} keys from {} on; there are {}", r, x.keys, x.first, keys);
      require(x.label < 0 ? -1 - x.label < labels : x.label + x.keys <= std::ssize(labels_), kOp,
              "row {} has a run of {} keys whose labels begin at {} of {}", r, x.keys, x.label,
              std::ssize(labels_));
      if (x.keys > 0) ranges.emplace_back(x.first, x.first + x.keys);
    }
    std::sort(ranges.begin(), ranges.end());
    for (size_t i = 1; i < ranges.size(); ++i) {
      require(ranges[i - 1].second <= ranges[i].first, kOp, "row {} attends to key {} twice", r,
              ranges[i].first);
    }
  }

  auto layout = std::make_shared<EdgeLayout>();
  const NoGrad off;
  Blocks blocks(runs_, row_begin_);
  int64_t from = 0;
  for (const int64_t end : groups_) blocks.append(std::exchange(from, end), end);
  blocks.append(from, rows);
  blocks.fill(*layout);
  layout->labels = host(labels_, 1);
  layout->n_rows = rows;
  layout->n_keys = keys;
  layout->n_labels = labels;
  return layout;
}

std::shared_ptr<const EdgeLayout> on_device(const std::shared_ptr<const EdgeLayout>& layout,
                                            Device device) {
  // The meta device shares the layouts of the host.
  if (layout->runs.device() == device || device == meta_device) return layout;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (layout->copy != nullptr && layout->copy->runs.device() == device) {
    graph::keep(layout->copy);
    return layout->copy;
  }
  graph::refuse("layout",
                "it is not on the device yet; run the step once before, and where that does not "
                "help its layouts depend on its data");
  const NoGrad off;
  auto moved = std::make_shared<EdgeLayout>(*layout);
  moved->copy = nullptr;
  add_pieces(*moved);
  EdgeLayout::visit_tensors(
      [device](Tensor& t) {
        t = to_device(t, device);
        t.storage().set_category(Category::cache);
      },
      *moved);
  layout->copy = moved;
  return moved;
}

}  // namespace longspan
