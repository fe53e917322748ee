#include "ops/patterns/edges.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <mutex>
#include <numeric>
#include <span>
#include <tuple>
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

/// A set of integers, given as ranges. Its members are numbered in ascending order.
class NumberedSet {
 public:
  void clear() {
    ranges_.clear();
    size_ = 0;
  }
  void add(int64_t from, int64_t end) { ranges_.push_back({from, end, 0}); }
  /// Joins the ranges that were added. Call it before what follows.
  void join() {
    std::ranges::sort(ranges_, {}, &Range::from);
    size_t last = 0;
    for (size_t i = 1; i < ranges_.size(); ++i) {
      if (ranges_[i].from <= ranges_[last].end) {
        ranges_[last].end = std::max(ranges_[last].end, ranges_[i].end);
      } else {
        ranges_[++last] = ranges_[i];
      }
    }
    if (!ranges_.empty()) ranges_.resize(last + 1);
    for (Range& x : ranges_) x.number = std::exchange(size_, size_ + x.end - x.from);
  }
  int64_t size() const { return size_; }
  int64_t number_of(int64_t x) const {
    const Range& range = *--std::ranges::upper_bound(ranges_, x, {}, &Range::from);
    return range.number + x - range.from;
  }
  template <class F>
  void for_each(F&& f) const {
    for (const Range& x : ranges_) {
      for (int64_t i = x.from; i < x.end; ++i) f(i);
    }
  }

 private:
  struct Range {
    int64_t from, end, number;  // of the first member
  };
  std::vector<Range> ranges_;
  int64_t size_ = 0;
};

/// Cuts the rows into blocks, and the blocks into parts.
class Blocks {
 public:
  Blocks(const std::vector<EdgeRun>& runs, const std::vector<int64_t>& row_begin,
         const std::vector<int32_t>& labels)
      : given_(runs), begin_(row_begin), labels_(labels) {}

  /// Appends rows from .. to, which no other rows are computed together with.
  void append(int64_t from, int64_t to) {
    while (from < to) {
      const int64_t most = std::min(to - from, kernels::kEdgeBlockRows);
      int64_t rows = most;
      const bool together = most > 1 && share(from, from + most);
      if (!together) {
        rows = 1;
        while (rows < most && pairs_of(from, from + rows + 1) <= kBlockPairs) ++rows;
      }
      add(from, rows, together);
      from += rows;
    }
  }

  /// Blocks that read the same keys first come after each other, so that they find them in a cache:
  /// in a tree the spans after the leaves that they cover.
  void fill(EdgeLayout& to) {
    std::ranges::stable_sort(blocks_, {}, &Block::reach);
    std::vector<int32_t> blocks, parts;
    int64_t pairs = kPartPairs;
    for (const Block& block : blocks_) {
      if (pairs >= kPartPairs) {
        parts.push_back(narrow(std::ssize(blocks) / kernels::kEdgeBlockFields));
        pairs = 0;
      }
      pairs += block.pairs;
      blocks.insert(blocks.end(), block.fields.begin(), block.fields.end());
    }
    parts.push_back(narrow(std::ssize(blocks) / kernels::kEdgeBlockFields));
    to.blocks = host(blocks, kernels::kEdgeBlockFields);
    to.keys = host(keys_, 2);
    to.groups = host(groups_, 5);
    to.used_labels = host(used_labels_, 1);
    to.runs = host(runs_, 3);
    to.parts = host(parts, 1);
    to.rows = host(rows_, 2);
    to.block_keys = most_keys_;
    to.block_labels = most_labels_;
    to.pairs = pairs_;
  }

 private:
  struct Block {
    std::array<int32_t, kernels::kEdgeBlockFields> fields{};
    int64_t reach = 0;  // the end of its first runs
    int64_t pairs = 0;
  };
  /// Rows of a block that have this run.
  struct Group {
    EdgeRun run;
    int32_t rows;
  };
  /// Labels of a list are members of a set by their place, a label for all keys after those.
  static constexpr int64_t kSingleLabels = int64_t{1} << 40;
  static int64_t member_of(int64_t label) { return label < 0 ? kSingleLabels - 1 - label : label; }

  std::span<const EdgeRun> runs_of(int64_t row) const {
    const auto at = static_cast<size_t>(row);
    return std::span(given_).subspan(static_cast<size_t>(begin_[at]),
                                     static_cast<size_t>(begin_[at + 1] - begin_[at]));
  }
  int64_t pairs_of(int64_t from, int64_t to) const {
    int64_t pairs = 0;
    for (int64_t r = from; r < to; ++r) {
      for (const EdgeRun& x : runs_of(r)) pairs += x.keys;
    }
    return pairs;
  }

