#include "cpu/register.h"

#include <hwy/highway.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "core/build.h"
#include "core/error.h"
#include "cpu/bf16_dot.h"

namespace longspan::cpu {
namespace {

constexpr int64_t avx512 = HWY_AVX3 | HWY_AVX3_DL;

bool has_bf16_dot() {
#if HWY_ARCH_X86
  // The best target is used, which has the lowest bit. Only the AVX-512 targets have kernels for
  // it.
  const int64_t usable = HWY_TARGETS & hwy::SupportedTargets();
  return (usable & -usable & avx512) != 0 && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

std::atomic<bool> bf16_dot_allowed{false};

/// The possible values of LONGSPAN_SIMD, best first.
struct Level {
  std::string_view name;
  int64_t targets;
  bool bf16_dot = false;
};
constexpr Level levels[] = {{"avx512-bf16", avx512, true},
                            {"avx512", avx512},
                            {"avx2", HWY_AVX2},
                            {"portable", HWY_SSSE3 | HWY_SSE4 | HWY_EMU128 | HWY_SCALAR}};

/// Returns the level of the target that kernels use, or the target's own name.
std::string used_level() {
  const int64_t usable = HWY_TARGETS & hwy::SupportedTargets();
  const int64_t best = usable & -usable;
  for (const Level& level : levels) {
    if ((level.targets & best) != 0 && (!level.bf16_dot || bf16_dot())) {
      return std::string(level.name);
    }
  }
  return hwy::TargetName(best);
}

/// Applies LONGSPAN_SIMD: kernels use no wider vectors and no newer instructions than it allows.
void restrict_simd() {
  set_bf16_dot(true);
  const char* text = std::getenv("LONGSPAN_SIMD");
  if (text == nullptr || *text == '\0') return;
  std::string usable;
  for (const Level& level : levels) {
    if ((level.targets & HWY_TARGETS & hwy::SupportedTargets()) == 0) continue;
    if (level.bf16_dot && !bf16_dot()) continue;
    if (level.name == text) {
      set_bf16_dot(level.bf16_dot);
      return hwy::DisableTargets(~level.targets);
    }
    usable += (usable.empty() ? "" : ", ") + std::string(level.name);
  }
  fail("cpu",
       "LONGSPAN_SIMD={}: with this build and processor it can be {}; the release preset builds "
       "avx512-bf16, avx512, avx2 and portable",
       text, usable);
}

}  // namespace

bool bf16_dot() { return bf16_dot_allowed.load(std::memory_order_relaxed); }

void set_bf16_dot(bool allowed) {
  bf16_dot_allowed.store(allowed && has_bf16_dot(), std::memory_order_relaxed);
}

void register_kernels() {
  restrict_simd();
  set_cpu_instructions(used_level());
  register_block_attention();
  register_attention_workspace();
  register_copy();
  register_elementwise();
  register_entmax();
  register_entmax_attention();
  register_gradient();
  register_index();
  register_linear_attention();
  register_loss();
  register_lsh();
  register_matmul();
  register_norm();
  register_optim();
  register_peak();
  register_pool();
  register_random();
  register_reduce();
  register_edge_attention();
  register_routing();
  register_softmax();
  register_sort();
}

}  // namespace longspan::cpu
