// The program longspan with a model of one's own, which stands beside those of the library in
// train, eval, generate, memory, study, draw and models.
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

struct DecayState : DecodeState {
  void take_rows(const Tensor& rows, bool) override { tokens = take(tokens, rows); }
  Tensor tokens;  // [B, tokens so far]
};

class DecayModel final : public LanguageModel {
 public:
  DecayModel(const DecayConfig& c, const Init& init)
      : config_(c), token_(c.vocab, c.d_model, init.at("token"), Scheme::normal(0.02)) {
    const FeedForwardOptions ff{.d_model = c.d_model, .d_ff = c.d_ff, .dropout = c.dropout};
    const auto norm = [&](const Init& at) {
      return Normalization(NormKind::layer, c.d_model, 1e-5, at);
    };
    std::vector<Block> blocks;
    for (int64_t i = 0; i < c.n_layer; ++i) {
      const Init at = init.at("layers").at(i);
      std::vector<Branch> branches;
      branches.push_back(
          {"decay", norm(at.at("norm1")), std::make_unique<DecayLayer>(c.d_model, at.at("decay"))});
      branches.push_back(
          {"ff", norm(at.at("norm2")), std::make_unique<FeedForward>(ff, at.at("ff"))});
      blocks.emplace_back(NormPlace::pre, c.dropout, std::move(branches));
    }
    stack_ = Stack(std::move(blocks), norm(init.at("final_norm")), c.memory);
    head_.weight = token_.weight;
  }
  void visit(Visitor& v) override {
    v("token", token_);
    stack_.visit(v);
    v("head", head_);
  }

  Objective objective() const override { return Objective::next_token; }
  int64_t vocab() const override { return config_.vocab; }
  Device device() const override { return token_.weight.device(); }
  int64_t layers() const override { return config_.n_layer; }

  Tensor hidden(const Tensor& tokens, Pass pass) const {  // [B, L] to [B, L, D]
    return stack_.forward(token_.forward(tokens), {}, {}, pass).y;
  }
  Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory&,
              Pass pass) const override {
    Losses result;
    result.loss = token_loss(hidden(tokens, pass), head_, targets, {}, pass.training);
    return result;
  }
  Tensor logits(const Tensor& tokens, Pass pass) const override {
    return head_.forward(hidden(tokens, pass));
  }
  std::unique_ptr<DecodeState> start_decoding(int64_t) const override {
    return std::make_unique<DecayState>();
  }
  Tensor decode(const Tensor& tokens, DecodeState& opaque) const override {
    Tensor& all = dynamic_cast<DecayState&>(opaque).tokens;
    all = all ? concat({all, tokens}, 1) : tokens;
    return select(logits(all, {}), 1, -1);  // [B, V]
  }
  AttentionOutline attention_outline(int64_t, int64_t length) const override {
    return {length, length, 1, {{patterns::causal(), length, length}}};
  }
  int64_t macs(int64_t length) const override {
    const DecayConfig& c = config_;
    return length * c.d_model * (c.n_layer * 2 * (c.d_model + c.d_ff) + c.vocab);
  }

 private:
  DecayConfig config_;
  Embedding token_;  // [V, D]
  Stack stack_;
  Linear head_;  // the token table
};

constexpr Preset presets[] = {{"small", "4 layers of 128; trains on bytes in minutes"},
                              {"tiny", "2 layers of 16; for tests"}};
std::unique_ptr<ModelSpec> make(std::string_view preset) {
  DecayConfig c;
  if (preset == "tiny") c.n_layer = 2, c.d_model = 16, c.d_ff = 32;
  return std::make_unique<ModelSpecOf<DecayModel, DecayConfig>>(c, TrainingDefaults{.lr = 3e-3});
}

int main(int argc, char** argv) {
  return run_program(argc, argv, {{"decay_lm", "running sums that forget", presets, make}});
}
