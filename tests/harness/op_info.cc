#include "tests/harness/op_info.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <new>
#include <set>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/backends.h"
#include "core/graph.h"
#include "core/kernel.h"
#include "core/kernels/copy.h"
#include "core/kernels/elementwise.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "ops/patterns/layout_cache.h"
#include "tests/harness/hooks.h"

namespace longspan::test {
namespace {

constexpr size_t minimum_ops = 60;
constexpr int64_t minimum_gradchecks = 1500;

struct OpTable {
  std::vector<OpInfo> ops;
  std::map<std::string, std::string> elsewhere;
  int64_t gradchecks = 0, derivatives = 0;
  std::set<std::string> gradchecked;
};

OpTable& op_table() {
  static OpTable instance;
  return instance;
}

constexpr Layout layouts[] = {Layout::contiguous, Layout::transposed, Layout::sliced,
                              Layout::expanded};

struct Made {
  std::vector<Tensor> tensors;
  std::vector<double> numbers;
  Inputs get() const { return {tensors, numbers}; }
};

/// Returns a different generator for every op, sample, layout and input.
Generator generator_for(const OpInfo& op, const Sample& sample, Layout layout, size_t input) {
  return Generator{1}
      .fork(op.name)
      .fork(sample.name)
      .fork(static_cast<uint64_t>(layout))
      .fork(static_cast<uint64_t>(input));
}

Made make_all(const OpInfo& op, const Sample& sample, const Making& making,
              bool gradients = false) {
  Made a{{}, sample.numbers};
  for (size_t i = 0; i < sample.inputs.size(); ++i) {
    const InputSpec& spec = sample.inputs[i];
    a.tensors.push_back(make(spec, generator_for(op, sample, making.layout, i), making));
    if (gradients && spec.gradient && spec.floating()) set_requires_grad(a.tensors.back());
  }
  return a;
}

std::vector<Array> arrays_of(std::span<const Tensor> tensors) {
  std::vector<Array> arrays;
  for (const Tensor& x : tensors) arrays.push_back(to_array(x));
  return arrays;
}

/// Spacing of values around 1, with a margin for the rounding of a few operations.
double unit(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 1e-13;
    case DType::f32:
      return 1e-6;
    case DType::f16:
      return 1.0 / 1024;
    case DType::bf16:
      return 1.0 / 128;
    default:
      return 0;
  }
}

double largest(DType dtype) {
  return dtype == DType::f16   ? 65504
         : dtype == DType::f64 ? std::numeric_limits<double>::max()
                               : static_cast<double>(std::numeric_limits<float>::max());
}

double smallest(DType dtype) {
  return dtype == DType::f16   ? 6.1e-5
         : dtype == DType::f64 ? std::numeric_limits<double>::min()
                               : static_cast<double>(std::numeric_limits<float>::min());
}

testing::AssertionResult close(const Array& got, const Array& want, DType dtype, double factor,
                               double scale) {
  if (!(got.shape == want.shape)) {
    return testing::AssertionFailure()
           << "shape " << to_string(got.shape) << " instead of " << to_string(want.shape);
  }
  double squares = 0;
  int64_t finite = 0;
  for (const double v : want.values) {
    if (std::isfinite(v) && std::abs(v) <= largest(dtype)) squares += v * v, ++finite;
  }
  const double rms = finite > 0 ? std::sqrt(squares / static_cast<double>(finite)) : 0;
  for (int64_t i = 0; i < want.size(); ++i) {
    double w = want[i];
    if (std::abs(w) > largest(dtype) * (1 + unit(dtype))) {
      w = std::copysign(std::numeric_limits<double>::infinity(), w);
    }
    const double g = got[i];
    const double allowed =
        factor * unit(dtype) * (std::abs(w) + scale * rms) + factor * unit(dtype) * smallest(dtype);
    const bool same = (std::isnan(w) && std::isnan(g)) || w == g ||
                      (std::isfinite(w) && std::abs(g - w) <= allowed) ||
                      (std::isfinite(w) && std::isinf(g) && std::signbit(g) == std::signbit(w) &&
                       std::abs(w) >= largest(dtype) * (1 - factor * unit(dtype)));
    if (!same) {
      return testing::AssertionFailure()
             << "element " << i << " of " << to_string(want.shape) << ": " << g << " instead of "
             << w << ", off by " << std::abs(g - w) << ", allowed " << allowed;
    }
  }
  return testing::AssertionSuccess();
}

std::vector<uint8_t> bytes_of(const Tensor& x) {
  if (!x) return {};
  Tensor flat = Tensor::like(x);
  kernels::copy(x.device(), x.view(), flat.mut());
  std::vector<uint8_t> bytes(static_cast<size_t>(flat.nbytes()));
  if (!bytes.empty()) {
    copy_to_host(flat.device(), bytes.data(), flat.view().data, flat.nbytes());
    synchronize(flat.device());
  }
  return bytes;
}

/// Returns random weights for the outputs, rounded to `rounding`.
Tensor weights_for(const Tensor& y, size_t output, DType rounding) {
  Making making{y.dtype(), rounding, Layout::contiguous, y.device()};
  if (!is_floating(y.dtype())) return {};
  return make(randn(y.shape()), Generator{7}.fork("dy").fork(static_cast<uint64_t>(output)),
              making);
}

struct OpResults {
  std::vector<Tensor> y, dx;
};

/// Returns the results and, with `gradients`, the gradients of every input that requires grad.
OpResults run_op(const OpInfo& op, const Made& arguments, bool gradients, DType rounding) {
  OpResults run;
  run.y = op.run(arguments.get());
  if (gradients) {
    std::vector<Tensor> outputs, dy;
    for (size_t o = 0; o < run.y.size(); ++o) {
      if (!run.y[o] || !requires_grad(run.y[o])) continue;
      outputs.push_back(run.y[o]);
      dy.push_back(weights_for(run.y[o], o, rounding));
    }
    if (!outputs.empty()) backward(outputs, dy);
    for (const Tensor& x : arguments.tensors) {
      run.dx.push_back(x && requires_grad(x) ? grad(x) : Tensor{});
    }
  }
  for (Tensor& y : run.y) {
    if (y) y = y.detach();
  }
  return run;
}

bool any_gradient(const OpInfo& op, const Sample& sample) {
  if (!op.differentiable) return false;
  for (const InputSpec& r : sample.inputs) {
    if (r.gradient && r.floating()) return true;
  }
  return false;
}

std::vector<Layout> layouts_for(const OpInfo& op, const Sample& sample) {
  std::vector<Layout> list;
  for (const Layout layout : layouts) {
    bool rank = false, repeated = false;
    for (const InputSpec& r : sample.inputs) {
      rank = rank || (r.value && r.shape.rank() > 0);
      repeated = repeated || (r.floating() && r.shape.rank() > 0 && r.shape[0] > 1);
    }
    if (layout != Layout::contiguous && !rank) continue;
    if (layout == Layout::expanded && !(op.expandable && repeated)) continue;
    list.push_back(layout);
  }
  return list;
}

std::string place(const OpInfo& op, const Sample& sample, DType dtype, Layout layout) {
  return fmt::format("{} '{}' {} {}", op.name, sample.name, name_of(dtype), name_of(layout));
}

void check_forward(const OpInfo& op, const Sample& sample, DType dtype, Layout layout) {
  SCOPED_TRACE(place(op, sample, dtype, layout));
  const Made in = make_all(op, sample, {dtype, dtype, layout, {}});
  const std::vector<Array> arrays = arrays_of(in.tensors);
  const std::vector<Array> want = op.reference(Arrays(arrays, sample.numbers));
  const std::vector<Tensor> got = op.run(in.get());
  ASSERT_EQ(got.size(), want.size());
  for (size_t o = 0; o < got.size(); ++o) {
    SCOPED_TRACE(fmt::format("result {}", o));
    ASSERT_TRUE(got[o]);
    ASSERT_TRUE(close(to_array(got[o]), want[o], is_floating(got[o].dtype()) ? dtype : DType::f64,
                      op.tolerance, op.scale));
  }
  for (size_t i = 0; i < in.tensors.size(); ++i) {  // inputs must not change
    if (!in.tensors[i]) continue;
    ASSERT_EQ(bytes_of(in.tensors[i]),
              bytes_of(make(sample.inputs[i], generator_for(op, sample, layout, i),
                            {dtype, dtype, layout, {}})))
        << "input " << i << " has changed";
  }
}

void test_forward(const OpInfo& op, DType dtype) {
  for (const Sample& sample : op.samples) {
    for (const Layout layout : layouts_for(op, sample)) check_forward(op, sample, dtype, layout);
  }
  for (const Sample& sample : op.large) check_forward(op, sample, dtype, Layout::contiguous);
}

void test_gradcheck(const OpInfo& op) {
  for (const Sample& sample : op.samples) {
    if (!any_gradient(op, sample)) continue;
    for (const Layout layout : layouts_for(op, sample)) {
      if (layout == Layout::expanded) continue;  // its elements are not independent variables
      SCOPED_TRACE(place(op, sample, DType::f64, layout));
      const Made in = make_all(op, sample, {DType::f64, DType::f64, layout, {}});
      // Only inputs that require grad are varied; the others are held fixed.
      std::vector<Tensor> varied;
      std::vector<size_t> where;
      for (size_t i = 0; i < in.tensors.size(); ++i) {
        if (!sample.inputs[i].gradient || !sample.inputs[i].floating()) continue;
        varied.push_back(in.tensors[i]);
        where.push_back(i);
      }
      const std::function<std::vector<Tensor>(const std::vector<Tensor>&)> f =
          [&](const std::vector<Tensor>& x) {
            std::vector<Tensor> all = in.tensors;
            for (size_t k = 0; k < where.size(); ++k) all[where[k]] = x[k];
            return std::vector<Tensor>(op.run(Inputs(all, in.numbers)));
          };
      const GradcheckResult result = gradcheck(f, varied, op.gradcheck);
      EXPECT_TRUE(result.ok) << result.message << ", " << result.worst << " times the tolerance";
      ++op_table().gradchecks;
      op_table().derivatives += result.checked;
      op_table().gradchecked.insert(op.name);
    }
  }
}

void check_backward(const OpInfo& op, const Sample& sample, DType dtype, Layout layout) {
  SCOPED_TRACE(place(op, sample, dtype, layout));
  const Made exact = make_all(op, sample, {DType::f64, dtype, layout, {}}, true);
  const Made in = make_all(op, sample, {dtype, dtype, layout, {}}, true);
  const OpResults want = run_op(op, exact, true, dtype);
  const OpResults got = run_op(op, in, true, dtype);
  for (size_t i = 0; i < in.tensors.size(); ++i) {
    SCOPED_TRACE(fmt::format("gradient of input {}", i));
    ASSERT_EQ(static_cast<bool>(got.dx[i]), static_cast<bool>(want.dx[i]));
    if (!got.dx[i]) continue;
    ASSERT_EQ(got.dx[i].dtype(), in.tensors[i].dtype());
    ASSERT_TRUE(close(to_array(got.dx[i]), to_array(want.dx[i]), dtype, 4 * op.gradient_tolerance,
                      std::max(op.scale, 1.0)));
  }
}

void test_backward(const OpInfo& op, DType dtype) {
  for (const Sample& sample : op.samples) {
    if (!any_gradient(op, sample)) continue;
    for (const Layout layout : layouts_for(op, sample)) {
      if (layout != Layout::expanded) check_backward(op, sample, dtype, layout);
    }
  }
  for (const Sample& sample : op.large) {
    if (any_gradient(op, sample)) check_backward(op, sample, dtype, Layout::contiguous);
  }
}

std::vector<std::vector<uint8_t>> bits(const OpInfo& op, const Sample& sample, DType dtype) {
  const bool gradients = any_gradient(op, sample);
  const Made in = make_all(op, sample, {dtype, dtype, Layout::contiguous, {}}, gradients);
  const OpResults run = run_op(op, in, gradients, dtype);
  std::vector<std::vector<uint8_t>> all;
  for (const Tensor& y : run.y) all.push_back(bytes_of(y));
  for (const Tensor& dx : run.dx) all.push_back(bytes_of(dx));
  return all;
}

void test_bitwise(const OpInfo& op, DType dtype) {
  const int before = num_threads();
  std::vector<const Sample*> samples;
  for (const Sample& s : op.samples) samples.push_back(&s);
  for (const Sample& s : op.large) samples.push_back(&s);
  std::vector<std::vector<std::vector<uint8_t>>> first;
  for (const int threads : {1, 1, 2, 3}) {
    set_num_threads(threads);
    for (size_t i = 0; i < samples.size(); ++i) {
      SCOPED_TRACE(place(op, *samples[i], dtype, Layout::contiguous));
      auto b = bits(op, *samples[i], dtype);
      if (first.size() <= i) {
        first.push_back(std::move(b));
      } else {
        EXPECT_TRUE(b == first[i]) << "other bits with " << threads << " threads";
      }
    }
  }
  set_num_threads(before);
}

/// Copies rows [begin, end) of the first axis into a leaf tensor.
Tensor take_rows(const Tensor& x, int64_t begin, int64_t end, bool gradient) {
  Shape shape = x.shape();
  shape[0] = end - begin;
  Tensor rows = x.alias(shape, x.strides(), begin * x.strides()[0]);
  Tensor copy = Tensor::like(rows);
  kernels::copy(copy.device(), rows.view(), copy.mut());
  if (gradient) set_requires_grad(copy);
  return copy;
}

void test_rows(const OpInfo& op, DType dtype) {
  for (const Sample& sample : op.large) {
    SCOPED_TRACE(place(op, sample, dtype, Layout::contiguous));
    const bool gradients = any_gradient(op, sample);
    const Made in = make_all(op, sample, {dtype, dtype, Layout::contiguous, {}}, false);
    const auto part = [&](int64_t begin, int64_t end) {
      Made some{in.tensors, in.numbers};
      for (const size_t i : op.row_inputs) {
        if (!in.tensors[i]) continue;
        some.tensors[i] =
            take_rows(in.tensors[i], begin, end,
                      gradients && sample.inputs[i].gradient && is_floating(in.tensors[i].dtype()));
      }
      OpResults run;
      run.y = op.run(some.get());
      if (gradients) {
        std::vector<Tensor> outputs, dy;
        for (size_t o = 0; o < run.y.size(); ++o) {
          if (!requires_grad(run.y[o])) continue;
          Shape all = run.y[o].shape();
          all[0] = in.tensors[op.row_inputs[0]].dim(0);
          outputs.push_back(run.y[o]);
          dy.push_back(take_rows(weights_for(Tensor::empty(all, run.y[o].dtype()), o, dtype), begin,
                                 end, false));
        }
        if (!outputs.empty()) backward(outputs, dy);
        for (const size_t i : op.row_inputs) {
          const Tensor& x = some.tensors[i];
          if (x && requires_grad(x)) run.dx.push_back(grad(x));
        }
      }
      return run;
    };
    const int64_t n = in.tensors[op.row_inputs[0]].dim(0);
    const OpResults whole = part(0, n);
    for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 1}, {n - 1, n}, {1, std::min<int64_t>(n, 4)}, {n / 3, n}, {n / 2, n / 2 + 1}}) {
      SCOPED_TRACE(fmt::format("rows {} to {}", begin, end));
      const OpResults some = part(begin, end);
      for (size_t o = 0; o < some.y.size(); ++o) {
        EXPECT_TRUE(bytes_of(some.y[o]) == bytes_of(take_rows(whole.y[o], begin, end, false)))
            << "result " << o << " depends on other rows";
      }
      for (size_t o = 0; o < some.dx.size(); ++o) {
        EXPECT_TRUE(bytes_of(some.dx[o]) == bytes_of(take_rows(whole.dx[o], begin, end, false)))
            << "gradient " << o << " depends on other rows";
      }
    }
  }
}

