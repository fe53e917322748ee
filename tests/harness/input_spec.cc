#include "tests/harness/input_spec.h"

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numbers>
#include <numeric>

#include "core/kernels/copy.h"

namespace longspan::test {
namespace {

/// Converts a row-major index to an offset under strides.
int64_t offset_of(const Shape& shape, const Strides& strides, int64_t i) {
  int64_t offset = 0;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    offset += i % shape[axis] * strides[axis];
    i /= shape[axis];
  }
  return offset;
}

double uniform_at(Generator gen, int64_t i) {
  return (to_uniform(philox_word(gen.key, i)) + 0.5 / 16777216.0);
}

}  // namespace

Array to_array(const Tensor& x) {
  if (!x) {
    Array none;
    none.defined = false;
    return none;
  }
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  Tensor target = y;
  kernels::copy(x.device(), x.view(), target.mut());
  return visit_dtype(x.dtype(), [&](auto tag) {
    const auto v = y.to_vector<typename decltype(tag)::type>();
    Array a(x.shape());
    for (size_t i = 0; i < v.size(); ++i) a.values[i] = static_cast<double>(v[i]);
    return a;
  });
}

double rounded(double value, DType dtype) {
  switch (dtype) {
    case DType::f64:
      return value;
    case DType::f32:
      return static_cast<float>(value);
    case DType::f16:
      return f16(static_cast<float>(value));
    case DType::bf16:
      return bf16(static_cast<float>(value));
    default:
      return std::trunc(value);
  }
}

std::string_view name_of(Layout layout) {
  constexpr std::string_view names[] = {"contiguous", "transposed", "sliced", "expanded"};
  return names[static_cast<int>(layout)];
}

InputSpec randn(const Shape& shape) {
  InputSpec r;
  r.shape = shape;
  r.value = [](Generator gen, int64_t i) {
    return std::sqrt(-2 * std::log(uniform_at(gen, 2 * i))) *
           std::cos(2 * std::numbers::pi * uniform_at(gen, 2 * i + 1));
  };
  return r;
}

InputSpec uniform(const Shape& shape, double low, double high) {
  InputSpec r;
  r.shape = shape;
  r.value = [low, high](Generator gen, int64_t i) {
    return low + (high - low) * uniform_at(gen, i);
  };
  return r;
}

InputSpec iota(const Shape& shape) {
  InputSpec r;
  r.shape = shape;
  r.value = [](Generator, int64_t i) { return static_cast<double>(i); };
  return as(DType::i64, r);
}

InputSpec integers(const Shape& shape, int64_t low, int64_t high) {
  InputSpec r;
  r.shape = shape;
  r.value = [low, high](Generator gen, int64_t i) {
    return static_cast<double>(low) +
           std::floor(uniform_at(gen, i) * static_cast<double>(high - low + 1));
  };
  return as(DType::i64, r);
}

InputSpec permutation(int64_t n) {
  InputSpec r;
  r.shape = {n};
  r.value = [n](Generator gen, int64_t i) {  // Fisher-Yates
    std::vector<int64_t> p(static_cast<size_t>(n));
    std::iota(p.begin(), p.end(), 0);
    for (int64_t j = n - 1; j > 0; --j) {
      std::swap(p[static_cast<size_t>(j)],
                p[static_cast<size_t>(uniform_at(gen, j) * static_cast<double>(j + 1))]);
    }
    return static_cast<double>(p[static_cast<size_t>(i)]);
  };
  return as(DType::i64, r);
}

InputSpec full(const Shape& shape, double value) {
  InputSpec r;
  r.shape = shape;
  r.value = [value](Generator, int64_t) { return value; };
  return r;
}

InputSpec scalar(double value) { return full({}, value); }

InputSpec values(const Shape& shape, std::vector<double> numbers) {
  InputSpec r;
  r.shape = shape;
  r.value = [numbers = std::move(numbers)](Generator, int64_t i) {
    return numbers.at(static_cast<size_t>(i));
  };
  return r;
}

