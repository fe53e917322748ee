#pragma once

#include "core/kernels/lsh.h"

namespace longspan::cpu {

/// Arguments of the hash, see kernels::lsh_hash; padding is not checked.
struct LshHashCall {
  ConstView q, rotation;
  int64_t first, second;
  View ids;
};
void lsh_hash(const LshHashCall& call);

// Each computes in the dtype of its name, whatever the dtype of the tensors.
void lsh_forward_f32(const kernels::LshInputs& in, const View& out, const View& lse);
void lsh_forward_f64(const kernels::LshInputs& in, const View& out, const View& lse);
void lsh_backward_f32(const kernels::LshInputs& in, const ConstView& out, const ConstView& lse,
                      const ConstView& dout, const ConstView& dlse, const View& dq, const View& dv);
void lsh_backward_f64(const kernels::LshInputs& in, const ConstView& out, const ConstView& lse,
                      const ConstView& dout, const ConstView& dlse, const View& dq, const View& dv);

}  // namespace longspan::cpu
