#pragma once

namespace longspan::cuda {

void register_copy();
void register_elementwise();
void register_memory();

}  // namespace longspan::cuda
