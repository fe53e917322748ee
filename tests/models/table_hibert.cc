// HIBERT's entries in the table that tests every model: rows of tokens as documents.

#include "models/hibert/hibert.h"
#include "tests/models/costs.h"
#include "tests/models/small_models.h"

namespace longspan::test {
namespace {

ModelInfo hibert_info(const std::string& name, const HibertConfig& c) {
  HibertConfig dropping = c;
  dropping.dropout = 0.1f;
  dropping.dropout_attn = 0.2f;
  ModelInfo m = entry_of<Hibert>(name, c, dropping);
  // A token is written after its sentence's context, which has read the whole document.
  m.sees = [](int64_t, int64_t) { return true; };
  // Each document counts on from one of eight numbers.
  m.task = [](int64_t b, int64_t t) { return (philox_word(5, b) % 8 * 2 + t) % 16; };
  m.macs = [c](int64_t l) { return macs_of(c, l); };
  m.steps = 400;
  m.masked = true;
  m.decodes = false;   // what it writes is not what it reads: tests/models/hibert.cc decodes
  m.outlined = false;  // attention is within sentences, which are known with the tokens
  m.unrecorded = "the host reads where sentences end";
  return m;
}

const RegisteredModel hibert = [] {
  HibertConfig c = hibert_preset("tiny");
  c.vocab = 41;  // so that no random token of the tests ends a sentence
  c.d_model = 16;
  c.n_layer = c.document_layers = c.decoder_layers = 2;
  return hibert_info("hibert", c);
}();

}  // namespace
}  // namespace longspan::test
