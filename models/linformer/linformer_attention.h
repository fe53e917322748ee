#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "nn/attention/head_share.h"
#include "nn/attention/multi_head.h"

namespace longspan {

/// How E and F make r rows of L. linear: learned matrices; mean, max and conv: of every c = ceil(n
/// / r) rows, without weights or by a convolution with kernel and stride c.
enum class RowProjection : uint8_t { linear, mean, max, conv };
template <>
inline constexpr std::array<std::string_view, 4> value_names<RowProjection>{"linear", "mean", "max",
                                                                            "conv"};

/// Which weights E and F have in common. none: each head has its own; headwise: one E and one F for
/// all heads; kv: E = F too; layerwise: the same in all layers too.
enum class ProjectionSharing : uint8_t { none, headwise, kv, layerwise };
template <>
inline constexpr std::array<std::string_view, 4> value_names<ProjectionSharing>{"none", "headwise",
                                                                                "kv", "layerwise"};

/// What E and F project. input: the layer's input, whose r rows then become keys and values, as in
/// the released code; key: keys and values, as the paper writes it. Without biases both are equal.
enum class ProjectionOrder : uint8_t { input, key };
template <>
inline constexpr std::array<std::string_view, 2> value_names<ProjectionOrder>{"input", "key"};

/// How E and F begin. xavier: U(+-sqrt(3 / (n + r))), as in the released code; uniform: U(+-1 /
/// sqrt(r)); normal: N(0, 1 / r), of which the paper's theorems speak.
enum class ProjectionStart : uint8_t { xavier, uniform, normal };
template <>
inline constexpr std::array<std::string_view, 3> value_names<ProjectionStart>{"xavier", "uniform",
                                                                              "normal"};

/// Options of SequenceProjection and LinformerAttention.
struct LinformerOptions {
  RowProjection projection = RowProjection::linear;
  ProjectionSharing sharing = ProjectionSharing::headwise;
  ProjectionOrder order = ProjectionOrder::input;
  ProjectionStart start = ProjectionStart::xavier;
  bool frozen = false;  ///< the weights of E and F keep their random start
  int64_t n_max = 0;    ///< n: the longest sequence
  int64_t r = 0;        ///< projected length, the paper's k

  int64_t window() const { return (n_max + r - 1) / r; }  ///< c
  /// Returns how many rows L rows become: r, or ceil(L / c) if they are pooled or convolved.
  int64_t rows(int64_t length) const {
    return projection == RowProjection::linear ? r : (length + window() - 1) / window();
  }
};

/// E or F \cite wang2020 (sec. 4), which makes a few rows of a sequence:
///   linear     y_t = sum over s < L of E_ts x_s,  t < r: of L < n rows, the first L columns of E
///   mean, max  of the rows t c ... t c + c - 1 that exist
///   conv       y_t = sum over s < c of W_s x_(t c + s),  0 for rows that do not exist
/// The parameter "weight" is [r, n], or [H, r, n] if each head has its own; for a convolution
/// [W, c, W], or [H, d, c, d], with the outputs first. If it is frozen it is a buffer.
class SequenceProjection : public Module {
 public:
  SequenceProjection() = default;
  ///   heads  of n_head heads of width d_model / n_head; the rows are d_model wide
  SequenceProjection(const LinformerOptions& options, const AttentionOptions& heads,
                     const Init& init);

  /// x [B, L, D] -> [B, rows(L), D]. Rows from lengths (i64 [B], or undefined: L) on do not exist:
  /// they count as zeros, for a maximum as -inf, whatever they hold. Throws ValueError if L > n.
  Tensor forward(const Tensor& x, const Tensor& lengths) const;
  /// Returns how many of the rows(length) rows of each sample exist; undefined: all of them.
  Tensor lengths(const Tensor& lengths, int64_t length) const;
  /// Whether each head has weights of its own.
  bool by_head() const;
  /// The projection for the columns of a process's heads.
  SequenceProjection of(const HeadShare& share) const;
  void visit(Visitor& v) override;

  Tensor weight;  ///< undefined for mean and max

 private:
  Tensor mixed(const Tensor& x) const;
  Tensor mean_of(const Tensor& x, const Tensor& lengths) const;
  Tensor max_of(const Tensor& x, const Tensor& lengths) const;
  Tensor convolved(const Tensor& x) const;

  LinformerOptions options_;
  int64_t n_head_ = 1;
};

/// Self-attention whose keys and values are projected along the sequence from L to r rows
/// \cite wang2020 (eq. 7):
///   head_i = softmax(Q_i (E_i K_i)^T / sqrt(d)) (F_i V_i)
/// With order = input, K_i stands for (E_i x) W_i + b_i instead of E_i (x W_i + b_i), and the same
/// for values. Time is O(L r D), and no [L, r] is stored. Reads ctx.lengths; padding changes no
/// result.
class LinformerAttention final : public Layer {
 public:
  ///   shared  E of another layer for sharing = layerwise, or null: a new one
  LinformerAttention(const AttentionOptions& heads, const LinformerOptions& options,
                     const SequenceProjection* shared, const Init& init);

  /// x [B, L, D] -> [B, L, D]. Throws ShapeError, DTypeError, and ValueError if L > n.
  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override;
  /// Returns the weights of the projected rows, [B, H, L, rows(L)].
  Tensor probabilities(const Tensor& x, const LayerContext& ctx) const override;
  void visit(Visitor& v) override;
  bool splits() const override { return true; }
  const SequenceProjection& key_projection() const { return e_; }

 private:
  /// Returns x [B, L, D] as keys or values [B, rows(L), D], of the heads of a share.
  Tensor project(const SequenceProjection& rows, const Linear& weights, const Tensor& x,
                 const Tensor& lengths, const HeadShare& share) const;
  /// E x of all columns, where the rows of x are divided.
  Tensor mixed_rows(const SequenceProjection& rows, const Tensor& x, const Tensor& lengths,
                    const HeadShare& share) const;
  Projected project(const Tensor& x, const Tensor& lengths, const HeadShare& share = {}) const;
  /// [B, L, D] -> the columns of this process's heads.
  Tensor own_columns(const Tensor& y, const HeadShare& share) const;
  Tensor attend(const Projected& p, const LayerContext& ctx, const Dropout& dropout) const;
  Tensor split_heads(const Tensor& x) const;                        // [B, n, H d] -> [B, H, n, d]
  int64_t width() const { return heads_.d_model / heads_.n_head; }  // of a head

  AttentionOptions heads_;
  LinformerOptions options_;
  Linear q_, k_, v_, out_;    // [D, D]
  SequenceProjection e_, f_;  // of keys and values; no f_ if both are one
};

}  // namespace longspan
