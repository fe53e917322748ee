#include "ops/patterns/edges.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <mutex>
#include <numeric>
#include <span>
#include <utility>

#include "autograd/mode.h"
#include "core/divide.h"
#include "core/error.h"
#include "core/graph.h"
#include "ops/copy.h"

namespace longspan {
namespace {

using detail::edge_number, detail::edge_table;

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
    pieces = edge_table(pieces_, 5);
    cuts = edge_table(cuts_, 3);
    slots = cut_;
  }

 private:
  static void append(std::vector<int32_t>& to, std::initializer_list<int64_t> numbers) {
    for (const int64_t x : numbers) to.push_back(edge_number(x));
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
        for (const int64_t n : {x.first, x.rows, x.number}) all.push_back(edge_number(n));
      }
      pieces.add(static_cast<int64_t>(key), first, sizes);
    }
    sources = edge_table(all, 3);
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

Tensor detail::edge_table(const std::vector<int32_t>& numbers, int64_t width) {
  const Shape shape =
      width == 1 ? Shape{std::ssize(numbers)} : Shape{std::ssize(numbers) / width, width};
  Tensor t = Tensor::from(numbers, shape);
  t.storage().set_category(Category::cache);
  return t;
}

int32_t detail::edge_number(int64_t x) {
  require(x <= std::numeric_limits<int32_t>::max(), "edge layout", "{} does not fit in 32 bits", x);
  return static_cast<int32_t>(x);
}

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
