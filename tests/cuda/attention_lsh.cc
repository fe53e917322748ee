// Runs the tests of LSH attention on the CUDA kernels.
#include "core/kernels/lsh_maths.h"
#include "tests/cuda/attention_on_device.h"
#include "tests/ops/lsh.cc"

namespace longspan::lsh_test {
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

// Bucket ids from the CPU's own kernels, for comparison.
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

TEST(LshGeneral, HashesAsTheCpuDoes) {
  const LshBuckets buckets{16, 10};
  const Tensor rotations = lsh_rotations(Generator{4}, 3, 4, 20, buckets);
  const Tensor q = normal({2, 3, 300, 20}, Generator{5});
  EXPECT_EQ(lsh_buckets(q, rotations, buckets).to_vector<int32_t>(), cpu_ids);
}

// ---------------------------------------------------------------------------------- tensor cores

// Rounds q, v and dout to the dtype.
Problem rounded(Problem x, DType dtype) {
  for (std::vector<double>* values : {&x.q, &x.v, &x.dout}) {
    *values = values_of(make(*values, {static_cast<int64_t>(values->size())}, dtype));
  }
  return x;
}

constexpr DType kHalves[] = {DType::bf16, DType::f16};
double tolerance(DType dtype) { return dtype == DType::bf16 ? 2e-2 : 3e-3; }

void expect_solved(const Problem& given, DType dtype) {
  const Problem x = rounded(given, dtype);
  const Solution y = run(x, dtype), z = solve(x);
  const std::string what = describe(x) + (dtype == DType::bf16 ? " bf16" : " f16");
  EXPECT_LE(distance(y.out, z.out), tolerance(dtype)) << what << " out";
  for (size_t i = 0; i < y.lse.size(); ++i) {
    EXPECT_LE(distance({y.lse[i]}, {z.lse[i]}), 1e-4) << what << " lse " << i;
  }
  EXPECT_LE(distance(y.dq, z.dq), tolerance(dtype)) << what << " dq";
  EXPECT_LE(distance(y.dv, z.dv), tolerance(dtype)) << what << " dv";
}

// Returns whether the tensor-core kernels support the rule of a call.
bool known(const LshOptions& o) {
  return o.wrap != LshWrap::global || o.same_bucket || o.duplicates == LshDuplicates::off;
}

TEST(LshTensor, IsWhatTheOpRuns) {
  const auto launches_of = [](int64_t rounds, int64_t width) {
    const int64_t before = emulated::launches();
    run(problem({1, 2, rounds, 5, width, width}, LshOptions{}), DType::bf16);
    return emulated::launches() - before;
  };
  EXPECT_EQ(launches_of(4, 8) - launches_of(1, 8), 9);  // three for each round
  EXPECT_EQ(launches_of(4, 7), launches_of(1, 7));
}

TEST(LshTensor, UnionEqualsDenseMaskedOracle) {
  const std::pair<int, int> windows[] = {{1, 0}, {1, 1}, {0, 2}, {2, 0}};
  size_t n = 0;
  for_rules([&](LshOptions o) {
    for (const LshDuplicates duplicates : kDuplicates) {
      o.duplicates = duplicates;
      if (!known(o)) continue;
      o.buckets = 5;
      o.chunk = 7;
      std::tie(o.before, o.after) = windows[n++ % 4];
      expect_solved(problem({1, 1 + static_cast<int64_t>(n % 2), 3, 41, 8, 16}, o), DType::f16);
    }
  });
}

TEST(LshTensor, ChunksTwiceAroundTheCircleCountTwice) {
  for (const LshWrap wrap : {LshWrap::round, LshWrap::global}) {
    LshOptions o;
    o.wrap = wrap;
    o.same_bucket = false;
    o.duplicates = LshDuplicates::off;
    o.repeat_chunks = true;
    o.chunk = 8;
    o.before = 2;
    o.after = 1;
    for (const int64_t length : {13, 40}) {
      expect_solved(problem({1, 1, 2, length, 8, 8}, o), DType::f16);
    }
  }
}

TEST(LshTensor, HoldsForEveryLengthWidthAndChunk) {
  LshOptions o;
  o.buckets = 6;
  for (const DType dtype : kHalves) {
    for (const auto& [width, value_width] : {std::pair{8, 24}, {40, 64}, {128, 72}}) {
      for (const auto& [chunk, length] :
           {std::pair{16, 1}, {16, 15}, {64, 129}, {80, 257}, {1000, 70}}) {
        o.chunk = chunk;
        o.causal = length % 2 == 0 || width == 40;
        expect_solved(problem({1, 1, 2, length, width, value_width}, o, 3), dtype);
      }
    }
  }
}

// Rules that need more information per pair than these kernels keep go entirely to the general
// kernels.
TEST(LshTensor, LeavesOtherRulesToTheGeneralKernels) {
  const auto launches_of = [](const Problem& x) {
    const int64_t before = emulated::launches();
    expect_solved(x, DType::bf16);
    return emulated::launches() - before;
  };
  LshOptions o;
  o.buckets = 3;
  o.chunk = 4;
  const int64_t general = launches_of(problem({1, 1, 3, 13, 7, 8}, o));
  EXPECT_EQ(launches_of(problem({1, 1, 17, 13, 8, 8}, o)), general);
  o.same_bucket = false;
  o.wrap = LshWrap::global;
  EXPECT_EQ(launches_of(problem({1, 1, 3, 13, 8, 8}, o)), general);
  o.duplicates = LshDuplicates::off;
  EXPECT_GT(launches_of(problem({1, 1, 3, 13, 8, 8}, o)), general);
}

// f16 has few values below 2^-14.
TEST(LshTensor, SmallGradientsKeepTheirDigits) {
  LshOptions o;
  o.buckets = 5;
  o.chunk = 16;
  o.before = 1;
  for (const int64_t width : {8, 64, 128}) {
    Problem x = problem({1, 2, 2, 96, width, 16}, o);
    for (std::vector<double>* values : {&x.dout, &x.dlse}) {
      for (double& value : *values) value /= 4096;
    }
    Solution ours = run(x, DType::f16), exact = solve(x);
    for (std::vector<double>* values : {&ours.dq, &exact.dq}) {
      for (double& value : *values) value *= 4096;
    }
    EXPECT_LE(distance(ours.dq, exact.dq), 1e-3) << width;
  }
}

// Heads are stored inside tokens ([B, L, H, d]), as projections leave them.
TEST(LshTensor, TakesRowsThatLieApart) {
  LshOptions o;
  o.buckets = 4;
  o.chunk = 16;
  const Problem x = problem({2, 3, 2, 40, 16, 8}, o);
  const auto apart = [&](const std::vector<double>& values, int64_t width) {
    const Tensor whole = make(values, {2, 3, 40, width}, DType::bf16);
    return leaf(transpose(contiguous(transpose(whole, 1, 2)), 1, 2));
  };
  const Tensor q = apart(x.q, 16), v = apart(x.v, 8);
  const AttentionResult y = lsh_attention(q, v, x.ids_tensor(), o);
  backward(add(sum(mul(y.out, make(x.dout, {2, 3, 40, 8}, DType::bf16))),
               cast(sum(mul(y.lse, make(x.dlse, {2, 3, 40}, DType::f32))), DType::bf16)));
  expect_same({values_of(y.out), values_of(y.lse), values_of(grad(q)), values_of(grad(v))},
              run(x, DType::bf16), "apart");
}

// The dropout factor of a pair is the weighted mean over its visits, each of which has its own
// draw.
TEST(LshTensor, DropsWhatTheContractSays) {
  for (const LshDuplicates duplicates : kDuplicates) {
    for (const bool broadcast : {false, true}) {
      LshOptions o;
      o.buckets = 3;
      o.chunk = 20;
      o.duplicates = duplicates;
      o.dropout = 0.3f;
      o.dropout_broadcast = broadcast;
      o.pass = {true, Generator{77}};
      const Problem x = rounded(problem({1, 2, 2, 70, 8, 16}, o), DType::f16);
      const LshOrder sorted = lsh_sort(x.ids_tensor(), o.buckets + 1);
      const auto order = sorted.order.to_vector<int32_t>(),
                 place = sorted.place.to_vector<int32_t>();
      kernels::LshRule rule;
      rule.buckets = o.buckets;
      rule.chunk = o.chunk;
      rule.duplicates = o.duplicates;
      const auto factor = [&](int64_t bh, int64_t i, int64_t j) {
        const int64_t at = bh * x.n.rounds * x.n.length;
        const kernels::LshHead head{&x.ids[size(at)], &order[size(at)], &place[size(at)],
                                    x.n.rounds,       x.n.length,       rule};
        const kernels::LshKeep keep{o.pass.gen.key, drop_threshold(o.dropout),
                                    1 / (1 - double{o.dropout}), broadcast,
                                    static_cast<uint32_t>(bh)};
        double total = 0, times = 0;
        for (int64_t r = 0; r < x.n.rounds; ++r) {
          const int64_t slot = head.chunk_of(r, j) - head.chunk_of(r, i) + rule.before;
          const double weight = head.meetings(r, i, r, j) > 0 ? head.weight(r, i, r, j) : 0;
          total += weight * keep.factor(head, r, i, r, j, slot);
          times += weight;
        }
        return times > 0 ? total / times : 0;
      };
      const Solution y = run(x, DType::f16);
      const Solution z = lsh_test::solve(x.n, x.q, x.v, x.ids, o, x.dout, x.dlse, factor);
      EXPECT_LE(distance(y.out, z.out), 3e-3) << describe(x);
      EXPECT_LE(distance(y.lse, z.lse), 1e-4) << describe(x);
      EXPECT_LE(distance(y.dq, z.dq), 3e-3) << describe(x);
      EXPECT_LE(distance(y.dv, z.dv), 3e-3) << describe(x);
    }
  }
}

TEST(LshTensor, TokensWithoutOthersGiveTheirOwnValues) {
  for (const LshDuplicates duplicates : kDuplicates) {
    LshOptions o;
    o.buckets = 3;
    o.chunk = 8;
    o.duplicates = duplicates;
    for (const bool drops : {false, true}) {
      o.dropout = drops ? 0.5f : 0;
      o.pass = {drops, Generator{3}};
      Problem x = rounded(problem({1, 2, 3, 21, 8, 16}, o), DType::bf16);
      std::fill(x.ids.begin(), x.ids.end(), 3);
      std::fill(x.dlse.begin(), x.dlse.end(), 0.0);
      const Solution y = run(x, DType::bf16);
      EXPECT_EQ(y.dq, std::vector<double>(x.q.size(), 0)) << describe(x);
      if (drops) continue;
      EXPECT_EQ(y.out, x.v) << describe(x);
      EXPECT_LE(distance(y.dv, x.dout), 1e-2) << describe(x);
    }
  }
}

TEST(LshTensor, HeadsDoNotDependOnEachOther) {
  LshOptions o;
  o.buckets = 4;
  o.chunk = 16;
  const Problem both = problem({2, 1, 2, 50, 16, 8}, o);
  const Solution y = run(both, DType::bf16);
  Problem one = both;
  one.n.batch = 1;
  const auto keep = [](std::vector<double>& values) {
    values.erase(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2));
  };
  for (std::vector<double>* values : {&one.q, &one.v, &one.dout, &one.dlse}) keep(*values);
  one.ids.erase(one.ids.begin(), one.ids.begin() + static_cast<int64_t>(one.ids.size() / 2));
  Solution half = y;
  for (std::vector<double>* values : {&half.out, &half.lse, &half.dq, &half.dv}) keep(*values);
  expect_same(run(one, DType::bf16), half, "second sample");
}

