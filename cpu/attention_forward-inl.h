// Forward of block attention, for one SIMD target and one dtype of computation.

#if defined(LONGSPAN_CPU_ATTENTION_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_ATTENTION_FORWARD_INL_H_
#undef LONGSPAN_CPU_ATTENTION_FORWARD_INL_H_
#else
#define LONGSPAN_CPU_ATTENTION_FORWARD_INL_H_
#endif

#include <hwy/highway.h>

#include <vector>

#include "core/parallel.h"
#include "cpu/attention_plan.h"
#include "cpu/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

// How far (in powers of two) a row's scores may rise above its reference before sums are rescaled.
constexpr double kSlack = 8;

template <class T>
struct Forward {
  const AttentionInputs& in;
  View out, lse;
  RelationPanels<T> relations;

  void run(const AttentionTask& task) const;
};

// Blocks of keys that a task needs, and where each is packed.
struct BlockSlots {
  int64_t first = 0;
  std::vector<int32_t> slot;  // per block from `first` on; -1: not needed
  int64_t count = 0;
};

BlockSlots find_blocks(const AttentionHead& head, const AttentionTask& task, int64_t keys) {
  BlockSlots blocks;
  std::vector<KeyRange> ranges;
  int64_t from = keys, to = 0;
  for (int64_t t = task.tile; t < task.tile_end; ++t) {
    const KeyRange e = head.extent(t);
    if (e.k0 == e.k1) continue;
    from = std::min(from, e.k0);
    to = std::max(to, e.k1);
  }
  if (from >= to) return blocks;
  blocks.first = from / kBlock;
  blocks.slot.assign(static_cast<size_t>(ceil_div(to, kBlock) - blocks.first), -1);
  for (int64_t t = task.tile; t < task.tile_end; ++t) {
    head.ranges(t, 0, keys, ranges);
    for (const KeyRange& k : ranges) {
      for (int64_t block = k.k0 / kBlock; block * kBlock < k.k1; ++block) {
        int32_t& slot = blocks.slot[static_cast<size_t>(block - blocks.first)];
        if (slot < 0) slot = static_cast<int32_t>(blocks.count++);
      }
    }
  }
  return blocks;
}

