#include "core/error.h"
#include "cuda/attention_launch.h"

namespace longspan::cuda {

void check_attention(const char* name, const kernels::AttentionInputs& in) {
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
