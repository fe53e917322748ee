#pragma once

#include <cstdint>

#include "nn/attention/multi_head.h"

namespace longspan {

/// The sinusoids of distances, R_delta = [sin(delta f), cos(delta f)], f_k = 10000^(-2 k / D): a
/// model makes one table, and its layers read rows of it as Distances.
class DistanceTable {
 public:
  DistanceTable() = default;
  /// For distances 0 to `reach`. The first `kept` rows are computed once, the others when needed.
  DistanceTable(int64_t reach, int64_t width, const Init& init, int64_t kept = 1 << 14);

  /// Returns the rows of distances n - 1 to 0, [n, D] in the dtype of `init`: all that T keys need.
  /// n is the power of two from T on, but at most reach + 1, so that growing memories ask for few
  /// different tables. Undefined for a model that has only shapes (Init::meta).
  Tensor rows(int64_t keys) const;

 private:
  int64_t reach_ = 0;
  Tensor sinusoids_;  // [n, D], not a parameter: row r has distance n - 1 - r
};

/// The rows of a model's DistanceTable that its layers read in LayerContext::own.
struct Distances {
  Tensor sinusoids;  ///< [n, D], of distances n - 1 to 0
};

/// What decoding keeps of them: W_R R [H, n, d] for distances n - 1 to 0.
struct ProjectedDistances {
  Tensor table;

  void visit(const StateVisitor& v) { v({"distances", table, StateKind::shared}); }
};

/// Transformer-XL's relative positions \cite dai2019 (sec. 3.3), for causal attention:
///   s_ij = ((q_i + u) . k_j + (q_i + v) . W_R R_{i-j}) / sqrt(d)
/// Each layer has its own W_R, and its own u and v [H, d] unless layers share them. R is
/// Distances::sinusoids of LayerContext::own, for the distances that the layer needs or more.
class RelativeMultiHead : public MultiHead {
 public:
  /// own_biases: the layer names u and v; else the model does, which shares them among its layers.
  /// reach: the maximum distance i - j; larger distances are treated as `reach`.
  RelativeMultiHead(const AttentionOptions& options, int64_t reach, const Tensor& u,
                    const Tensor& v, const Init& init, bool own_biases = false);

  void visit(Visitor& v) override;

 protected:
  ScoreTerms terms(Projected& p, const LayerContext& ctx, LayerMemory& memory) const override;

 private:
  /// Returns W_R R for the last `n` rows of R: [H, n, d], of these heads.
  Tensor projected(const Tensor& distances, int64_t n, DType dtype,
                   const HeadShare& share = {}) const;

  int64_t reach_;
  bool own_biases_;
  Tensor u_, v_;     // [H, d]
  Linear relative_;  // W_R [H d, D]
};

}  // namespace longspan
