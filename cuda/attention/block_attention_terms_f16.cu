#include "cuda/attention/terms_launch.cuh"

namespace longspan::cuda {

void launch_terms(const char* name, AttentionPass pass, const AttentionArguments<f16>& x,
                  int64_t checked_units) {
  launch_terms_of(name, pass, x, checked_units);
}

}  // namespace longspan::cuda
