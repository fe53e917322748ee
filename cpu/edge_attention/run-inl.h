// Runs edge attention over all heads and parts of a layout, for one SIMD target and one dtype.

#if defined(LONGSPAN_CPU_EDGE_RUN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_EDGE_RUN_INL_H_
#undef LONGSPAN_CPU_EDGE_RUN_INL_H_
#else
#define LONGSPAN_CPU_EDGE_RUN_INL_H_
#endif

#include <hwy/highway.h>

#include "core/parallel.h"
#include "cpu/edge_attention/rows-inl.h"
#include "cpu/edge_attention/strips-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

/// Computes blocks of a layout, with the workspace of one thread.
template <class T>
class EdgeTask {
 public:
  EdgeTask(const kernels::EdgeAttentionInputs& in, bool backward, Slab<T>& slab)
      : tables_(in.edges),
        together_(in, backward, slab),
        strips_(in, backward, slab),
        single_(in, slab) {}

  void forward(const edge::Head<T>& head, const edge::Pieces<T>& pieces, int64_t from, int64_t to) {
    for_blocks(
        head, from, to, [&](auto& task, const edge::Block& block) { task.forward(head, block); },
        [&](const edge::Strip& strip) { strips_.forward(head, pieces, strip); });
  }
  void backward(const edge::Head<T>& head, const edge::Pieces<T>& pieces, int64_t from,
                int64_t to) {
    for_blocks(
        head, from, to, [&](auto& task, const edge::Block& block) { task.backward(head, block); },
        [&](const edge::Strip& strip) { strips_.backward(head, pieces, strip); });
  }

 private:
  template <class OfRows, class OfStrip>
  void for_blocks(const edge::Head<T>& head, int64_t from, int64_t to, OfRows of_rows,
                  OfStrip of_strip) {
    for (int64_t i = from; i < to; ++i) {
      if (tables_.is_strip(i)) {
        of_strip(edge::Strip(tables_, i));
        continue;
      }
      const edge::Block block(tables_, i);
      if (block.together()) {
        prefetch_after(head, block, i, to);
        of_rows(together_, block);
      } else {
        of_rows(single_, block);
      }
    }
  }

  /// Prefetches what the next block of rows reads, unless a cache holds the whole head. A strip may
  /// come between, but it reads the keys of block i.
  void prefetch_after(const edge::Head<T>& head, const edge::Block& block, int64_t i, int64_t to) {
    constexpr int64_t kCache = 512 << 10;
    if (head.bytes < kCache) return;
    for (int64_t next = i + 1; next < std::min(i + 3, to); ++next) {
      if (!tables_.is_strip(next)) return edge::prefetch(head, edge::Block(tables_, next), block);
    }
  }

  const edge::Tables tables_;
  edge::BlockTask<T> together_;
  edge::StripTask<T> strips_;
  edge::RowTask<T> single_;
};

/// The pieces of the rows of all heads that have several. Those of the backward pass have sums
/// only.
template <class T>
class AllPieces {
 public:
  AllPieces(const kernels::EdgeAttentionInputs& in, bool backward)
      : in_(in),
        width_(backward ? in.q.dim(3) : in.v.dim(3)),
        heads_(in.q.dim(0) * in.q.dim(1)),
        sums_(heads_ * in.strip_pieces * width_, in.q.device),
        numbers_(backward ? 0 : 2 * heads_ * in.strip_pieces, in.q.device) {}

  edge::Pieces<T> of(int64_t head) const {
    const int64_t first = head * in_.strip_pieces;
    return {sums_.data() + first * width_, numbers_.data() + 2 * first,
            numbers_.data() + 2 * first + in_.strip_pieces};
  }
  /// Calls f(head, row, first piece, pieces) for all of these rows.
  template <class F>
  void for_rows(F&& f) const {
    const int64_t rows = in_.edges.strip_cuts.dim(0);
    const auto* const cuts = in_.edges.strip_cuts.as<int32_t>();
    parallel_ranges(heads_ * rows, 16, [&](int64_t from, int64_t end) {
      for (int64_t i = from; i < end; ++i) {
        const int32_t* const cut = cuts + 3 * (i % rows);
        f(i / rows, int64_t{cut[0]}, int64_t{cut[1]}, int64_t{cut[2]});
      }
    });
  }