/// The offset of OffsetLaw; numbers of up to its size on a grid of 1/8 stay on that grid with it.
double offset_for(DType dtype) {
  const int digits = dtype == DType::f64   ? 53
                     : dtype == DType::f32 ? 24
                     : dtype == DType::f16 ? 11
                                           : 8;
  return std::ldexp(1.0, digits - 4);
}

void test_offset(const OpInfo& op, DType dtype) {
  const double offset = offset_for(dtype);
  for (const Sample& sample : op.offset.samples) {
    SCOPED_TRACE(place(op, sample, dtype, Layout::contiguous));
    const auto run = [&](double add) {
      Sample moved = sample;
      for (InputSpec& spec : moved.inputs) {
        if (!spec.floating() || spec.fixed) continue;
        spec.value = [f = spec.value](Generator gen, int64_t i) {
          return std::round(8 * f(gen, i)) / 8;
        };
      }
      for (const size_t i : op.offset.inputs) {
        if (moved.inputs[i].value) moved.inputs[i] = moved.inputs[i] + add;
      }
      return run_op(op, make_all(op, moved, {dtype, dtype, Layout::contiguous, {}}, true),
                    any_gradient(op, moved), dtype);
    };
    const OpResults without = run(0), with = run(offset);
    for (size_t o = 0; o < without.y.size(); ++o) {
      SCOPED_TRACE(fmt::format("result {}", o));
      const bool moves = std::count(op.offset.moved.begin(), op.offset.moved.end(), o) > 0;
      Array want = to_array(without.y[o]);
      if (moves) {
        for (double& v : want.values) v += offset;
      }
      const DType type = is_floating(with.y[o].dtype()) ? dtype : DType::f64;
      ASSERT_TRUE(close(to_array(with.y[o]), want, type, op.tolerance, op.scale));
    }
    for (size_t i = 0; i < without.dx.size(); ++i) {
      SCOPED_TRACE(fmt::format("gradient of input {}", i));
      if (!without.dx[i]) continue;
      ASSERT_TRUE(close(to_array(with.dx[i]), to_array(without.dx[i]), dtype,
                        4 * op.gradient_tolerance, std::max(op.scale, 1.0)));
    }
  }
}

