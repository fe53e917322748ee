#include "cpu/attention/plan.h"

#include "core/error.h"
#include "cpu/register.h"

namespace longspan::cpu {

AttentionHead::AttentionHead(const AttentionProblem& in, int64_t sample, int64_t head) {
  const auto& layout = in.layout;
  const int64_t rows = layout.layout_index.dim(0), cols = layout.layout_index.dim(1);
  const int32_t n =
      layout.layout_index.as<int32_t>()[(rows > 1 ? sample : 0) * cols + (cols > 1 ? head : 0)];
  first_tile = layout.first_tile.as<int32_t>()[n];
  tiles = layout.first_tile.as<int32_t>()[n + 1] - first_tile;
  first_column = layout.first_column.as<int32_t>()[n];
  columns = layout.first_column.as<int32_t>()[n + 1] - first_column;
  tile = layout.tiles.as<int32_t>();
  row_start = layout.row_start.as<int32_t>();
  run = layout.runs.as<int32_t>();
  col_start = layout.col_start.as<int32_t>();
  col_run = layout.col_runs.as<int32_t>();
  const int32_t* member = layout.members.as<int32_t>() + 3 * n;
  const auto order = [](const ConstView& orders, int32_t which) {
    return which < 0 ? nullptr : orders.as<int32_t>() + which * orders.dim(1);
  };
  order_q = order(layout.order_q, member[1]);
  queries_valid = in.inputs.q.dim(2);
  if (in.q_valid) queries_valid = std::min(queries_valid, in.q_valid.as<int64_t>()[sample]);
  segments = in.numbers.segments;
  int64_t first = 0;
  for (int32_t i = 0; i < segments; ++i) {
    HeadSegment& s = segment[i];
    s.number = i;
    s.keys = in.inputs.k[i].dim(2);
    s.first = first;
    constexpr int64_t kUnit = kernels::kAttentionColumnKeys;
    first = (s.keys + kUnit - 1) / kUnit * kUnit;
    s.q_start = in.numbers.q_start[i];
    s.left = in.numbers.windows[i][member[0]].left;
    s.right = in.numbers.windows[i][member[0]].right;
    if (i == 0) s.order = order(layout.order_k, member[2]);
    s.masks = kernels::MaskTables(in.masks[i], s.keys).of(sample);
  }
}

KeyRange AttentionHead::range_of(int64_t i) const {
  const int32_t* r = run + kRunFields * i;
  const HeadSegment& s = segment[r[2]];
  int64_t begin = r[0], end = r[0] + r[1];
  if (s.order == nullptr) {
    const kernels::KeyInterval existing = s.masks.existing();
    begin = std::max(begin, existing.lo);
    end = std::min(end, existing.hi);
  }
  return {s.first + begin, s.first + end, r[4]};
}

void AttentionHead::ranges(int64_t t, int64_t from, int64_t to, std::vector<KeyRange>& out) const {
  out.clear();
  int64_t i = row_start[first_tile + t];
  const int64_t end = row_start[first_tile + t + 1];
  for (int64_t n = end - i; n > 0;) {  // binary search for the first run that ends after `from`
    const int64_t half = n / 2;
    const int32_t* const r = run + kRunFields * (i + half);
    const bool before = segment[r[2]].first + r[0] + r[1] <= from;
    i += before ? half + 1 : 0;
    n = before ? n - half - 1 : half;
  }
  for (; i < end; ++i) {
    KeyRange r = range_of(i);
    if (r.k0 >= to) break;
    r.k0 = std::max(r.k0, from);
    r.k1 = std::min(r.k1, to);
    if (r.k0 >= r.k1) continue;
    const HeadSegment& s = at_place(r.k0);
    if (s.order == nullptr && !out.empty() && out.back().k1 == r.k0 && r.k0 != s.first &&
        out.back().times == r.times) {
      out.back().k1 = r.k1;
    } else {
      out.push_back(r);
    }
  }
}

KeyRange AttentionHead::extent(int64_t t) const {
  KeyRange all{0, 0};
  for (int64_t i = row_start[first_tile + t]; i < row_start[first_tile + t + 1]; ++i) {
    const KeyRange r = range_of(i);
    if (r.k0 >= r.k1) continue;
    if (all.k0 == all.k1) all.k0 = r.k0;
    all.k1 = r.k1;
  }
  return all;
}

void AttentionHead::tiles_of_columns(int64_t from, int64_t to, std::vector<int32_t>& out) const {
  out.clear();
  constexpr int64_t kKeys = kernels::kAttentionColumnKeys;
  const int64_t end = std::min(columns, (to + kKeys - 1) / kKeys);
  for (int64_t c = first_column + from / kKeys; c < first_column + end; ++c) {
    for (int64_t i = col_start[c]; i < col_start[c + 1]; ++i) {
      const int32_t* entry = col_run + kColumnRunFields * i;
      const int64_t k0 = segment[entry[4]].first + entry[2];
      if (k0 >= to || k0 + entry[3] <= from) continue;
      for (int32_t t = entry[0]; t < entry[0] + entry[1]; ++t) out.push_back(t);
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
}

bool AttentionHead::shows_all(int64_t t, KeyRange range) const {
  const HeadSegment& s = at_place(range.k0);
  if (order_q != nullptr || s.order != nullptr || s.masks.bounds_rows()) return false;
  const int64_t first = tile_row(t) + s.q_start, last = first + tile_rows(t) - 1;
  const kernels::KeyInterval existing = s.masks.existing();
  return last - s.q_start < queries_valid && range.k0 - s.first >= existing.lo &&
         range.k1 - s.first <= existing.hi && last - s.left <= range.k0 - s.first &&
         first + s.right + 1 >= range.k1 - s.first;
}

void AttentionHead::visible(int64_t t, KeyRange range, int32_t* lo, int32_t* hi) const {
  const HeadSegment& s = at_place(range.k0);
  const int64_t row = tile_row(t), rows = tile_rows(t);
  const int64_t k0 = range.k0 - s.first, k1 = range.k1 - s.first;
  int64_t first = k0, last = k0;  // ascend with the rows if there is an order and no bounds
  // Returns the first position of the range whose key is at least `key`; rows and keys ascend
  // within a run.
  const auto place = [&s, k0, k1](int64_t key, int64_t& at) {
    if (s.order == nullptr) return std::clamp(key, k0, k1) + s.first;
    if (s.masks.bounds_rows()) at = std::lower_bound(s.order + k0, s.order + k1, key) - s.order;
    while (at < k1 && s.order[at] < key) ++at;
    return at + s.first;
  };
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t i = query(row + r);
    if (i >= queries_valid) {
      lo[r] = hi[r] = 0;
      continue;
    }
    const int64_t p = i + s.q_start;
    const kernels::KeyInterval keys = s.masks.narrowed(i, {p - s.left, p + s.right + 1});
    lo[r] = static_cast<int32_t>(place(keys.lo, first));
    hi[r] = static_cast<int32_t>(place(keys.hi, last));
  }
}

void Slots::plan(int64_t steps) {
  std::vector<int32_t> change(static_cast<size_t>(steps + 1), 0);
  for (size_t i = 0; i < first_.size(); ++i) {
    if (last_[i] < 0) continue;
    ++change[static_cast<size_t>(first_[i])];
    --change[static_cast<size_t>(last_[i]) + 1];
  }
  int64_t alive = 0;
  for (const int32_t c : change) count_ = std::max(count_, alive += c);
  for (int64_t i = count_; i-- > 0;) free_.push_back(static_cast<int32_t>(i));
}

void sort_tasks(std::vector<AttentionTask>& tasks) {
  std::stable_sort(tasks.begin(), tasks.end(), [](const AttentionTask& a, const AttentionTask& b) {
    return a.weight > b.weight;
  });
}

std::vector<AttentionTask> tasks_by_rows(const AttentionProblem& in, int64_t rows) {
  std::vector<AttentionTask> tasks;
  std::vector<KeyRange> ranges;
  for (int64_t b = 0; b < in.inputs.q.dim(0); ++b) {
    for (int64_t h = 0; h < in.inputs.q.dim(1); ++h) {
      const AttentionHead head(in, b, h);
      const int64_t keys = head.place_end();
      AttentionTask task{b, h, 0, 0, 0, keys, 0, static_cast<int64_t>(tasks.size())};
      if (head.tiles == 0) tasks.push_back(task);  // gradients of its keys must still be written
      int64_t have = 0;
      for (int64_t t = 0; t < head.tiles; ++t) {
        head.ranges(t, 0, keys, ranges);
        for (const KeyRange& k : ranges) task.weight += (k.k1 - k.k0) * head.tile_rows(t);
        have += head.tile_rows(t);
        if (have >= rows || t + 1 == head.tiles) {
          task.tile_end = t + 1;
          tasks.push_back(task);
          task = {b, h, t + 1, t + 1, 0, keys, 0, static_cast<int64_t>(tasks.size())};
          have = 0;
        }
      }
    }
  }
  sort_tasks(tasks);
  return tasks;
}

std::vector<AttentionTask> tasks_by_keys(const AttentionProblem& in, int64_t keys) {
  std::vector<AttentionTask> tasks;
  std::vector<int32_t> tiles;
  for (int64_t b = 0; b < in.inputs.q.dim(0); ++b) {
    for (int64_t h = 0; h < in.inputs.q.dim(1); ++h) {
      const AttentionHead head(in, b, h);
      for (int64_t k = 0; k < head.place_end(); k += keys) {
        const HeadSegment& s = head.at_place(k);
        const int64_t end = std::min(k + keys, s.first + s.keys);
        if (k >= end) continue;
        head.tiles_of_columns(k, end, tiles);
        tasks.push_back({b, h, 0, head.tiles, k, end, static_cast<int64_t>(tiles.size()),
                         static_cast<int64_t>(tasks.size())});
      }
    }
  }
  sort_tasks(tasks);
  return tasks;
}

namespace {

void refuse(bool given, const char* what) {
  require<NotImplemented>(!given, "block_attention", "{} is not implemented on the CPU", what);
}

void check(const AttentionProblem& in) {
  const bool soft = in.inputs.span || in.inputs.query_span;
  refuse(soft && in.layout.order_k, "a soft mask (span) of keys with an order");
}

void forward(const AttentionProblem& in, View out, View lse) {
  check(in);
  const bool wide = in.inputs.q.dtype == DType::f64;
  (wide ? block_attention_forward_f64 : block_attention_forward_f32)(in, out, lse);
}

void backward(const AttentionProblem& in, ConstView out, ConstView lse, ConstView dout,
              ConstView dlse, const AttentionGradients& grads) {
  const bool wide = in.inputs.q.dtype == DType::f64;
  (wide ? block_attention_backward_f64 : block_attention_backward_f32)(in, out, lse, dout, dlse,
                                                                       grads);
}

}  // namespace

void register_block_attention() {
  kernels::block_attention_forward.set(DeviceKind::cpu, forward);
  kernels::block_attention_backward.set(DeviceKind::cpu, backward);
}

}  // namespace longspan::cpu
