// The tests of the op in bf16 and f16, on the CUDA kernels for tensor cores run by the host. A
// thread of the device is a context here, and the instructions are written from the manual.
#include "cuda/attention_tensor.cuh"

#include <set>

#include "tests/cuda/attention_on_host.h"
#include "tests/cuda/simulated.h"
#include "tests/ops/attention_laws.h"

namespace longspan {
namespace {

using namespace attention_test;
using namespace cuda;

template <template <class, int> class Pass, class T, int W>
void run_pass(const AttentionArguments<T>& x) {
  using P = Pass<T, W>;
  static simulated::Block block(P::threads);
  std::vector<char> memory(sizeof(typename P::Shared) + 16);
  char* const shared = memory.data() + (16 - reinterpret_cast<uintptr_t>(memory.data()) % 16);
  for (int64_t i = P::blocks(x); i-- > 0; ++simulated::blocks_run) {
    std::fill(memory.begin(), memory.end(), '\xff');  // NaN
    block.run([&] { P::run(x, reinterpret_cast<unsigned char*>(shared), i); });
  }
}

template <template <class, int> class Pass, class T>
void run_width(const AttentionArguments<T>& x) {
  const int width = std::max(x.sizes.width, x.sizes.value_width);
  if (width <= 32) {
    run_pass<Pass, T, 32>(x);
  } else if (width <= 64) {
    run_pass<Pass, T, 64>(x);
  } else {
    run_pass<Pass, T, 128>(x);
  }
}

// Rows of any width as rows of a multiple of 8, which is what the kernels take.
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
};

template <class T>
struct OnHost {
  // The inputs with wide rows. What the device leaves to the general kernels is not to come here.
  struct Inputs {
    Wide q;
    std::vector<Wide> keys;  // k and v of each segment
    kernels::AttentionInputs in;
    explicit Inputs(const kernels::AttentionInputs& narrow) : q(Wide::of<T>(narrow.q)), in(narrow) {
      require<NotImplemented>(tensor_serves_terms(in), "tensor cores",
                              "left to the general kernels");
      in.q = q.tensor.view();
      for (int s = 0; s < in.segments; ++s) {
        for (ConstView* x : {&in.segment[s].k, &in.segment[s].v}) {
          keys.push_back(Wide::of<T>(*x));
          *x = keys.back().tensor.view();
        }
      }
    }
  };

  static void forward(const kernels::AttentionInputs& narrow, const View& out, const View& lse) {
    const Inputs wide(narrow);
    Wide y = Wide::of<T>(out);
    AttentionArguments<T> x = arguments_of<T>(wide.in);
    x.out = head_rows<T>(y.tensor.mut());
    x.lse = lse.as<float>();
    const StretchRoom<T> room(x, x.sizes.value_width, true, {});
    run_width<TensorForward>(x);
    simulated::join_rows(x);
    y.give<T>(out);
  }

  static void backward(const kernels::AttentionInputs& narrow, const ConstView& out,
                       const ConstView& lse, const ConstView& dout, const ConstView& dlse,
                       const kernels::AttentionGradients& grads) {
    const Inputs wide(narrow);
    const Wide y = Wide::of<T>(out), dy = Wide::of<T>(dout);
    Inputs gradients(narrow);  // values that must go
    kernels::AttentionGradients to;
    to.q = gradients.q.tensor.mut();
    for (size_t s = 0; s < static_cast<size_t>(narrow.segments); ++s) {
      to.k[s] = gradients.keys[2 * s].tensor.mut();
      to.v[s] = gradients.keys[2 * s + 1].tensor.mut();
    }
    std::vector<float> delta;
    AttentionArguments<T> x = simulated::backward_arguments<T>(wide.in, y.tensor.view(), lse,
                                                               dy.tensor.view(), dlse, to, delta);
    if (grads.q) {
      const StretchRoom<T> room(x, x.row_columns(), false, {});
      run_width<TensorRowGradients>(x);
      simulated::add_rows(x, x.dq, 0);
      gradients.q.template give<T>(grads.q);
    }
    if (!grads.k[0]) return;
    run_width<TensorKeyGradients>(x);
    for (size_t s = 0; s < static_cast<size_t>(narrow.segments); ++s) {
      gradients.keys[2 * s].template give<T>(grads.k[s]);
      gradients.keys[2 * s + 1].template give<T>(grads.v[s]);
    }
  }
};

const bool taken = simulated::take_slots<OnHost, bf16, f16>();

TEST(AttentionTensor, IsWhatTheOpRuns) { simulated::expect_slots_taken(DType::bf16); }

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
    for (size_t b = 0; b < 2; ++b) {  // what lies beyond the lengths may hold anything
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
  const std::set<std::string> general = {
      "class mask",     "class labels",  "many labels",  "relations with an order",
      "relation query", "span of heads", "span of keys", "all at once"};
  for (const Feature& f : features()) {
    Case c = f.make(100, 2);
    if (general.contains(f.name)) {
      EXPECT_THROW(run(c.x, c.pattern, DType::f16), NotImplemented) << f.name;
      continue;
    }
    expect_near(run(c.x, c.pattern, DType::f16), solve(c.x), DType::f16, f.name);
    c = f.make(257, 1);
    c.x.p = 0.375;
    c.x.dropout_key = 0x123456789ABCDEF0u;
    expect_near(run(c.x, c.pattern, DType::bf16), solve(c.x), DType::bf16, f.name + " dropout");
    expect_near(run(c.x, parts_of(c), DType::bf16), solve(c.x), DType::bf16, f.name + " parts");
  }
}

TEST(AttentionTensor, TheFirstSegmentMayHaveNoKeys) { expect_no_first_keys(DType::bf16); }

TEST(AttentionTensor, FewQueries) {
  EXPECT_GT(keys_of_stretch(1, 1536, 0), 0);
  expect_few_queries(DType::bf16, false);
}

TEST(AttentionTensor, FitsSharedMemory) {
  const auto check = [](auto pass) {
    EXPECT_LE(sizeof(typename decltype(pass)::Shared), 99u * 1024);
    EXPECT_EQ(sizeof(typename decltype(pass)::Shared) % 16, 0u);
  };
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
