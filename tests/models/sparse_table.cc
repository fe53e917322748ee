#include "core/kernels/copy.h"
#include "models/sparse_transformer/sparse_transformer.h"
#include "tests/models/costs.h"
#include "tests/models/small_models.h"

namespace longspan::test {
namespace {

/// Replaces the classifier's zero initialisation, as in the paper, with random weights. A zero
/// classifier would hide differences between models.
std::unique_ptr<LanguageModel> with_random_head(const SparseTransformerConfig& c,
                                                const Init& init) {
  auto model = std::make_unique<SparseTransformer>(c, init);
  if (init.meta) return model;
  Tensor head = parameter(*model, "head.weight");
  const Tensor start = init.at("head").make(head.shape(), Scheme::normal(0.1));
  kernels::copy(head.device(), start.view(), head.mut());
  return model;
}

ModelInfo sparse_info(const std::string& name, const char* sets, Integration integration,
                      const std::function<bool(int64_t, int64_t)>& sees,
                      const std::function<void(SparseTransformerConfig&)>& change = {}) {
  SparseTransformerConfig c = sparse_transformer_preset("tiny");
  c.vocab = 17;
  c.n_max = 12;
  c.stride = 4;
  c.columns = 1;
  c.index_sets = sets;
  c.integration = integration;
  if (change) change(c);
  ModelInfo m;
  m.name = name;
  m.make = [c](const Init& init) { return with_random_head(c, init); };
  SparseTransformerConfig dropping = c;
  dropping.dropout = 0.1f;
  m.make_with_dropout = [dropping](const Init& init, const MemoryPolicy& memory) mutable {
    dropping.memory = memory;
    return with_random_head(dropping, init);
  };
  m.sees = [sees](int64_t i, int64_t j) { return j <= i && sees(i, j); };
  m.task = period_three;
  m.macs = [c](int64_t l) { return macs_of(c, l); };
  m.counted_from = 4;
  m.steps = 400;
  return m;
}

bool in_summary(int64_t j) { return j % 4 >= 2; }  // two heads, sub-blocks of one column

const RegisteredModel sparse_fixed_merged =
    sparse_info("sparse_fixed_merged", "block,summary", Integration::merged,
                [](int64_t i, int64_t j) { return i / 4 == j / 4 || in_summary(j); });
const RegisteredModel sparse_strided_merged = sparse_info(
    "sparse_strided_merged", "local,strided", Integration::merged,
    [](int64_t i, int64_t j) { return i - j < 4 || (i - j) % 4 == 0; },
    [](SparseTransformerConfig& c) { c.pos_before_shift = true; });
const RegisteredModel sparse_strided_merged_paper_window = sparse_info(
    "sparse_strided_merged_paper_window", "local,strided", Integration::merged,
    [](int64_t i, int64_t j) { return i - j <= 4 || (i - j) % 4 == 0; },
    [](SparseTransformerConfig& c) {
      c.paper_window = true;
      c.qk_ratio = 0.5;
    });
// Two layers, in either order, connect every pair of positions.
const RegisteredModel sparse_strided_interleaved = sparse_info(
    "sparse_strided_interleaved", "strided,local", Integration::interleave,
    [](int64_t, int64_t) { return true; },
    [](SparseTransformerConfig& c) {
      c.position_shape = {2, 3, 2};
    });
const RegisteredModel sparse_fixed_multihead =
    sparse_info("sparse_fixed_multihead", "block,summary", Integration::multihead,
                [](int64_t i, int64_t j) { return i / 4 == j / 4 || j % 4 == 3; });
const RegisteredModel sparse_strided_multihead =
    sparse_info("sparse_strided_multihead", "local,strided", Integration::multihead,
                [](int64_t i, int64_t j) { return i - j < 4 || (i - j) % 4 == 0; });
const RegisteredModel sparse_local_only =
    sparse_info("sparse_local_only", "local", Integration::interleave,
                [](int64_t i, int64_t j) { return i - j < 4; });
const RegisteredModel sparse_dense = sparse_info("sparse_dense", "dense", Integration::merged,
                                                 [](int64_t, int64_t) { return true; });

}  // namespace
}  // namespace longspan::test
