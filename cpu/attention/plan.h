#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "core/kernels/block_attention.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/view.h"

namespace longspan::cpu {

using kernels::AttentionGradients;
using kernels::AttentionProblem;
using kernels::kColumnRunFields;
using kernels::kRunFields;

inline constexpr int64_t kTileRows = kernels::kAttentionTileRows;
inline constexpr int64_t kMaxWidth = kernels::kAttentionMaxWidth;
// Keys of one score tile: a multiple of every panel and register tile. Score tiles start at
// multiples of it, so that the order of a row's sums depends only on the keys it sees.
inline constexpr int64_t kBlock = 192;
inline constexpr int64_t kScoreStride = kBlock + 16;  // keeps rows in different cache sets

// Approximate rows of a task, for results that depend on it.
inline constexpr int64_t kTaskRows = 1024;

// Size from which a result is written past the caches: it would leave them before it is read.
inline constexpr int64_t kStreamBytes = int64_t{4} << 20;

// From this number of heads on, a backward task owns a whole head.
inline constexpr int64_t kSinglePassHeads = 4;

inline constexpr double kLog2E = 1.4426950408889634074;
inline constexpr double kLn2 = 0.69314718055994530942;

/// Bytes of this thread's buffers on the meta device.
struct WorkspaceUsage {
  int64_t live = 0, most = 0;
  static WorkspaceUsage& current();
};

/// 64-byte aligned elements, counted as workspace, freed with the object.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t count, Device on = {})
      : scratch_(std::max<int64_t>(count, 1) * static_cast<int64_t>(sizeof(T)), on), on_(on) {
    if (on_ == meta_device) note(memory::block_bytes(scratch_.bytes()));
  }
  ~Buffer() {
    if (on_ == meta_device) note(-memory::block_bytes(scratch_.bytes()));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data() const { return scratch_.as<T>(); }

 private:
  static void note(int64_t bytes) {
    WorkspaceUsage& workspace = WorkspaceUsage::current();
    workspace.live += bytes;
    workspace.most = std::max(workspace.most, workspace.live);
  }

  Scratch scratch_;
  Device on_;
};

/// Hands out 64-byte aligned sub-buffers of one buffer; without a base it only counts.
template <class T>
class Slab {
 public:
  explicit Slab(T* base) : base_(base) {}
  T* take(int64_t count) {
    T* const at = base_ != nullptr ? base_ + used_ : nullptr;
    constexpr int64_t kUnit = 64 / static_cast<int64_t>(sizeof(T));
    used_ += (count + kUnit - 1) / kUnit * kUnit;
    return at;
  }
  int64_t used() const { return used_; }

 private:
  T* base_;
  int64_t used_ = 0;
};

/// Prefetches `bytes` from `at` on, to read or to write. The empty asm keeps GCC 12 from treating a
/// function that only prefetches as one without effect.
inline void prefetch_bytes(const char* at, int64_t bytes, bool write) {
  for (int64_t b = 0; b < bytes; b += 64) {
    if (write) {
      __builtin_prefetch(at + b, 1);
    } else {
      __builtin_prefetch(at + b);
    }
    asm volatile("");
  }
}

/// Rows of one head of a [B, H, rows, width] tensor, through an order if there is one.
template <class T>
struct RowSource {
  const char* base = nullptr;
  DType dtype = DType::f32;
  int64_t stride = 0, width = 0;
  const int32_t* order = nullptr;

  bool contiguous() const { return dtype == dtype_of<T> && order == nullptr; }
  const T* direct(int64_t r) const { return reinterpret_cast<const T*>(base) + r * stride; }

  /// Prefetches row r; the hardware prefetcher does not follow many streams at once.
  void prefetch(int64_t r) const {
    prefetch_bytes(base + (order != nullptr ? order[r] : r) * stride * size_of(dtype),
                   width * size_of(dtype), false);
  }

  /// Returns row r as T: in place, or widened into `temporary`.
  const T* row(int64_t r, T* temporary) const {
    const int64_t at = (order != nullptr ? order[r] : r) * stride;
    if (dtype == dtype_of<T>) return reinterpret_cast<const T*>(base) + at;
    if (dtype == DType::bf16) {
      const bf16* from = reinterpret_cast<const bf16*>(base) + at;
      for (int64_t c = 0; c < width; ++c)
        temporary[c] = static_cast<T>(static_cast<float>(from[c]));
    } else {
      const f16* from = reinterpret_cast<const f16*>(base) + at;
      for (int64_t c = 0; c < width; ++c)
        temporary[c] = static_cast<T>(static_cast<float>(from[c]));
    }
    return temporary;
  }
};

template <class T>
RowSource<T> head_rows(const ConstView& x, int64_t b, int64_t h, const int32_t* order) {
  RowSource<T> s;
  s.base = x.as<char>() + (b * x.stride(0) + h * x.stride(1)) * size_of(x.dtype);
  s.dtype = x.dtype;
  s.stride = x.stride(2);
  s.width = x.dim(3);
  s.order = order;
  return s;
}

/// Writes rows, narrowed to the dtype of the tensor.
template <class T>
struct RowSink {
  char* base = nullptr;
  DType dtype = DType::f32;
  int64_t stride = 0, width = 0;
  const int32_t* order = nullptr;
  bool stream = false;  // write whole cache lines past the caches
  bool add = false;     // add to the present contents

