#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_spec.h"
#include "models/transformer/transformer.h"
#include "nn/attention/performer.h"

namespace longspan {

/// Rethinking Attention with Performers \cite choromanski2021 : the fields of a Transformer, whose
/// weights fit unchanged, and those of its attention by features. Positions are added to tokens;
/// relative ones, windows and entmax have no features.
struct PerformerConfig : TransformerConfig, PerformerOptions {
  PerformerConfig() { positions = Positions::sinusoid; }

  void visit(auto& v) {
    TransformerConfig::visit(v);
    PerformerOptions::visit(v);
  }
};

/// A Transformer in which random features take the place of the softmax of self-attention (FAVOR+),
/// so that time and memory are linear in the length:
///   Att(Q, K, V) = D^-1 (Q' (K'^T V)),  D = diag(Q' (K'^T 1)),  Q' = phi(Q), K' = phi(K)
/// It predicts the next token (wiring = decoder, where K'^T V is a running sum), masked tokens
/// (encoder) or a target sequence (encoder_decoder, whose cross-attention stays exact). A driver
/// calls end_step() after each update, which draws new projections every redraw_interval updates.
class Performer final : public Transformer, public Remarks {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  Performer(const PerformerConfig& config, const Init& init);

  const PerformerConfig& performer_config() const { return config_; }
  /// Compares the features of each layer with softmax attention, layer by layer: each gets the
  /// input that it gets in this model. Costs time and no memory of order L^2.
  ///   tokens  [B, L]
  ///   throws  NotImplemented for features that do not approximate the softmax kernel, and for an
  ///           encoder_decoder
  std::vector<FeatureError> feature_errors(const Tensor& tokens) const;

  /// Says whether sequences of this length are attended to exactly or by features.
  std::string remark(int64_t length) const override;
  /// A line for each layer: norms of queries and keys, and the error of its features.
  std::vector<std::string> report(const Tensor& tokens) const override;

 private:
  const PerformerAttention& attention(int64_t layer) const;

  PerformerConfig config_;
};

/// Entry of the model under the name that programs use.
const ModelEntry& performer_entry();

/// Configurations of the paper. Throws ValueError on an unknown name.
PerformerConfig performer_preset(std::string_view name);

}  // namespace longspan
