// Ops that are wrong on purpose. gradcheck() must reject each and report where and by how much.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <ostream>

#include "autograd/gradcheck.h"
#include "autograd/record.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/autograd/small_tensors.h"

namespace longspan {
namespace {

using test::draw;

using Inputs = std::vector<Tensor>;
using Outputs = std::vector<Tensor>;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// A function with a mistake, and the texts that the message must contain.
struct Mutant {
  const char* name;
  std::function<Outputs(const Inputs&)> f;
  Inputs inputs;
  std::vector<std::string> says;
};

void PrintTo(const Mutant& m, std::ostream* out) { *out << m.name; }

/// Computes x^2 with a gradient that `wrong` makes from the right one; `wrong` captures scalars
/// only.
template <class F>
Tensor square_but(const Tensor& x, F wrong) {
  return record("square", {x}, mul(x.detach(), x.detach()), save(x),
                [wrong](const Context& c, const Tensor& dy) -> Grads {
                  const auto [saved] = c.saved<1>();
                  return {wrong(contiguous(mul(mul(saved, dy), 2.0)))};
                });
}

/// Computes x^2 with the right gradient, except that element `at` is `value`.
Tensor square_but_at(const Tensor& x, int64_t at, double value) {
  return square_but(x, [at, value](Tensor dx) {
    dx.mut().as<double>()[at] = value;
    return dx;
  });
}

/// Computes a * b. `swapped` exchanges the gradients of a and b; `summed` sums that of b over rows.
Tensor product(const Tensor& a, const Tensor& b, bool swapped, bool summed) {
  return record("product", {a, b}, mul(a.detach(), b.detach()), save(a, b),
                [swapped, summed](const Context& c, const Tensor& dy) -> Grads {
                  const auto [sa, sb] = c.saved<2>();
                  const Tensor da = mul(dy, sb), db = mul(dy, sa);
                  if (swapped) return {db, da};
                  if (db.shape() == sb.shape()) return {da, db};
                  return {da, summed ? sum(db, {0}) : clone(select(db, 0, 0))};
                });
}

Mutant one(const char* name, std::function<Tensor(const Tensor&)> f, const Tensor& x,
           std::vector<std::string> says) {
  return {name,
          [f = std::move(f)](const Inputs& in) { return Outputs{f(in[0])}; },
          {x},
          std::move(says)};
}

std::vector<Mutant> mutants() {
  const Tensor x = draw({3, 4}), y = draw({3, 4}, 2);
  std::vector<Mutant> all;
  const auto add_one = [&](const char* name, std::function<Tensor(const Tensor&)> f,
                           std::vector<std::string> says) {
    all.push_back(one(name, std::move(f), x, std::move(says)));
  };

  // Missing history.
  const std::string history = "no output has history; is there an op that does not call record()";
  add_one("ForgotRecord", [](const Tensor& a) { return mul(a.detach(), 3.0); },
          {"input 0 element 2, at [0, 2]: analytic 0, numeric -2.7", history});
  add_one("DetachedResult", [](const Tensor& a) { return mul(a, a).detach(); },
          {"input 0 element", "analytic 0, numeric", history});
  add_one("UnderNoGrad",
          [](const Tensor& a) {
            const NoGrad off;
            return exp(a);
          },
          {"input 0 element", "analytic 0, numeric", history});
  add_one("ConstantWithoutHistory", [](const Tensor& a) { return ones_like(a); },
          {"no output of f has history"});
  add_one("DetachedBranch", [](const Tensor& a) { return add(mul(a, 2.0), sin(a.detach())); },
          {"input 0 element", "analytic", "numeric"});
  all.push_back({"SecondOutputForgotRecord",
                 [](const Inputs& in) {
                   return Outputs{mul(in[0], 2.0), mul(in[0].detach(), 3.0)};
                 },
                 {x},
                 {"input 0 element", "analytic", "numeric"}});
  all.push_back({"GradientOfOneInputForgotten",
                 [](const Inputs& in) { return Outputs{mul(in[0], in[1].detach())}; },
                 {x, y},
                 {"input 1 element", "analytic 0, numeric", "no gradient arrived"}});
  add_one("IntegerOutput", [](const Tensor& a) { return cast(mul(a, 4.0), DType::i64); },
          {"none of 1 outputs is floating, so nothing can be checked"});
  all.push_back({"NoFloatingInput",
                 [](const Inputs& in) { return Outputs{cast(in[0], DType::f64)}; },
                 {iota(3), Tensor{}},
                 {"none of 2 inputs is floating, so nothing can be checked"}});
  all.push_back({"NothingReturned",
                 [](const Inputs&) { return Outputs{}; },
                 {x},
                 {"none of 0 outputs is floating"}});

  // Wrong values.
  add_one(
      "WrongFactor",
      [](const Tensor& a) { return square_but(a, [](const Tensor& g) { return mul(g, 1.0001); }); },
      {"input 0 element", "analytic", "numeric"});
  add_one("WrongSign",
          [](const Tensor& a) { return square_but(a, [](const Tensor& g) { return neg(g); }); },
          {"input 0 element", "analytic", "numeric"});
  add_one("RightAtOneElementOnly",
          [](const Tensor& a) {
            return square_but(a, [](const Tensor& g) {
              Tensor kept = zeros_like(g);
              kept.mut().as<double>()[5] = g.to_vector<double>()[5];
              return kept;
            });
          },
          {"input 0 element", "analytic 0, numeric"});
  add_one("WrongAtOneElementOnly", [](const Tensor& a) { return square_but_at(a, 11, 100); },
          {"input 0 element 11, at [2, 3]: analytic 100, numeric"});
  add_one("Transposed",
          [](const Tensor& a) {
            return square_but(
                a, [](const Tensor& g) { return reshape(contiguous(transpose(g)), g.shape()); });
          },
          {"input 0 element", "analytic", "numeric"});
  add_one("NaN", [](const Tensor& a) { return square_but_at(a, 7, kNaN); },
          {"input 0 element 7, at [1, 3]: analytic nan, numeric"});
  add_one("Infinite", [](const Tensor& a) { return square_but_at(a, 2, INFINITY); },
          {"input 0 element 2, at [0, 2]: analytic inf, numeric"});
  all.push_back({"SwappedInputs",
                 [](const Inputs& in) { return Outputs{product(in[0], in[1], true, true)}; },
                 {x, y},
                 {"input", "element", "analytic", "numeric"}});
  all.push_back({"BroadcastNotSummed",
                 [](const Inputs& in) { return Outputs{product(in[0], in[1], false, false)}; },
                 {x, draw({4}, 3)},
                 {"input 1 element", "analytic", "numeric"}});
  all.push_back({"MeanInsteadOfSum",
                 [](const Inputs& in) {
                   const Tensor& a = in[0];
                   return Outputs{record("sum", {a}, sum(a.detach()), save(a),
                                         [](const Context& c, const Tensor& dy) -> Grads {
                                           const Tensor like = c.saved<1>()[0];
                                           return {contiguous(expand(div(dy, 12.0), like.shape()))};
                                         })};
                 },
                 {x},
                 {"input 0 element", "analytic", "numeric"}});
  add_one("SecondUseDropped", [](const Tensor& a) { return mul(a, a.detach()); },
          {"input 0 element", "analytic", "numeric"});
  // Of 4,096 elements 64 are checked one by one; a wrong one among the others must be found too.
  all.push_back(one("WrongWhereNobodySampled",
                    [](const Tensor& a) { return square_but_at(a, 1001, 5); }, draw({64, 64}),
                    {"input 0 element 1001, at [15, 41]: analytic 5, numeric"}));
  all.push_back(one("NaNWhereNobodySampled",
                    [](const Tensor& a) { return square_but_at(a, 1001, kNaN); }, draw({64, 64}),
                    {"input 0 element 1001, at [15, 41]: analytic nan, numeric"}));
  all.push_back(one("WrongInEveryColumnButTheFirst",
                    [](const Tensor& a) {
                      return square_but(a, [](const Tensor& g) {
                        Tensor kept = zeros_like(g);
                        for (int64_t i = 0; i < g.numel(); i += 64) {
                          kept.mut().as<double>()[i] = g.view().as<double>()[i];
                        }
                        return kept;
                      });
                    },
                    draw({64, 64}), {"input 0 element", "analytic 0, numeric"}));

  // The function f itself is at fault.
  all.push_back(one("AtAKink", [](const Tensor& a) { return relu(a); },
                    Tensor::from(std::vector<double>{1, 0, -1}, {3}),
                    {"input 0 element 1: analytic 0, numeric", "f has a kink there"}));
  add_one("F32Inside", [](const Tensor& a) { return cast(sin(cast(a, DType::f32)), DType::f64); },
          {"input 0 element", "analytic", "numeric", "f computes in fewer digits than f64"});
  add_one("F32Output", [](const Tensor& a) { return cast(sin(a), DType::f32); },
          {"output 0 is f32: differences need f64 throughout"});
  all.push_back(one("InfiniteOutput", [](const Tensor& a) { return log(a); },
                    Tensor::from(std::vector<double>{0, 1, 2}, {3}),
                    {"input 0 element 0: analytic", "numeric nan", "output 0 element 0 is -inf"}));
  add_one("NotDeterministic", [calls = 0.0](const Tensor& a) mutable { return mul(a, calls += 1); },
          {"f is not deterministic: output 0 element 0, at [0, 0] is ", ", then "});
  add_one("AnotherShapeEachTime",
          [calls = 0](const Tensor& a) mutable { return narrow(a, 0, 0, 1 + calls++ % 2); },
          {"f is not deterministic: output 0 is [1, 4], then [2, 4]"});
  add_one("BackwardNotDeterministic",
          [](const Tensor& a) {
            static double factor = 1;
            return square_but(a, [](const Tensor& g) { return mul(g, factor *= 1 + 1e-15); });
          },
          {"backward is not deterministic: input 0 element 0, at [0, 0]: analytic ", ", then "});
  add_one("WritesItsInput",
          [](const Tensor& a) {
            const Tensor squares = mul(a, a);
            Tensor same = a;
            same.mut().as<double>()[4] = 8;
            return squares;
          },
          {"f wrote to input 0", "element 4, at [1, 0] was ", " and is 8"});
  add_one("BackwardWritesItsInput",
          [](const Tensor& a) {
            return square_but(a,
                              [data = const_cast<double*>(a.view().as<double>())](const Tensor& g) {
                                data[1] = 9;
                                return g;
                              });
          },
          {"backward wrote to input 0", "element 1, at [0, 1] was ", " and is 9"});
  all.push_back({"WritesAnInputWithoutGradients",
                 [](const Inputs& in) {
                   Tensor ids = in[1];
                   ids.mut();
                   return Outputs{mul(in[0], 2.0)};
                 },
                 {x, iota(3)},
                 {"f wrote to input 1, which it may only read"}});
  add_one("BackwardWritesWhatItIsGiven",
          [](const Tensor& a) {
            return record("twice", {a}, mul(a.detach(), 2.0), {},
                          [](const Context&, const Tensor& dy) -> Grads {
                            Tensor g = dy;
                            const std::vector<double> values = dy.to_vector<double>();
                            for (size_t i = 0; i < values.size(); ++i) {
                              g.mut().as<double>()[i] = 2 * values[i];
                            }
                            return {clone(g)};
                          });
          },
          {"backward wrote to the gradient of output 0"});
  add_one("GradientOfAnotherShape",
          [](const Tensor& a) {
            return square_but(a, [](const Tensor& g) { return contiguous(transpose(g)); });
          },
          {"backward failed: square: backward gave a gradient of input 0 that is not f64[3, 4]"});
  add_one("GradientOfAnotherDType",
          [](const Tensor& a) {
            return square_but(a, [](const Tensor& g) { return cast(g, DType::f32); });
          },
          {"backward failed: square: backward gave a gradient of input 0 that is not f64[3, 4]"});
  add_one("TooFewGradients",
          [](const Tensor& a) {
            return record("square", {a}, mul(a.detach(), a.detach()), {},
                          [](const Context&, const Tensor&) { return Grads{}; });
          },
          {"backward failed: square: backward returned 0 gradients for 1 inputs"});
  return all;
}

class GradcheckRefuses : public testing::TestWithParam<Mutant> {};

TEST_P(GradcheckRefuses, AndSaysWhy) {
  const Mutant& m = GetParam();
  const GradcheckResult r = gradcheck(m.f, m.inputs);
  EXPECT_FALSE(r);
  for (const std::string& part : m.says) {
    EXPECT_NE(r.message.find(part), std::string::npos) << "says: " << r.message;
  }
}

INSTANTIATE_TEST_SUITE_P(Mutants, GradcheckRefuses, testing::ValuesIn(mutants()),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace longspan
