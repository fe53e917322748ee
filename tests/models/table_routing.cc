// The Routing Transformer's entries in the table that tests every model.

#include "models/routing/routing.h"
#include "tests/harness/model_info.h"
#include "tests/models/costs.h"

namespace longspan::test {
namespace {

/// Returns a configuration whose local heads see all tokens, so that it is known which tokens reach
/// which, whatever the clusters are.
RoutingConfig config() {
  RoutingConfig c = routing_preset("tiny");
  c.local_block = 16;
  c.clusters = 3;
  c.window = 4;
  c.embed_std = 0.3;
  return c;
}

ModelInfo entry(const std::string& name, const RoutingConfig& c) {
  ModelInfo m;
  m.name = name;
  m.make = [c](const Init& init) { return std::make_unique<RoutingTransformer>(c, init); };
  RoutingConfig dropping = c;
  dropping.dropout = 0.1f;
  m.make_with_dropout = [dropping](const Init& init, const MemoryPolicy& memory) mutable {
    dropping.memory = memory;
    return std::make_unique<RoutingTransformer>(dropping, init);
  };
  m.sees = [](int64_t i, int64_t j) { return j <= i; };
  m.task = [](int64_t b, int64_t t) { return philox_word(5, b * 3 + t % 3) % 17; };
  m.macs = [c](int64_t l) { return macs_of(c, l); };
  m.counted_from = 4;
  m.steps = 400;
  m.outlined = false;
  return m;
}

/// Decoding knows the groups of earlier tokens alone, one pass those of all, so that they differ.
const RegisteredModel nearest = [] {
  ModelInfo m = entry("routing", config());
  m.decodes = false;
  return m;
}();

/// Groups that hold all tokens are the same in decoding.
const RegisteredModel all = [] {
  RoutingConfig c = routing_variant(config(), RoutingVariant::official);
  c.window = 16;
  c.ema = CentroidUpdate::spherical;
  return entry("routing_all", c);
}();

const RegisteredModel lucid = [] {
  ModelInfo m = entry("routing_lucid", routing_variant(config(), RoutingVariant::lucid));
  m.decodes = false;
  return m;
}();

const RegisteredModel separate = [] {
  RoutingConfig c = config();
  c.share_qk = false;
  ModelInfo m = entry("routing_separate", c);
  m.decodes = false;
  return m;
}();

const RegisteredModel separate_all = [] {
  RoutingConfig c = config();
  c.share_qk = false;
  c.window = 16;
  return entry("routing_separate_all", c);
}();

const RegisteredModel recent = [] {
  RoutingConfig c = config();
  c.select = RoutingSelect::argmax_recent;
  return entry("routing_recent", c);
}();

const RegisteredModel narrow = [] {
  RoutingConfig c = config();
  c.select = RoutingSelect::argmax_recent;
  c.d_embed = 6;
  c.local_values = true;
  c.norm = NormPlace::post;
  return entry("routing_narrow_post", c);
}();

const RegisteredModel last_layer = [] {
  RoutingConfig c = config();
  c.select = RoutingSelect::argmax_recent;
  c.routing_layers = 1;
  c.mask_self = true;
  return entry("routing_last_layer", c);
}();

const RegisteredModel local = [] {
  RoutingConfig c = config();
  c.routing_layers = 0;
  c.local_block = 4;
  ModelInfo m = entry("routing_local", c);
  m.sees = [](int64_t i, int64_t j) { return j <= i && i / 4 - j / 4 <= 1; };
  m.outlined = true;
  return m;
}();

}  // namespace
}  // namespace longspan::test
