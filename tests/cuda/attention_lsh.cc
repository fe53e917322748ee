// The tests of LSH attention, on the CUDA kernels run by the host.
#include "core/memory.h"
#include "cuda/lsh_general.h"
#include "tests/ops/lsh.cc"

namespace longspan {
namespace {

using namespace cuda;
using kernels::LshInputs;

int64_t tokens_run = 0;

// f(token) for every block, in an order that is not the device's.
template <class T, class F>
void run_tokens(const LshArguments<T>& x, F f) {
  std::vector<char> shared(static_cast<size_t>(LshToken<T>::bytes(x.q.width, x.v.width)));
  tokens_run += x.blocks();
  for (int64_t i = x.blocks(); i-- > 0;) {
    std::fill(shared.begin(), shared.end(), '\xff');  // NaN
    f(LshToken<T>(x, reinterpret_cast<Accumulator<T>*>(shared.data()), i));
  }
}

template <class T>
void forward_of(const LshInputs& in, const View& out, const View& lse) {
  LshArguments<T> x = lsh_arguments<T>(in);
  x.out = head_rows<T>(out);
  x.lse = lse.as<Accumulator<T>>();
  run_tokens(x, [](LshToken<T> token) { token.forward(); });
}

template <class T>
void backward_of(const LshInputs& in, const ConstView& out, const ConstView& lse,
                 const ConstView& dout, const ConstView& dlse, const View& dq, const View& dv) {
  using A = Accumulator<T>;
  LshArguments<T> x = lsh_arguments<T>(in);
  const HeadRows<T> y = head_rows<T>(out);
  x.dout = head_rows<const T>(dout);
  x.dq = head_rows<T>(dq);
  x.dv = head_rows<T>(dv);
  std::vector<A> sums(lse.as<A>(), lse.as<A>() + lse.numel()), delta;
  x.lse = sums.data();
  for (int64_t i = 0; i < x.blocks(); ++i) {
    const int64_t bh = i / x.head.length, b = bh / x.heads, h = bh % x.heads;
    delta.push_back(delta_part<T>(x.dout, y, b, h, i % x.head.length, 0, 1) -
                    (dlse ? dlse.as<A>()[i] : A(0)));
  }
  x.delta = delta.data();
  run_tokens(x, [](LshToken<T> token) { token.backward(); });
}

void hash(ConstView q, ConstView rotation, int64_t first, int64_t second, ConstView lengths,
          ConstView hidden, View ids) {
  visit_floating(q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto x = lsh_hash_arguments<T>(q, rotation, first, second, lengths, hidden, ids);
    for (int64_t i = 0; i < x.count(); ++i) x.hash(i);
  });
}

void sort(ConstView ids, int64_t values, View work, View order, View place) {
  const int64_t n = ids.dim(1);
  std::vector<int32_t> shared(2 * lsh_pairs, -1);
  for (int64_t r = 0; r < ids.dim(0); ++r) {
    lsh_sort_row(ids.as<int32_t>() + r * n, n, values, work.as<int32_t>() + r * (values + 1),
                 order.as<int32_t>() + r * n, place.as<int32_t>() + r * n, shared.data());
  }
}

void forward(const LshInputs& in, View out, View lse) {
  visit_floating(in.q.dtype,
                 [&](auto tag) { forward_of<typename decltype(tag)::type>(in, out, lse); });
}
void backward(const LshInputs& in, ConstView out, ConstView lse, ConstView dout, ConstView dlse,
              View dq, View dv) {
  visit_floating(in.q.dtype, [&](auto tag) {
    backward_of<typename decltype(tag)::type>(in, out, lse, dout, dlse, dq, dv);
  });
}

// What the CPU's own kernels hash, to compare with.
std::vector<int32_t> cpu_ids;

const bool taken = [] {
  register_backends();
  const LshBuckets buckets{16, 10};
  const Tensor rotations = lsh_rotations(Generator{4}, 3, 4, 20, buckets);
  cpu_ids =
      lsh_buckets(normal({2, 3, 300, 20}, Generator{5}), rotations, buckets).to_vector<int32_t>();
  kernels::lsh_hash.set(DeviceKind::cpu, hash);
  kernels::lsh_sort.set(DeviceKind::cpu, sort);
  kernels::lsh_attention_forward.set(DeviceKind::cpu, forward);
  kernels::lsh_attention_backward.set(DeviceKind::cpu, backward);
  return true;
}();

TEST(LshGeneral, IsWhatTheOpRuns) {
  const int64_t before = tokens_run;
  run(problem({1, 2, 2, 5, 3, 3}, LshOptions{}), DType::f32);
  EXPECT_EQ(tokens_run - before, 2 * 10);
}

TEST(LshGeneral, Test12_HashesAsTheCpuDoes) {
  const LshBuckets buckets{16, 10};
  const Tensor rotations = lsh_rotations(Generator{4}, 3, 4, 20, buckets);
  const Tensor q = normal({2, 3, 300, 20}, Generator{5});
  EXPECT_EQ(lsh_buckets(q, rotations, buckets).to_vector<int32_t>(), cpu_ids);
}

}  // namespace
}  // namespace longspan