// Tokens of a bucket that no other token attends to may hold NaN or infinity, and so may their
// gradients. No bit of the other tokens changes, although they share tiles.
TEST(LshTensor, HiddenTokensMayHoldAnything) {
  for (const LshDuplicates duplicates : {LshDuplicates::first, LshDuplicates::off}) {
    LshOptions o;
    o.buckets = 4;
    o.chunk = 32;
    o.duplicates = duplicates;
    Problem clean = problem({1, 1, 2, 90, 8, 16}, o);
    for (size_t i = 0; i < 90; ++i) clean.ids[90 + i] = (clean.ids[i] + 1) % 4;
    const Solution y = run(clean, DType::f16);
    for (const double bad : {std::nan(""), double{INFINITY}, -double{INFINITY}}) {
      Problem x = clean;
      const auto hidden = [&](int64_t i) { return x.ids[size(i)] == 2; };
      for (int64_t i = 0; i < x.n.length; i += 3) {
        if (!hidden(i)) continue;
        std::fill_n(x.q.begin() + i * 8, 8, bad);
        std::fill_n(x.v.begin() + i * 16, 16, bad);
        std::fill_n(x.dout.begin() + i * 16, 16, bad);
      }
      const Solution z = run(x, DType::f16);
      const auto same = [&](const std::vector<double>& a, const std::vector<double>& b, int64_t i,
                            int64_t width, const char* what) {
        for (int64_t c = 0; c < width; ++c) {
          EXPECT_EQ(a[size(i * width + c)], b[size(i * width + c)]) << what << " " << i;
        }
      };
      int64_t others = 0;
      for (int64_t i = 0; i < x.n.length; ++i) {
        if (hidden(i)) continue;
        ++others;
        same(z.out, y.out, i, 16, "out");
        same(z.lse, y.lse, i, 1, "lse");
        same(z.dq, y.dq, i, 8, "dq");
        same(z.dv, y.dv, i, 16, "dv");
      }
      EXPECT_GT(others, 50);
      EXPECT_LT(others, 85);
    }
  }
}

}  // namespace
}  // namespace longspan::lsh_test
