#include "ops/patterns/layout_work.h"

#include <algorithm>

#include "core/divide.h"
#include "core/error.h"

namespace longspan {
namespace {

constexpr int64_t kUnit = kernels::kAttentionWorkKeys;
constexpr int64_t kGroup = kernels::kAttentionSplitKeys / kUnit;
constexpr int64_t kPieceRows = 32;
// Minimum size of a split: key steps of a tile, and 32-row pieces of a key step.
constexpr int64_t kLeastSteps = 12, kLeastPieces = 24;

using Indices = std::vector<int32_t>;

// The cost of a tile or key step of a member, and its rows or keys.
struct WorkItem {
  int64_t cost = 0, height = 0;
};

// A unit of the cost of an item: a step of a tile, or a tile of a step. A split that ends after
// this piece is followed by one that begins at `start` or earlier.
struct CostPiece {
  int64_t start, cost;
};

// A work item of a member, or one split of an item; `workspace`: offset in the member, -1 for a
// whole item.
struct WorkPiece {
  int64_t cost = 0;
  int32_t member = 0, place = 0, first = 0, end = kernels::kAllWork;
  int64_t workspace = -1;
};

// The splits of one item of a member; `workspace` is the workspace offset of the first.
struct Cut {
  int32_t member, place;
  int64_t workspace, splits;
};

// Returns the minimum cost of a split, see work_of(); 0 if nothing is to be cut.
int64_t split_of(const std::vector<WorkItem>& places, int64_t least, int64_t most_workspace) {
  int64_t all = 0;
  for (const WorkItem& p : places) all = std::max(all, p.cost);
  for (int64_t split = least;; split += ceil_div(split, 4)) {
    int64_t workspace = 0, longest = 0;
    for (const WorkItem& p : places) {
      const int64_t splits = std::max<int64_t>(p.cost / split, 1);
      longest = std::max(longest, ceil_div(p.cost, splits));
      if (splits > 1) workspace += splits * p.height;
    }
    if (3 * longest > 2 * all) return 0;
    if (workspace <= most_workspace) return split;
  }
}

// Cuts the cost pieces of an item into this many splits, or fewer if too many pieces begin
// together.
std::vector<WorkPiece> cut(const std::vector<CostPiece>& parts, int64_t cost, int64_t splits) {
  std::vector<WorkPiece> pieces(1);
  int64_t done = 0, last = 0;
  for (const CostPiece& p : parts) {
    const auto begun = static_cast<int64_t>(pieces.size());
    if (p.start > last && done * splits >= cost * begun) {
      pieces.back().end = static_cast<int32_t>(p.start);
      pieces.emplace_back().first = static_cast<int32_t>(p.start);
    }
    last = p.start;
    done += p.cost;
    pieces.back().cost += p.cost;
  }
  return pieces;
}

// Collects the pieces of all members.
class List {
 public:
  // Adds the items of the next member; parts_of(place) returns the cost pieces of item `place`,
  // ascending.
  template <class F>
  void add(const std::vector<WorkItem>& places, int64_t least, int64_t most_workspace, F parts_of) {
    const auto member = static_cast<int32_t>(workspaces_.size());
    const int64_t split = split_of(places, least, most_workspace);
    int64_t workspace = 0;
    for (size_t at = 0; at < places.size(); ++at) {
      const WorkItem& p = places[at];
      const auto place = static_cast<int32_t>(at);
      std::vector<WorkPiece> pieces(1);
      pieces[0].cost = p.cost;
      if (split > 0 && p.cost >= 2 * split) {
        pieces = cut(parts_of(place), p.cost, p.cost / split);
      }
      const bool whole = pieces.size() == 1;
      if (!whole) cuts_.push_back({member, place, workspace, static_cast<int64_t>(pieces.size())});
      for (WorkPiece& piece : pieces) {
        piece.member = member;
        piece.place = place;
        if (!whole) {
          piece.workspace = workspace;
          workspace += p.height;
        }
        pieces_.push_back(piece);
      }
    }
    workspaces_.push_back(workspace);
  }