/// Returns for each element of a shape whether it lies in the row of element `at` along an axis.
std::vector<bool> row_of(const Shape& shape, int axis, int64_t at) {
  const Strides steps = contiguous_strides(shape);
  const int a = axis < 0 ? axis + shape.rank() : axis;
  std::vector<bool> in(static_cast<size_t>(numel(shape)));
  const int64_t first = at - at / steps[a] % shape[a] * steps[a];
  for (int64_t k = 0; k < shape[a]; ++k) in[static_cast<size_t>(first + k * steps[a])] = true;
  return in;
}

void check_nan(const OpInfo& op, Sample sample, size_t input, int64_t at, DType dtype) {
  InputSpec& spec = sample.inputs[input];
  spec.gradient = true;
  spec.value = [f = spec.value, at](Generator gen, int64_t i) {
    return i == at ? std::numeric_limits<double>::quiet_NaN() : f(gen, i);
  };
  SCOPED_TRACE(fmt::format("{} with NaN at {} of input {}",
                           place(op, sample, dtype, Layout::contiguous), at, input));
  const Made in = make_all(op, sample, {dtype, dtype, Layout::contiguous, {}}, true);
  const std::vector<Array> arrays = arrays_of(in.tensors);
  const std::vector<Array> want = op.reference(Arrays(arrays, sample.numbers));
  const OpResults got = run_op(op, in, true, dtype);
  bool reached = false;
  for (size_t o = 0; o < want.size(); ++o) {
    ASSERT_TRUE(close(to_array(got.y[o]), want[o],
                      is_floating(got.y[o].dtype()) ? dtype : DType::f64, op.tolerance, op.scale))
        << "result " << o;
    for (const double v : want[o].values) reached = reached || std::isnan(v);
  }
  const int axis = op.nan.axis ? op.nan.axis(sample.numbers) : -1;
  const std::vector<bool> row = row_of(spec.shape, axis, at);
  ASSERT_TRUE(got.dx[input]);
  const Array dx = to_array(got.dx[input]);
  for (int64_t i = 0; i < dx.size(); ++i) {
    const bool expected = reached && row[static_cast<size_t>(i)];
    ASSERT_EQ(std::isnan(dx[i]), expected) << "gradient " << i << " is " << dx[i];
  }
}