template <class T>
void Forward<T>::run(const AttentionTask& task) const {
  constexpr int64_t N = kPanel<T>;
  constexpr int64_t V = kLanes<T>;
  const Tag<T> d;
  const T infinity = std::numeric_limits<T>::infinity();
  const AttentionHead head(in, task.b, task.h);
  const int64_t keys = in.k.dim(2), width = in.q.dim(3), value_width = in.v.dim(3);
  const int64_t width_panels = ceil_div(width, N), value_panels = ceil_div(value_width, N);
  const int64_t last_columns = width - (width_panels - 1) * N;
  const RowSource<T> q = head_rows<T>(in.q, task.b, task.h, head.order_q);
  const RowSource<T> k = head_rows<T>(in.k, task.b, task.h, head.order_k);
  const RowSource<T> v = head_rows<T>(in.v, task.b, task.h, head.order_k);
  const RowSink<T> sink = head_sink<T>(out, task.b, task.h, head.order_q);
  T* const row_lse = lse.as<T>() + (task.b * in.q.dim(1) + task.h) * in.q.dim(2);
  const T scale = static_cast<T>(in.terms.scale * kLog2E);

  const BlockSlots blocks = find_blocks(head, task, keys);
  const int64_t key_block = kBlock * width, value_block = kBlock * value_panels * N;
  const Buffer<T> key_panels(blocks.count * key_block);
  const Buffer<T> value_rows(blocks.count * value_block);
  for (size_t i = 0; i < blocks.slot.size(); ++i) {
    if (blocks.slot[i] < 0) continue;
    const int64_t key = (blocks.first + static_cast<int64_t>(i)) * kBlock;
    const int64_t count = std::min(kBlock, keys - key);
    pack_block_columns(k, key, count, key_panels.data() + blocks.slot[i] * key_block);
    pack_rows(v, key, count, count, T{1}, value_rows.data() + blocks.slot[i] * value_block, kBlock);
  }

  const Buffer<T> q_rows(width_panels * kTileRows * N);
  const Buffer<T> sums(value_panels * kTileRows * N);  // of P V
  const Buffer<T> scores(kTileRows * kScoreStride);
  const Buffer<T> totals(kTileRows * V);  // of P, by lane
  const bool shift = relations.key_columns != nullptr || relations.bias != nullptr;
  const bool carry = relations.value_rows != nullptr;
  Relation<T> relation = relations.shape;
  const Buffer<T> table(shift ? kTileRows * relation.stride : 0);
  const Buffer<T> bins(carry ? kTileRows * relation.stride : 0);
  const Buffer<T> bin_panels(carry ? relation.padded() * kTileRows : 0);
  const KeepRow<T> keep(in.dropout, task.b * in.q.dim(1) + task.h);
  alignas(64) T keep_row[KeepRow<T>::kRoom];
  T reference[kTileRows];
  alignas(64) T row_out[kMaxWidth + N];
  std::vector<KeyRange> ranges;
  Visible all, seen;

  for (int64_t t = task.tile; t < task.tile_end; ++t) {
    const int64_t row = head.tile_row(t), rows = head.tile_rows(t);
    const int64_t padded = round_up(rows, kRest);
    pack_rows(q, row, rows, padded, scale, q_rows.data(), kTileRows);
    std::fill_n(sums.data(), value_panels * kTileRows * N, T{0});
    std::fill_n(totals.data(), kTileRows * V, T{0});
    std::fill_n(reference, kTileRows, -infinity);
    head.ranges(t, 0, keys, ranges);
    if ((shift || carry) && !ranges.empty()) {
      const int64_t position = row + head.q_start;
      relation.reach(ranges.front().k0 - (position + rows - 1), ranges.back().k1 - 1 - position);
      if (shift) {
        relation_table(relation, padded, q_rows.data(), width, relations.key_columns_of(task.h),
                       relations.bias_of(task.h), table.data());
      }
      if (carry) clear_sums(relation, rows, bins.data());
    }

    for (const KeyRange& range : ranges) {
      head.visible(t, range, all.lo, all.hi);
      unite(rows, all);
      for (int64_t block = all.all_first / kBlock; block * kBlock < all.all_last; ++block) {
        const int64_t origin = block * kBlock;
        const int64_t slot = blocks.slot[static_cast<size_t>(block - blocks.first)];
        clip(all, rows, origin, std::min(kBlock, keys - origin), seen);

        // S = Q K^T, only panels that a group of rows sees
        for (int64_t j = seen.all_first / N * N; j < seen.all_last; j += N) {
          const T* panel = key_panels.data() + slot * key_block + j * width;
          for (int64_t g = 0; g * kGroup < rows; ++g) {
            if (seen.first[g] >= j + N || seen.last[g] <= j) continue;
            product<N>(std::min(kGroup, padded - g * kGroup), q_rows.data() + g * kGroup * N, 1,
                       kTileRows * N, panel, width_panels, N, last_columns,
                       scores.data() + g * kGroup * kScoreStride + j, kScoreStride, false);
          }
        }

        // P = 2^(S - reference)
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t g = r / kGroup;
          if (seen.first[g] >= seen.last[g]) continue;
          const int64_t lo = seen.lo[r], hi = seen.hi[r];
          T* const s = scores.data() + r * kScoreStride;
          const int64_t from = seen.first[g] / V, to = ceil_div(seen.last[g], V);
          if (lo >= hi) {
            zero_vectors(s, from, to);
            continue;
          }
          const int64_t a = lo / V, e = ceil_div(hi, V);
          zero_vectors(s, from, a);
          zero_vectors(s, e, to);
          const int64_t distance = origin - (row + r + head.q_start);
          if (shift) {
            const T* const added = table.data() + r * relation.stride;
            for (int64_t i = a; i < e; ++i) {
              const Vec<T> x = hn::LoadU(d, added + relation.column(distance + i * V));
              hn::Store(hn::Add(hn::Load(d, s + i * V), x), d, s + i * V);
            }
          }
          hide_ends(s, lo, hi);
          Vec<T> high = hn::Load(d, s + a * V);
          for (int64_t i = a + 1; i < e; ++i) high = hn::Max(high, hn::Load(d, s + i * V));
          const T top = hn::GetLane(hn::MaxOfLanes(d, high));
          T* const total = totals.data() + r * V;
          if (top == -infinity) {
            zero_vectors(s, a, e);
            continue;
          }
          if (!(top <= reference[r] + static_cast<T>(kSlack))) {
            if (reference[r] != -infinity) {
              const Vec<T> factor = hn::Set(d, exp2(reference[r] - top));
              hn::Store(hn::Mul(hn::Load(d, total), factor), d, total);
              for (int64_t p = 0; p < value_panels; ++p) {
                T* const sum = sums.data() + (p * kTileRows + r) * N;
                hn::Store(hn::Mul(hn::Load(d, sum), factor), d, sum);
                hn::Store(hn::Mul(hn::Load(d, sum + V), factor), d, sum + V);
              }
              if (carry) {
                T* const bin = bins.data() + r * relation.stride;
                for (int64_t c = 0; c < relation.stride; c += V) {
                  hn::StoreU(hn::Mul(hn::LoadU(d, bin + c), factor), d, bin + c);
                }
              }
            }
            reference[r] = top;
          }
          const Vec<T> base = hn::Set(d, reference[r]);
          Vec<T> sum = hn::Load(d, total);
          for (int64_t i = a; i < e; ++i) {
            const Vec<T> p = exp2(d, hn::Sub(hn::Load(d, s + i * V), base));
            sum = hn::Add(sum, p);
            hn::Store(p, d, s + i * V);
          }
          hn::Store(sum, d, total);
          if (keep.active()) {
            const int64_t index = head.order_q != nullptr ? head.order_q[row + r] : row + r;
            keep.fill(index, origin, head.order_k, keys, a * V, e * V, keep_row);
            for (int64_t i = a; i < e; ++i) {
              const Vec<T> p = hn::Mul(hn::Load(d, s + i * V), hn::Load(d, keep_row + i * V));
              hn::Store(p, d, s + i * V);
            }
          }
          if (carry) {
            add_to_bins(relation, distance, a, e, s, bins.data() + r * relation.stride);
          }
        }

        // sums += P V
        for (int64_t p = 0; p < value_panels; ++p) {
          const T* panel = value_rows.data() + slot * value_block + p * kBlock * N;
          for (int64_t g = 0; g * kGroup < rows; ++g) {
            const int64_t first = seen.first[g], last = seen.last[g];
            if (first >= last) continue;
            product<kScoreStride>(std::min(kGroup, padded - g * kGroup),
                                  scores.data() + g * kGroup * kScoreStride + first, 1, 0,
                                  panel + first * N, 1, 0, last - first,
                                  sums.data() + (p * kTileRows + g * kGroup) * N, N, true);
          }
        }
      }
    }

    if (carry && !ranges.empty()) {
      fold_sums(relation, rows, bins.data(), bin_panels.data());
      for (int64_t p = 0; p < value_panels; ++p) {
        product<N>(
            padded, bin_panels.data(), 1, kTileRows * N,
            relations.value_rows_of(task.h) + (p * relation.padded() + relation.first * N) * N,
            relation.panels(), N, N, sums.data() + p * kTileRows * N, N, true);
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      const T total = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, totals.data() + r * V)));
      const T factor = total == T{0} ? T{0} : T{1} / total;
      const Vec<T> f = hn::Set(d, factor);
      for (int64_t c = 0; c < value_panels * N; c += V) {
        const T* from = sums.data() + (c / N * kTileRows + r) * N + c % N;
        hn::Store(hn::Mul(hn::Load(d, from), f), d, row_out + c);
      }
      sink.write(row + r, row_out);
      const int64_t at = head.order_q != nullptr ? head.order_q[row + r] : row + r;
      row_lse[at] =
          total == T{0} ? -infinity : reference[r] * static_cast<T>(kLn2) + std::log(total);
    }
  }
}

template <class T>
void forward(const AttentionInputs& in, const View& out, const View& lse) {
  const Buffer<T> packed(RelationPanels<T>::size(in));
  const Forward<T> pass{in, out, lse, RelationPanels<T>(in, packed.data())};
  const std::vector<AttentionTask> tasks = tasks_by_rows(in, kTaskRows);
  parallel_for(static_cast<int64_t>(tasks.size()),
               [&](int64_t i) { pass.run(tasks[static_cast<size_t>(i)]); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
