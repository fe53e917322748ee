#include "core/error.h"
#include "cuda/attention_launch.h"

namespace longspan::cuda {

void check_attention(const char* name, const kernels::AttentionInputs& in) {
  const auto refuse = [name](bool given, const char* what) {
    require<NotImplemented>(!given, name, "{} on CUDA", what);
  };
  const kernels::AttentionSegment& s = in.segment[0];
  refuse(in.segments > 1, "a second key segment");
  refuse(!in.layout.uniform, "a layout whose members have rules or orders of their own");
  refuse(in.layout.multiplied, "a run with a multiplicity");
  refuse(static_cast<bool>(s.q_from), "bounds of rows (q_from, q_to)");
  refuse(static_cast<bool>(s.k_hidden), "k_hidden");
  refuse(static_cast<bool>(s.class_id), "class_id");
  refuse(static_cast<bool>(in.terms.relation_query), "relation_query");
  refuse(static_cast<bool>(in.terms.span), "span");
  const auto& t = in.terms;
  const bool relations = t.relation_key || t.relation_bias || t.relation_value;
  require<NotImplemented>(!relations || (!in.layout.order_q && !in.layout.order_k), name,
                          "relation terms with order_q, order_k");
}

unsigned attention_grid(const char* name, int64_t blocks) {
  require(blocks <= INT32_MAX, name, "{} blocks of threads do not fit a launch", blocks);
  return static_cast<unsigned>(blocks);
}

}  // namespace longspan::cuda
