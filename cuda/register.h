#pragma once

namespace longspan::cuda {

void register_copy();
void register_elementwise();
void register_loss();
void register_memory();
void register_norm();
void register_random();
void register_reduce();
void register_softmax();

}  // namespace longspan::cuda
