#include "core/kernels/copy.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "cpu/register.h"
#include "cpu/spans.h"
#include "cpu/strided.h"

namespace longspan::cpu {
namespace {

constexpr int64_t grain = 1 << 15;  // elements per task
constexpr int64_t block = 512;      // elements converted at a time
constexpr int64_t tile = 32;        // rows and columns of a transposed block

constexpr bool is_half(DType t) { return t == DType::f16 || t == DType::bf16; }

/// Calls f(TypeTag<T>{}) for the types that are computed in directly.
template <class F>
void visit_full(DType t, F&& f) {
  switch (t) {
    case DType::f64:
      return f(TypeTag<double>{});
    case DType::f32:
      return f(TypeTag<float>{});
    case DType::i64:
      return f(TypeTag<int64_t>{});
    case DType::i32:
      return f(TypeTag<int32_t>{});
    default:
      return f(TypeTag<uint8_t>{});
  }
}

/// Converts n consecutive elements, at most `block`. The 16-bit formats go through f32.
void convert(DType from, const void* x, DType to, void* y, int64_t n) {
  float wide[block], narrow[block];
  if (is_half(from)) {
    if (from == DType::f16) {
      widen_span(static_cast<const f16*>(x), wide, n);
    } else {
      widen_span(static_cast<const bf16*>(x), wide, n);
    }
    from = DType::f32;
    x = wide;
  }
  const DType last = is_half(to) ? DType::f32 : to;
  void* target = is_half(to) ? narrow : y;
  if (from == last) {
    if (is_half(to)) {
      target = const_cast<void*>(x);
    } else {
      std::memcpy(y, x, static_cast<size_t>(n * size_of(to)));
    }
  } else {
    visit_full(from, [&](auto a) {
      visit_full(last, [&](auto b) {
        using A = typename decltype(a)::type;
        using B = typename decltype(b)::type;
        for (int64_t i = 0; i < n; ++i) {
          static_cast<B*>(target)[i] = static_cast<B>(static_cast<const A*>(x)[i]);
        }
      });
    });
  }
  if (to == DType::f16) narrow_span(static_cast<const float*>(target), static_cast<f16*>(y), n);
  if (to == DType::bf16) narrow_span(static_cast<const float*>(target), static_cast<bf16*>(y), n);
}

/// Copies n elements of `size` bytes, with steps in elements.
void move(const void* from, int64_t from_step, void* to, int64_t to_step, int64_t n, int64_t size) {
  const auto loop = [&](auto word) {
    using W = decltype(word);
    for (int64_t i = 0; i < n; ++i) {
      static_cast<W*>(to)[i * to_step] = static_cast<const W*>(from)[i * from_step];
    }
  };
  if (from_step == 1 && to_step == 1) {
    std::memcpy(to, from, static_cast<size_t>(n * size));
  } else if (size == 8) {
    loop(uint64_t{});
  } else if (size == 4) {
    loop(uint32_t{});
  } else if (size == 2) {
    loop(uint16_t{});
  } else {
    loop(uint8_t{});
  }
}

/// The base address and element size of a tensor.
struct Address {
  char* data;
  int64_t size;
  char* operator()(int64_t element) const { return data + element * size; }
};

/// Copies a tile through a buffer: reads it along its rows and writes it along its columns. Each
/// side accesses memory with unit stride, or the buffer in the L1 cache.
template <class W>
void transpose_tile(const W* from, int64_t from_step, W* to, int64_t to_step, int64_t to_row,
                    int64_t rows, int64_t columns) {
  W buffer[tile][tile + 1];
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) buffer[c][r] = from[c * from_step + r];
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) to[r * to_row + c * to_step] = buffer[c][r];
  }
}

/// Copies between tensors of the same dtype if an axis p of x, not its last, has stride 1.
void copy_transposed(const Layouts<2>& layouts, int p, const Address& from, const Address& to) {
  const int last = layouts.rank - 1;
  Layouts<2> outer = layouts;
  outer.size[p] = outer.size[last] = 1;
  const int64_t rows = layouts.size[p], columns = layouts.size[last];
  const int64_t a_column = layouts.step(0), b_column = layouts.step(1),
                b_row = layouts.stride[1][p];
  const int64_t row_tiles = (rows + tile - 1) / tile, column_tiles = (columns + tile - 1) / tile;
  const int64_t tiles = row_tiles * column_tiles, count = layouts.numel / (rows * columns);
  parallel_ranges(count * tiles, grain / (tile * tile), [&](int64_t task, int64_t end) {
    for (; task < end; ++task) {
      int64_t offset[2];
      outer.row(task / tiles, offset);
      const int64_t r = task % tiles / column_tiles * tile, c = task % column_tiles * tile;
      const void* source = from(offset[0] + r + c * a_column);
      void* target = to(offset[1] + r * b_row + c * b_column);
      const auto run = [&](auto word) {
        using W = decltype(word);
        transpose_tile(static_cast<const W*>(source), a_column, static_cast<W*>(target), b_column,
                       b_row, std::min(tile, rows - r), std::min(tile, columns - c));
      };
      if (from.size == 8) run(uint64_t{});
      if (from.size == 4) run(uint32_t{});
      if (from.size == 2) run(uint16_t{});
      if (from.size == 1) run(uint8_t{});
    }
  });
}

void copy(ConstView x, View y) {
  if (x.numel() == 0) return;
  const Layouts<2> layouts(x.shape, {&x.strides, &y.strides});
  const int64_t sa = layouts.step(0), sb = layouts.step(1);
  const Address from{const_cast<char*>(static_cast<const char*>(x.data)), size_of(x.dtype)};
  const Address to{static_cast<char*>(y.data), size_of(y.dtype)};
  if (x.dtype == y.dtype && sa != 1 && sa != 0) {
    for (int p = 0; p < layouts.rank - 1; ++p) {
      if (layouts.stride[0][p] == 1 && layouts.size[p] >= 8 && layouts.length() >= 8) {
        return copy_transposed(layouts, p, from, to);
      }
    }
  }
  for_ranges(layouts, grain, [&](const auto& offset, int64_t count) {
    const int64_t a = offset[0], b = offset[1];
    if (x.dtype == y.dtype) return move(from(a), sa, to(b), sb, count, from.size);
    alignas(8) char taken[block * 8], made[block * 8];
    for (int64_t i = 0; i < count; i += block) {
      const int64_t k = std::min(block, count - i);
      if (sa != 1) move(from(a + i * sa), sa, taken, 1, k, from.size);
      const void* source = sa == 1 ? from(a + i) : taken;
      convert(x.dtype, source, y.dtype, sb == 1 ? to(b + i) : made, k);
      if (sb != 1) move(made, 1, to(b + i * sb), sb, k, to.size);
    }
  });
}

/// Converts a value to T; the 16-bit formats go through f32.
template <class T>
T number(double value) {
  if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

void fill(View y, double value) {
  visit_dtype(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T v = number<T>(value);
    const Layouts<1> layout(y.shape, {&y.strides});
    const int64_t step = layout.step(0);
    for_ranges(layout, grain, [&](const auto& offset, int64_t n) {
      T* to = y.as<T>() + offset[0];
      for (int64_t i = 0; i < n; ++i) to[i * step] = v;
    });
  });
}

void arange(View y, double begin, double step) {
  visit_dtype(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < y.dim(0); ++i) {
      y.as<T>()[i] = number<T>(begin + static_cast<double>(i) * step);
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
