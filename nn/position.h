#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "nn/fields.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/module.h"
#include "ops/attention/block_attention.h"

namespace longspan {

/// The order of sines and cosines in a row; halves_f32: that of halves, rounded to f32 whatever the
/// dtype is, as the tables of Pegasus.
enum class SinusoidLayout : uint8_t { interleaved, halves, halves_f32 };
template <>
inline constexpr std::array<std::string_view, 3> value_names<SinusoidLayout>{
    "interleaved", "halves", "halves_f32"};

/// Row r is PE[first + r], with angles a_k = p 10000^(-2k / D), k < D / 2: sin a_k and cos a_k
/// alternate (interleaved, \cite vaswani2017) or all sines come before all cosines (halves).
/// Computed in f64 on the host.
///   returns [length, width]  dtype
///   throws  ValueError on an odd width or a negative position
Tensor sinusoid(int64_t first, int64_t length, int64_t width, SinusoidLayout layout, DType dtype,
                Device device);

/// A table of position vectors.
struct LearnedPositions : Module {
  LearnedPositions() = default;
  LearnedPositions(int64_t positions, int64_t width, const Init& init, const Scheme& scheme);

  /// Returns rows first to first + length - 1. Throws ValueError that names the limit beyond the
  /// table.
  Tensor forward(int64_t first, int64_t length) const;  // [length, width]
  void visit(Visitor& v) override { v("weight", weight); }

  Tensor weight;  ///< [positions, width]
};

/// Positions as coordinates on a grid, the last axis running fastest, with one table per axis
/// \cite child2019 (sec. 5.3): sum_j P_j[o_j(t)], where (o_1, ..., o_n) are the coordinates of t.
/// An image has the axes row, column and channel; a text of L tokens has ceil(L / l) and l.
struct FactorisedPositions : Module {
  FactorisedPositions() = default;
  /// `shape` holds the sizes of the axes. Throws ValueError if it is empty or a size is below 1.
  FactorisedPositions(const std::vector<int64_t>& shape, int64_t width, const Init& init,
                      const Scheme& scheme);

  /// Returns the vectors of positions first to first + length - 1. Throws ValueError that names the
  /// limit beyond the grid.
  Tensor forward(int64_t first, int64_t length) const;  // [length, width]
  void visit(Visitor& v) override { v("axes", axes); }
  /// Positions on the grid.
  int64_t size() const;

  std::vector<Embedding> axes;  ///< [size of the axis, width] each
};

/// Options of ShawTables.
struct ShawOptions {
  int64_t clip = 64;       ///< distances beyond it share the outermost row
  bool values = true;      ///< a second table, added to the values
  bool per_head = false;   ///< each head has its own tables, instead of one for all
  bool two_sided = false;  ///< rows for keys after the query too; unused where attention is causal
};

/// Relative positions \cite shaw2018 : tables a^K, a^V with a row for each clipped distance clamp(j
/// - i, -clip, clip) of key j from query i; row `clip` is distance 0. One-sided tables end there.
struct ShawTables : Module {
  ShawTables() = default;
  ShawTables(const ShawOptions& options, int64_t heads, int64_t head_width, const Init& init,
             const Scheme& scheme);

  /// Adds the tables, cast to dtype, to the terms of an attention.
  void fill(ScoreTerms& terms, DType dtype) const;
  void visit(Visitor& v) override { v("relative_key.weight", key)("relative_value.weight", value); }
  explicit operator bool() const { return static_cast<bool>(key); }

  ShawOptions options;
  Tensor key, value;  ///< [rows, d] or [H, rows, d]
};

}  // namespace longspan
