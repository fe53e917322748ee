#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "models/bigbird/bigbird_blocks.h"
#include "models/encoder.h"
#include "models/model_spec.h"

namespace longspan {

/// Big Bird: Transformers for Longer Sequences \cite zaheer2020 , with internal global blocks
/// (ITC).
struct BigBirdConfig : EncoderConfig, BigBirdBlocks {
  /// Makes a language model that predicts the next token: the lower triangle of the same blocks,
  /// with random ones from the past. Neither is in the paper.
  bool causal = false;
  bool span_block = false;
  int64_t separator_id = -1;

  void visit(auto& v) {
    EncoderConfig::visit(v);
    BigBirdBlocks::visit(v);
    v("span_block", span_block, "span_head: a feed-forward block before the head, as released");
    v("separator_id", separator_id,
      "span_head: answers come after the first such token, by 1e6; -1: anywhere");
    v("causal", causal,
      "predicts the next token: the lower triangle of the blocks (not in the paper)");
  }
};

/// An encoder in BERT's shape whose rows of blocks attend to (sec. 2)
///   row 0, row n - 1    all blocks
///   row i between       {0, i - 1, i, i + 1, n - 1} and R(i), r random blocks for each head
/// of n = ceil(L / b) blocks; the last one is short if b does not divide L. With fewer than 5 + r
/// blocks attention is full. With `causal` row i attends to {0, i - 1, i} and r random earlier
/// blocks, and to no later token within its own block. Cost is linear in L.
class BigBird final : public Encoder, public ContinuesSequences {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  BigBird(const BigBirdConfig& config, const Init& init);

  const BigBirdConfig& config() const { return config_; }
  /// See BigBirdPatterns.
  void set_random_blocks(const Tensor& blocks) { patterns_.set_random_blocks(blocks); }
  BlockTable table(int64_t layer, int64_t head, int64_t length) const {
    return patterns_.table(layer, head, length);
  }

  Objective objective() const override;
  int64_t mask_token() const override;
  bool continues_sequences() const override { return config_.causal; }
  /// Requires `causal`.
  std::unique_ptr<DecodeState> start_decoding(int64_t batch) const override;
  Tensor decode(const Tensor& tokens, DecodeState& state) const override;
  /// With separator_id, subtracts 1e6 from the logits of the question, the tokens 1 up to the first
  /// separator; types that are undefined are then 0 up to it and 1 behind it.
  SpanLogits span_logits(const EncoderInputs& in, Pass pass) const override;
  void visit(Visitor& v) override;

 protected:
  LayerContext layer_context(const EncoderInputs& in, Pass pass) const override;

 private:
  /// Returns the question of each sample, u8 [B, L]: its tokens up to the first separator.
  Tensor question_of(const Tensor& tokens) const;

  BigBirdConfig config_;
  BigBirdPatterns patterns_;
  std::unique_ptr<FeedForward> span_block_;
  Normalization span_norm_;
};

/// Entry of the model under the name that programs use.
const ModelEntry& bigbird_entry();

/// Configurations of the paper. Throws ValueError on an unknown name.
BigBirdConfig bigbird_preset(std::string_view name);

}  // namespace longspan
