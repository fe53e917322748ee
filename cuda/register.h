#pragma once

namespace longspan::cuda {

void register_block_attention();
void register_copy();
void register_edge_attention();
void register_elementwise();
void register_entmax();
void register_entmax_attention();
void register_graph();
void register_index();
void register_loss();
void register_linear_attention();
void register_lsh();
void register_matmul();
void register_memory();
void register_nccl();
void register_norm();
void register_optim();
void register_pool();
void register_random();
void register_reduce();
void register_routing();
void register_softmax();
void register_sort();

}  // namespace longspan::cuda
