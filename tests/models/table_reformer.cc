// The Reformer entries in the table that tests every model.

#include "models/reformer/reformer.h"
#include "tests/models/costs.h"
#include "tests/models/small_models.h"

namespace longspan::test {
namespace {

/// Returns a configuration whose buckets fit in a chunk, so that decoding equals one pass over all
/// tokens, and whose windows cover all tokens, so that any two tokens can see each other.
ReformerConfig reformer_of_one_bucket() {
  ReformerConfig c = reformer_preset("tiny");
  c.n_max = 16;
  c.chunk = 16;
  c.buckets = {2};
  c.embed_std = c.position_std = 0.3;
  return c;
}

ModelInfo reformer_info(const std::string& name, const ReformerConfig& c) {
  ReformerConfig dropping = c;
  dropping.dropout = dropping.dropout_attn = dropping.dropout_local = 0.1f;
  ModelInfo m = entry_of<Reformer>(name, c, dropping);
  m.sees = [](int64_t i, int64_t j) { return j <= i; };
  m.task = period_three;
  m.macs = [c](int64_t l) { return macs_of(c, l); };
  m.counted_from = 4;
  m.steps = 400;
  m.outlined = c.layers.find("lsh") == std::string::npos;
  return m;
}

/// Builds an entry for a variant whose windows hide no bucket, so that the visible pairs are known.
RegisteredModel of_variant(const std::string& name, ReformerVariant variant) {
  ReformerConfig c = reformer_variant(reformer_of_one_bucket(), variant);
  c.dropout_broadcast = variant == ReformerVariant::trax2;
  return reformer_info(name, c);
}
const RegisteredModel reformer_trax2 = of_variant("reformer_trax2", ReformerVariant::trax2);
const RegisteredModel reformer_hf = of_variant("reformer_hf", ReformerVariant::hf);
const RegisteredModel reformer_lucid = of_variant("reformer_lucid", ReformerVariant::lucid);

/// Buckets hide keys, but with many rounds hardly any key is hidden in all layers.
const RegisteredModel reformer_paper = [] {
  ReformerConfig c = reformer_of_one_bucket();
  c.rounds = 12;
  return reformer_info("reformer_paper", c);
}();

const RegisteredModel reformer_local = [] {
  ReformerConfig c = reformer_of_one_bucket();
  c.layers = "local";
  c.local_chunk = 4;
  ModelInfo m = reformer_info("reformer_local", c);
  m.sees = [](int64_t i, int64_t j) { return j <= i && i / 4 - j / 4 <= 1; };
  return m;
}();

const RegisteredModel reformer_bidirectional = [] {
  ReformerConfig c = reformer_of_one_bucket();
  c.causal = false;
  c.layers = "local,local";
  c.local_chunk = 4;
  c.local_ahead = 1;
  ModelInfo m = reformer_info("reformer_bidirectional", c);
  m.sees = [](int64_t i, int64_t j) { return i / 4 - j / 4 <= 1 && j / 4 - i / 4 <= 1; };
  m.masked = true;
  m.decodes = false;
  m.counted_from = 0;
  return m;
}();

}  // namespace
}  // namespace longspan::test