/// Whether an input has a +inf, which makes NaN of gradients by itself.
bool has_infinity(const OpInfo& op, const Sample& sample, DType dtype) {
  for (const Array& x :
       arrays_of(make_all(op, sample, {dtype, dtype, Layout::contiguous, {}}).tensors)) {
    for (const double v : x.values) {
      if (v == std::numeric_limits<double>::infinity()) return true;
    }
  }
  return false;
}

void test_nan(const OpInfo& op, DType dtype) {
  for (const Sample& sample : op.samples) {
    if (has_infinity(op, sample, dtype)) continue;
    for (const size_t input : op.nan.inputs) {
      const InputSpec& spec = sample.inputs[input];
      const int64_t n = spec.value ? numel(spec.shape) : 0;
      if (n == 0 || spec.shape.rank() == 0) continue;
      for (const int64_t at : std::set<int64_t>{0, n / 2, n - 1}) {
        check_nan(op, sample, input, at, dtype);
      }
    }
  }
}

/// Live bytes of the host without the layout cache.
int64_t live_bytes() {
  clear_layout_cache();
  return memory_tracker().live().total();
}

void test_rejects(const OpInfo& op) {
  for (const Reject& reject : op.rejects) {
    SCOPED_TRACE(fmt::format("{} must reject '{}'", op.name, reject.name));
    const Sample sample{reject.name, reject.inputs, reject.numbers};
    const Made in = make_all(op, sample, {DType::f32, DType::f32, Layout::contiguous, {}}, true);
    const int64_t before = live_bytes();
    try {
      if (reject.run) {
        reject.run(in.get());
      } else {
        op.run(in.get());
      }
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& e) {
      EXPECT_TRUE(reject.is(e)) << "another type of error: " << e.what();
      EXPECT_NE(std::string(e.what()).find(reject.message), std::string::npos)
          << "'" << reject.message << "' is not in: " << e.what();
    }
    EXPECT_EQ(live_bytes(), before) << "bytes are left behind";
  }
}

