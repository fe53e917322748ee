#include "cuda/attention_tensor_launch.cuh"

namespace longspan::cuda {

bool tensor_forward_bf16(const kernels::AttentionInputs& in, const View& out, const View& lse) {
  return tensor_forward_of<bf16>(in, out, lse);
}

bool tensor_backward_bf16(const kernels::AttentionInputs& in, const ConstView& lse,
                          const ConstView& dout, const float* delta,
                          const kernels::AttentionGradients& grads) {
  return tensor_backward_of<bf16>(in, lse, dout, delta, grads);
}

}  // namespace longspan::cuda
