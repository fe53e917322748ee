#include "autograd/gradcheck.h"

#include <gtest/gtest.h>

#include <limits>

#include "autograd/record.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/shape.h"
#include "tests/autograd/small_tensors.h"

namespace longspan {
namespace {

using test::draw;

using Inputs = std::vector<Tensor>;
using One = std::function<Tensor(const Inputs&)>;
using Several = std::function<std::vector<Tensor>(const Inputs&)>;

/// Computes x^2 with a derivative of factor * x; element `wrong` of the gradient is off by 1e-3.
Tensor square_with(const Tensor& x, double factor, int64_t wrong) {
  return record("square", {x}, mul(x.detach(), x.detach()), save(x),
                [factor, wrong](const Context& c, const Tensor& dy) -> Grads {
                  const auto [saved] = c.saved<1>();
                  Tensor dx = contiguous(mul(mul(saved, dy), factor));
                  if (wrong >= 0) dx.mut().as<double>()[wrong] += 1e-3;
                  return {dx};
                });
}

TEST(Gradcheck, AcceptsRightGradients) {
  const GradcheckResult r =
      gradcheck(One([](const Inputs& x) { return square_with(x[0], 2.0, -1); }), {draw({5, 7})});
  EXPECT_TRUE(r) << r.message;
  EXPECT_EQ(r.checked, 35);
  EXPECT_LE(r.worst, 1);
}

TEST(Gradcheck, CatchesWrongOnes) {
  const GradcheckResult factor =
      gradcheck(One([](const Inputs& x) { return square_with(x[0], 2.001, -1); }), {draw({5, 7})});
  EXPECT_FALSE(factor);
  const GradcheckResult element =
      gradcheck(One([](const Inputs& x) { return square_with(x[0], 2.0, 17); }), {draw({5, 7})});
  EXPECT_FALSE(element);
  EXPECT_NE(element.message.find("input 0 element 17"), std::string::npos) << element.message;
}

TEST(Gradcheck, CatchesMissingOnes) {
  // A gradient that is not returned counts as zero.
  const GradcheckResult r =
      gradcheck(One([](const Inputs& x) {
                  return record("lost", {x[0]}, mul(x[0].detach(), 2.0), {},
                                [](const Context&, const Tensor&) { return Grads{Tensor{}}; });
                }),
                {draw({3})});
  EXPECT_FALSE(r);
}

TEST(Gradcheck, CatchesNaN) {
  const GradcheckResult r = gradcheck(
      One([](const Inputs& x) {
        return record("nan", {x[0]}, mul(x[0].detach(), 2.0), {},
                      [](const Context&, const Tensor& dy) {
                        return Grads{full_like(dy, std::numeric_limits<double>::quiet_NaN())};
                      });
      }),
      {draw({3})});
  EXPECT_FALSE(r);
}

TEST(Gradcheck, WeighsEveryOutput) {
  // Only the second output's gradient is wrong, and only against the first input.
  const GradcheckResult r =
      gradcheck(Several([](const Inputs& x) {
                  return std::vector<Tensor>{mul(x[0], x[1]), square_with(x[0], 2.1, -1)};
                }),
                {draw({4}), draw({4}, 2)});
  EXPECT_FALSE(r);
  EXPECT_NE(r.message.find("input 0"), std::string::npos) << r.message;
}

TEST(Gradcheck, StridedInputsAndThoseWithoutGradients) {
  const Tensor ids = iota(3);
  const Tensor strided = transpose(draw({4, 3}));
  const GradcheckResult r = gradcheck(One([&](const Inputs& x) {
                                        EXPECT_EQ(x[0].strides(), strided.strides());
                                        EXPECT_EQ(x[1].dtype(), DType::i64);
                                        EXPECT_FALSE(x[2]);
                                        return square_with(x[0], 2.0, -1);
                                      }),
                                      {strided, ids, Tensor{}});
  EXPECT_TRUE(r) << r.message;
  EXPECT_EQ(r.checked, 12);
}

TEST(Gradcheck, SamplesLargeInputsEvenly) {
  const GradcheckResult r =
      gradcheck(One([](const Inputs& x) { return square_with(x[0], 2.0, -1); }), {draw({1000})});
  EXPECT_TRUE(r) << r.message;
  EXPECT_GE(r.checked, 64);
  EXPECT_LE(r.checked, 68);
}

TEST(Gradcheck, EmptyInputsPassWhereTheOpRecords) {
  const GradcheckResult r =
      gradcheck(One([](const Inputs& x) { return square_with(x[0], 2.0, -1); }), {draw({0, 3})});
  EXPECT_TRUE(r) << r.message;
  EXPECT_EQ(r.checked, 0);
  const GradcheckResult forgot =
      gradcheck(One([](const Inputs& x) { return mul(x[0].detach(), 2.0); }), {draw({0, 3})});
  EXPECT_FALSE(forgot);
  EXPECT_NE(forgot.message.find("no output of f has history"), std::string::npos);
}

TEST(Gradcheck, ConstantOutputsNeedNoHistoryBesideOthers) {
  const GradcheckResult r =
      gradcheck(Several([](const Inputs& x) {
                  return std::vector<Tensor>{mul(x[0], x[0]), ones_like(x[0]), iota(4), Tensor{}};
                }),
                {draw({4})});
  EXPECT_TRUE(r) << r.message;
  EXPECT_EQ(r.checked, 4);
}

TEST(Gradcheck, RecordsWhereTheCallerDoesNot) {
  const NoGrad off;
  const GradcheckResult r =
      gradcheck(One([](const Inputs& x) { return square_with(x[0], 2.0, -1); }), {draw({5})});
  EXPECT_TRUE(r) << r.message;
  EXPECT_EQ(r.checked, 5);
}

TEST(Gradcheck, AcceptsLargeInputsOfAnySize) {
  // The check along a direction also accepts sizes and values that make sums large.
  const GradcheckResult r =
      gradcheck(One([](const Inputs& x) { return mul(square_with(x[0], 2.0, -1), 1e3); }),
                {mul(draw({100, 120}), 1e4)});
  EXPECT_TRUE(r) << r.message << ", " << r.worst;
}

TEST(Gradcheck, NeedsF64AndLeavesInputsAlone) {
  EXPECT_THROW(gradcheck(One([](const Inputs& x) { return x[0]; }), {zeros({2})}), DTypeError);
  const Tensor x = draw({6});
  const std::vector<double> before = x.to_vector<double>();
  gradcheck(One([](const Inputs& in) { return mul(in[0], in[0]); }), {x});
  EXPECT_EQ(x.to_vector<double>(), before);
}

}  // namespace
}  // namespace longspan