void test_saved(const OpInfo& op) {
  std::vector<const Sample*> samples;
  for (const Sample& s : op.samples) samples.push_back(&s);
  for (const Sample& s : op.large) samples.push_back(&s);
  for (const DType dtype : op.dtypes) {
    for (const Sample* sample : samples) {
      if (!any_gradient(op, *sample)) continue;
      SCOPED_TRACE(place(op, *sample, dtype, Layout::contiguous));
      const Made in = make_all(op, *sample, {dtype, dtype, Layout::contiguous, {}}, true);
      const int64_t before = memory_tracker().live()[Category::saved];
      const std::vector<Tensor> y = op.run(in.get());
      int64_t want = 0;
      if (op.saved_bytes) {
        for (const int64_t bytes : op.saved_bytes(in.get()))
          want += memory::block_bytes(std::max<int64_t>(1, bytes));
      }
      EXPECT_EQ(memory_tracker().live()[Category::saved] - before, want);
      const int64_t live = memory_tracker().live().total();
      {
        const NoGrad off;
        const std::vector<Tensor> again = op.run(in.get());
        EXPECT_EQ(memory_tracker().live()[Category::saved] - before, want)
            << "saved without recording";
      }
      EXPECT_EQ(memory_tracker().live().total(), live);
    }
  }
}

