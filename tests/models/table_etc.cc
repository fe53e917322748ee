// The ETC entries in the table that tests every model.

#include "models/etc/etc.h"
#include "ops/patterns/pairs.h"
#include "tests/models/costs.h"
#include "tests/models/small_models.h"

namespace longspan::test {
namespace {

ModelInfo etc_info(const std::string& name, const std::function<void(EtcConfig&)>& change) {
  EtcConfig c = etc_preset("tiny");
  c.vocab = 19;
  c.mask_id = 18;
  c.global_id = 17;
  c.init_std = 0.3;
  c.n_long = 11;
  c.n_global = 3;
  c.tie_embedding = false;  // the embedding table is for the tokens alone
  change(c);
  ModelInfo m = entry_of<Etc>(name, c);
  m.sees = [](int64_t, int64_t) { return true; };  // through the global tokens, in two layers
  m.task = period_three;
  m.macs = [c](int64_t l) {
    int64_t random = 0;
    if (c.n_random > 0) {
      for (const AttentionPattern& p : etc_patterns(c, {}, 1, l, 1, {}).more) {
        random += attended_pairs(p, 1, c.n_head, l, l);
      }
    }
    return macs_of(c, random, l);
  };
  m.masked = true;
  m.decodes = false;
  m.steps = 400;
  return m;
}

const RegisteredModel etc_post = etc_info("etc_post", [](EtcConfig&) {});
const RegisteredModel etc_shared_pre_narrow = etc_info("etc_shared_pre_narrow", [](EtcConfig& c) {
  c.share_qkv = c.share_out = true;
  c.norm = NormPlace::pre;
  c.d_embed = 6;
  c.hard_g2l = false;
  c.activation = Activation::geglu;
});
const RegisteredModel etc_positions_own_feed_forward =
    etc_info("etc_positions_own_feed_forward", [](EtcConfig& c) {
      c.n_positions = 29;
      c.global_positions = true;
      c.share_ff = false;
      c.share_kv = true;
      c.rel_bias = false;
    });
const RegisteredModel bigbird_etc_random_blocks = [] {
  ModelInfo m = etc_info("bigbird_etc_random_blocks", [](EtcConfig& c) {
    c.n_random = 2;
    c.block = 2;
    c.radius = 1;
  });
  m.task = [](int64_t b, int64_t) -> int64_t { return philox_word(6, b) % 17; };
  return m;
}();
/// With one layer, no information returns through the global tokens.
const RegisteredModel etc_one_layer = [] {
  ModelInfo m = etc_info("etc_one_layer", [](EtcConfig& c) {
    c.n_layer = 1;
    c.radius = 3;
  });
  m.sees = [](int64_t i, int64_t j) { return std::abs(i - j) <= 3; };
  return m;
}();

}  // namespace
}  // namespace longspan::test
