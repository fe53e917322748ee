#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "nn/fields.h"
#include "nn/init.h"
#include "nn/module.h"

namespace longspan {

/// How c rows become one.
enum class Compression : uint8_t { mean, max, conv, dilated, most_used };
template <>
inline constexpr std::array<std::string_view, 5> value_names<Compression>{"mean", "max", "conv",
                                                                          "dilated", "most_used"};
/// How the weights of a convolution begin: from a normal distribution, or as the mean of c rows.
enum class ConvStart : uint8_t { normal, average };
template <>
inline constexpr std::array<std::string_view, 2> value_names<ConvStart>{"normal", "average"};

/// The norm of what a compression loses: the mean square, as public implementations have it, or the
/// Euclidean norm of a sample, as in the paper.
enum class LossNorm : uint8_t { mse, l2 };
template <>
inline constexpr std::array<std::string_view, 2> value_names<LossNorm>{"mse", "l2"};

/// Options of Compressor and Restorer.
struct CompressionOptions {
  Compression function = Compression::conv;
  int64_t d_model = 0;
  int64_t rate = 1;      ///< c
  int64_t dilation = 2;  ///< rho, of `dilated`
  ConvStart start = ConvStart::average;
  double deviation = 0.02;  ///< of weights that begin as `normal`
};

/// Rows that leave a memory: old [B, E c, D], right-aligned, from old_begin (i64 [B]) on, so that
/// the last E - new_begin groups of c exist. Rows that do not are zero.
struct OldRows {
  Tensor rows, begin, new_begin;
  /// What each row was used for [B, E c], for most_used; else undefined.
  Tensor usage;
};

/// A compression function f_c \cite rae2020 (sec. 3.2), [B, E c, D] -> [B, E, D]:
///   mean, max  of each c rows
///   conv       y_k = b + sum over t < c of W_t x_{ck+t}: the parameters weight [D, c, D], bias [D]
///   dilated    the same with taps `dilation` rows apart and (rho - 1)(c - 1) zero rows around,
///   half
///              of them, rounded up, before. (The paper gives no layout.)
///   most_used  the rows with the largest usage, in their order; of equal ones the newer
struct Compressor : Module {
  Compressor() = default;
  Compressor(const CompressionOptions& options, const Init& init);

  /// Returns as many rows of each sample as it has groups, right-aligned; others mean nothing.
  Tensor forward(const OldRows& old) const;
  void visit(Visitor& v) override { v("weight", weight)("bias", bias); }

  CompressionOptions options;
  Tensor weight;  ///< [D, c, D], outputs first; undefined unless it is a convolution
  Tensor bias;    ///< [D]
};

/// g, which makes c rows of one: the transposed convolution x_{ck+t} = b + W_t^T y_k, with the
/// parameters weight [D, c, D], inputs first, and bias [D].
struct Restorer : Module {
  Restorer() = default;
  Restorer(const CompressionOptions& options, const Init& init);

  Tensor forward(const Tensor& compressed) const;  ///< [B, E, D] -> [B, E c, D]
  void visit(Visitor& v) override { v("weight", weight)("bias", bias); }

  Tensor weight, bias;
};

/// Returns the mean over samples that have compressed rows of the norm of `difference` [B, ...],
/// which is zero for the others: scalar, f32 (f64 for f64); 0 if no sample has any.
///   rows  number of rows that count in each sample, [B], whole numbers in the dtype of the result
///   each  elements of `difference` for each of these rows. mse is the mean over all of them
Tensor reconstruction_error(LossNorm norm, const Tensor& difference, const Tensor& rows,
                            int64_t each);

}  // namespace longspan