/// Changes floating inputs in place.
void change(const Made& arguments) {
  for (Tensor x : arguments.tensors) {
    if (!x || !is_floating(x.dtype()) || x.numel() == 0) continue;
    Tensor all = x.detach();
    kernels::unary_forward(x.device(), kernels::Unary::affine, 0.75, 0, all.view(), all.mut());
  }
}

void test_recorded(const OpInfo& op, Device device) {
  std::string refusal;
  for (const DType dtype : op.dtypes) {
    for (const Sample& sample : op.samples) {
      SCOPED_TRACE(place(op, sample, dtype, Layout::contiguous));
      const bool gradients = any_gradient(op, sample);
      const Making how{dtype, dtype, Layout::contiguous, device};
      const Made in = make_all(op, sample, how, gradients);
      const auto bits = [&](const OpResults& run) {
        std::vector<std::vector<uint8_t>> all;
        for (const auto* list : {&run.y, &run.dx}) {
          for (const Tensor& x : *list) all.push_back(bytes_of(x));
        }
        return all;
      };
      const auto run = [&] {
        for (const Tensor& x : in.tensors) {
          if (x && requires_grad(x)) set_grad(x, {});
        }
        return run_op(op, in, gradients, dtype);
      };
      run();  // fills the caches of layouts and tables
      OpResults recorded;
      std::unique_ptr<Graph> graph;
      try {
        graph = Graph::record(device, [&] { recorded = run(); });
      } catch (const NotImplemented& e) {
        const std::string text = e.what();
        if (text.find("cannot be recorded") == std::string::npos) throw;
        if (text.find("a table without rows") == std::string::npos) refusal = text;
        continue;
      }
      for (int i = 0; i < 2; ++i) {
        graph->replay();
        const auto replayed = bits(recorded);
        EXPECT_TRUE(replayed == bits(run())) << "replay " << i;
        change(in);
      }
    }
  }
  EXPECT_EQ(!refusal.empty(), op.unrecorded) << refusal;
}

void check_parity(const OpInfo& op, const Sample& sample, DType dtype, Layout layout,
                  Device device) {
  SCOPED_TRACE(place(op, sample, dtype, layout));
  const bool gradients = any_gradient(op, sample) && layout != Layout::expanded;
  const Made here = make_all(op, sample, {dtype, dtype, layout, {}}, gradients);
  const Made there = make_all(op, sample, {dtype, dtype, layout, device}, gradients);
  const OpResults want = run_op(op, here, gradients, dtype);
  const OpResults got = run_op(op, there, gradients, dtype);
  ASSERT_EQ(want.y.size(), got.y.size());
  for (size_t o = 0; o < want.y.size(); ++o) {
    const DType type = is_floating(got.y[o].dtype()) ? dtype : DType::f64;
    EXPECT_TRUE(close(to_array(got.y[o]), to_array(want.y[o]), type, 4 * op.tolerance,
                      std::max(op.scale, 1.0)));
  }
  for (size_t i = 0; i < want.dx.size(); ++i) {
    if (!want.dx[i]) continue;
    EXPECT_TRUE(close(to_array(got.dx[i]), to_array(want.dx[i]), dtype, 8 * op.gradient_tolerance,
                      std::max(op.scale, 1.0)));
  }
}

void test_parity(const OpInfo& op, Device device) {
  const char* const name = std::getenv("LONGSPAN_TEST_DEVICE");
  const bool guarded = name != nullptr && std::string_view(name) == "guarded";
  for (const DType dtype : op.dtypes) {
    for (const Sample& s : op.samples) {
      for (const Layout layout : layouts_for(op, s)) check_parity(op, s, dtype, layout, device);
    }
    // The guarded device takes long for these. Kernels access memory alike in f32 and f64, and in
    // f16 and bf16.
    if (guarded && (dtype == DType::f64 || dtype == DType::bf16)) continue;
    for (const Sample& s : op.large) check_parity(op, s, dtype, Layout::contiguous, device);
  }
}

