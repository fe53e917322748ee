// The Reformer entries in the table that tests every model.

#include "models/reformer/reformer.h"
#include "tests/harness/model_info.h"
#include "tests/models/costs.h"

namespace longspan::test {
namespace {

/// Returns a configuration whose buckets fit in a chunk, so that decoding equals one pass over all
/// tokens, and whose windows cover all tokens, so that any two tokens can see each other.
ReformerConfig config() {
  ReformerConfig c = reformer_preset("tiny");
  c.n_max = 16;
  c.chunk = 16;
  c.buckets = {2};
  c.embed_std = c.position_std = 0.3;
  return c;
}

ModelInfo entry(const std::string& name, const ReformerConfig& c) {
  ModelInfo m;
  m.name = name;
  m.make = [c](const Init& init) { return std::make_unique<Reformer>(c, init); };
  ReformerConfig dropping = c;
  dropping.dropout = dropping.dropout_attn = dropping.dropout_local = 0.1f;
  m.make_with_dropout = [dropping](const Init& init, const MemoryPolicy& memory) mutable {
    dropping.memory = memory;
    return std::make_unique<Reformer>(dropping, init);
  };
  m.sees = [](int64_t i, int64_t j) { return j <= i; };
  m.task = [](int64_t b, int64_t t) { return philox_word(5, b * 3 + t % 3) % 17; };
  m.macs = [c](int64_t l) { return macs_of(c, l); };
  m.counted_from = 4;
  m.steps = 400;
  m.outlined = c.layers.find("lsh") == std::string::npos;
  return m;
}

/// Builds an entry for a variant whose windows hide no bucket, so that the visible pairs are known.
RegisteredModel of_variant(const std::string& name, ReformerVariant variant) {
  ReformerConfig c = reformer_variant(config(), variant);
  c.dropout_broadcast = variant == ReformerVariant::trax2;
  return entry(name, c);
}
const RegisteredModel trax = of_variant("reformer_trax2", ReformerVariant::trax2);
const RegisteredModel hf = of_variant("reformer_hf", ReformerVariant::hf);
const RegisteredModel lucid = of_variant("reformer_lucid", ReformerVariant::lucid);

/// Buckets hide keys, but with many rounds hardly any key is hidden in all layers.
const RegisteredModel paper = [] {
  ReformerConfig c = config();
  c.rounds = 12;
  return entry("reformer_paper", c);
}();

const RegisteredModel local = [] {
  ReformerConfig c = config();
  c.layers = "local";
  c.local_chunk = 4;
  ModelInfo m = entry("reformer_local", c);
  m.sees = [](int64_t i, int64_t j) { return j <= i && i / 4 - j / 4 <= 1; };
  return m;
}();

const RegisteredModel bidirectional = [] {
  ReformerConfig c = config();
  c.causal = false;
  c.layers = "local,local";
  c.local_chunk = 4;
  c.local_ahead = 1;
  ModelInfo m = entry("reformer_bidirectional", c);
  m.sees = [](int64_t i, int64_t j) { return i / 4 - j / 4 <= 1 && j / 4 - i / 4 <= 1; };
  m.masked = true;
  m.decodes = false;
  m.counted_from = 0;
  return m;
}();

}  // namespace
}  // namespace longspan::test
