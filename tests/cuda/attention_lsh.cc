// The tests of LSH attention, on the CUDA kernels.
#include "tests/cuda/attention_on_device.h"
#include "tests/ops/lsh.cc"

namespace longspan {
namespace {

using kernels::LshInputs;

using emulated::there;

void hash(ConstView q, ConstView rotation, int64_t first, int64_t second, ConstView lengths,
          ConstView hidden, View ids) {
  kernels::lsh_hash(emulated::cuda, there(q), rotation, first, second, lengths, hidden, there(ids));
  wait_for_device(emulated::cuda);
}

void sort(ConstView ids, int64_t values, View work, View order, View place) {
  kernels::lsh_sort(emulated::cuda, there(ids), values, there(work), there(order), there(place));
  wait_for_device(emulated::cuda);
}

void forward(LshInputs in, View out, View lse) {
  in.q = there(in.q);
  kernels::lsh_attention_forward(emulated::cuda, in, there(out), there(lse));
  wait_for_device(emulated::cuda);
}
void backward(LshInputs in, ConstView out, ConstView lse, ConstView dout, ConstView dlse, View dq,
              View dv) {
  in.q = there(in.q);
  kernels::lsh_attention_backward(emulated::cuda, in, out, lse, dout, dlse, there(dq), there(dv));
  wait_for_device(emulated::cuda);
}

// What the CPU's own kernels hash, to compare with.
std::vector<int32_t> cpu_ids;

const bool taken = [] {
  emulated::enable();
  const LshBuckets buckets{16, 10};
  const Tensor rotations = lsh_rotations(Generator{4}, 3, 4, 20, buckets);
  cpu_ids =
      lsh_buckets(normal({2, 3, 300, 20}, Generator{5}), rotations, buckets).to_vector<int32_t>();
  kernels::lsh_hash.set(DeviceKind::cpu, hash);
  kernels::lsh_sort.set(DeviceKind::cpu, sort);
  kernels::lsh_attention_forward.set(
      DeviceKind::cpu, [](const LshInputs& in, View out, View lse) { forward(in, out, lse); });
  kernels::lsh_attention_backward.set(
      DeviceKind::cpu,
      [](const LshInputs& in, ConstView out, ConstView lse, ConstView dout, ConstView dlse, View dq,
         View dv) { backward(in, out, lse, dout, dlse, dq, dv); });
  return true;
}();

TEST(LshGeneral, IsWhatTheOpRuns) {
  const int64_t before = emulated::launches();
  run(problem({1, 2, 2, 5, 3, 3}, LshOptions{}), DType::f32);
  EXPECT_GT(emulated::launches(), before);
}

TEST(LshGeneral, Test12_HashesAsTheCpuDoes) {
  const LshBuckets buckets{16, 10};
  const Tensor rotations = lsh_rotations(Generator{4}, 3, 4, 20, buckets);
  const Tensor q = normal({2, 3, 300, 20}, Generator{5});
  EXPECT_EQ(lsh_buckets(q, rotations, buckets).to_vector<int32_t>(), cpu_ids);
}

}  // namespace
}  // namespace longspan