/// Provides memory for a device that this build has no kernels for.
void lend_memory_to(DeviceKind kind) {
  memory::set_source(
      kind, {.allocate = [](int64_t bytes) -> void* {
               return ::operator new (static_cast<size_t>(bytes), std::align_val_t{64});
             },
             .release = [](void* at, int64_t) { ::operator delete (at, std::align_val_t{64}); }});
}

/// Puts each argument in turn on another device than the rest: that must be an error before any
/// work.
void test_devices(const OpInfo& op) {
  const Device away{DeviceKind::cuda, 0};
  if (!is_available(away)) lend_memory_to(away.kind);
  for (const Sample& sample : op.samples) {
    const Made in = make_all(op, sample, {DType::f32, DType::f32, Layout::contiguous, {}}, true);
    const auto given = std::count_if(in.tensors.begin(), in.tensors.end(),
                                     [](const Tensor& x) { return static_cast<bool>(x); });
    for (size_t i = 0; given > 1 && i < in.tensors.size(); ++i) {
      if (!in.tensors[i]) continue;
      SCOPED_TRACE(fmt::format("{} '{}' with input {} elsewhere", op.name, sample.name, i));
      Made mixed = in;
      const Tensor& here = in.tensors[i];
      mixed.tensors[i] = Tensor::empty(here.shape(), here.dtype(), away);
      if (requires_grad(here)) set_requires_grad(mixed.tensors[i]);
      try {
        op.run(mixed.get());
        ADD_FAILURE() << "nothing was thrown";
      } catch (const DeviceError& e) {
        EXPECT_NE(std::string(e.what()).find("devices differ"), std::string::npos) << e.what();
        EXPECT_NE(std::string(e.what()).find("cuda:0"), std::string::npos) << e.what();
      } catch (const Error& e) {
        ADD_FAILURE() << "another type of error: " << e.what();
      }
    }
  }
}

/// Calls an op on a device that has no kernel for it: that must be an error before any work.
void test_no_kernel(const OpInfo& op) {
  const Device away{DeviceKind::cuda, 0};
  if (!is_available(away)) lend_memory_to(away.kind);
  const Sample& sample = op.samples.front();
  std::vector<Tensor> inputs;
  for (const Tensor& x :
       make_all(op, sample, {DType::f32, DType::f32, Layout::contiguous, {}}).tensors) {
    inputs.push_back(x ? Tensor::empty(x.shape(), x.dtype(), away) : x);
  }
  try {
    op.run(Inputs(inputs, sample.numbers));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const NotImplemented& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find(op.name), std::string::npos) << text;
    EXPECT_NE(text.find(name_of(away)), std::string::npos) << text;
  } catch (const Error& e) {
    ADD_FAILURE() << "another type of error: " << e.what();
  }
}

/// Omits each argument in turn: if the op needs it, the error must say so.
void test_not_given(const OpInfo& op) {
  for (const Sample& sample : op.samples) {
    const Made in = make_all(op, sample, {DType::f32, DType::f32, Layout::contiguous, {}}, true);
    for (size_t i = 0; i < in.tensors.size(); ++i) {
      const bool optional = std::count(op.optional.begin(), op.optional.end(), i) > 0;
      if (!in.tensors[i] || optional) continue;
      SCOPED_TRACE(fmt::format("{} '{}' without input {}", op.name, sample.name, i));
      Made without = in;
      without.tensors[i] = {};
      try {
        op.run(without.get());
      } catch (const Error& e) {
        const std::string text = e.what();
        EXPECT_TRUE(text.find("not given") != std::string::npos ||
                    text.find("undefined") != std::string::npos)
            << text;
      }
    }
  }
}

/// Runs a function and checks that it leaks no bytes.
class OpTest : public testing::Test {
 public:
  explicit OpTest(std::function<void()> body) : body_(std::move(body)) {}
  void TestBody() override {
    const auto live = [] {
      const Device cuda{DeviceKind::cuda, 0};
      return live_bytes() + (is_available(cuda) ? memory_tracker(cuda).live().total() : 0);
    };
    const int64_t before = live();
    body_();
    EXPECT_EQ(live(), before) << "bytes are left behind";
  }

 private:
  std::function<void()> body_;
};

void add_test(const std::string& suite, const std::string& name, std::function<void()> body) {
  testing::RegisterTest(suite.c_str(), name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                        [body]() -> testing::Test* { return new OpTest(body); });
}

