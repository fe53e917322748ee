#pragma once

#include <cstdint>

#include "nn/attention.h"

namespace longspan {

/// Transformer-XL's relative positions \cite dai2019 (sec. 3.3), for causal attention:
///   s_ij = ((q_i + u) . k_j + (q_i + v) . W_R R_{i-j}) / sqrt(d)
///   R_delta = [sin(delta f), cos(delta f)],  f_k = 10000^(-2 k / D)
/// u and v [H, d] may be shared by several layers; the module that visits them first names them.
/// W_R is this layer's own.
class RelativeMultiHead final : public MultiHead {
 public:
  /// reach: the largest distance i - j that the pattern allows.
  RelativeMultiHead(const AttentionOptions& options, int64_t reach, const Tensor& u,
                    const Tensor& v, const Init& init);

  void visit(Visitor& v) override;

 protected:
  ScoreTerms terms(Projected& p) const override;

 private:
  int64_t reach_;
  Tensor u_, v_;      // [H, d]
  Linear relative_;   // W_R [H d, D]
  Tensor sinusoids_;  // [n, D], not a parameter, n <= reach + 1: row r has distance n - 1 - r
};

}  // namespace longspan
