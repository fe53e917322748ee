// Runs the tests of the op in bf16 and f16 on the CUDA kernels for tensor cores.
#include "cuda/attention/launch.h"
#include "cuda/attention/terms.cuh"

#include "tests/cuda/attention_on_device.h"
#include "tests/ops/attention_laws.h"

namespace longspan {
namespace {

using namespace attention_test;
using namespace cuda;

// Pads rows of any width to a multiple of 8, which the kernels require.
struct Wide {
  Tensor tensor;
  template <class T>
  static Wide of(const ConstView& x) {
    const int64_t width = (x.dim(3) + 7) / 8 * 8;
    Wide w{Tensor::zeros({x.dim(0), x.dim(1), x.dim(2), width}, x.dtype)};
    w.each<T>(x, [](T* to, const T* from) { *to = *from; });
    return w;
  }
  template <class T, class F>
  void each(const ConstView& x, F f) {
    const View y = tensor.mut();
    for (int64_t b = 0; b < x.dim(0); ++b) {
      for (int64_t h = 0; h < x.dim(1); ++h) {
        for (int64_t r = 0; r < x.dim(2); ++r) {
          for (int64_t c = 0; c < x.dim(3); ++c) {
            f(y.as<T>() + b * y.stride(0) + h * y.stride(1) + r * y.stride(2) + c,
              const_cast<T*>(x.as<T>()) + b * x.stride(0) + h * x.stride(1) + r * x.stride(2) + c);
          }
        }
      }
    }
  }
  template <class T>
  void give(const View& to) {
    each<T>(to, [](T* from, T* back) { *back = *from; });
  }
  // Views a table [1 or H, R, width] as [1, 1 or H, R, width].
  static ConstView with_batch(const ConstView& x) {
    return {x.data,
            x.dtype,
            x.device,
            {1, x.dim(0), x.dim(1), x.dim(2)},
            {0, x.stride(0), x.stride(1), x.stride(2)}};
  }
  static View with_batch(const View& x) {
    return {x.data,
            x.dtype,
            x.device,
            {1, x.dim(0), x.dim(1), x.dim(2)},
            {0, x.stride(0), x.stride(1), x.stride(2)}};
  }
  View table() {
    const View y = tensor.mut();
    return {y.data,
            y.dtype,
            y.device,
            {y.dim(1), y.dim(2), y.dim(3)},
            {y.stride(1), y.stride(2), y.stride(3)}};
  }
};

/// Inputs of a call padded to rows of a multiple of 8, which the kernels for tensor cores require.
template <class T>
class WideCall {
 public:
  explicit WideCall(const kernels::AttentionProblem& narrow)
      : in(narrow), q_(Wide::of<T>(narrow.inputs.q)) {
    EXPECT_GT(in.numbers.scale, 0) << "left to the general kernels";
    in.inputs.q = q_.tensor.view();
    for (int s = 0; s < in.numbers.segments; ++s) {
      for (ConstView* x : {&in.inputs.k[s], &in.inputs.v[s]}) {
        keys_.push_back(Wide::of<T>(*x));
        *x = keys_.back().tensor.view();
      }
    }
    if (ConstView& x = in.inputs.relation_query) {
      terms_.push_back(Wide::of<T>(x));
      x = terms_.back().tensor.view();
    }
    for (ConstView* x : {&in.inputs.relation_key, &in.inputs.relation_value}) {
      if (!*x) continue;
      terms_.push_back(Wide::of<T>(Wide::with_batch(*x)));
      *x = terms_.back().table();
    }
  }

  kernels::AttentionProblem in;

 private:
  Wide q_;
  std::vector<Wide> keys_;   // k and v of each segment
  std::vector<Wide> terms_;  // relation_query and the tables for keys and values, if given
};

/// Gradients with padded rows; give() copies them back to the narrow ones.
template <class T>
class WideGradients {
 public:
  explicit WideGradients(const kernels::AttentionGradients& narrow) : to(narrow) {
    for (View* x : {&to.q, &to.k[0], &to.v[0], &to.k[1], &to.v[1], &to.relation_query}) {
      if (!*x) continue;
      rows_.emplace_back(*x, Wide::of<T>(*x));
      *x = rows_.back().second.tensor.mut();
    }
    for (View* x : {&to.relation_key, &to.relation_value}) {
      if (!*x) continue;
      tables_.emplace_back(*x, Wide::of<T>(Wide::with_batch(*x)));
      *x = tables_.back().second.table();
    }
  }
  void give() {
    for (auto& [narrow, wide] : rows_) wide.template give<T>(narrow);
    for (auto& [narrow, wide] : tables_) wide.template give<T>(Wide::with_batch(narrow));
  }

