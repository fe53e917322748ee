#include "cpu/register.h"

namespace longspan::cpu {

void register_kernels() {
  register_copy();
  register_elementwise();
  register_gradient();
}

}  // namespace longspan::cpu