void check_entry(const OpInfo& op) {
  EXPECT_TRUE(op.run && op.reference) << op.name;
  EXPECT_FALSE(op.samples.empty()) << op.name << " has no samples";
  EXPECT_FALSE(op.large.empty()) << op.name << " has no large sample";
  EXPECT_TRUE(op.reason.empty() == (op.tolerance == 1 && op.gradient_tolerance == 1))
      << op.name << ": a widened tolerance needs a reason, and only that";
  EXPECT_EQ(op.offset.inputs.empty(), op.offset.samples.empty()) << op.name;
}

/// Checks the table after all other tests.
void summary() {
  const OpTable& t = op_table();
  std::set<std::string> names;
  for (const OpInfo& op : t.ops) {
    EXPECT_TRUE(names.insert(op.name).second) << op.name << " is listed twice";
    check_entry(op);
    if (op.differentiable) {
      EXPECT_TRUE(t.gradchecked.count(op.name)) << op.name << " had no gradcheck";
    }
  }
  std::printf("%zu ops, %lld gradchecks in f64 (%lld partial derivatives)\n", names.size(),
              static_cast<long long>(t.gradchecks), static_cast<long long>(t.derivatives));
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    if (!is_available({kind, 0})) continue;
    int reached = 0;
    for (const KernelBase* kernel : KernelBase::all()) {
      if (!kernel->has(kind)) continue;
      const auto other = t.elsewhere.find(std::string(kernel->name()));
      if (kernel->calls(kind) > 0) {
        ++reached;
        EXPECT_TRUE(other == t.elsewhere.end())
            << kernel->name() << " is reached here; strike it from the list of those that are not";
      } else {
        EXPECT_TRUE(other != t.elsewhere.end())
            << "kernel " << kernel->name() << " was never called on " << name_of(Device{kind, 0});
      }
    }
    std::printf("%s: %d kernels called, %zu left to other programs\n",
                name_of(Device{kind, 0}).c_str(), reached, t.elsewhere.size());
  }
  EXPECT_GE(names.size(), minimum_ops);
  EXPECT_GE(t.gradchecks, minimum_gradchecks);
}

void register_op_tests() {
  const Device cuda{DeviceKind::cuda, 0};
  const bool have_cuda = is_available(cuda);
  for (const OpInfo& op : op_table().ops) {
    for (const DType dtype : op.dtypes) {
      const std::string type(name_of(dtype));
      add_test(op.name, "forward_" + type, [&op, dtype] { test_forward(op, dtype); });
      if (op.differentiable && dtype != DType::f64) {
        add_test(op.name, "backward_" + type, [&op, dtype] { test_backward(op, dtype); });
      }
      add_test(op.name, "bitwise_" + type, [&op, dtype] { test_bitwise(op, dtype); });
      if (!op.offset.inputs.empty()) {
        add_test(op.name, "offset_" + type, [&op, dtype] { test_offset(op, dtype); });
      }
      if (!op.nan.inputs.empty()) {
        add_test(op.name, "nan_" + type, [&op, dtype] { test_nan(op, dtype); });
      }
      if (!op.row_inputs.empty()) {
        add_test(op.name, "rows_" + type, [&op, dtype] { test_rows(op, dtype); });
      }
    }
    if (op.differentiable) {
      add_test(op.name, "gradcheck", [&op] { test_gradcheck(op); });
      add_test(op.name, "saved", [&op] { test_saved(op); });
    }
    add_test(op.name, "not_given", [&op] { test_not_given(op); });
    if (!op.rejects.empty()) add_test(op.name, "rejects", [&op] { test_rejects(op); });
    const bool lacks = op.host_kernel != nullptr && !op.host_kernel->has(DeviceKind::cuda);
    if (lacks) add_test(op.name, "no_kernel", [&op] { test_no_kernel(op); });
    if (have_cuda && !lacks) {
      add_test(op.name, "parity", [&op, cuda] { test_parity(op, cuda); });
      add_test(op.name, "recorded", [&op, cuda] { test_recorded(op, cuda); });
    } else if (!have_cuda && !op.many_devices) {
      add_test(op.name, "devices", [&op] { test_devices(op); });
    }
  }
  if (!have_cuda) {
    add_test("parity", "cuda", [] { GTEST_SKIP() << "skipped: no device"; });
  }
  add_test("summary", "table", [] {
    if (testing::GTEST_FLAG(filter) != "*" || testing::GTEST_FLAG(shuffle)) {
      GTEST_SKIP() << "skipped: only part of the tests ran";
    }
    summary();
  });
}

}  // namespace

Registered::Registered(OpInfo info) {
  if (op_table().ops.empty()) before_tests().push_back(register_op_tests);
  op_table().ops.push_back(std::move(info));
}

ReachedElsewhere::ReachedElsewhere(std::string kernel, std::string program) {
  op_table().elsewhere.emplace(std::move(kernel), std::move(program));
}

}  // namespace longspan::test