  kernels::AttentionGradients to;

 private:
  std::vector<std::pair<View, Wide>> rows_, tables_;
};

// Whether the last call went to the plain kernels, which leave some blocks to be repaired.
bool was_plain = false;

template <class F>
void visit_half(DType dtype, F f) {
  if (dtype == DType::bf16) return f(bf16{});
  ASSERT_EQ(dtype, DType::f16) << "not a dtype of these kernels";
  f(f16{});
}

void forward(const kernels::AttentionProblem& narrow, View out, View lse) {
  visit_half(narrow.inputs.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    const WideCall<T> call(narrow);
    Wide y = Wide::of<T>(out);
    EXPECT_TRUE(tensor_serves_forward(call.in, y.tensor.mut()));
    was_plain = plain_terms(call.in);
    emulated::attention_forward(call.in, y.tensor.mut(), lse);
    y.give<T>(out);
  });
}

void backward(const kernels::AttentionProblem& narrow, ConstView out, ConstView lse, ConstView dout,
              ConstView dlse, const kernels::AttentionGradients& grads) {
  visit_half(narrow.inputs.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    const WideCall<T> call(narrow);
    const Wide y = Wide::of<T>(out), dy = Wide::of<T>(dout);
    WideGradients<T> wide(grads);
    EXPECT_TRUE(tensor_serves_backward(call.in, dy.tensor.view(), wide.to));
    emulated::attention_backward(call.in, y.tensor.view(), lse, dy.tensor.view(), dlse, wide.to);
    wide.give();
  });
}

const bool taken = [] {
  emulated::enable();
  kernels::block_attention_forward.set(DeviceKind::cpu, forward);
  kernels::block_attention_backward.set(DeviceKind::cpu, backward);
  return true;
}();

TEST(AttentionTensor, IsWhatTheOpRuns) { emulated::expect_attention_taken(DType::bf16); }

TEST(AttentionTensor, Widths) {
  const auto causal = [](int64_t p, int64_t j) { return j <= p; };
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const auto& [d, dv] :
         {std::pair<int64_t, int64_t>{8, 24}, {32, 32}, {48, 16}, {64, 64}, {80, 96}, {128, 128}}) {
      const Problem x = problem({1, 2, 170, 230, d, dv}, causal);
      expect_near(run(x, patterns::causal(), dtype), solve(x), dtype, fmt::format("{} {}", d, dv));
    }
  }
}

TEST(AttentionTensor, PatternsAtTheLargestWidth) {
  for (const PatternCase& c : cases()) {
    Problem x = problem({1, 1, 150, 150, 128, 128}, c.sees);
    expect_near(run(x, c.pattern, DType::bf16), solve(x), DType::bf16, c.pattern.name);
    x.p = 0.25;
    x.dropout_key = 42;
    expect_near(run(x, c.pattern, DType::f16), solve(x), DType::f16, c.pattern.name);
  }
}

