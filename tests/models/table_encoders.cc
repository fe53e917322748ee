// The BERT-shaped encoders in the table that tests every model.

#include <algorithm>

#include "models/bigbird/bigbird.h"
#include "models/blockbert/blockbert.h"
#include "models/linformer/linformer.h"
#include "tests/models/costs.h"
#include "tests/models/small_models.h"

namespace longspan::test {
namespace {

/// Returns one symbol throughout a sample: any neighbour predicts it.
int64_t constant(int64_t b, int64_t) { return philox_word(6, b) % 17; }

template <class Model, class Config>
ModelInfo bert_info(const std::string& name, Config c) {
  c.init_std = 0.3;
  c.vocab = 18;
  c.tie_embedding = false;  // the embedding table is for the tokens alone
  ModelInfo m = entry_of<Model>(name, c);
  m.macs = [c](int64_t l) {
    return macs_of(c, outlined_pairs(Model(c, Init{.meta = true}), l), l);
  };
  m.task = period_three;
  m.masked = true;
  m.decodes = false;
  m.steps = 400;
  return m;
}

ModelInfo blockbert_info(const std::string& name,
                         const std::function<void(BlockBertConfig&)>& change) {
  BlockBertConfig c = blockbert_preset("tiny");
  change(c);
  ModelInfo m = bert_info<BlockBert>(name, c);
  m.sees = [pi = block_permutations(c), n = c.n_block](int64_t i, int64_t j) {
    for (const std::vector<int64_t>& p : pi) {
      if (p[static_cast<size_t>(i * n / 11)] == j * n / 11) return true;
    }
    return false;
  };
  return m;
}

const RegisteredModel blockbert_every_shift =
    blockbert_info("blockbert_every_shift", [](BlockBertConfig&) {});
const RegisteredModel blockbert_materialized =
    blockbert_info("blockbert_materialized",
                   [](BlockBertConfig& c) { c.attention_impl = AttentionImpl::materialized; });
const RegisteredModel blockbert_fixed = [] {
  ModelInfo m = blockbert_info("blockbert_fixed", [](BlockBertConfig& c) {
    c.pattern = BlockBertPattern::fixed;
    c.stride = 4;
    c.columns = 1;
  });
  m.sees = [](int64_t i, int64_t j) { return i / 4 == j / 4 || j % 4 == 3; };
  return m;
}();
const RegisteredModel blockbert_own_block_pre_norm = [] {
  ModelInfo m = blockbert_info("blockbert_own_block_pre_norm", [](BlockBertConfig& c) {
    c.heads_per_shift = {};
    c.norm = NormPlace::pre;
    c.token_types = 2;
    c.position_offset = 2;
    c.emb_dropout_first = true;
  });
  m.task = constant;
  return m;
}();
const RegisteredModel blockbert_permutations = [] {
  ModelInfo m = blockbert_info("blockbert_permutations", [](BlockBertConfig& c) {
    c.n_head = 2;
    c.permutations = {0, 1, 2, 1, 2, 0};
    c.activation = Activation::gelu_tanh;
    c.emb_scale = true;
  });
  m.task = constant;
  return m;
}();

ModelInfo bigbird(const std::string& name, const std::function<void(BigBirdConfig&)>& change) {
  BigBirdConfig c = bigbird_preset("tiny");
  c.block = 1;
  change(c);
  ModelInfo m = bert_info<BigBird>(name, c);
  m.sees = [c](int64_t i, int64_t j) {
    const BigBird model(c, Init{.meta = true});
    for (int64_t head = 0; head < c.n_head; ++head) {
      const BlockTable table = model.table(0, head, 11);
      const auto& seen = table.keys[static_cast<size_t>(i / c.block)];
      if (std::count(seen.begin(), seen.end(), j / c.block) > 0) return true;
    }
    return false;
  };
  m.task = constant;
  return m;
}

// Each layer draws its own random blocks, so the visible pairs are known only for one layer.
const RegisteredModel bigbird_one_layer =
    bigbird("bigbird_one_layer", [](BigBirdConfig& c) { c.n_layer = 1; });
const RegisteredModel bigbird_without_random_blocks =
    bigbird("bigbird_without_random_blocks", [](BigBirdConfig& c) {
      c.block = 2;
      c.n_random = 0;
      c.norm = NormPlace::pre;
    });

/// Draws random blocks of the past, anew in each layer.
const RegisteredModel bigbird_causal = [] {
  ModelInfo m = bigbird("bigbird_causal", [](BigBirdConfig& c) {
    c.n_layer = 1;
    c.n_random = 1;
    c.causal = true;
  });
  m.sees = [sees = m.sees](int64_t i, int64_t j) { return j <= i && sees(i, j); };
  m.masked = false;
  m.decodes = true;
  m.counted_from = 1;
  return m;
}();
/// Rows of the first four blocks see all earlier positions.
const RegisteredModel bigbird_causal_few_blocks = [] {
  ModelInfo m = bigbird("bigbird_causal_few_blocks", [](BigBirdConfig& c) {
    c.block = 3;
    c.n_random = 1;
    c.norm = NormPlace::pre;
    c.causal = true;
  });
  m.sees = [](int64_t i, int64_t j) { return j <= i; };
  m.task = period_three;
  m.masked = false;
  m.decodes = true;
  m.counted_from = 4;
  return m;
}();

ModelInfo linformer(const std::string& name, const std::function<void(LinformerConfig&)>& change) {
  LinformerConfig c = linformer_preset("tiny");
  change(c);
  ModelInfo m = bert_info<Linformer>(name, c);
  c.init_std = 0.3;
  c.vocab = 18;
  c.tie_embedding = false;
  m.macs = [c](int64_t l) { return macs_of(c, l); };
  m.sees = [](int64_t, int64_t) { return true; };
  m.task = constant;
  return m;
}

const RegisteredModel linformer_headwise = linformer("linformer_headwise", [](LinformerConfig&) {});
const RegisteredModel linformer_none_by_layer =
    linformer("linformer_none_by_layer", [](LinformerConfig& c) {
      c.sharing = ProjectionSharing::none;
      c.r = {6, 3};
    });
const RegisteredModel linformer_layerwise_pre =
    linformer("linformer_layerwise_pre", [](LinformerConfig& c) {
      c.sharing = ProjectionSharing::layerwise;
      c.norm = NormPlace::pre;
    });
const RegisteredModel linformer_keys_frozen =
    linformer("linformer_keys_frozen", [](LinformerConfig& c) {
      c.sharing = ProjectionSharing::kv;
      c.projection_order = ProjectionOrder::key;
      c.freeze_projection = true;
    });
const RegisteredModel linformer_convolution =
    linformer("linformer_convolution", [](LinformerConfig& c) {
      c.sharing = ProjectionSharing::layerwise;
      c.projection = RowProjection::conv;
      c.projection_order = ProjectionOrder::key;
    });
const RegisteredModel linformer_convolution_by_head =
    linformer("linformer_convolution_by_head", [](LinformerConfig& c) {
      c.sharing = ProjectionSharing::none;
      c.projection = RowProjection::conv;
    });
const RegisteredModel linformer_mean =
    linformer("linformer_mean", [](LinformerConfig& c) { c.projection = RowProjection::mean; });
/// Windows of two rows, so that each row has the maximum of some channel.
const RegisteredModel linformer_max = linformer("linformer_max", [](LinformerConfig& c) {
  c.projection = RowProjection::max;
  c.projection_order = ProjectionOrder::key;
  c.r = {12};
});

}  // namespace
}  // namespace longspan::test
