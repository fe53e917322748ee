// The Routing Transformer's entries in the table that tests every model.

#include "models/routing/routing.h"
#include "tests/models/costs.h"
#include "tests/models/small_models.h"

namespace longspan::test {
namespace {

/// Returns a configuration whose local heads see all tokens, so that it is known which tokens reach
/// which, whatever the clusters are.
RoutingConfig routing_of_all_tokens() {
  RoutingConfig c = routing_preset("tiny");
  c.local_block = 16;
  c.clusters = 3;
  c.window = 4;
  c.embed_std = 0.3;
  return c;
}

ModelInfo routing_info(const std::string& name, const RoutingConfig& c) {
  ModelInfo m = entry_of<RoutingTransformer>(name, c);
  m.sees = [](int64_t i, int64_t j) { return j <= i; };
  m.task = period_three;
  m.macs = [c](int64_t l) { return macs_of(c, l); };
  m.counted_from = 4;
  m.steps = 400;
  m.outlined = false;
  return m;
}

/// Decoding knows the groups of earlier tokens alone, one pass those of all, so that they differ.
const RegisteredModel routing = [] {
  ModelInfo m = routing_info("routing", routing_of_all_tokens());
  m.decodes = false;
  return m;
}();

/// Groups that hold all tokens are the same in decoding.
const RegisteredModel routing_all = [] {
  RoutingConfig c = routing_variant(routing_of_all_tokens(), RoutingVariant::official);
  c.window = 16;
  c.ema = CentroidUpdate::spherical;
  return routing_info("routing_all", c);
}();

const RegisteredModel routing_lucid = [] {
  ModelInfo m = routing_info("routing_lucid",
                             routing_variant(routing_of_all_tokens(), RoutingVariant::lucid));
  m.decodes = false;
  return m;
}();

const RegisteredModel routing_separate = [] {
  RoutingConfig c = routing_of_all_tokens();
  c.share_qk = false;
  ModelInfo m = routing_info("routing_separate", c);
  m.decodes = false;
  return m;
}();

const RegisteredModel routing_separate_all = [] {
  RoutingConfig c = routing_of_all_tokens();
  c.share_qk = false;
  c.window = 16;
  return routing_info("routing_separate_all", c);
}();

const RegisteredModel routing_recent = [] {
  RoutingConfig c = routing_of_all_tokens();
  c.select = RoutingSelect::argmax_recent;
  return routing_info("routing_recent", c);
}();

const RegisteredModel routing_narrow_post = [] {
  RoutingConfig c = routing_of_all_tokens();
  c.select = RoutingSelect::argmax_recent;
  c.d_embed = 6;
  c.local_values = true;
  c.norm = NormPlace::post;
  return routing_info("routing_narrow_post", c);
}();

const RegisteredModel routing_last_layer = [] {
  RoutingConfig c = routing_of_all_tokens();
  c.select = RoutingSelect::argmax_recent;
  c.routing_layers = 1;
  c.mask_self = true;
  return routing_info("routing_last_layer", c);
}();

const RegisteredModel routing_local = [] {
  RoutingConfig c = routing_of_all_tokens();
  c.routing_layers = 0;
  c.local_block = 4;
  ModelInfo m = routing_info("routing_local", c);
  m.sees = [](int64_t i, int64_t j) { return j <= i && i / 4 - j / 4 <= 1; };
  m.outlined = true;
  return m;
}();

}  // namespace
}  // namespace longspan::test
