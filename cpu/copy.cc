#include "ops/kernels/copy.h"

#include <cstring>

#include "core/parallel.h"
#include "cpu/register.h"
#include "cpu/strided.h"

namespace longspan::cpu {
namespace {

constexpr int64_t grain = 1 << 15;  // elements of a task

template <class From, class To>
To convert(From x) {
  if constexpr (std::is_same_v<From, To>) {
    return x;
  } else if constexpr (std::is_same_v<To, f16> || std::is_same_v<To, bf16>) {
    return To(static_cast<float>(x));
  } else if constexpr (std::is_same_v<From, f16> || std::is_same_v<From, bf16>) {
    return static_cast<To>(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

template <class From, class To>
void copy_as(const ConstView& x, const View& y) {
  const Merged m = merge_axes(x.shape, x.strides, y.strides);
  const int64_t n = m.shape.back(), sa = m.a.back(), sb = m.b.back();
  const int64_t rows = numel(m.shape) / n;
  const auto* from = x.as<From>();
  auto* to = y.as<To>();
  const auto span = [&](int64_t a, int64_t b, int64_t count) {
    if (sa == 1 && sb == 1) {
      if constexpr (std::is_same_v<From, To>) {
        std::memcpy(to + b, from + a, static_cast<size_t>(count) * sizeof(To));
      } else {
        for (int64_t i = 0; i < count; ++i) to[b + i] = convert<From, To>(from[a + i]);
      }
    } else {
      for (int64_t i = 0; i < count; ++i) to[b + i * sb] = convert<From, To>(from[a + i * sa]);
    }
  };
  if (rows == 1) {
    parallel_ranges(n, grain, [&](int64_t i, int64_t end) { span(i * sa, i * sb, end - i); });
    return;
  }
  parallel_ranges(rows, std::max<int64_t>(1, grain / n), [&](int64_t r, int64_t end) {
    for (; r < end; ++r) {
      int64_t a, b;
      row_offsets(m, r, a, b);
      span(a, b, n);
    }
  });
}

void copy(ConstView x, View y) {
  if (x.numel() == 0) return;
  visit_dtype(x.dtype, [&](auto from) {
    visit_dtype(y.dtype, [&](auto to) {
      copy_as<typename decltype(from)::type, typename decltype(to)::type>(x, y);
    });
  });
}

void fill(View y, double value) {
  if (y.numel() == 0) return;
  visit_dtype(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T v = convert<double, T>(value);
    const Merged m = merge_axes(y.shape, y.strides, y.strides);
    const int64_t n = m.shape.back(), step = m.b.back();
    parallel_ranges(numel(m.shape) / n, std::max<int64_t>(1, grain / n),
                    [&](int64_t r, int64_t end) {
                      for (; r < end; ++r) {
                        int64_t a, b;
                        row_offsets(m, r, a, b);
                        T* row = y.as<T>() + b;
                        for (int64_t i = 0; i < n; ++i) row[i * step] = v;
                      }
                    });
  });
}

void arange(View y, double begin, double step) {
  visit_dtype(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < y.dim(0); ++i) {
      y.as<T>()[i] = convert<double, T>(begin + static_cast<double>(i) * step);
    }
  });
}

}  // namespace

void register_copy() {
  kernels::copy.set(DeviceKind::cpu, copy);
  kernels::fill.set(DeviceKind::cpu, fill);
  kernels::arange.set(DeviceKind::cpu, arange);
}

}  // namespace longspan::cpu
