#pragma once

#include <algorithm>
#include <cmath>

#include "core/memory.h"
#include "cuda/lsh/general.h"

/// Host side of LSH attention on tensor cores: which calls it takes, and what is launched.
namespace longspan::cuda {

/// The passes of a call: values of each token; then, for each round, out; dq of queries; and dv
/// with the part of dq that keys give.
enum class LshPass : uint8_t { facts, forward, queries, keys };

/// Maximum number of rounds whose chunks and buckets a block can record.
inline constexpr int64_t lsh_noted_rounds = 16;

/// Kernel arguments. Each round is a launch. In a round a token is a query once and a key once, so
/// its accumulators belong to one block.
template <class T>
struct LshTensorArguments : LshArguments<T> {
  int32_t round = 0;
  float* facts = nullptr;       // [B H L, 1 or 4], see facts_of()
  float* sums = nullptr;        // [B H L, dv] of out, [B H L, d] of dq
  float* value_sums = nullptr;  // [B H L, dv] of dv
  float* states = nullptr;      // [B H L, 3], see LshTensorForward

  LONGSPAN_HD bool first() const { return round == 0; }
  LONGSPAN_HD bool last() const { return round + 1 == this->head.rounds; }
  /// The values of a token: 1 / rho; in the backward pass also lse in units of log 2, dout . out -
  /// dlse, and its probability to itself. They fill 16 adjacent bytes, since tokens are read in any
  /// order.
  LONGSPAN_HD float* facts_of(int64_t token) const {
    return facts + token * (this->dout.data == nullptr ? 1 : 4);
  }
  const float* dlse = nullptr;  // [B, H, L] or null
  /// `lift` multiplies dS / rho before it is rounded to T, `unlift` undoes that. It is a power of
  /// two that brings a usual 1 / rho to about 1, since f16 has few small values.
  float lift = 1, unlift = 1;

  /// Number of rounds in which a pair may have met that a block must record.
  LONGSPAN_HD int noted() const {
    const kernels::LshDuplicates rule = this->head.rule.duplicates;
    if (rule == kernels::LshDuplicates::off) return 0;
    return rule == kernels::LshDuplicates::first ? round : static_cast<int>(this->head.rounds);
  }
};

/// Whether tensor cores support the rule of a call: with a global wrap each meeting of a pair must
/// count in full and buckets must not matter; duplicates are resolved over few rounds only.
inline bool lsh_tensor_knows(const kernels::LshInputs& in) {
  const kernels::LshRule& rule = in.rule;
  if (rule.wrap == kernels::LshWrap::global && rule.same_bucket) return false;
  if (rule.duplicates == kernels::LshDuplicates::off) return true;
  return rule.wrap != kernels::LshWrap::global && in.ids.dim(2) <= lsh_noted_rounds;
}

/// Launches a pass of a call.
void launch_lsh(const char* name, LshPass pass, const LshTensorArguments<bf16>& x);
void launch_lsh(const char* name, LshPass pass, const LshTensorArguments<f16>& x);

/// Allocates workspace for f32 values on the device of a call.
inline Scratch lsh_workspace(const kernels::LshInputs& in, int64_t numbers) {
  return Scratch(max<int64_t>(numbers, 1) * static_cast<int64_t>(sizeof(float)), in.q.device);
}

/// Computes out and lse; launch(pass, arguments) runs a pass.
template <class T, class Launch>
void lsh_forward_in_rounds(const kernels::LshInputs& in, const View& out, const View& lse,
                           Launch launch) {
  LshTensorArguments<T> x;
  static_cast<LshArguments<T>&>(x) = lsh_arguments<T>(in);
  x.out = head_rows<T>(out);
  x.lse = lse.as<float>();
  const auto rounds = static_cast<int32_t>(x.head.rounds);
  const int64_t rows = x.blocks(), between = rounds > 1 ? rows : 0;
  const Scratch facts = lsh_workspace(in, rows), sums = lsh_workspace(in, between * x.v.width),
                states = lsh_workspace(in, between * 3);
  x.facts = facts.template as<float>();
  x.sums = sums.template as<float>();
  x.states = states.template as<float>();
  launch(LshPass::facts, x);
  for (int32_t r = 0; r < rounds; ++r) {
    x.round = r;
    launch(LshPass::forward, x);
  }
}

/// Computes dq and dv, round by round.
template <class T, class Launch>
void lsh_backward_in_rounds(const kernels::LshInputs& in, const ConstView& out,
                            const ConstView& lse, const ConstView& dout, const ConstView& dlse,
                            const View& dq, const View& dv, Launch launch) {
  LshTensorArguments<T> x;
  static_cast<LshArguments<T>&>(x) = lsh_arguments<T>(in);
  x.out = head_rows<T>(out);
  x.dout = head_rows<const T>(dout);
  x.dq = head_rows<T>(dq);
  x.dv = head_rows<T>(dv);
  x.lse = const_cast<float*>(lse.as<float>());  // the backward pass only reads it
  x.dlse = dlse.as<float>();
  const double usual = x.head.rule.scale * log2_e / std::sqrt(static_cast<double>(x.q.width));
  const auto exponent = static_cast<int>(std::lround(std::clamp(std::log2(usual), -20.0, 20.0)));
  x.lift = std::ldexp(1.0f, -exponent);
  x.unlift = static_cast<float>(std::ldexp(ln_2, exponent));
  const auto rounds = static_cast<int32_t>(x.head.rounds);
  const int64_t rows = x.blocks(), between = rounds > 1 ? rows : 0;
  const Scratch facts = lsh_workspace(in, 4 * rows), sums = lsh_workspace(in, rows * x.q.width),
                value_sums = lsh_workspace(in, between * x.v.width);
  x.facts = facts.template as<float>();
  x.sums = sums.template as<float>();
  x.value_sums = value_sums.template as<float>();
  launch(LshPass::facts, x);
  for (int32_t r = 0; r < rounds; ++r) {
    x.round = r;
    launch(LshPass::queries, x);
    launch(LshPass::keys, x);
  }
}

}  // namespace longspan::cuda
