#include "cuda/register.h"

namespace longspan::cuda {

void register_kernels() {
  register_memory();
  register_copy();
  register_elementwise();
}

}  // namespace longspan::cuda