  /// Finds what rows from .. to read together, and returns whether that is worth it.
  bool share(int64_t from, int64_t to) {
    key_set_.clear();
    label_set_.clear();
    shared_.clear();
    for (int64_t r = from; r < to; ++r) {
      for (const EdgeRun& x : runs_of(r)) {
        if (x.keys == 0) continue;
        key_set_.add(x.first, x.first + x.keys);
        const int64_t label = member_of(x.label);
        label_set_.add(label, label + (x.label < 0 ? 1 : x.keys));
        shared_.push_back({x, 1 << (r - from)});
      }
    }
    key_set_.join();
    label_set_.join();
    return key_set_.size() > 0 && key_set_.size() <= kernels::kEdgeBlockKeys &&
           label_set_.size() <= kernels::kEdgeBlockKeys &&
           key_set_.size() * kernels::kEdgeBlockRows <= kWaste * pairs_of(from, to);
  }

  void add(int64_t from, int64_t rows, bool together) {
    int64_t runs = 0;
    for (int64_t r = from; r < from + rows; ++r) runs = std::max(runs, std::ssize(runs_of(r)));
    Block block;
    block.fields = {narrow(from), narrow(rows), narrow(std::ssize(runs_) / 3), narrow(runs)};
    if (together) add_shared(block);
    for (int64_t r = from; r < from + rows; ++r) {
      rows_.push_back(narrow(std::ssize(runs_) / 3));
      rows_.push_back(narrow(runs));
      const std::span<const EdgeRun> given = runs_of(r);
      if (!given.empty()) block.reach = std::max(block.reach, given[0].first + given[0].keys);
      for (int64_t o = 0; o < runs; ++o) {
        const EdgeRun x = o < std::ssize(given) ? given[static_cast<size_t>(o)] : EdgeRun{};
        for (const int64_t n : {x.first, x.keys, x.label}) runs_.push_back(narrow(n));
        block.pairs += x.keys;
      }
    }
    pairs_ += block.pairs;
    blocks_.push_back(block);
  }

  /// Adds what share() found.
  void add_shared(Block& block) {
    const auto first_key = std::ssize(keys_) / 2, first_group = std::ssize(groups_) / 5;
    key_set_.for_each([&](int64_t key) {
      keys_.push_back(narrow(key));
      keys_.push_back(0);
    });
    const auto place = [](const Group& x) {
      return std::tuple(x.run.first, x.run.keys, x.run.label);
    };
    std::ranges::sort(shared_, {}, place);
    for (size_t i = 0; i < shared_.size();) {
      const Group& group = shared_[i];
      int32_t rows = 0;
      for (; i < shared_.size() && place(shared_[i]) == place(group); ++i) rows |= shared_[i].rows;
      const int64_t key = key_set_.number_of(group.run.first);
      for (const int64_t n : {key, group.run.keys, label_set_.number_of(member_of(group.run.label)),
                              int64_t{group.run.label < 0 ? 0 : 1}, int64_t{rows}}) {
        groups_.push_back(narrow(n));
      }
      for (int64_t t = key; t < key + group.run.keys; ++t) {
        keys_[static_cast<size_t>(2 * (first_key + t) + 1)] |= rows;
      }
    }
    std::vector<int32_t> labels;
    label_set_.for_each([&](int64_t x) {
      labels.push_back(x >= kSingleLabels ? narrow(x - kSingleLabels)
                                          : labels_[static_cast<size_t>(x)]);
    });
    const auto [known, made] = label_lists_.emplace(labels, std::ssize(used_labels_));
    if (made) used_labels_.insert(used_labels_.end(), labels.begin(), labels.end());
    int32_t* to = block.fields.data() + 4;
    for (const int64_t n :
         {first_key, key_set_.size(), first_group, std::ssize(groups_) / 5 - first_group,
          known->second, label_set_.size()}) {
      *to++ = narrow(n);
    }
    most_keys_ = std::max(most_keys_, key_set_.size());
    most_labels_ = std::max(most_labels_, label_set_.size());
  }

  const std::vector<EdgeRun>& given_;
  const std::vector<int64_t>& begin_;
  const std::vector<int32_t>& labels_;
  NumberedSet key_set_, label_set_;
  std::vector<Group> shared_;
  std::map<std::vector<int32_t>, int64_t> label_lists_;
  std::vector<Block> blocks_;
  std::vector<int32_t> keys_, groups_, used_labels_, runs_, rows_;
  int64_t most_keys_ = 0, most_labels_ = 0, pairs_ = 0;
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
  Blocks blocks(runs_, row_begin_, labels_);
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
