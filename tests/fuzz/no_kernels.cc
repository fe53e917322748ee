// Replaces the backend, because the fuzzed code runs no kernel.

namespace longspan::cpu {

void register_kernels();
void register_kernels() {}

}  // namespace longspan::cpu