  // Returns the pieces by descending cost, each repeated for all entries of `layout_index` that
  // name its member.
  kernels::AttentionWork<Tensor> finish(const Indices& which) {
    std::vector<Indices> entries(workspaces_.size());
    std::vector<int64_t> offset_of;  // workspace offset of each entry
    int64_t workspace = 0;
    for (const int32_t member : which) {
      entries[static_cast<size_t>(member)].push_back(static_cast<int32_t>(offset_of.size()));
      offset_of.push_back(workspace);
      workspace += workspaces_[static_cast<size_t>(member)];
    }
    require(workspace <= INT32_MAX, "layout", "its splits have {} rows, which is too many",
            workspace);
    std::stable_sort(pieces_.begin(), pieces_.end(),
                     [](const WorkPiece& a, const WorkPiece& b) { return a.cost > b.cost; });
    const auto at = [&](int32_t entry, int64_t place) {
      return static_cast<int32_t>(offset_of[static_cast<size_t>(entry)] + place);
    };
    Indices items, cuts;
    for (const WorkPiece& p : pieces_) {
      for (const int32_t entry : entries[static_cast<size_t>(p.member)]) {
        const int32_t own = p.workspace < 0 ? -1 : at(entry, p.workspace);
        items.insert(items.end(), {entry, p.place, p.first, p.end, own});
      }
    }
    for (const Cut& c : cuts_) {
      for (const int32_t entry : entries[static_cast<size_t>(c.member)]) {
        cuts.insert(cuts.end(),
                    {entry, c.place, at(entry, c.workspace), static_cast<int32_t>(c.splits)});
      }
    }
    const auto table = [](const Indices& numbers, int64_t fields) {
      return Tensor::from(numbers, {static_cast<int64_t>(numbers.size()) / fields, fields});
    };
    return {table(items, kernels::kWorkFields), table(cuts, kernels::kCutFields), workspace};
  }

 private:
  std::vector<WorkPiece> pieces_;
  std::vector<Cut> cuts_;
  std::vector<int64_t> workspaces_;
};

}  // namespace

kernels::AttentionWork<ConstView> view_of(const kernels::AttentionWork<Tensor>& work) {
  return {work.items.view(), work.cuts.view(), work.workspace};
}

LayoutWork work_of(const kernels::AttentionLayoutView& layout, int64_t queries, int64_t keys,
                   int64_t side_keys) {
  const auto* const first_tile = layout.first_tile.as<int32_t>();
  const auto* const tiles = layout.tiles.as<int32_t>();
  const auto* const start = layout.row_start.as<int32_t>();
  const int64_t main = ceil_div(keys, kUnit), steps = main + ceil_div(side_keys, kUnit);
  const int64_t most_workspace = (queries + keys + side_keys) / 8;
  // Calls f(from, end) for the ranges of steps that a tile touches, ascending.
  const auto touched = [&](int64_t t, auto f) {
    int64_t counted = 0;  // all steps below this one are counted
    for (int32_t r = start[t]; r < start[t + 1]; ++r) {
      const int32_t* const run = layout.runs.as<int32_t>() + kernels::kRunFields * r;
      const int64_t base = run[2] == 0 ? 0 : main, last = int64_t{run[0]} + run[1] - 1;
      const int64_t from = std::max(counted, base + run[0] / kUnit);
      counted = base + last / kUnit + 1;
      if (counted > from) f(from, counted);
    }
  };
  const auto pieces = [&](int64_t t) { return ceil_div(int64_t{tiles[2 * t + 1]}, kPieceRows); };
  List rows, columns;
  for (int64_t n = 0; n + 1 < layout.first_tile.dim(0); ++n) {
    const int64_t first = first_tile[n], end = first_tile[n + 1];
    std::vector<WorkItem> by_tile, by_step(static_cast<size_t>(steps), {0, kUnit});
    // The change of the cost from each step to the next.
    std::vector<int64_t> change(static_cast<size_t>(steps) + 1, 0);
    for (int64_t t = first; t < end; ++t) {
      by_tile.push_back({0, tiles[2 * t + 1]});
      touched(t, [&](int64_t from, int64_t to) {
        by_tile.back().cost += to - from;
        change[static_cast<size_t>(from)] += pieces(t);
        change[static_cast<size_t>(to)] -= pieces(t);
      });
    }
    int64_t cost = 0;
    for (size_t s = 0; s < by_step.size(); ++s) by_step[s].cost = cost += change[s];
    rows.add(by_tile, kLeastSteps, most_workspace, [&](int64_t tile) {
      std::vector<CostPiece> parts;
      touched(first + tile, [&](int64_t from, int64_t to) {
        for (int64_t s = from; s < to; ++s) {
          const int64_t base = s < main ? 0 : main;
          parts.push_back({base + round_down(s - base, kGroup), 1});
        }
      });
      return parts;
    });
    columns.add(by_step, kLeastPieces, most_workspace, [&](int64_t step) {
      std::vector<CostPiece> parts;
      for (int64_t t = first; t < end; ++t) {
        touched(t, [&](int64_t from, int64_t to) {
          if (from <= step && step < to) parts.push_back({t - first, pieces(t)});
        });
      }
      return parts;
    });
  }
  const auto* const entries_of = layout.layout_index.as<int32_t>();
  const Indices entries(entries_of, entries_of + layout.layout_index.numel());
  return {rows.finish(entries), columns.finish(entries)};
}

}  // namespace longspan
