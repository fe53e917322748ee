#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/encoder.h"
#include "models/linformer/linformer_attention.h"
#include "models/model_spec.h"

namespace longspan {

/// Linformer: Self-Attention with Linear Complexity \cite wang2020 .
struct LinformerConfig : EncoderConfig {
  /// r, the projected length (the paper's k), of each layer; the last one counts for all further
  /// layers. The n of the paper is n_max.
  std::vector<int64_t> r = {64};
  ProjectionSharing sharing = ProjectionSharing::headwise;
  RowProjection projection = RowProjection::linear;
  ProjectionOrder projection_order = ProjectionOrder::input;
  ProjectionStart projection_start = ProjectionStart::xavier;
  bool freeze_projection = false;
  bool causal = false;

  void visit(auto& v) {
    EncoderConfig::visit(v);
    v("r", r, "projected length of each layer (the paper's k); the last one repeats");
    v("sharing", sharing, "which projections of the length are one");
    v("projection", projection, "how rows are projected");
    v("projection_order", projection_order, "what is projected: the input, or keys and values");
    v("projection_start", projection_start, "how the projections begin");
    v("freeze_projection", freeze_projection, "the projections keep their random start");
    v("causal", causal, "refused: a projected row mixes all positions, so there is no causal form");
  }
};

/// Returns the options of the attention of layer `layer`. Throws ValueError that names the field.
LinformerOptions linformer_options(const LinformerConfig& config, int64_t layer);

/// An encoder in BERT's shape whose rows attend to r rows, which learned matrices E and F [r, n]
/// make of the keys and values of the whole sequence (LinformerAttention). An input of L < n tokens
/// uses their first L columns; a longer one is an error. Cost is linear in L.
class Linformer final : public Encoder {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  Linformer(const LinformerConfig& config, const Init& init);

  const LinformerConfig& config() const { return config_; }
  /// The columns are the projected rows.
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
  /// None where a convolution of the input mixes the columns of all heads.
  std::vector<int64_t> divided_heads() const override;

 protected:
  LayerContext layer_context(const EncoderInputs& in, Pass pass) const override;

 private:
  LinformerConfig config_;
};

/// Entry of the model under the name that programs use.
const ModelEntry& linformer_entry();

/// Configurations of the paper. Throws ValueError on an unknown name.
LinformerConfig linformer_preset(std::string_view name);

}  // namespace longspan
