// Matrix products by dot products of pairs (AVX512_BF16): each instruction adds two adjacent
// products along k to a sum, twice as many as FMA. Operands are bf16, or f32 rounded to bf16 (to
// nearest even) during packing. The products are exact; each is added to the sum in f32, to nearest
// even. The instructions treat subnormal inputs as zero and flush subnormal results to zero. An odd
// k is padded with a zero.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul/gemm_dot.cc"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <cstring>

#include "core/error.h"
#include "cpu/matmul/gemm_dot.h"

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define LONGSPAN_BF16_DOT 1
// All code compiled below may use the instructions; it runs only if bf16_dot() allows. (AVX3_DL
// occurs only if the whole build targets such a processor, which has the target's other features.)
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 ",avx512bf16"
#else
#define LONGSPAN_BF16_DOT 0
#endif

#include "cpu/matmul/gemm_task-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
#if LONGSPAN_BF16_DOT
namespace {

/// Two elements that are adjacent along k.
struct Pair {
  bf16 first, second;
};

template <>
struct Multiply<Pair> {
  static constexpr int64_t group = 2;
  template <class D>
  static HWY_INLINE hn::Vec<D> spread(D d, const Pair* p) {
    float bits;
    std::memcpy(&bits, p, sizeof bits);
    return hn::Set(d, bits);
  }
  using V16 = hn::Vec<hn::FixedTag<float, 16>>;
  static HWY_INLINE V16 add(V16 a, V16 b, V16 sum) {
    return V16{_mm512_dpbf16_ps(sum.raw, (__m512bh)a.raw, (__m512bh)b.raw)};
  }
  using V8 = hn::Vec<hn::FixedTag<float, 8>>;
  static HWY_INLINE V8 add(V8 a, V8 b, V8 sum) {
    return V8{_mm256_dpbf16_ps(sum.raw, (__m256bh)a.raw, (__m256bh)b.raw)};
  }
};

/// Interleaves two rows, stored in the two halves of a vector, into pairs of one element of each.
HWY_INLINE hn::Vec<Tag<Pair>> interleaved(__m512i rows) {
  alignas(64) static constexpr uint16_t places[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i pairs = _mm512_permutexvar_epi16(_mm512_load_si512(places), rows);
  return hn::Vec<Tag<Pair>>{_mm512_castsi512_ps(pairs)};
}

template <>
struct Pack<Pair> {
  static constexpr DType dtype = DType::bf16;

  static HWY_INLINE Pair one(const bf16* p, int64_t step, int64_t have) {
    bf16 zero;
    zero.bits = 0;
    return {*p, have > 1 ? p[step] : zero};
  }
  static HWY_INLINE Pair one(const float* p, int64_t step, int64_t have) {
    const __m128 both = _mm_set_ps(0, 0, have > 1 ? p[step] : 0.0f, *p);
    const auto bits = static_cast<uint32_t>(_mm_cvtsi128_si32((__m128i)_mm_cvtneps_pbh(both)));
    Pair pair;
    std::memcpy(static_cast<void*>(&pair), &bits, sizeof pair);
    return pair;
  }

  static HWY_INLINE hn::Vec<Tag<Pair>> along(const bf16* p, int64_t left) {
    const hn::FixedTag<uint16_t, 32> d;
    const auto bits =
        simd::load(d, reinterpret_cast<const uint16_t*>(p), static_cast<size_t>(left));
    return hn::BitCast(Tag<Pair>(), bits);
  }
  static HWY_INLINE hn::Vec<Tag<Pair>> along(const float* p, int64_t left) {
    const Tag<float> d;
    const auto low = simd::load(d, p, static_cast<size_t>(left));
    const auto high =
        left > 16 ? simd::load(d, p + 16, static_cast<size_t>(left - 16)) : hn::Zero(d);
    return hn::Vec<Tag<Pair>>{(__m512)_mm512_cvtne2ps_pbh(high.raw, low.raw)};
  }

  static HWY_INLINE hn::Vec<Tag<Pair>> across(const bf16* p, int64_t step, int64_t have,
                                              int64_t left) {
    const hn::FixedTag<uint16_t, 16> d;
    const auto row = [&](const bf16* from) {
      return simd::load(d, reinterpret_cast<const uint16_t*>(from), static_cast<size_t>(left));
    };
    const auto first = row(p), second = have > 1 ? row(p + step) : hn::Zero(d);
    return interleaved(hn::Combine(hn::FixedTag<uint16_t, 32>(), second, first).raw);
  }
  static HWY_INLINE hn::Vec<Tag<Pair>> across(const float* p, int64_t step, int64_t have,
                                              int64_t left) {
    const Tag<float> d;
    const auto first = simd::load(d, p, static_cast<size_t>(left));
    const auto second = have > 1 ? simd::load(d, p + step, static_cast<size_t>(left)) : hn::Zero(d);
    return interleaved((__m512i)_mm512_cvtne2ps_pbh(second.raw, first.raw));
  }

  using Four = hn::FixedTag<float, 4>;
  static HWY_INLINE hn::Vec<Four> four(const bf16* p) {
    return hn::BitCast(
        Four(), hn::LoadU(hn::FixedTag<uint16_t, 8>(), reinterpret_cast<const uint16_t*>(p)));
  }
  static HWY_INLINE hn::Vec<Four> four(const float* p) {
    return hn::Vec<Four>{(__m128)_mm256_cvtneps_pbh(_mm256_loadu_ps(p))};
  }
};

}  // namespace

void RunGemmDot(const Gemm& g, const GemmPlan& plan, int64_t task, void* scratch, void* partial) {
  if (g.dtype == DType::bf16) {
    Task<Pair, bf16>(g, plan, task, static_cast<Pair*>(scratch), partial).run();
  } else {
    Task<Pair, float>(g, plan, task, static_cast<Pair*>(scratch), partial).run();
  }
}

GemmPlan PlanGemmDot(const Gemm& g, int threads) { return plan_for<Pair>(g, threads); }

#else

void RunGemmDot(const Gemm& /*g*/, const GemmPlan& /*plan*/, int64_t /*task*/, void* /*scratch*/,
                void* /*partial*/) {
  fail("matmul", "no dot products of bf16 in these vectors");
}
GemmPlan PlanGemmDot(const Gemm& /*g*/, int /*threads*/) {
  fail("matmul", "no dot products of bf16 in these vectors");
}

#endif
#undef LONGSPAN_BF16_DOT
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::cpu {

HWY_EXPORT(RunGemmDot);
HWY_EXPORT(PlanGemmDot);

GemmPlan plan_gemm_dot(const Gemm& g, int threads) {
  return HWY_DYNAMIC_DISPATCH(PlanGemmDot)(g, threads);
}

void run_gemm_dot(const Gemm& g, const GemmPlan& plan, int64_t task, void* scratch, void* partial) {
  HWY_DYNAMIC_DISPATCH(RunGemmDot)(g, plan, task, scratch, partial);
}

}  // namespace longspan::cpu
#endif
