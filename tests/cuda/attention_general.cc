// Runs the tests of the op on the general CUDA kernels.
#include "cuda/attention/general.h"

#include "tests/cuda/attention_on_device.h"
#include "tests/ops/attention_laws.h"

namespace longspan {
namespace {

using namespace attention_test;
using namespace cuda;

const bool taken = emulated::take_attention();

TEST(AttentionGeneral, IsWhatTheOpRuns) { emulated::expect_attention_taken(DType::f32); }

TEST(AttentionGeneral, GlobalsAreCut) {
  const int64_t before = emulated::cuts;
  expect_globals_beside_windows(DType::f32);
  EXPECT_GT(emulated::cuts, before);
}

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