 private:
  const kernels::EdgeAttentionInputs& in_;
  const int64_t width_, heads_;
  const Buffer<T> sums_, numbers_;
};

template <class T>
edge::Head<T> head_of(const kernels::EdgeAttentionInputs& in, int64_t number) {
  const int64_t b = number / in.q.dim(1), h = number % in.q.dim(1);
  edge::Head<T> head;
  head.q = edge::rows_of<T>(in.q, b, h);
  head.k = edge::rows_of<T>(in.k, b, h);
  head.v = edge::rows_of<T>(in.v, b, h);
  head.relation = in.relation.as<T>();
  head.number = number;
  head.d = in.q.dim(3);
  head.width = in.v.dim(3);
  head.scale = static_cast<T>(in.scale);
  head.bytes = in.k.dim(2) * (head.d + head.width) * static_cast<int64_t>(sizeof(T));
  return head;
}

/// Returns the elements of workspace that a thread needs.
template <class T>
int64_t edge_workspace(const kernels::EdgeAttentionInputs& in, bool backward) {
  Slab<T> size(nullptr);
  const EdgeTask<T> task(in, backward, size);
  return size.used();
}

template <class T>
void edge_forward(const kernels::EdgeAttentionInputs& in, View out, View lse) {
  const int64_t size = edge_workspace<T>(in, false);
  const Buffer<T> memory(size * num_threads(), in.q.device);
  const AllPieces<T> pieces(in, false);
  if (in.q.device == meta_device) return;
  const int64_t parts = in.edges.parts.numel() - 1;
  const auto* const begin = in.edges.parts.as<int32_t>();
  const auto head_at = [&](int64_t number) {
    edge::Head<T> head = head_of<T>(in, number);
    head.out = edge::rows_of<T>(out, number / in.q.dim(1), number % in.q.dim(1));
    head.lse = lse.as<T>() + number * in.q.dim(2);
    return head;
  };
  parallel_for(in.q.dim(0) * in.q.dim(1) * parts, [&](int64_t i) {
    Slab<T> slab(memory.data() + size * worker_index());
    EdgeTask<T> task(in, false, slab);
    task.forward(head_at(i / parts), pieces.of(i / parts), begin[i % parts], begin[i % parts + 1]);
  });
  pieces.for_rows([&](int64_t number, int64_t row, int64_t first, int64_t count) {
    const edge::Head<T> head = head_at(number);
    edge::join_pieces(pieces.of(number), first, count, in.v.dim(3), head.out[row], head.lse[row]);
  });
}

/// Computes gradients. A task owns a head, so that it can add to the gradients of its keys; if
/// there are few heads, several tasks share one, each with gradients of its own, which are summed
/// in order. Each group of tasks has its own gradients of the relation table, which are summed in
/// order too.
template <class T>
class EdgeBackward {
 public:
  EdgeBackward(const kernels::EdgeAttentionInputs& in, ConstView out, ConstView lse, ConstView dout,
               const kernels::EdgeGradients& to)
      : in_(in),
        out_(out),
        lse_(lse),
        dout_(dout),
        to_(to),
        heads_(in.q.dim(0) * in.q.dim(1)),
        parts_(in.edges.parts.numel() - 1),
        keys_(in.k.dim(2)),
        d_(in.q.dim(3)),
        width_(in.v.dim(3)),
        pieces_(in, true) {
    const int64_t wanted = (kSinglePassHeads + heads_ - 1) / std::max<int64_t>(heads_, 1);
    splits_ = heads_ >= kSinglePassHeads
                  ? 1
                  : std::clamp<int64_t>(wanted, 1, std::max<int64_t>(parts_, 1));
    groups_ = std::min(heads_ * splits_, kGroups);
  }

