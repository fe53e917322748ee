#include "cpu/register.h"

#include <hwy/highway.h>

#include <cstdlib>
#include <string_view>

#include "core/error.h"

namespace longspan::cpu {
namespace {

/// LONGSPAN_SIMD: kernels use no wider vectors than it says.
void restrict_simd() {
  const char* text = std::getenv("LONGSPAN_SIMD");
  if (text == nullptr || *text == '\0') return;
  struct Level {
    std::string_view name;
    int64_t targets;
  };
  constexpr Level levels[] = {{"avx512", HWY_AVX3 | HWY_AVX3_DL},
                              {"avx2", HWY_AVX2},
                              {"portable", HWY_SSSE3 | HWY_SSE4 | HWY_EMU128 | HWY_SCALAR}};
  std::string usable;
  for (const Level& level : levels) {
    if ((level.targets & HWY_TARGETS & hwy::SupportedTargets()) == 0) continue;
    if (level.name == text) return hwy::DisableTargets(~level.targets);
    usable += (usable.empty() ? "" : ", ") + std::string(level.name);
  }
  fail("cpu",
       "LONGSPAN_SIMD={}: with this build and processor it can be {}; the release preset builds "
       "avx512, avx2 and portable",
       text, usable);
}

}  // namespace

void register_kernels() {
  restrict_simd();
  register_block_attention();
  register_attention_room();
  register_copy();
  register_elementwise();
  register_gradient();
  register_index();
  register_loss();
  register_lsh();
  register_matmul();
  register_norm();
  register_optim();
  register_pool();
  register_random();
  register_reduce();
  register_softmax();
  register_sort();
}

}  // namespace longspan::cpu