// Computes the solution from matrix products with each step rounded to T.
template <class T>
Solution rounded_at_each_step(const Problem& x) {
  const auto& n = x.n;
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  const auto round = [](double value) {
    return static_cast<double>(float{T(static_cast<float>(value))});
  };
  const double scale = 1 / std::sqrt(static_cast<double>(n.width));
  Solution y;
  y.out.resize(x.dout.size());
  y.dq.resize(x.q.size());
  y.dk.resize(x.k.size());
  y.dv.resize(x.v.size());
  for (int64_t bh = 0; bh < n.batch * n.heads; ++bh) {
    for (int64_t i = 0; i < n.queries; ++i) {
      const double* q = &x.q[at((bh * n.queries + i) * n.width)];
      const double* dout = &x.dout[at((bh * n.queries + i) * n.value_width)];
      std::vector<double> s(at(n.keys), -kInfinity), dp(at(n.keys));
      double top = -kInfinity, sum = 0, delta = 0;
      for (int64_t j = 0; j < n.keys; ++j) {
        if (!x.sees(0, i, j)) continue;
        double product = 0, with_value = 0;
        for (int64_t c = 0; c < n.width; ++c) {
          product += q[c] * x.k[at((bh * n.keys + j) * n.width + c)];
        }
        for (int64_t c = 0; c < n.value_width; ++c) {
          with_value += dout[c] * x.v[at((bh * n.keys + j) * n.value_width + c)];
        }
        s[at(j)] = round(scale * product);
        dp[at(j)] = round(with_value);
        top = std::max(top, s[at(j)]);
      }
      for (double& score : s) sum += score = std::exp(score - top);
      for (int64_t j = 0; j < n.keys; ++j) {
        s[at(j)] = round(s[at(j)] / sum);
        delta += s[at(j)] * dp[at(j)];
      }
      for (int64_t j = 0; j < n.keys; ++j) {
        const double p = s[at(j)], ds = round(round(p * (dp[at(j)] - delta)) * scale);
        for (int64_t c = 0; c < n.width; ++c) {
          y.dq[at((bh * n.queries + i) * n.width + c)] +=
              ds * x.k[at((bh * n.keys + j) * n.width + c)];
          y.dk[at((bh * n.keys + j) * n.width + c)] += ds * q[c];
        }
        for (int64_t c = 0; c < n.value_width; ++c) {
          y.out[at((bh * n.queries + i) * n.value_width + c)] +=
              p * x.v[at((bh * n.keys + j) * n.value_width + c)];
          y.dv[at((bh * n.keys + j) * n.value_width + c)] += p * dout[c];
        }
      }
    }
  }
  for (std::vector<double>* values : {&y.out, &y.dq, &y.dk, &y.dv}) {
    for (double& value : *values) value = round(value);
  }
  return y;
}

// Checks that errors are at most twice those of a computation that rounds after each step.
template <class T>
void expect_small_errors() {
  const auto causal = [](int64_t p, int64_t j) { return j <= p; };
  const auto local = [](int64_t p, int64_t j) { return p - 48 < j && j <= p; };
  for (const bool window : {false, true}) {
    for (const int64_t width : {32, 64, 128}) {
      Problem x = window ? problem({1, 2, 200, 200, width, width}, local)
                         : problem({1, 2, 200, 200, width, width}, causal);
      for (std::vector<double>* values : {&x.q, &x.k, &x.v, &x.dout}) {
        for (double& value : *values) value = float{T(static_cast<float>(value))};
      }
      std::fill(x.dlse.begin(), x.dlse.end(), 0.0);
      const AttentionPattern pattern = window ? patterns::local(48) : patterns::causal();
      const Solution exact = solve(x), naive = rounded_at_each_step<T>(x),
                     ours = run(x, pattern, dtype_of<T>);
      const auto check = [&](const auto& of, const char* what) {
        EXPECT_LE(distance(of(ours), of(exact)), 2 * distance(of(naive), of(exact)))
            << what << " " << width << (window ? " local" : " causal");
      };
      check([](const Solution& y) { return y.out; }, "out");
      check([](const Solution& y) { return y.dq; }, "dq");
      check([](const Solution& y) { return y.dk; }, "dk");
      check([](const Solution& y) { return y.dv; }, "dv");
    }
  }
}

TEST(AttentionTensor, ErrorsAreAtMostTwiceThoseOfRoundingAtEachStep) {
  expect_small_errors<bf16>();
  expect_small_errors<f16>();
}

TEST(AttentionTensor, Dropout) {
  for (const PatternCase& c : cases()) {
    for (const int64_t width : {24, 64}) {
      Problem x = problem({2, 2, 130, 203, width, width}, c.sees);
      x.p = 0.375;
      x.dropout_key = 0x123456789ABCDEF0u;
      expect_near(run(x, c.pattern, DType::f16), solve(x), DType::f16, c.pattern.name);
    }
  }
}