  void run() {
    const int64_t size = edge_workspace<T>(in_, true), threads = num_threads();
    const int64_t own = splits_ > 1 ? heads_ * splits_ * keys_ * (d_ + width_) : 0;
    const int64_t table = in_.relation ? in_.relation.numel() : 0;
    const Buffer<T> memory(size * threads, in_.q.device);
    const Buffer<T> keys(own, in_.q.device), tables(groups_ * table, in_.q.device);
    if (in_.q.device == meta_device) return;
    shared_keys_ = keys.data();
    parallel_for(groups_, [&](int64_t group) {
      Slab<T> slab(memory.data() + size * worker_index());
      EdgeTask<T> task(in_, true, slab);
      T* const drelation = tables.data() + group * table;
      std::fill_n(drelation, table, T{0});
      for (int64_t i = group; i < heads_ * splits_; i += groups_) compute(task, i, drelation);
    });
    if (splits_ > 1) sum_keys();
    pieces_.for_rows([&](int64_t number, int64_t row, int64_t first, int64_t count) {
      T* const dq = edge::rows_of<T>(to_.dq, number / in_.q.dim(1), number % in_.q.dim(1))[row];
      sum_over(pieces_.of(number).sums + first * d_, d_, count, d_, dq);
    });
    if (table > 0) sum_tables(tables.data(), table);
  }

 private:
  static constexpr int64_t kGroups = 32;

  void compute(EdgeTask<T>& task, int64_t i, T* drelation) {
    const int64_t number = i / splits_, split = i % splits_;
    edge::Head<T> head = head_of<T>(in_, number);
    const int64_t b = number / in_.q.dim(1), h = number % in_.q.dim(1);
    head.out = edge::rows_of<T>(out_, b, h);
    head.dout = edge::rows_of<T>(dout_, b, h);
    head.dq = edge::rows_of<T>(to_.dq, b, h);
    head.lse = const_cast<T*>(lse_.as<T>()) + number * in_.q.dim(2);
    head.drelation = drelation;
    if (splits_ > 1) {
      T* const own = shared_keys_ + i * keys_ * (d_ + width_);
      head.dk = {own, d_};
      head.dv = {own + keys_ * d_, width_};
    } else {
      head.dk = edge::rows_of<T>(to_.dk, b, h);
      head.dv = edge::rows_of<T>(to_.dv, b, h);
    }
    for (int64_t j = 0; j < keys_; ++j) {
      std::fill_n(head.dk[j], d_, T{0});
      std::fill_n(head.dv[j], width_, T{0});
    }
    const auto* const begin = in_.edges.parts.as<int32_t>();
    task.backward(head, pieces_.of(number), begin[parts_ * split / splits_],
                  begin[parts_ * (split + 1) / splits_]);
  }

  void sum_keys() {
    parallel_ranges(heads_ * keys_, 64, [&](int64_t from, int64_t end) {
      for (int64_t i = from; i < end; ++i) {
        const int64_t number = i / keys_, j = i % keys_;
        const int64_t b = number / in_.q.dim(1), h = number % in_.q.dim(1);
        T* const dk = edge::rows_of<T>(to_.dk, b, h)[j];
        T* const dv = edge::rows_of<T>(to_.dv, b, h)[j];
        const int64_t step = keys_ * (d_ + width_);
        const T* const own = shared_keys_ + number * splits_ * step;
        sum_over(own + j * d_, step, splits_, d_, dk);
        sum_over(own + keys_ * d_ + j * width_, step, splits_, width_, dv);
      }
    });
  }

  void sum_tables(const T* tables, int64_t size) {
    parallel_ranges(size, 4096, [&](int64_t from, int64_t end) {
      sum_over(tables + from, size, groups_, end - from, to_.drelation.as<T>() + from);
    });
  }

  static void sum_over(const T* x, int64_t step, int64_t n, int64_t width, T* y) {
    std::fill_n(y, width, T{0});
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = 0; c < width; ++c) y[c] += x[i * step + c];
    }
  }

  const kernels::EdgeAttentionInputs& in_;
  const ConstView out_, lse_, dout_;
  const kernels::EdgeGradients& to_;
  const int64_t heads_, parts_, keys_, d_, width_;
  const AllPieces<T> pieces_;
  int64_t splits_ = 1, groups_ = 0;
  T* shared_keys_ = nullptr;
};

template <class T>
void edge_backward(const kernels::EdgeAttentionInputs& in, ConstView out, ConstView lse,
                   ConstView dout, const kernels::EdgeGradients& to) {
  EdgeBackward<T>(in, out, lse, dout, to).run();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
