#include "cuda/register.h"

namespace longspan::cuda {

void register_kernels();

void register_kernels() {
  register_block_attention();
  register_copy();
  register_edge_attention();
  register_elementwise();
  register_entmax();
  register_entmax_attention();
  register_graph();
  register_index();
  register_loss();
  register_linear_attention();
  register_lsh();
  register_matmul();
  register_memory();
#if LONGSPAN_NCCL
  register_nccl();
#endif
  register_norm();
  register_optim();
  register_pool();
  register_random();
  register_reduce();
  register_routing();
  register_softmax();
  register_sort();
}

}  // namespace longspan::cuda