TEST(AttentionTensor, Lengths) {
  const int64_t length = 150;
  const std::vector<int64_t> q_valid = {0, 120}, k_valid = {0, 37};
  for (const PatternCase& c : cases()) {
    Problem x = problem({2, 2, length, length, 8, 8}, c.sees);
    x.sees = [&](int64_t b, int64_t i, int64_t j) {
      return c.sees(i, j) && i < q_valid[static_cast<size_t>(b)] &&
             j < k_valid[static_cast<size_t>(b)];
    };
    const AttentionPattern p =
        with_lengths(c.pattern, Tensor::from(q_valid, {2}), Tensor::from(k_valid, {2}));
    const Solution ours = run(x, p, DType::f16);
    expect_near(ours, solve(x), DType::f16, c.pattern.name);
    for (size_t b = 0; b < 2; ++b) {  // rows beyond the lengths may hold anything
      for (size_t h = 0; h < 2; ++h) {
        const auto fill = [&](std::vector<double>& values, int64_t from) {
          const auto at = values.begin() + static_cast<std::ptrdiff_t>((b * 2 + h) * 150 * 8);
          std::fill(at + from * 8, at + 150 * 8, std::nan(""));
        };
        fill(x.q, q_valid[b]);
        fill(x.dout, q_valid[b]);
        fill(x.k, k_valid[b]);
        fill(x.v, k_valid[b]);
      }
    }
    expect_same_bits(run(x, p, DType::f16), ours, c.pattern.name);
  }
}

TEST(AttentionTensor, Features) {
  for (const Feature& f : features()) {
    Case c = f.make(100, 2);
    expect_near(run(c.x, c.pattern, DType::f16), solve(c.x), DType::f16, f.name);
    for (const bool parts : {false, true}) {
      c = f.make(parts ? 203 : 150, 1);
      c.x.p = 0.375;
      c.x.dropout_key = 0x123456789ABCDEF0u;
      expect_near(parts ? run(c.x, parts_of(c), DType::bf16) : run(c.x, c.pattern, DType::bf16),
                  solve(c.x), DType::bf16, f.name + (parts ? " parts" : " dropout"));
    }
  }
}

TEST(AttentionTensor, TheFirstSegmentMayHaveNoKeys) { expect_no_first_keys(DType::bf16); }

TEST(AttentionTensor, FewQueries) {
  const int64_t before = emulated::cuts;
  expect_few_queries(DType::bf16, false);
  Problem x = problem({1, 2, 40, 1536, 6, 5}, [](int64_t, int64_t) { return true; });
  add_relations(x, {100, 3}, true, true, true, true);
  x.relation_query = random_values(2 * 40 * 6, 31);
  expect_near(run(x, patterns::dense(), DType::bf16), solve(x), DType::bf16, "relations");
  EXPECT_GT(emulated::cuts, before);
}

TEST(AttentionTensor, GlobalsBesideWindows) {
  const int64_t before = emulated::cuts;
  expect_globals_beside_windows(DType::bf16);
  EXPECT_GT(emulated::cuts, before);
}

// Splits are repaired in the same way as whole work.
TEST(AttentionTensor, SplitsMayMeetAnything) {
  Case c = globals_beside_windows(0);
  const Solution clean = run(c.x, c.pattern, DType::bf16);
  ASSERT_TRUE(was_plain);
  constexpr int64_t length = 1600, query = 500;
  for (int64_t h = 0; h < 2; ++h) {
    std::fill_n(c.x.q.begin() + (h * length + query) * 6, 6, std::nan(""));
    std::fill_n(c.x.dout.begin() + (h * length + query) * 5, 5, kInfinity);
  }
  const Solution y = run(c.x, c.pattern, DType::bf16);
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t j = 0; j < length; ++j) {
      if (c.x.pair_sees(0, h, query, j)) continue;
      for (int64_t at = (h * length + j) * 6; at < (h * length + j + 1) * 6; ++at) {
        EXPECT_NEAR(y.dk[static_cast<size_t>(at)], clean.dk[static_cast<size_t>(at)], 4e-3);
      }
    }
  }
}

TEST(AttentionTensor, TermsAtEveryWidth) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const auto& [d, dv] : {std::pair<int64_t, int64_t>{40, 64}, {128, 104}}) {
      Problem x = problem({1, 2, 110, 131, d, dv}, [](int64_t p, int64_t j) { return j <= p; });
      add_relations(x, {60, 0}, false, true, true, true);
      x.relation_query = random_values(2 * 110 * d, 31);
      x.span = {3.25, 70.5};
      x.span_shape = {1, 2, 1};
      x.ramp = x.offset = 8;
      x.query_span = random_values(2 * 110, 33);
      for (double& s : x.query_span) s = 10 * s;
      x.query_span_shape = {1, 2, 110};
      x.p = 0.25;
      x.dropout_key = 42;
      const Solution ours = run(x, patterns::causal(), dtype);
      expect_near(ours, solve(x), dtype, fmt::format("{} {}", d, dv));
      expect_same_bits(run(x, patterns::causal(), dtype), ours, "again");
    }
  }
}

