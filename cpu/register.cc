#include "cpu/register.h"

namespace longspan::cpu {

void register_kernels() {
  register_copy();
  register_elementwise();
  register_gradient();
  register_block_attention();
  register_matmul();
  register_index();
  register_loss();
}

}  // namespace longspan::cpu
