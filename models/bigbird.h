#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "models/bigbird_blocks.h"
#include "models/encoder.h"
#include "models/model_spec.h"

namespace longspan {

/// Big Bird: Transformers for Longer Sequences \cite zaheer2020 , with internal global blocks
/// (ITC).
struct BigBirdConfig : EncoderConfig, BigBirdBlocks {
  /// A language model that predicts the next token: the lower triangle of the same blocks, random
  /// ones from the past. Neither is in the paper.
  bool causal = false;

  void visit(auto& v) {
    EncoderConfig::visit(v);
    BigBirdBlocks::visit(v);
    v("causal", causal);
  }
};

/// An encoder in BERT's shape whose rows of blocks see (sec. 2)
///   row 0, row n - 1    all blocks
///   row i between       {0, i - 1, i, i + 1, n - 1} and R(i), r random blocks for each head
/// of n = ceil(L / b) blocks, the last one short where b does not divide L. With fewer than 5 + r
/// blocks everybody sees everything. With `causal` row i sees {0, i - 1, i} and r random blocks
/// before, of its own block no later token. Cost is linear in L.
class BigBird final : public Encoder {
 public:
  /// Throws ValueError, naming the fields, where they do not fit together.
  BigBird(const BigBirdConfig& config, const Init& init);

  const BigBirdConfig& config() const { return config_; }
  /// As BigBirdPatterns has them.
  void set_random_blocks(const Tensor& blocks) { patterns_.set_random_blocks(blocks); }
  BlockTable table(int64_t layer, int64_t head, int64_t length) const {
    return patterns_.table(layer, head, length);
  }

  Objective objective() const override;
  int64_t mask_token() const override;
  /// Only with `causal`.
  std::unique_ptr<DecodeState> start_decoding(int64_t batch) const override;
  Tensor decode(const Tensor& tokens, DecodeState& state) const override;

 protected:
  LayerContext layer_context(const EncoderInputs& in) const override;

 private:
  BigBirdConfig config_;
  BigBirdPatterns patterns_;
};

/// The model by the name that programs use.
const ModelEntry& bigbird_entry();

/// Configurations of the paper. Throws ValueError on an unknown name.
BigBirdConfig bigbird_preset(std::string_view name);

}  // namespace longspan
