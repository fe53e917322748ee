#include "cuda/attention_tensor_launch.cuh"

namespace longspan::cuda {

bool tensor_forward(const kernels::AttentionInputs& in, const View& out,
                    const AttentionArguments<f16>& x) {
  return tensor_forward_of(in, out, x);
}

bool tensor_backward(const kernels::AttentionInputs& in, const ConstView& dout,
                     const kernels::AttentionGradients& grads, const AttentionArguments<f16>& x) {
  return tensor_backward_of(in, dout, grads, x);
}

}  // namespace longspan::cuda
