// The program longspan with a model of your own: train, eval, generate, memory, study, draw and
// models take it as they take the library's.
#include <longspan/app/program.h>

#include "custom_layer.h"

// Programs set these fields by name: --set model.d_model=256, --layers 6, --memory reversible.
struct DecayConfig {
  int64_t vocab = 256, n_layer = 4, d_model = 128, d_ff = 512;
  float dropout = 0;
  MemoryPolicy memory;
  void visit(auto& v) {
    v("vocab", vocab)("n_layer", n_layer)("d_model", d_model)("d_ff", d_ff)("dropout", dropout)(
        "memory", memory)("chunks", memory.chunks);
  }
};

struct DecayState : DecodeState {  // decodes by reading all tokens again
  void take_rows(const Tensor& rows, bool) override { tokens = take(tokens, rows); }
  Tensor tokens;  // [B, tokens so far]
};

class DecayModel final : public CausalDecoder {
 public:
  DecayModel(const DecayConfig& c, const Init& init)
      : CausalDecoder({.model = "decay_lm",
                       .vocab = c.vocab,
                       .n_layer = c.n_layer,
                       .n_head = 1,
                       .d_model = c.d_model,
                       .token = Scheme::normal(0.02),
                       .tie_embedding = true,
                       .dropout = c.dropout},
                      init) {
    std::vector<std::unique_ptr<Layer>> layers;
    for (int64_t i = 0; i < c.n_layer; ++i) {
      layers.push_back(std::make_unique<DecayLayer>(c.d_model, attention_init(init, i)));
    }
    const FeedForwardOptions ff{.d_model = c.d_model, .d_ff = c.d_ff, .dropout = c.dropout};
    stack_ = attention_stack({.ff = ff, .dropout = c.dropout, .memory = c.memory},
                             std::move(layers), init);
  }
  LayerContext layer_context(int64_t, int64_t, int64_t) const override {
    LayerContext ctx;
    ctx.pattern = patterns::causal();  // a sum of all earlier rows; for `draw`
    return ctx;
  }
  std::unique_ptr<DecodeState> start_decoding(int64_t) const override {
    return std::make_unique<DecayState>();
  }
  Tensor decode(const Tensor& tokens, DecodeState& opaque) const override {
    Tensor& all = dynamic_cast<DecayState&>(opaque).tokens;
    all = all ? concat({all, tokens}, 1) : tokens;
    return select(logits(all, {}), 1, -1);  // [B, V]
  }
};

constexpr Preset presets[] = {
    {"small", "4 layers of 128; trains on bytes in minutes", "", "", {.lr = 3e-3}},
    {"tiny", "2 layers of 16; for tests", "small", "n_layer=2 d_model=16 d_ff=32", {.lr = 3e-3}}};
std::unique_ptr<ModelSpec> make(std::string_view preset) {
  return preset_spec<DecayModel, DecayConfig>("decay_lm", presets, preset);
}

int main(int argc, char** argv) {
  return run_program(argc, argv, {{"decay_lm", "running sums that forget", presets, make}});
}
