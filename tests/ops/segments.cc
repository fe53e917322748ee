// Attention within packed segments against attention of each segment alone.

#include "ops/patterns/segments.h"

#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "autograd/gradcheck.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "ops/attention/block_attention.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"

namespace longspan::test {
namespace {

using Lengths = std::vector<int64_t>;

Tensor normal_rows(int64_t rows, uint64_t seed, DType dtype = DType::f64) {
  return normal({1, 2, rows, 4}, Generator{seed}, 0, 1, dtype);
}

int64_t sum_of(const Lengths& lengths) {
  int64_t sum = 0;
  for (const int64_t n : lengths) sum += n;
  return sum;
}

/// Attends to each segment alone.
std::vector<double> alone(const Tensor& q, const Tensor& k, const Lengths& queries,
                          const Lengths& keys, bool causal) {
  std::vector<Tensor> parts;
  int64_t at = 0, from = 0;
  for (size_t s = 0; s < queries.size(); ++s) {
    const Tensor own = contiguous(narrow(q, 2, at, queries[s]));
    if (queries[s] > 0 && keys[s] > 0) {
      const Tensor seen = contiguous(narrow(k, 2, from, keys[s]));
      parts.push_back(
          block_attention(own, seen, seen, causal ? patterns::causal() : patterns::dense()).out);
    } else if (queries[s] > 0) {
      parts.push_back(zeros_like(own));
    }
    at += queries[s];
    from += keys[s];
  }
  return concat(parts, 2).to_vector<double>();
}

TEST(Segments, AttendWithinThemselves) {
  const NoGrad off;
  for (const Lengths& lengths : {Lengths{1}, Lengths{5}, Lengths{1, 1, 1}, Lengths{3, 0, 12, 13, 1},
                                 Lengths{200, 7, 97, 96}, Lengths{0, 4, 0}}) {
    const int64_t n = sum_of(lengths);
    const Tensor q = normal_rows(n, 1), k = normal_rows(n, 2);
    for (const bool causal : {false, true}) {
      const AttentionPattern p =
          causal ? patterns::causal_segments(lengths) : patterns::segments(lengths);
      const std::vector<double> expected = alone(q, k, lengths, lengths, causal);
      const MacCount macs;
      const std::vector<double> found = block_attention(q, k, k, p).out.to_vector<double>();
      int64_t pairs = 0;
      for (const int64_t t : lengths) pairs += causal ? t * (t + 1) / 2 : t * t;
      EXPECT_EQ(macs.attention(), 2 * 4 * 2 * pairs);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-14) << i;
    }
  }
}

TEST(Segments, MayHaveFewerQueriesThanKeysAndNone) {
  const NoGrad off;
  const Lengths queries{1, 0, 2, 1, 1}, keys{4, 3, 0, 130, 1};
  const Tensor q = normal_rows(5, 1), k = normal_rows(138, 2);
  const std::vector<double> found =
      block_attention(q, k, k, patterns::segments(queries, keys)).out.to_vector<double>();
  const std::vector<double> expected = alone(q, k, queries, keys, false);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-14) << i;
}

TEST(Segments, HaveTheirGradients) {
  const Lengths lengths{2, 5, 0, 1};
  for (const bool causal : {false, true}) {
    const auto f = [&](const std::vector<Tensor>& x) {
      const auto p = causal ? patterns::causal_segments(lengths) : patterns::segments(lengths);
      return block_attention(x[0], x[1], x[2], p).out;
    };
    const auto result = gradcheck(f, {normal_rows(8, 1), normal_rows(8, 2), normal_rows(8, 3)});
    EXPECT_TRUE(result) << result.message;
  }
}

/// The results of one segment with `before` rows of other segments before it, and 17 behind.
struct Placed {
  std::vector<double> out, lse, gradient;

  bool operator==(const Placed&) const = default;
};

Placed placed(int64_t rows, int64_t before, bool causal, DType dtype, uint64_t others) {
  Lengths lengths;
  std::vector<Tensor> parts, slopes;
  const auto add = [&](int64_t n, const Tensor& x, const Tensor& slope) {
    if (n == 0) return;
    lengths.push_back(n);
    parts.push_back(x);
    slopes.push_back(slope);
  };
  const auto other = [&](int64_t n, uint64_t seed) {
    add(n, normal_rows(n, others + seed, dtype), zeros({1, 2, n, 4}, dtype));
  };
  other(std::min<int64_t>(before, 7), 1);  // two segments, one of them short
  other(before - std::min<int64_t>(before, 7), 2);
  add(rows, mul(normal_rows(rows, 4, dtype), 3), normal_rows(rows, 5, dtype));
  other(17, 3);
  Tensor x = concat(parts, 2);
  set_requires_grad(x);
  const auto [out, lse] = block_attention(
      x, x, x, causal ? patterns::causal_segments(lengths) : patterns::segments(lengths));
  const Tensor slope = concat(slopes, 2);
  backward({&out, 1}, {&slope, 1});
  const auto own = [&](const Tensor& y) {
    return cast(contiguous(narrow(y.detach(), 2, before, rows)), DType::f64).to_vector<double>();
  };
  return {own(out), own(lse), own(grad(x))};
}

// What lies beside a segment changes no bit of its rows and gradients, nor does its place, as far
// as the header promises: by whole blocks of keys, and by 32 keys within a block.
TEST(Segments, PlaceAndOthersChangeNoBit) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const bool causal : {false, true}) {
      for (const int64_t rows : {1, 30, 64, 100, 192, 250, 500}) {
        for (const int64_t first : {0, 13, 141}) {
          const Placed expected = placed(rows, first, causal, dtype, 100);
          const auto crosses = [rows](int64_t at) {
            return at / patterns::kSegmentBlock != (at + rows - 1) / patterns::kSegmentBlock;
          };
          EXPECT_EQ(placed(rows, first, causal, dtype, 200), expected) << rows << " at " << first;
          for (const int64_t apart : {32, 64, 96, 128, 160, 192, 288, 384, 576}) {
            const bool promised = apart % patterns::kSegmentBlock == 0 ||
                                  (!crosses(first) && !crosses(first + apart));
            if (!promised) continue;
            EXPECT_EQ(placed(rows, first + apart, causal, dtype, 300), expected)
                << name_of(dtype) << (causal ? " causal " : " ") << rows << " at " << first << " + "
                << apart;
          }
        }
      }
    }
  }
}

TEST(Segments, RefuseLengthsThatDoNotFit) {
  EXPECT_TRUE(contains(message_of<ShapeError>([] {
                         patterns::segments(Lengths{1, 2}, Lengths{3});
                       }),
                       "got 2 segments of queries and 1 of keys"));
  EXPECT_TRUE(contains(message_of<ShapeError>([] {
                         patterns::segments(Lengths{2, -1});
                       }),
                       "segment 1 has -1 queries"));
}

}  // namespace
}  // namespace longspan::test