constexpr int64_t kHeads = 2;  // heads of the cases of features()

// Returns whether query i of head h of the first sample attends to key j of the first segment.
bool sees_at_all(const Problem& x, int64_t h, int64_t i, int64_t j) {
  if (!x.sees(0, i, j) || (x.pair_sees && !x.pair_sees(0, h, i, j))) return false;
  if (x.label && x.label(0, i, j) < 0) return false;
  if (x.times && x.times(i, j) == 0) return false;
  if (x.span.empty() && x.query_span.empty()) return true;
  double span = x.offset;
  if (!x.span.empty()) {
    const int64_t heads = x.span_shape[1], keys = x.span_shape[2];
    span += x.span[static_cast<size_t>((heads > 1 ? h * keys : 0) + (keys > 1 ? j : 0))];
  }
  if (!x.query_span.empty()) {
    span +=
        x.query_span[static_cast<size_t>((x.query_span_shape[1] > 1 ? h * x.n.queries : 0) + i)];
  }
  return span - static_cast<double>(i + x.n.keys - x.n.queries - j) > 0;
}

// Nonfinite keys do not change rows that do not attend to them, and nonfinite queries do not change
// keys to which they do not attend. Results of the plain kernels keep their values up to rounding,
// because other kernels repair some of them; all other results keep every bit.
TEST(AttentionTensor, WhatIsHiddenMayHoldAnything) {
  std::vector<Feature> all = features();
  const auto causal = [](int64_t p, int64_t j) { return j <= p; };
  all.push_back(
      {"causal", [&](int64_t length, int64_t batch) {
         return Case{problem({batch, kHeads, length, length, 6, 5}, causal), patterns::causal()};
       }});
  const int64_t length = 100, spoilt_key = 40, spoilt_query = 58;
  int64_t hidden = 0, number = 0;
  for (const Feature& f : all) {
    const Case given = f.make(length, 1);
    const Solution clean = run(given.x, given.pattern, DType::f16);
    const auto expect_kept = [&](const std::vector<double>& a, const std::vector<double>& b,
                                 int64_t row, int64_t width, bool exact, const std::string& what) {
      const auto part = [&](const std::vector<double>& x) {
        return std::vector<double>(x.begin() + row * width, x.begin() + (row + 1) * width);
      };
      ++hidden;
      if (exact) return expect_same_bits(part(a), part(b), what);
      for (int64_t c = row * width; c < (row + 1) * width; ++c) {
        const double one = a[static_cast<size_t>(c)], two = b[static_cast<size_t>(c)];
        if (one != two) {  // -inf is the same
          EXPECT_NEAR(one, two, 6e-3) << what;
        }
      }
    };
    const double bad = ++number % 2 == 0 ? std::nan("") : -kInfinity;
    const std::string what = fmt::format("{} {}", f.name, bad);
    Case c = given;
    for (int64_t h = 0; h < kHeads; ++h) {
      std::fill_n(c.x.k.begin() + (h * length + spoilt_key) * 6, 6, bad);
      std::fill_n(c.x.v.begin() + (h * length + spoilt_key) * 5, 5, bad);
    }
    Solution y = run(c.x, c.pattern, DType::f16);
    const bool exact = !was_plain;
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < length; ++i) {
        if (sees_at_all(c.x, h, i, spoilt_key)) continue;
        const int64_t row = h * length + i;
        expect_kept(y.out, clean.out, row, 5, exact, what + " out");
        expect_kept(y.lse, clean.lse, row, 1, exact, what + " lse");
        expect_kept(y.dq, clean.dq, row, 6, exact, what + " dq");
      }
    }
    c = given;
    for (int64_t h = 0; h < kHeads; ++h) {
      std::fill_n(c.x.q.begin() + (h * length + spoilt_query) * 6, 6, bad);
      std::fill_n(c.x.dout.begin() + (h * length + spoilt_query) * 5, 5, bad);
    }
    y = run(c.x, c.pattern, DType::f16);
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t j = 0; j < length; ++j) {
        if (sees_at_all(c.x, h, spoilt_query, j)) continue;
        expect_kept(y.dk, clean.dk, h * length + j, 6, exact, what + " dk");
        expect_kept(y.dv, clean.dv, h * length + j, 5, exact, what + " dv");
      }
    }
  }
  EXPECT_GT(hidden, 1000);
}