InputSpec mask(const Shape& shape) { return as(DType::u8, integers(shape, 0, 1)); }

InputSpec none() { return {}; }

InputSpec as(DType dtype, InputSpec spec) {
  spec.fixed = true;
  spec.dtype = dtype;
  return spec;
}

InputSpec constant(InputSpec spec) {
  spec.gradient = false;
  return spec;
}

InputSpec operator*(double factor, InputSpec spec) {
  spec.value = [factor, f = std::move(spec.value)](Generator gen, int64_t i) {
    return factor * f(gen, i);
  };
  return spec;
}

InputSpec operator+(InputSpec spec, double offset) {
  spec.value = [offset, f = std::move(spec.value)](Generator gen, int64_t i) {
    return f(gen, i) + offset;
  };
  return spec;
}

namespace {

/// Returns the values of a spec. Large ones are cached, since several tests of an op share them;
/// generators differ between ops, samples and inputs.
std::shared_ptr<const std::vector<double>> values_of(const InputSpec& spec, Generator gen) {
  static std::map<std::pair<uint64_t, int64_t>, std::shared_ptr<const std::vector<double>>> kept;
  const int64_t n = numel(spec.shape);
  const auto key = std::make_pair(gen.key, n);
  if (const auto found = kept.find(key); found != kept.end()) return found->second;
  auto all = std::make_shared<std::vector<double>>(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) (*all)[static_cast<size_t>(i)] = spec.value(gen, i);
  if (n >= 4096) {
    if (kept.size() >= 16) kept.clear();
    kept.emplace(key, all);
  }
  return all;
}

}  // namespace

Tensor make(const InputSpec& spec, Generator gen, const Making& making) {
  if (!spec.value) return {};
  const DType dtype = spec.fixed ? spec.dtype : making.dtype;
  const DType rounding = spec.fixed ? spec.dtype : making.rounding;
  const Shape& shape = spec.shape;
  const int64_t n = numel(shape);

  Strides strides = contiguous_strides(shape);
  int64_t first = 0, span = std::max<int64_t>(n, 0);
  Layout layout = making.layout;
  if (layout == Layout::transposed && shape.rank() < 2) layout = Layout::sliced;
  if (layout == Layout::transposed) {
    int64_t step = 1;
    for (int i = 0; i < shape.rank(); ++i) {
      strides[i] = step;
      step *= std::max<int64_t>(1, shape[i]);
    }
  } else if (layout == Layout::sliced) {
    int64_t step = 2;
    first = 1;
    for (int i = shape.rank() - 1; i >= 0; --i) {
      strides[i] = step;
      step = step * std::max<int64_t>(1, shape[i]) + 3;
    }
    span = step + 1;
  } else if (layout == Layout::expanded && shape.rank() > 0 && spec.floating()) {
    strides[0] = 0;
  }
  const double gap = spec.floating() ? std::numeric_limits<double>::quiet_NaN() : 99;

  return visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto to = [](double v) {
      if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>) {
        return T(static_cast<float>(v));
      } else {
        return static_cast<T>(v);
      }
    };
    std::vector<T> buffer(static_cast<size_t>(span), to(gap));
    const auto all = values_of(spec, gen);
    // In reverse, so that the first entry of an expanded axis remains.
    for (int64_t i = n - 1; i >= 0; --i) {
      buffer[static_cast<size_t>(
          first + (making.layout == Layout::contiguous ? i : offset_of(shape, strides, i)))] =
          to(rounded((*all)[static_cast<size_t>(i)], rounding));
    }
    const Tensor block = Tensor::from(buffer, {span}, making.device);
    if (layout == Layout::contiguous) return block.alias(shape, strides, 0);
    return block.alias(shape, strides, first);
  });
}

}  // namespace longspan::test
