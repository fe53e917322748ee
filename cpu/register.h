#pragma once

namespace longspan::cpu {

// Each function fills the kernel slots of one file.
void register_block_attention();
void register_attention_workspace();
void register_copy();
void register_elementwise();
void register_entmax();
void register_entmax_attention();
void register_gradient();
void register_index();
void register_linear_attention();
void register_loss();
void register_lsh();
void register_matmul();
void register_norm();
void register_optim();
void register_peak();
void register_pool();
void register_random();
void register_reduce();
void register_edge_attention();
void register_routing();
void register_softmax();
void register_sort();

/// Calls all of the above.
void register_kernels();

}  // namespace longspan::cpu
