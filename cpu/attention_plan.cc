#include "cpu/attention_plan.h"

#include "core/error.h"
#include "cpu/register.h"

namespace longspan::cpu {

AttentionHead::AttentionHead(const AttentionInputs& in, int64_t sample, int64_t head) {
  const auto& layout = in.layout;
  const int64_t rows = layout.which.dim(0), cols = layout.which.dim(1);
  const int32_t n =
      layout.which.as<int32_t>()[(rows > 1 ? sample : 0) * cols + (cols > 1 ? head : 0)];
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
  order_k = order(layout.order_k, member[2]);

  const int64_t queries = in.q.dim(2), keys = in.segment[0].k.dim(2);
  const auto valid = [sample](const ConstView& lengths, int64_t all) {
    return lengths ? std::min<int64_t>(lengths.as<int64_t>()[sample], all) : all;
  };
  queries_valid = valid(in.q_valid, queries);
  keys_valid = valid(in.segment[0].k_valid, keys);
  key_end = order_k != nullptr ? keys : keys_valid;
  q_start = in.segment[0].q_start;
  left = in.segment[0].windows[member[0]].left;
  right = in.segment[0].windows[member[0]].right;
}

void AttentionHead::ranges(int64_t t, int64_t from, int64_t to, std::vector<KeyRange>& out) const {
  out.clear();
  to = std::min(to, key_end);
  for (int64_t i = row_start[first_tile + t]; i < row_start[first_tile + t + 1]; ++i) {
    const int64_t k0 = std::max<int64_t>(run[kRunFields * i], from);
    const int64_t k1 = std::min<int64_t>(run[kRunFields * i] + run[kRunFields * i + 1], to);
    if (k0 >= k1) continue;
    if (order_k == nullptr && !out.empty() && out.back().k1 == k0) {
      out.back().k1 = k1;
    } else {
      out.push_back({k0, k1});
    }
  }
}

KeyRange AttentionHead::extent(int64_t t) const {
  const int64_t a = row_start[first_tile + t], e = row_start[first_tile + t + 1];
  if (a == e) return {0, 0};
  const int64_t k1 =
      std::min<int64_t>(run[kRunFields * (e - 1)] + run[kRunFields * (e - 1) + 1], key_end);
  const int64_t k0 = run[kRunFields * a];
  return k0 < k1 ? KeyRange{k0, k1} : KeyRange{0, 0};
}

void AttentionHead::tiles_of_columns(int64_t from, int64_t to, std::vector<int32_t>& out) const {
  out.clear();
  constexpr int64_t kKeys = kernels::kAttentionColumnKeys;
  const int64_t end = std::min(columns, (to + kKeys - 1) / kKeys);
  for (int64_t c = first_column + from / kKeys; c < first_column + end; ++c) {
    for (int64_t i = col_start[c]; i < col_start[c + 1]; ++i) {
      const int32_t* entry = col_run + kColumnRunFields * i;
      if (entry[2] >= to || entry[2] + entry[3] <= from) continue;
      for (int32_t t = entry[0]; t < entry[0] + entry[1]; ++t) out.push_back(t);
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
}

void AttentionHead::visible(int64_t t, KeyRange range, int32_t* lo, int32_t* hi) const {
  const int64_t row = tile_row(t), rows = tile_rows(t);
  int64_t first = range.k0, last = range.k0;  // ascend with the rows, where there is an order
  // First place of the range whose key is at least `key`; rows and keys ascend within a run.
  const auto place = [this, range](int64_t key, int64_t& at) {
    if (order_k == nullptr) return std::clamp(key, range.k0, range.k1);
    while (at < range.k1 && order_k[at] < key) ++at;
    return at;
  };
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t i = order_q != nullptr ? order_q[row + r] : row + r;
    if (i >= queries_valid) {
      lo[r] = hi[r] = 0;
      continue;
    }
    const int64_t p = i + q_start;
    lo[r] = static_cast<int32_t>(place(p - left, first));
    hi[r] = static_cast<int32_t>(place(std::min(p + right + 1, keys_valid), last));
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

std::vector<AttentionTask> tasks_by_rows(const AttentionInputs& in, int64_t rows) {
  std::vector<AttentionTask> tasks;
  std::vector<KeyRange> ranges;
  const int64_t keys = in.segment[0].k.dim(2);
  for (int64_t b = 0; b < in.q.dim(0); ++b) {
    for (int64_t h = 0; h < in.q.dim(1); ++h) {
      const AttentionHead head(in, b, h);
      AttentionTask task{b, h, 0, 0, 0, keys, 0, static_cast<int64_t>(tasks.size())};
      if (head.tiles == 0) tasks.push_back(task);  // gradients of its keys are still to be written
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

std::vector<AttentionTask> tasks_by_keys(const AttentionInputs& in, int64_t keys) {
  std::vector<AttentionTask> tasks;
  std::vector<int32_t> tiles;
  for (int64_t b = 0; b < in.q.dim(0); ++b) {
    for (int64_t h = 0; h < in.q.dim(1); ++h) {
      const AttentionHead head(in, b, h);
      for (int64_t k = 0; k < in.segment[0].k.dim(2); k += keys) {
        const int64_t end = std::min(k + keys, in.segment[0].k.dim(2));
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

void check(const AttentionInputs& in) {
  refuse(in.segments > 1, "a second key segment");
  const auto& s = in.segment[0];
  refuse(static_cast<bool>(s.q_from), "bounds of rows (q_from, q_to)");
  refuse(static_cast<bool>(s.k_hidden), "k_hidden");
  refuse(static_cast<bool>(s.class_id), "class_id");
  refuse(static_cast<bool>(in.terms.relation_query), "relation_query");
  refuse(static_cast<bool>(in.terms.span), "span");
  const bool relations = in.terms.relation_key || in.terms.relation_bias || in.terms.relation_value;
  refuse(relations && (in.layout.order_q || in.layout.order_k),
         "relation terms with order_q, order_k");
  refuse(in.layout.multiplied, "a run with a multiplicity");
}

void forward(const AttentionInputs& in, View out, View lse) {
  check(in);
  const bool wide = in.q.dtype == DType::f64;
  (wide ? block_attention_forward_f64 : block_attention_forward_f32)(in, out, lse);
}

void backward(const AttentionInputs& in, ConstView out, ConstView lse, ConstView dout,
              ConstView dlse, const AttentionGradients& grads) {
  const bool wide = in.q.dtype == DType::f64;
  (wide ? block_attention_backward_f64 : block_attention_backward_f32)(in, out, lse, dout, dlse,
                                                                       grads);
}

}  // namespace

void register_block_attention() {
  kernels::block_attention_forward.set(DeviceKind::cpu, forward);
  kernels::block_attention_backward.set(DeviceKind::cpu, backward);
}

}  // namespace longspan::cpu
