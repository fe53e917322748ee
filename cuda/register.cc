#include "cuda/register.h"

namespace longspan::cuda {

void register_kernels();

void register_kernels() {
  register_copy();
  register_elementwise();
  register_loss();
  register_memory();
  register_norm();
  register_random();
  register_reduce();
  register_softmax();
}

}  // namespace longspan::cuda
