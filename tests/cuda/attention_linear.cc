// Runs the tests of linear attention on the CUDA kernels.
#include "tests/cuda/attention_on_device.h"
#include "tests/ops/linear_attention.cc"

namespace longspan::linear_test {
namespace {

using emulated::there;
using kernels::LinearAttentionInputs;
using kernels::LinearAttentionResultsOf;

const bool taken = [] {
  emulated::enable();
  kernels::linear_attention_forward.set(
      DeviceKind::cpu,
      [](const LinearAttentionInputs& in, const LinearAttentionResultsOf<View>& to) {
        LinearAttentionInputs call = in;
        call.q = there(call.q);
        kernels::linear_attention_forward(emulated::cuda, call, to);
        wait_for_device(emulated::cuda);
      });
  kernels::linear_attention_backward.set(
      DeviceKind::cpu,
      [](const LinearAttentionInputs& in, const LinearAttentionResultsOf<ConstView>& results,
         const kernels::LinearAttentionGradientsOut& given,
         const kernels::LinearAttentionGradients& to) {
        LinearAttentionInputs call = in;
        call.q = there(call.q);
        kernels::linear_attention_backward(emulated::cuda, call, results, given, to);
        wait_for_device(emulated::cuda);
      });
  return true;
}();

int64_t launches_of(int64_t length, bool causal, bool keep_state) {
  Call x = call({1, 1, length, length, 4, 3, 5}, FeatureMap::positive, causal);
  x.options.keep_state = keep_state;
  const int64_t before = emulated::launches();
  run(x, DType::f32);
  return emulated::launches() - before;
}

TEST(LinearAttentionOnCuda, IsWhatTheOpRuns) {
  EXPECT_EQ(launches_of(20, true, false), 3);  // sums of keys, their scan, rows
}

// Segments begin anew from the sums of earlier ones: at their borders nothing may be lost.
TEST(LinearAttentionOnCuda, SegmentsAreOneHead) {
  for (const FeatureMap map : {FeatureMap::positive, FeatureMap::hyperbolic,
                               FeatureMap::trigonometric, FeatureMap::relu}) {
    for (const bool causal : {false, true}) {
      const Call x = call({1, 2, 700, 700, 5, 3, 6}, map, causal);
      expect_near(run(x, DType::f64), solve(x), 1e-10, describe(x));
    }
  }
}

// A chunk is 64 tokens, a segment at least 256.
TEST(LinearAttentionOnCuda, GradientsOfManySegments) {
  const Call x = call({1, 1, 530, 530, 3, 2, 4}, FeatureMap::positive, true, 0.7);
  const auto gradients = [&](int64_t cut) {
    std::vector<Tensor> in;
    for (const Tensor& t : {x.q, x.k, x.v}) in.push_back(leaf(contiguous(t)));
    LinearAttentionOptions o = x.options;
    Tensor total;
    for (int64_t from = 0; from < 530; from += cut) {
      o.keep_state = true;
      const int64_t count = std::min(cut, 530 - from);
      const auto part = [&](int i) {
        return slice(in[static_cast<size_t>(i)], 2, from, from + count);
      };
      const LinearAttentionResult y = linear_attention(part(0), part(1), part(2), x.projection, o);
      o.state = y.state;
      const Tensor loss = sum(mul(y.out, y.out));
      total = total ? add(total, loss) : loss;
    }
    backward(total);
    std::vector<double> all;
    for (const Tensor& t : in) {
      const auto part = values_of(grad(t));
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  };
  EXPECT_LE(distance(gradients(530), gradients(61)), 1e-10);
}

}  // namespace
}  // namespace longspan::linear_test
