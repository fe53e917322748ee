#include "ops/patterns/layout_spec.h"

#include <algorithm>

#include "core/divide.h"
#include "ops/patterns/layout_cache.h"

namespace longspan {
namespace {

// Run boundaries next to pairs that the rule decides are rounded to multiples of this.
constexpr int64_t kGranularity = 16;

// Adds partial [k0, full0), full [full0, full1) and partial [full1, k1); empty ranges are left out,
// and there is no full run if full0 >= full1.
void add_runs(int64_t k0, int64_t k1, int64_t full0, int64_t full1, std::vector<KeyRun>& runs) {
  if (k0 >= k1) return;
  full0 = std::clamp(full0, k0, k1);
  full1 = std::clamp(full1, k0, k1);
  if (full0 >= full1) {
    runs.push_back(run_of(k0, k1, RunKind::partial));
    return;
  }
  if (k0 < full0) runs.push_back(run_of(k0, full0, RunKind::partial));
  runs.push_back(run_of(full0, full1, RunKind::full));
  if (full1 < k1) runs.push_back(run_of(full1, k1, RunKind::partial));
}

// Adds the runs of a tile with positions first .. last, in which position p sees keys p - left .. p
// + right of [0, keys).
void add_band(int64_t first, int64_t last, int64_t left, int64_t right, int64_t keys,
              int64_t granularity, int64_t offset, std::vector<KeyRun>& runs) {
  const int64_t k0 =
      std::max<int64_t>(0, round_down(std::max<int64_t>(first - left, 0), granularity));
  const int64_t k1 = std::min(keys, round_up(std::min(last + right + 1, keys), granularity));
  int64_t full0 = last - left <= 0 ? 0 : round_up(last - left, granularity);
  int64_t full1 = first + right + 1 >= keys ? keys : round_down(first + right + 1, granularity);
  const size_t before = runs.size();
  add_runs(k0, k1, full0, full1, runs);
  for (size_t i = before; i < runs.size(); ++i) runs[i].k0 += static_cast<int32_t>(offset);
}

std::vector<TileRuns> band_tiles(const LayoutRequest& call) {
  std::vector<TileRuns> tiles;
  for (int64_t q0 = 0; q0 < call.queries; q0 += kernels::kAttentionTileRows) {
    const int64_t q1 = std::min(call.queries, q0 + kernels::kAttentionTileRows);
    tiles.push_back(tile_of(q0, q1));
    add_band(q0 + call.q_start, q1 - 1 + call.q_start, call.left, call.right, call.keys,
             kGranularity, 0, tiles.back().runs);
  }
  return tiles;
}

std::vector<TileRuns> block_tiles(const LayoutRequest& call) {
  const int64_t shift = call.q_start + call.layout_spec.key_start, block = call.layout_spec.block;
  std::vector<TileRuns> tiles;
  for (int64_t from = 0; from < call.queries;) {
    const int64_t number = floor_div(from + shift, block);
    const int64_t to = std::min(call.queries, (number + 1) * block - shift);
    const int64_t height = tile_height(to - from, kRowGroup);
    for (int64_t q0 = from; q0 < to; q0 += height) {
      const int64_t q1 = std::min(to, q0 + height);
      tiles.push_back(tile_of(q0, q1));
      const int64_t k0 = std::max<int64_t>(0, (number - 1) * block - call.layout_spec.key_start);
      const int64_t k1 =
          std::min(call.keys, round_up(std::min(q1 + call.q_start, call.keys), kGranularity));
      add_runs(k0, k1, k0, std::min(call.keys, q0 + call.q_start + 1), tiles.back().runs);
    }
    from = to;
  }
  return tiles;
}

struct Classes {
  std::vector<int32_t> order;
  std::vector<int64_t> start;  // start of each class, and the end
};

// Returns the indices 0 .. count, whose positions are index + first, grouped by residue class.
Classes residue_classes(int64_t count, int64_t first, int64_t stride) {
  Classes c;
  for (int64_t residue = 0; residue < stride; ++residue) {
    c.start.push_back(static_cast<int64_t>(c.order.size()));
    const int64_t shift = (residue - first) - round_down(residue - first, stride);
    for (int64_t i = shift; i < count; i += stride) c.order.push_back(static_cast<int32_t>(i));
  }
  c.start.push_back(count);
  return c;
}

std::shared_ptr<const BlockLayout> class_layout(const LayoutRequest& call) {
  const int64_t queries = call.queries, keys = call.keys, stride = call.stride;
  const Classes q = residue_classes(queries, call.q_start, stride);
  const Classes k = residue_classes(keys, 0, stride);
  std::vector<TileRuns> tiles;
  for (size_t c = 0; c < static_cast<size_t>(stride); ++c) {
    for (int64_t q0 = q.start[c]; q0 < q.start[c + 1]; q0 += kernels::kAttentionTileRows) {
      const int64_t q1 = std::min(q.start[c + 1], q0 + kernels::kAttentionTileRows);
      tiles.push_back(tile_of(q0, q1));
      const auto number = [&](int64_t at) {
        return floor_div(q.order[static_cast<size_t>(at)] + call.q_start, stride);
      };
      add_band(number(q0), number(q1 - 1), call.left, call.right, k.start[c + 1] - k.start[c], 1,
               k.start[c], tiles.back().runs);
    }
  }
  return make_layout(
      queries, keys, {tiles},
      {.order_q = Tensor::from(q.order, {queries}), .order_k = Tensor::from(k.order, {keys})});
}

void add_run(int64_t k0, int64_t k1, RunKind kind, std::vector<KeyRun>& runs) {
  if (k0 >= k1) return;
  if (kind == RunKind::full && !runs.empty() && runs.back().kind == kind &&
      runs.back().k0 + runs.back().kn == k0) {
    runs.back().kn += static_cast<int32_t>(k1 - k0);
    return;
  }
  runs.push_back(run_of(k0, k1, kind));
}

// Returns the runs of the rows of block `number`, up to key `last`.
std::vector<KeyRun> fixed_runs(int64_t number, int64_t last, const LayoutSpec& r) {
  std::vector<KeyRun> runs;
  for (int64_t start = 0; start < number * r.block && start <= last; start += r.block) {
    const int64_t k0 = start + r.first_column;
    add_run(k0, std::min(k0 + r.columns, last + 1), RunKind::full, runs);
  }
  const int64_t start = number * r.block;
  const int64_t k0 = r.own_block ? start : start + r.first_column;
  const int64_t k1 = r.own_block ? start + r.block : k0 + r.columns;
  add_run(k0, std::min(k1, last + 1), RunKind::partial, runs);
  return runs;
}

// The rows of a tile belong to one block, so that its runs are the columns of earlier blocks (full)
// and a range of the own block, which the causal rule limits.
std::vector<TileRuns> fixed_tiles(const LayoutRequest& call) {
  const int64_t q_start = call.q_start, block = call.layout_spec.block;
  std::vector<TileRuns> tiles;
  for (int64_t from = 0; from < call.queries;) {
    const int64_t position = from + q_start;  // negative if there are fewer keys than queries
    const int64_t number = position < 0 ? -1 : position / block;
    const int64_t to = std::min(call.queries, (number + 1) * block - q_start);
    const int64_t height = tile_height(to - from);
    for (int64_t q0 = from; q0 < to; q0 += height) {
      const int64_t q1 = std::min(to, q0 + height);
      tiles.push_back(tile_of(q0, q1));
      if (number >= 0) {
        tiles.back().runs =
            fixed_runs(number, std::min(q1 + q_start, call.keys) - 1, call.layout_spec);
      }
    }
    from = to;
  }
  return tiles;
}

std::shared_ptr<const BlockLayout> build(const LayoutRequest& call) {
  if (call.layout_spec.kind == LayoutSpec::Kind::classes) return class_layout(call);
  const auto tiles = [&call] {
    switch (call.layout_spec.kind) {
      case LayoutSpec::Kind::blocks:
        return block_tiles(call);
      case LayoutSpec::Kind::fixed:
        return fixed_tiles(call);
      default:
        return band_tiles(call);
    }
  };
  return make_layout(call.queries, call.keys, {tiles()});
}

}  // namespace

std::shared_ptr<const BlockLayout> layout_of(const LayoutRequest& call) {
  const LayoutSpec& r = call.layout_spec;
  LayoutKey key("layout_spec");
  for (const int64_t n : {static_cast<int64_t>(r.kind), r.block, r.key_start, r.first_column,
                          r.columns, int64_t{r.own_block}, call.queries, call.keys, call.q_start,
                          call.left, call.right, call.stride}) {
    key.add(n);
  }
  return cached_layout(key, [&call] { return build(call); });
}

}  // namespace longspan
