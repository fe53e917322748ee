#include "cuda/attention_tensor_launch.cuh"

namespace longspan::cuda {

bool tensor_forward_f16(const kernels::AttentionInputs& in, const View& out, const View& lse) {
  return tensor_forward_of<f16>(in, out, lse);
}

bool tensor_backward_f16(const kernels::AttentionInputs& in, const ConstView& lse,
                         const ConstView& dout, const float* delta,
                         const kernels::AttentionGradients& grads) {
  return tensor_backward_of<f16>(in, lse, dout, delta, grads);
}

}  // namespace longspan::cuda