  /// Returns row r in place if nothing needs to be narrowed; else null.
  T* direct(int64_t r) const {
    if (dtype != dtype_of<T>) return nullptr;
    return reinterpret_cast<T*>(base) + (order != nullptr ? order[r] : r) * stride;
  }

  void write(int64_t r, const T* values) const {
    const int64_t at = (order != nullptr ? order[r] : r) * stride;
    if (dtype == dtype_of<T>) {
      put(values, reinterpret_cast<T*>(base) + at);
    } else if (dtype == DType::bf16) {
      put(values, reinterpret_cast<bf16*>(base) + at);
    } else {
      put(values, reinterpret_cast<f16*>(base) + at);
    }
  }

 private:
  template <class E>
  void put(const T* values, E* to) const {
    using Wide = std::conditional_t<std::is_same_v<E, T>, T, float>;
    for (int64_t c = 0; c < width; ++c) {
      const auto x = static_cast<Wide>(values[c]);
      to[c] = static_cast<E>(add ? static_cast<Wide>(to[c]) + x : x);
    }
  }
};

/// Returns the rows of one head for writing. Rows that are added to are also read, so they are not
/// written past the caches.
template <class T>
RowSink<T> head_sink(const View& x, int64_t b, int64_t h, const int32_t* order, bool add = false) {
  RowSink<T> s;
  s.base = x.as<char>() + (b * x.stride(0) + h * x.stride(1)) * size_of(x.dtype);
  s.dtype = x.dtype;
  s.stride = x.stride(2);
  s.width = x.dim(3);
  s.order = order;
  s.add = add;
  const auto whole_lines = [](int64_t bytes) { return bytes % 64 == 0; };
  s.stream = !add && x.numel() * size_of(x.dtype) >= kStreamBytes &&
             whole_lines(static_cast<int64_t>(reinterpret_cast<uintptr_t>(s.base))) &&
             whole_lines(s.stride * size_of(x.dtype)) && whole_lines(s.width * size_of(x.dtype));
  return s;
}

/// Keys [k0, k1), as positions in one segment, each counted `times` times.
struct KeyRange {
  int64_t k0, k1;
  int32_t times = 1;
};

/// The keys of one segment for one head of one sample.
struct HeadSegment {
  int32_t number = 0;
  int64_t keys = 0;
  int64_t first = 0;  // position of key 0
  int64_t q_start = 0, left = 0, right = 0;
  const int32_t* order = nullptr;  // null: the identity
  kernels::SampleMasks masks;

  int64_t key(int64_t place) const {
    return order != nullptr ? order[place - first] : place - first;
  }
};

/// One head of one sample: its layout, lengths and orders, and the keys that its rows see. The
/// segments follow each other in the space of positions. Each starts at a multiple of
/// kAttentionColumnKeys, so that no block contains keys of both.
struct AttentionHead {
  AttentionHead(const AttentionProblem& in, int64_t sample, int64_t head);

  int64_t first_tile, tiles;  // of the layout
  int64_t first_column, columns;
  int64_t queries_valid;  // length of the sample, as an index
  int segments;
  HeadSegment segment[kernels::kAttentionSegments];
  const int32_t* tile;  // [.., 2]
  const int32_t* row_start;
  const int32_t* run;  // [.., kRunFields]
  const int32_t* col_start;
  const int32_t* col_run;  // [.., kColumnRunFields]
  const int32_t* order_q;  // null: the identity

