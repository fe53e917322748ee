// The tests of the op, on the general CUDA kernels run by the host.
#include "cuda/attention_general.h"

#include "tests/cuda/attention_on_host.h"
#include "tests/ops/attention_laws.h"

namespace longspan {
namespace {

using namespace attention_test;
using namespace cuda;

// Runs f(shared, index) for every block, in an order that is not the device's.
template <class A, class F>
void run_blocks(int64_t blocks, int64_t bytes, F f) {
  std::vector<char> shared(static_cast<size_t>(bytes));
  simulated::blocks_run += blocks;
  for (int64_t i = blocks; i-- > 0;) {
    std::fill(shared.begin(), shared.end(), '\xff');  // NaN
    f(reinterpret_cast<A*>(shared.data()), i);
  }
}

template <class T>
struct OnHost {
  using A = Accumulator<T>;
  using Passes = GeneralPasses<T>;
  using Tile = GeneralTile<A>;
  static void forward(const kernels::AttentionInputs& in, const View& out, const View& lse);
  static void backward(const kernels::AttentionInputs& in, const ConstView& out,
                       const ConstView& lse, const ConstView& dout, const ConstView& dlse,
                       const kernels::AttentionGradients& grads);
};

template <class T>
void OnHost<T>::forward(const kernels::AttentionInputs& in, const View& out, const View& lse) {
  AttentionArguments<T> x = arguments_of<T>(in);
  x.out = head_rows<T>(out);
  x.lse = lse.as<A>();
  const StretchRoom<T> room(x, x.sizes.value_width, true, {});
  run_blocks<A>(Passes::forward_blocks(x), Tile::forward_bytes,
                [&](A* shared, int64_t i) { Passes::forward(x, shared, i); });
  simulated::join_rows(x);
}

template <class T>
void OnHost<T>::backward(const kernels::AttentionInputs& in, const ConstView& out,
                         const ConstView& lse, const ConstView& dout, const ConstView& dlse,
                         const kernels::AttentionGradients& grads) {
  std::vector<A> delta;
  AttentionArguments<T> x =
      simulated::backward_arguments<T>(in, out, lse, dout, dlse, grads, delta);
  const auto& n = x.sizes;
  if (grads.q || grads.relation_query) {
    const StretchRoom<T> room(x, x.row_columns(), false, {});
    run_blocks<A>(Passes::row_blocks(x), Tile::rows_bytes,
                  [&](A* shared, int64_t i) { Passes::row_gradients(x, shared, i); });
    simulated::add_rows(x, x.dq, 0);
    simulated::add_rows(x, x.drelation_query, x.sizes.width);
  }
  if (grads.k[0] || grads.span) {
    std::vector<A> sums(static_cast<size_t>(n.head_count() * n.segment[0].keys),
                        std::numeric_limits<A>::quiet_NaN());
    if (grads.span) x.span_sums = sums.data();
    run_blocks<A>(Passes::key_blocks(x), Tile::keys_bytes,
                  [&](A* shared, int64_t i) { Passes::key_gradients(x, shared, i); });
    if (grads.span) simulated::write_span(x, grads.span);
  }
  if (!grads.relation_key && !grads.relation_bias && !grads.relation_value) return;
  x.splits = table_splits(n);
  std::vector<A> sums(static_cast<size_t>(n.head_count() * x.splits * x.ids * x.table_width()),
                      std::numeric_limits<A>::quiet_NaN());
  x.sums = sums.data();
  run_blocks<A>(Passes::table_blocks(x), Tile::tables_bytes,
                [&](A* shared, int64_t i) { Passes::table_gradients(x, shared, i); });
  simulated::write_tables(x, grads);
}

const bool taken = simulated::take_slots<OnHost, double, float, f16, bf16>();

TEST(AttentionGeneral, IsWhatTheOpRuns) { simulated::expect_slots_taken(DType::f32); }

TEST(AttentionGeneral, ScalesBelowZero) {
  const Problem x = problem({1, 2, 70, 90, 6, 7}, [](int64_t, int64_t) { return true; });
  const auto tensors = [&](double sign) {
    std::vector<double> q = x.q;
    for (double& value : q) value *= sign;
    return make(q, {1, 2, 70, 6}, DType::f64);
  };
  const Tensor k = make(x.k, {1, 2, 90, 6}, DType::f64), v = make(x.v, {1, 2, 90, 7}, DType::f64);
  ScoreTerms up, down;
  up.scale = 0.7;
  down.scale = -0.7;
  for (const AttentionPattern& p : {patterns::dense(), patterns::local(20)}) {
    EXPECT_LE(distance(values_of(block_attention(tensors(1), k, v, p, up).out),
                       values_of(block_attention(tensors(-1), k, v, p, down).out)),
              1e-12);
  }
}

TEST(AttentionGeneral, FitsSharedMemory) {
  for (const int64_t bytes : {GeneralTile<float>::forward_bytes, GeneralTile<float>::rows_bytes,
                              GeneralTile<float>::keys_bytes, GeneralTile<float>::tables_bytes,
                              GeneralTile<double>::forward_bytes, GeneralTile<double>::rows_bytes,
                              GeneralTile<double>::keys_bytes, GeneralTile<double>::tables_bytes}) {
    EXPECT_LE(bytes, 99 * 1024);
  }
}

}  // namespace
}  // namespace longspan
