#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/model.h"
#include "models/transformer.h"

namespace longspan {

/// What a forward pass of an encoder-decoder reads.
struct SequenceInputs {
  Tensor source = {};   ///< [B, S]
  Tensor lengths = {};  ///< i64 [B]: valid tokens of the source; undefined: all
  Tensor global = {};   ///< [B, S] not 0 at global tokens; only for models that have some
  Tensor tokens = {};   ///< [B, L] what the decoder reads; see shifted_right()
};

/// The decoder's input for targets [B, L]: `start`, then all targets but the last, with 0 in place
/// of those that do not count.
Tensor shifted_right(const Tensor& targets, int64_t start);

/// The shell of encoder-decoders over long sources: a Transformer whose encoder sees what a model
/// says in given(); the decoder attends to all of the encoder's output and to all that it has
/// written.
class EncoderDecoder : public LanguageModel {
 public:
  /// [B, S] -> [B, S, D]. Throws ShapeError; ValueError on a source beyond the position table.
  Tensor encode(const SequenceInputs& in, Pass pass) const;
  /// [B, L, D], what the head sees.
  Tensor forward(const SequenceInputs& in, Pass pass) const;
  Tensor head(const Tensor& hidden) const { return shell_.head(hidden); }
  /// Mean over the targets [B, L] that count of the (in training smoothed) negative log-likelihood.
  virtual Tensor loss(const Tensor& hidden, const Tensor& targets, Pass pass) const;
  /// Decoding after a source; `in.tokens` has no part.
  std::unique_ptr<DecodeState> start_decoding(const SequenceInputs& in) const;

  Objective objective() const override { return Objective::sequence; }
  int64_t vocab() const override { return shell_.vocab(); }
  int64_t max_length() const override { return shell_.max_length(); }
  int64_t max_source_length() const override { return shell_.max_source_length(); }
  Device device() const override { return shell_.device(); }
  int64_t layers() const override { return shell_.layers(); }
  /// Throw NotImplemented: without a source there is nothing to do.
  Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
              Pass pass) const override;
  Tensor logits(const Tensor& tokens, Pass pass) const override;
  std::unique_ptr<DecodeState> start_decoding(int64_t batch) const override;
  /// What is global is what the model says where an input does not.
  Losses sequence_loss(const SourceTokens& source, const Tensor& tokens, const Tensor& targets,
                       Pass pass) const override;
  std::unique_ptr<DecodeState> start_after(const SourceTokens& source) const override;
  Tensor decode(const Tensor& tokens, DecodeState& state) const override;
  Tensor attention_map(const Tensor& source, int64_t layer) const override;
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
  /// Of a source and a target of the same length.
  int64_t macs(int64_t length) const override;
  void visit(Visitor& v) override { shell_.visit(v); }

 protected:
  /// name               of the model, for messages
  /// encoder_attention  layers in place of the encoder's own, one for each block
  EncoderDecoder(std::string name, const TransformerConfig& shell, const Init& init,
                 std::vector<std::unique_ptr<Layer>> encoder_attention = {});

  /// What the layers of the encoder see of such an input, whose source is [B, S].
  virtual LayerContext layer_context(const SequenceInputs& in) const = 0;
  /// Multiply-accumulates of the encoder's attention, projections included.
  virtual int64_t encoder_attention_macs(int64_t length) const = 0;

 private:
  std::string name_;
  Transformer shell_;
};

}  // namespace longspan
