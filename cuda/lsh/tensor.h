#pragma once

#include <algorithm>
#include <cmath>

#include "core/memory.h"
#include "cuda/lsh/general.h"

/// LSH attention on tensor cores, as the host sees it: which calls it takes, and what is launched.
namespace longspan::cuda {

/// What a call is made of: numbers of tokens; out of a round; dq of its queries; what its keys add
/// to dq, and dv.
enum class LshPass : uint8_t { facts, forward, queries, keys };

/// Rounds whose tokens' chunks and buckets a block has room to note.
inline constexpr int64_t lsh_noted_rounds = 16;

/// What the kernels are given. Rounds follow each other, a launch for each: in a round a token is a
/// query once and a key once, so what has been summed up of it belongs to one block.
template <class T>
struct LshTensorArguments : LshArguments<T> {
  int32_t round = 0;
  float* facts = nullptr;       // [B H L, 1 or 4], see facts_of()
  float* sums = nullptr;        // [B H L, dv] of out, [B H L, d] of dq
  float* value_sums = nullptr;  // [B H L, dv] of dv
  float* states = nullptr;      // [B H L, 3], see LshTensorForward

  LONGSPAN_HD bool first() const { return round == 0; }
  LONGSPAN_HD bool last() const { return round + 1 == this->head.rounds; }
  /// Of a token: 1 / rho; in backward also lse in units of log 2, dout . out - dlse, and its
  /// probability to see itself: 16 bytes that lie together, since tokens are met in any order.
  LONGSPAN_HD float* facts_of(int64_t token) const {
    return facts + token * (this->dout.data == nullptr ? 1 : 4);
  }
  const float* dlse = nullptr;  // [B, H, L] or null
  /// What dS 1/rho is multiplied with before it is rounded to T, and what undoes that: a power of
  /// two that brings a usual 1/rho back to 1, since f16 has few small numbers.
  float lift = 1, unlift = 1;

  /// Rounds in which a pair may have met that a block has to know of.
  LONGSPAN_HD int noted() const {
    const kernels::LshDuplicates rule = this->head.rule.duplicates;
    if (rule == kernels::LshDuplicates::off) return 0;
    return rule == kernels::LshDuplicates::first ? round : static_cast<int>(this->head.rounds);
  }
};

/// Whether the rule of a call is one that tensor cores take: pairs that chunks of several rounds
/// may show count each time, and others in few rounds.
inline bool lsh_tensor_knows(const kernels::LshInputs& in) {
  const kernels::LshRule& rule = in.rule;
  if (rule.wrap == kernels::LshWrap::global && rule.same_bucket) return false;
  if (rule.duplicates == kernels::LshDuplicates::off) return true;
  return rule.wrap != kernels::LshWrap::global && in.ids.dim(2) <= lsh_noted_rounds;
}

/// A pass of a call on the device.
void launch_lsh(const char* name, LshPass pass, const LshTensorArguments<bf16>& x);
void launch_lsh(const char* name, LshPass pass, const LshTensorArguments<f16>& x);

/// Room for numbers on the device of a call.
inline Scratch lsh_room(const kernels::LshInputs& in, int64_t numbers) {
  return Scratch(max<int64_t>(numbers, 1) * static_cast<int64_t>(sizeof(float)), in.q.device);
}

/// out and lse; launch(pass, arguments) runs a pass.
template <class T, class Launch>
void lsh_forward_in_rounds(const kernels::LshInputs& in, const View& out, const View& lse,
                           Launch launch) {
  LshTensorArguments<T> x;
  static_cast<LshArguments<T>&>(x) = lsh_arguments<T>(in);
  x.out = head_rows<T>(out);
  x.lse = lse.as<float>();
  const auto rounds = static_cast<int32_t>(x.head.rounds);
  const int64_t rows = x.blocks(), between = rounds > 1 ? rows : 0;
  const Scratch facts = lsh_room(in, rows), sums = lsh_room(in, between * x.v.width),
                states = lsh_room(in, between * 3);
  x.facts = facts.template as<float>();
  x.sums = sums.template as<float>();
  x.states = states.template as<float>();
  launch(LshPass::facts, x);
  for (int32_t r = 0; r < rounds; ++r) {
    x.round = r;
    launch(LshPass::forward, x);
  }
}

/// dq and dv, likewise.
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
  x.lse = const_cast<float*>(lse.as<float>());  // backward only reads it
  x.dlse = dlse.as<float>();
  const double usual = x.head.rule.scale * log2_e / std::sqrt(static_cast<double>(x.q.width));
  const auto exponent = static_cast<int>(std::lround(std::clamp(std::log2(usual), -20.0, 20.0)));
  x.lift = std::ldexp(1.0f, -exponent);
  x.unlift = static_cast<float>(std::ldexp(ln_2, exponent));
  const auto rounds = static_cast<int32_t>(x.head.rounds);
  const int64_t rows = x.blocks(), between = rounds > 1 ? rows : 0;
  const Scratch facts = lsh_room(in, 4 * rows), sums = lsh_room(in, rows * x.q.width),
                value_sums = lsh_room(in, between * x.v.width);
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
