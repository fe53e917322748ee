// Performer, Choromanski et al. 2021 (2009.14794): a Transformer whose attention matrix is a
// product of random features, never computed as such.
//
//   exp(q . k / sqrt(d)) = E phi(x) . phi(y),  x = q / d^(1/4), y = k / d^(1/4)      lemma 1
//   phi(x) = m^(-1/2) exp(W x - |x|^2 / 2),  rows of W normal, orthogonal in blocks   FAVOR+
//   phi(x) = m^(-1/2) relu(W x) + epsilon                                             generalized
//
// The layer is nn/attention/performer.cc, the sums are ops/attention/linear_attention.h; all else
// is models/transformer.

#include "models/performer/performer.h"

#include <fmt/format.h>

#include <memory>

#include "autograd/mode.h"
#include "core/scope.h"

namespace longspan {
namespace {

constexpr const char* kPerformer = "performer";

constexpr TrainingDefaults performer_few_steps{
    .length = 1024, .batch = 2, .steps = 2000, .lr = 2e-3};
constexpr TrainingDefaults performer_test_steps{.length = 12, .batch = 4, .steps = 200};
/// Appendix B of the paper, without what depends on its accelerators.
constexpr TrainingDefaults performer_of_length(int64_t length) {
  return {.length = length,
          .batch = 8,
          .steps = 100'000,
          .lr = 1e-3,
          .warmup = 4000,
          .clip = 0.5,
          .weight_decay = 0.1};
}

constexpr Preset performer_presets[] = {
    // Differs from the literature because it learns more in few steps; docs/performer.md.
    {"small", "decoder, 4 layers of 128, 64 positive features; trains on bytes in minutes", "",
     "d_ff=256 n_features=64 tie_embedding=true init_std=0.05 embed_std=0.02 emb_scale=true",
     performer_few_steps},
    {"tiny", "decoder, 2 layers of 16, 8 positive features, 17 tokens; for tests", "",
     "vocab=17 n_layer=2 n_head=2 d_model=16 d_ff=32 n_max=24 n_features=8 redraw_interval=3",
     performer_test_steps},
    // 256 bytes and [MASK].
    {"encoder", "encoder, 4 layers of 128, 64 positive features; masked bytes", "small",
     "wiring=encoder vocab=257 mlm_head=true", performer_few_steps},
    // 25 residues, the end of a protein, and [MASK].
    {"proteins", "encoder, 4 layers of 128, 64 ReLU features; masked residues", "encoder",
     "vocab=27 features=relu feature_epsilon=1e-3 redraw_interval=0", performer_few_steps},
    {"proteins_next", "decoder, 4 layers of 128, 64 ReLU features; next residues", "small",
     "vocab=27 features=relu feature_epsilon=1e-3 redraw_interval=0", performer_few_steps},
    {"base", "decoder, 6 layers of 512, d ln d positive features (Choromanski et al. 2021)", "",
     "n_layer=6 n_head=8 d_model=512 d_ff=2048 emb_scale=true dropout=0.1 n_max=8192",
     performer_of_length(8192)},
    {"trembl", "decoder on proteins, 36 layers of 512, 256 ReLU features (U)", "base",
     "vocab=27 n_layer=36 d_ff=1024 n_features=256 features=relu feature_epsilon=1e-3 n_max=1024 "
     "redraw_interval=0",
     performer_of_length(1024)},
    {"trembl_masked", "encoder on proteins, 36 layers of 512, 256 ReLU features (B)", "trembl",
     "wiring=encoder mlm_head=true", performer_of_length(1024)},
    {"trembl_softmax", "decoder on proteins, 36 layers of 512, 256 positive features", "trembl",
     "features=positive feature_epsilon=0 redraw_interval=1000", performer_of_length(1024)},
    {"trembl_long", "decoder on joined proteins, 6 layers of 512, 256 ReLU features", "trembl",
     "n_layer=6 d_ff=2048 n_max=8192", performer_of_length(8192)},
    {"imagenet64", "decoder on images of 64 x 64 x 3, 6 layers of 512, 256 positive features",
     "base", "n_features=256 n_max=12288", performer_of_length(12'288)},
};

std::unique_ptr<ModelSpec> performer_spec(std::string_view preset) {
  return preset_spec<Performer, PerformerConfig>(kPerformer, performer_presets, preset);
}

const PerformerConfig& checked(const PerformerConfig& c) {
  require(c.positions != Positions::shaw, kPerformer,
          "relative positions (shaw) have no features; set positions to sinusoid or learned");
  require(c.local == Locality::none, kPerformer,
          "local = {}; features have no windows: set it to none", name_of_value(c.local));
  require(!c.sparse_probabilities(), kPerformer,
          "alpha > 1 and learn_alpha have no features; set alpha to 1");
  require(!c.couple, kPerformer, "couple is for a Transformer's own attention; set it to false");
  return c;
}

}  // namespace

Performer::Performer(const PerformerConfig& config, const Init& init)
    : Transformer(checked(config), init,
                  [&config](const AttentionOptions& options, bool causal, const Init& site) {
                    return std::make_unique<PerformerAttention>(options, config, causal, site);
                  }),
      config_(config) {}

const PerformerAttention& Performer::attention(int64_t layer) const {
  return dynamic_cast<const PerformerAttention&>(*stack_.block(layer).branch("attention").layer);
}

std::vector<FeatureError> Performer::feature_errors(const Tensor& tokens) const {
  const NoGrad off;
  const Scope scope(kPerformer);
  require<NotImplemented>(config_.wiring != Wiring::encoder_decoder, kPerformer,
                          "an encoder_decoder does not measure its features");
  LayerContext ctx;
  ctx.pattern = config_.wiring == Wiring::encoder ? patterns::dense() : patterns::causal();
  const Tensor x = embedded(tokens, 0, Pass{});
  std::vector<FeatureError> all;
  for (int64_t i = 0; i < config_.n_layer; ++i) {
    LayerContext own = ctx;
    const Tensor input = stack_.attention_input(i, x, own);
    all.push_back(attention(i).error(input, own));
  }
  return all;
}

std::string Performer::remark(int64_t length) const {
  const PerformerAttention& first = attention(0);
  if (first.exact(length)) {
    return fmt::format("{}: {} tokens are attended to exactly, without features", kPerformer,
                       length);
  }
  return fmt::format("{}: {} tokens are attended to by {} features = {}", kPerformer, length,
                     first.features(), name_of_value(config_.features));
}

std::vector<std::string> Performer::report(const Tensor& tokens) const {
  if (config_.wiring == Wiring::encoder_decoder || kernels::norm_sign(config_.features) == 0) {
    return {};
  }
  std::vector<std::string> lines;
  for (const FeatureError& e : feature_errors(tokens)) {
    lines.push_back(fmt::format(
        "features of layer {}: |q|^2 {:.2f}, |k|^2 {:.2f} (largest {:.1f}), output differs from "
        "softmax by {:.0f} %",
        lines.size(), e.query_norm, e.key_norm, e.largest_norm, 100 * e.output));
  }
  return lines;
}

PerformerConfig performer_preset(std::string_view name) {
  return preset_of<PerformerConfig>(kPerformer, performer_presets, name);
}

const ModelEntry& performer_entry() {
  static const ModelEntry entry{kPerformer, "Transformer whose attention is a product of features",
                                performer_presets, performer_spec};
  return entry;
}

}  // namespace longspan