// A visible Inf or NaN in v reaches the output; the handling of hidden values does not change that.
TEST(AttentionTensor, WhatIsSeenIsFelt) {
  Problem x = problem({1, 1, 64, 64, 8, 8}, [](int64_t p, int64_t j) { return j <= p; });
  const double bad[] = {kInfinity, -kInfinity, std::nan("")};
  for (size_t c = 0; c < 3; ++c) x.v[8 * 20 + c] = bad[c];
  for (const bool terms : {false, true}) {
    if (terms) {
      x.span = {1000};
      x.span_shape = {1, 1, 1};
    }
    const Solution y = run(x, patterns::causal(), DType::bf16);
    for (size_t i = 0; i < 64; ++i) {
      for (size_t c = 0; c < 8; ++c) {
        const double value = y.out[8 * i + c];
        if (i < 20 || c > 2) {
          EXPECT_TRUE(std::isfinite(value)) << i << " " << c;
        } else if (c < 2) {
          EXPECT_EQ(value, bad[c]) << i << " " << c;
        } else {
          EXPECT_TRUE(std::isnan(value)) << i << " " << c;
        }
      }
    }
  }
}

TEST(AttentionTensor, ASpanThatIsNoNumberHidesItsKey) {
  Problem x = problem({1, 1, 64, 64, 8, 8}, [](int64_t p, int64_t j) { return j <= p; });
  x.span_shape = {1, 1, 64};
  x.span.assign(64, 1000);
  x.span[20] = -1e6;
  const Solution hidden = run(x, patterns::causal(), DType::bf16);
  x.span[20] = std::nan("");
  const Solution y = run(x, patterns::causal(), DType::bf16);
  EXPECT_TRUE(std::isfinite(y.out.back()));
  expect_same_bits(y.out, hidden.out, "out");
  expect_same_bits(y.lse, hidden.lse, "lse");
  expect_same_bits(y.dv, hidden.dv, "dv");
}

TEST(AttentionTensor, FitsSharedMemory) {
  const auto check = [](auto pass) {
    EXPECT_LE(sizeof(typename decltype(pass)::Shared), 99u * 1024);
    EXPECT_EQ(sizeof(typename decltype(pass)::Shared) % 16, 0u);
  };
  check(TermsForward<bf16, 128>{});
  check(TermsRowGradients<bf16, 128>{});
  check(TermsKeyGradients<bf16, 64>{});
  check(TermsKeyGradients<bf16, 128>{});
  check(TermsTableGradients<bf16, 128>{});
  check(TensorForward<bf16, 32>{});
  check(TensorForward<bf16, 64>{});
  check(TensorForward<bf16, 128>{});
  check(TensorRowGradients<bf16, 32>{});
  check(TensorRowGradients<bf16, 64>{});
  check(TensorRowGradients<bf16, 128>{});
  check(TensorKeyGradients<bf16, 32>{});
  check(TensorKeyGradients<bf16, 64>{});
  check(TensorKeyGradients<bf16, 128>{});
}

TEST(AttentionTensor, RowsOfSharedMemoryDoNotShareBanks) {
  const auto check = [](auto rows) {
    using Rows = decltype(rows);
    std::vector<int> count(static_cast<size_t>(96 * Rows::chunks));
    for (int row = 0; row < 96; ++row) {
      for (int chunk = 0; chunk < Rows::chunks; ++chunk) {
        ++count[static_cast<size_t>(Rows::place(row, chunk))];
        if (row % 8 != 0) continue;
        unsigned banks = 0;  // groups of four
        for (int r = row; r < row + 8; ++r) banks |= 1u << Rows::place(r, chunk) % 8;
        EXPECT_EQ(banks, 255u) << row << " " << chunk;
      }
    }
    for (const int n : count) EXPECT_EQ(n, 1);
  };
  check(SharedRows<32>{nullptr});
  check(SharedRows<64>{nullptr});
  check(SharedRows<128>{nullptr});
}

}  // namespace
}  // namespace longspan
