#include "core/kernels/block_attention.h"

#include "core/memory.h"
#include "cuda/attention/general.h"
#include "cuda/attention/launch.h"
#include "cuda/attention/parts.h"
#include "cuda/launch.h"
#include "cuda/register.h"

namespace longspan::cuda {
namespace {

using kernels::AttentionGradients;
using kernels::AttentionProblem;

using Pass = AttentionPass;

template <class T, Pass pass>
__global__ void __launch_bounds__(general_threads, 1)
    general_kernel(const __grid_constant__ AttentionArguments<T> x) {
  using Passes = GeneralPasses<T>;
  auto* shared = reinterpret_cast<Accumulator<T>*>(block_memory());
  const int64_t index = blockIdx.x;
  if constexpr (pass == Pass::forward) Passes::forward(x, shared, index);
  if constexpr (pass == Pass::rows) Passes::row_gradients(x, shared, index);
  if constexpr (pass == Pass::keys) Passes::key_gradients(x, shared, index);
  if constexpr (pass == Pass::tables) Passes::table_gradients(x, shared, index);
}

/// delta[row] = dout . out - dlse, with one warp per row. Strides of dlse are {b, h, row}.
template <class T, class A>
__global__ void __launch_bounds__(general_threads)
    delta_kernel(const __grid_constant__ AttentionArguments<T> x, const A* dlse, int64_t batch,
                 int64_t head, int64_t row, A* delta) {
  const int64_t rows = x.sizes.head_count() * x.sizes.queries;
  const int64_t step = int64_t{gridDim.x} * (general_threads / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t i = int64_t{blockIdx.x} * (general_threads / 32) + threadIdx.x / 32; i < rows;
       i += step) {
    const int64_t r = i % x.sizes.queries, bh = i / x.sizes.queries;
    const int64_t b = bh / x.sizes.heads, h = bh % x.sizes.heads;
    A total = delta_part<T>(x.dout, x.out, b, h, r, lane, 32);
#pragma unroll
    for (int s = 16; s > 0; s /= 2) total += __shfl_xor_sync(0xffffffffu, total, s);
    if (lane != 0) continue;
    if (dlse != nullptr) total -= dlse[b * batch + h * head + r * row];
    delta[i] = total;
  }
}

/// Combines the result over one key set with out and lse, which hold the result over the earlier
/// ones: one warp per row of [B, H, L].
template <class T, class A>
__global__ void __launch_bounds__(general_threads)
    join_kernel(HeadRows<T> out, A* lse, HeadRows<const T> part_out, const A* part_lse,
                int64_t heads, int64_t queries, int64_t rows) {
  const int64_t step = int64_t{gridDim.x} * (general_threads / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t i = int64_t{blockIdx.x} * (general_threads / 32) + threadIdx.x / 32; i < rows;
       i += step) {
    const JoinedParts<A> joined = join(lse[i], part_lse[i]);
    join_row(out, heads, queries, joined, part_out, i, lane, 32);
    __syncwarp();
    if (lane == 0) lse[i] = joined.lse;
  }
}

/// Combines the results of the splits of a pass: one warp per row or key that was split.
template <class T, Pass pass>
__global__ void __launch_bounds__(general_threads)
    splits_kernel(const __grid_constant__ AttentionArguments<T> x, int64_t rows) {
  const int64_t step = int64_t{gridDim.x} * (general_threads / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t i = int64_t{blockIdx.x} * (general_threads / 32) + threadIdx.x / 32; i < rows;
       i += step) {
    if constexpr (pass == Pass::forward) join_splits(x, i, lane, 32);
    if constexpr (pass == Pass::rows) add_row_splits(x, i, lane, 32);
    if constexpr (pass == Pass::keys) add_key_splits(x, i, lane, 32);
  }
}

/// Computes the gradient of a table [1 or H, R, width], whose sums begin at `column`.
template <class T, class A>
__global__ void __launch_bounds__(general_threads)
    table_kernel(const __grid_constant__ AttentionArguments<T> x, int64_t column, int64_t width,
                 bool shared_by_heads, A factor, T* to, int64_t n) {
  const int64_t step = int64_t{gridDim.x} * general_threads;
  for (int64_t i = int64_t{blockIdx.x} * general_threads + threadIdx.x; i < n; i += step) {
    const int64_t h = shared_by_heads ? -1 : i / width / x.ids, id = i / width % x.ids;
    to[i] = static_cast<T>(factor * table_sum(x, h, id, column + i % width));
  }
}

/// Computes the gradient of span [batch, heads, keys], with one warp per element.
template <class T, class A>
__global__ void __launch_bounds__(general_threads)
    span_kernel(const __grid_constant__ AttentionArguments<T> x, int64_t batch, int64_t heads,
                int64_t keys, A* to) {
  const int64_t step = int64_t{gridDim.x} * (general_threads / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t i = int64_t{blockIdx.x} * (general_threads / 32) + threadIdx.x / 32;
       i < batch * heads * keys; i += step) {
    const int64_t b = i / keys / heads, h = i / keys % heads, j = i % keys;
    auto total = span_part(x, b, h, j, lane, 32);
#pragma unroll
    for (int s = 16; s > 0; s /= 2) total += __shfl_xor_sync(0xffffffffu, total, s);
    if (lane == 0) to[i] = total;
  }
}

/// Computes the gradient of query_span [batch, heads, queries].
template <class T, class A>
__global__ void __launch_bounds__(general_threads)
    query_span_kernel(const __grid_constant__ AttentionArguments<T> x, int64_t heads,
                      int64_t queries, A* to, int64_t n) {
  const int64_t step = int64_t{gridDim.x} * general_threads;
  for (int64_t i = int64_t{blockIdx.x} * general_threads + threadIdx.x; i < n; i += step) {
    to[i] = query_span_sum(x, i / queries / heads, i / queries % heads, i % queries);
  }
}

/// Runs a pass on tensor cores or on the general path, without combining its splits.
template <Pass pass, class T>
void run_pieces(const char* name, const AttentionProblem& in, bool on_tensor_cores,
                const AttentionArguments<T>& x) {
  if constexpr (sizeof(T) == 2) {
    if (on_tensor_cores) return run_tensor(name, pass, in, x);
  }
  const auto go = [&](int64_t blocks, int64_t bytes) {
    launch(name, general_kernel<T, pass>, dim3(attention_grid(name, blocks)), general_threads,
           bytes, x);
  };
  using Passes = GeneralPasses<T>;
  using Tile = GeneralTile<Accumulator<T>>;
  if constexpr (pass == Pass::forward) go(Passes::forward_blocks(x), Tile::forward_bytes);
  if constexpr (pass == Pass::rows) go(Passes::row_blocks(x), Tile::rows_bytes);
  if constexpr (pass == Pass::keys) go(Passes::key_blocks(x), Tile::keys_bytes);
  if constexpr (pass == Pass::tables) go(Passes::table_blocks(x), Tile::tables_bytes);
}

/// Runs a pass over rows or keys and combines its splits, whose workspace has rows of `columns`.
template <Pass pass, class T>
void run_pass(const char* name, const AttentionProblem& in, bool on_tensor_cores,
              AttentionArguments<T>& x, int64_t columns) {
  constexpr bool of_keys = pass == Pass::keys;
  const WorkTable& list = of_keys ? x.sizes.layout.column_work : x.sizes.layout.row_work;
  const SplitWorkspace<T> workspace(x, list, columns, pass == Pass::forward, in.inputs.q.device);
  run_pieces<pass>(name, in, on_tensor_cores, x);
  const int64_t rows = cuts_of(x.sizes, list) *
                       (of_keys ? kernels::kAttentionWorkKeys : kernels::kAttentionTileRows);
  launch(name, splits_kernel<T, pass>, dim3(blocks_for(rows, general_threads / 32)),
         general_threads, 0, x, rows);
}

template <class T>
void forward_of(const AttentionProblem& in, const View& out, const View& lse) {
  using A = Accumulator<T>;
  AttentionArguments<T> x = arguments_of<T>(in);
  constexpr const char* name = "block_attention_forward";
  x.out = head_rows<T>(out);
  x.lse = lse.as<A>();
  run_pass<Pass::forward>(name, in, tensor_serves_forward(in, out), x, x.sizes.value_width);
}

template <class T>
void table_gradients(const AttentionProblem& in, bool on_tensor_cores, AttentionArguments<T>& x,
                     const AttentionGradients& grads) {
  using A = Accumulator<T>;
  constexpr const char* name = "block_attention_backward";
  x.splits = table_splits(x.sizes);
  const int64_t numbers = x.sizes.head_count() * x.splits * x.ids * x.table_width();
  const Scratch sums(max<int64_t>(numbers, 1) * static_cast<int64_t>(sizeof(A)),
                     in.inputs.q.device);
  x.sums = sums.as<A>();
  run_pieces<Pass::tables>(name, in, on_tensor_cores, x);
  const auto write = [&](const View& to, int64_t column, int64_t width, double factor) {
    if (!to) return;
    const int64_t n = to.numel();
    launch(name, table_kernel<T, A>, dim3(blocks_for(n, general_threads)), general_threads, 0, x,
           column, width, to.dim(0) == 1, static_cast<A>(factor), to.as<T>(), n);
  };
  write(grads.relation_key, 0, x.sizes.width, x.sizes.scale);
  write(grads.relation_value, x.sizes.width, x.sizes.value_width, 1);
  write(grads.relation_bias, x.sizes.width + x.sizes.value_width, 1, x.sizes.scale);
}

/// Computes dq and the gradients of relation_query and query_span.
template <class T>
void row_gradients(const AttentionProblem& in, bool on_tensor_cores, AttentionArguments<T>& x,
                   const AttentionGradients& grads) {
  using A = Accumulator<T>;
  constexpr const char* name = "block_attention_backward";
  const View& span = grads.query_span;
  const int64_t numbers = span ? x.sizes.head_count() * x.sizes.queries : 0;
  const Scratch sums(max<int64_t>(numbers, 1) * static_cast<int64_t>(sizeof(A)),
                     in.inputs.q.device);
  if (span) x.query_sums = sums.as<A>();
  run_pass<Pass::rows>(name, in, on_tensor_cores, x, x.row_columns());
  if (span) {
    launch(name, query_span_kernel<T, A>, dim3(blocks_for(span.numel(), general_threads)),
           general_threads, 0, x, span.dim(1), span.dim(2), span.as<A>(), span.numel());
  }
  x.query_sums = nullptr;
}

/// Computes dk, dv and the gradient of span.
template <class T>
void key_gradients(const AttentionProblem& in, bool on_tensor_cores, AttentionArguments<T>& x,
                   const AttentionGradients& grads) {
  using A = Accumulator<T>;
  constexpr const char* name = "block_attention_backward";
  const View& span = grads.span;
  const int64_t numbers = span ? x.sizes.head_count() * x.sizes.segment[0].keys : 0;
  const Scratch sums(max<int64_t>(numbers, 1) * static_cast<int64_t>(sizeof(A)),
                     in.inputs.q.device);
  if (span) x.span_sums = sums.as<A>();
  run_pass<Pass::keys>(name, in, on_tensor_cores, x, x.key_columns());
  if (!span) return;
  launch(name, span_kernel<T, A>, dim3(blocks_for(span.numel(), general_threads / 32)),
         general_threads, 0, x, span.dim(0), span.dim(1), span.dim(2), span.as<A>());
}

template <class T>
void backward_of(const AttentionProblem& in, const ConstView& out, const ConstView& lse,
                 const ConstView& dout, const ConstView& dlse, const AttentionGradients& grads) {
  using A = Accumulator<T>;
  constexpr const char* name = "block_attention_backward";
  const bool on_tensor_cores = tensor_serves_backward(in, dout, grads);
  AttentionArguments<T> x = arguments_of<T>(in);
  add_gradients(in, lse, dout, grads, x);
  x.out = head_rows<T>(out);
  const int64_t rows = x.sizes.head_count() * x.sizes.queries;
  const Scratch delta(max<int64_t>(rows, 1) * static_cast<int64_t>(sizeof(A)), in.inputs.q.device);
  launch(name, delta_kernel<T, A>, dim3(blocks_for(rows, general_threads / 32)), general_threads, 0,
         x, dlse.as<A>(), dlse ? dlse.stride(0) : 0, dlse ? dlse.stride(1) : 0,
         dlse ? dlse.stride(2) : 0, delta.as<A>());
  x.delta = delta.as<A>();
  if (grads.q || grads.relation_query) row_gradients(in, on_tensor_cores, x, grads);
  if (grads.k[0] || grads.span) key_gradients(in, on_tensor_cores, x, grads);
  if (grads.relation_key || grads.relation_bias || grads.relation_value) {
    table_gradients(in, on_tensor_cores, x, grads);
  }
}

template <class T>
void join_part(const AttentionProblem& in, const View& out, const View& lse, const View& part_out,
               const View& part_lse) {
  using A = Accumulator<T>;
  const int64_t heads = in.inputs.q.dim(1), queries = in.inputs.q.dim(2);
  const int64_t rows = in.inputs.q.dim(0) * heads * queries;
  launch("block_attention_forward", join_kernel<T, A>, dim3(blocks_for(rows, general_threads / 32)),
         general_threads, 0, head_rows<T>(out), lse.as<A>(), head_rows<const T>(part_out),
         part_lse.as<const A>(), heads, queries, rows);
}

void forward(const AttentionProblem& in, View out, View lse) {
  visit_floating(in.inputs.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (!in.accumulate) return forward_of<T>(in, out, lse);
    forward_of_part(in, out, lse, forward_of<T>, [&](const View& part_out, const View& part_lse) {
      join_part<T>(in, out, lse, part_out, part_lse);
    });
  });
}

void backward(const AttentionProblem& in, ConstView out, ConstView lse, ConstView dout,
              ConstView dlse, const AttentionGradients& grads) {
  visit_floating(in.inputs.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (!in.accumulate) return backward_of<T>(in, out, lse, dout, dlse, grads);
    backward_of_part(in, grads, [&](const AttentionProblem& part, const AttentionGradients& to) {
      backward_of<T>(part, out, lse, dout, dlse, to);
    });
  });
}

}  // namespace

void register_block_attention() {
  kernels::block_attention_forward.set(DeviceKind::cuda, forward);
  kernels::block_attention_backward.set(DeviceKind::cuda, backward);
}

}  // namespace longspan::cuda