  int64_t tile_row(int64_t t) const { return tile[2 * (first_tile + t)]; }
  int64_t tile_rows(int64_t t) const { return tile[2 * (first_tile + t) + 1]; }
  /// Return the segment that contains a position, and the end of all positions.
  const HeadSegment& at_place(int64_t place) const {
    return segment[segments > 1 && place >= segment[1].first ? 1 : 0];
  }
  int64_t place_end() const { return segment[segments - 1].first + segment[segments - 1].keys; }
  /// Returns the number of keys of the block at `origin`.
  int64_t block_keys(int64_t origin) const {
    const HeadSegment& s = at_place(origin);
    return std::min(kBlock, s.first + s.keys - origin);
  }
  int64_t query(int64_t place) const { return order_q != nullptr ? order_q[place] : place; }
  /// Returns the visible keys of run i as positions; empty if k0 >= k1.
  KeyRange range_of(int64_t i) const;
  /// Sets `out` to the runs of a tile within [from, to), adjacent runs joined, and cut at the
  /// lengths.
  void ranges(int64_t t, int64_t from, int64_t to, std::vector<KeyRange>& out) const;
  /// Returns the first key and the end of all runs of a tile; equal if there are none.
  KeyRange extent(int64_t t) const;
  /// Sets `out` to the tiles, ascending and without duplicates, that see keys in [from, to), found
  /// through the column tiles that overlap it.
  void tiles_of_columns(int64_t from, int64_t to, std::vector<int32_t>& out) const;
  /// Whether every row of a tile sees all of `range`, according to intervals; false if deciding
  /// that would require checking each row.
  bool shows_all(int64_t t, KeyRange range) const;
  /// Sets the keys of `range` that row r of a tile sees: lo[r] <= j < hi[r].
  void visible(int64_t t, KeyRange range, int32_t* lo, int32_t* hi) const;
};

/// Slots for items that each live for an interval of steps: taken at the first step, released after
/// the last.
class Slots {
 public:
  explicit Slots(int64_t items = 0)
      : first_(static_cast<size_t>(items), 0),
        last_(static_cast<size_t>(items), -1),
        slot_(static_cast<size_t>(items), -1) {}

  /// Marks item i as used in `step`; steps of an item come in ascending order.
  void use(int64_t i, int64_t step) {
    const auto n = static_cast<size_t>(i);
    if (last_[n] < 0) first_[n] = static_cast<int32_t>(step);
    last_[n] = static_cast<int32_t>(step);
  }
  /// Called after all use() calls, whose steps are below `steps`: computes the number of slots
  /// needed.
  void plan(int64_t steps);
  int64_t count() const { return count_; }

  bool used(int64_t i) const { return last_[static_cast<size_t>(i)] >= 0; }
  bool has(int64_t i) const { return slot_[static_cast<size_t>(i)] >= 0; }
  bool ends(int64_t i, int64_t step) const { return last_[static_cast<size_t>(i)] == step; }
  int64_t at(int64_t i) const { return slot_[static_cast<size_t>(i)]; }
  int64_t take(int64_t i) {
    slot_[static_cast<size_t>(i)] = free_.back();
    free_.pop_back();
    return at(i);
  }
  void give(int64_t i) {
    free_.push_back(slot_[static_cast<size_t>(i)]);
    slot_[static_cast<size_t>(i)] = -1;
  }

 private:
  std::vector<int32_t> first_, last_, slot_, free_;
  int64_t count_ = 0;
};

/// The work of one thread: tiles [tile, tile_end) of a head, and columns of keys.
struct AttentionTask {
  int64_t b, h;
  int64_t tile, tile_end;
  int64_t key, key_end;
  int64_t weight;
  int64_t index;  // in order of creation
};

/// Runs tasks with a slab for each thread, as large as the largest task needs. The memory does not
/// depend on which thread runs which task. make(task, slab) constructs a task, which takes its
/// sub-buffers from the slab. On the meta device the memory is allocated, and nothing runs.
template <class T, class Make>
void run_tasks(const std::vector<AttentionTask>& tasks, Device on, Make make) {
  int64_t size = 0;
  for (const AttentionTask& task : tasks) {
    Slab<T> count(nullptr);
    make(task, count);
    size = std::max(size, count.used());
  }
  const Buffer<T> workspace(size * num_threads(), on);
  if (on == meta_device) return;
  parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
    Slab<T> slab(workspace.data() + size * worker_index());
    make(tasks[static_cast<size_t>(i)], slab).run();
  });
}

/// Sorts tasks, heaviest first; ties keep the order of creation.
void sort_tasks(std::vector<AttentionTask>& tasks);

/// Makes tasks of about `rows` rows each over all heads.
std::vector<AttentionTask> tasks_by_rows(const AttentionProblem& in, int64_t rows);
/// Makes tasks of `keys` keys each over all heads.
std::vector<AttentionTask> tasks_by_keys(const AttentionProblem& in, int64_t keys);

// Each computes in the dtype of its name, whatever the dtype of the tensors.
void block_attention_forward_f32(const AttentionProblem& in, const View& out, const View& lse);
void block_attention_forward_f64(const AttentionProblem& in, const View& out, const View& lse);
void block_attention_backward_f32(const AttentionProblem& in, const ConstView& out,
                                  const ConstView& lse, const ConstView& dout,
                                  const ConstView& dlse, const AttentionGradients& grads);
void block_attention_backward_f64(const AttentionProblem& in, const ConstView& out,
                                  const ConstView& lse, const ConstView& dout,
                                  const ConstView& dlse, const AttentionGradients& grads);

}  // namespace longspan::cpu
