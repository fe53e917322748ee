#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/forward_f32.cc"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/highway.h>

#include "cpu/attention/forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

void forward_f32(const AttentionProblem& in, const View& out, const View& lse) {
  forward<float>(in, out, lse);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::cpu {

HWY_EXPORT(forward_f32);

void block_attention_forward_f32(const AttentionProblem& in, const View& out, const View& lse) {
  HWY_DYNAMIC_DISPATCH(forward_f32)(in, out, lse);
}

}  // namespace longspan::cpu
#endif
