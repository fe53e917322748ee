#include "cuda/lsh/tensor_launch.cuh"

namespace longspan::cuda {

void launch_lsh(const char* name, LshPass pass, const LshTensorArguments<f16>& x) {
  launch_lsh_of(name, pass, x);
}

}  // namespace longspan::cuda
