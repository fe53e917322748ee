#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/capabilities.h"
#include "models/model.h"
#include "models/transformer/transformer.h"

namespace longspan {

/// The inputs of a forward pass of an encoder-decoder.
struct SequenceInputs {
  Tensor source = {};   ///< [B, S]
  Tensor lengths = {};  ///< i64 [B]: number of valid tokens of the source; undefined: all
  Tensor global = {};   ///< [B, S] nonzero at global tokens; only for models that have some
  Tensor tokens = {};   ///< [B, L] input of the decoder; see shifted_right()
  Tensor mask = {};     ///< [B, S] zero at tokens of the source that no other token sees
};

/// Returns the decoder's input for targets [B, L]: `start`, then all targets but the last. Targets
/// equal to ignored_target become 0.
Tensor shifted_right(const Tensor& targets, int64_t start);

/// The common encoder-decoder for long sources: a Transformer whose encoder attends as the model
/// says in layer_context(). The decoder attends to the whole output of the encoder and to all of
/// its own earlier tokens.
class EncoderDecoder : public LanguageModel,
                       public WritesSequences,
                       public SplitsSequences,
                       public ShowsAttention,
                       public ShowsDecoder {
 public:
  /// [B, S] -> [B, S, D]. Throws ShapeError; ValueError on a source beyond the position table.
  Tensor encode(const SequenceInputs& in, Pass pass) const;
  /// Returns the input of the head, [B, L, D].
  Tensor forward(const SequenceInputs& in, Pass pass) const;
  Tensor head(const Tensor& hidden) const { return shell_.head(hidden); }
  /// Computes the mean over the targets [B, L] that count of the negative log-likelihood (smoothed
  /// in training).
  virtual Tensor loss(const Tensor& hidden, const Tensor& targets, Pass pass) const;
  /// Encodes a source and returns the state to decode from; ignores `in.tokens`.
  std::unique_ptr<DecodeState> start_decoding(const SequenceInputs& in) const;

  Objective objective() const override { return Objective::sequence; }
  int64_t vocab() const override { return shell_.vocab(); }
  int64_t max_length() const override { return shell_.max_length(); }
  int64_t max_source_length() const override { return shell_.max_source_length(); }
  Device device() const override { return shell_.device(); }
  int64_t layers() const override { return shell_.layers(); }
  /// Throw NotImplemented, because an encoder-decoder needs a source.
  Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
              Pass pass) const override;
  Tensor logits(const Tensor& tokens, Pass pass) const override;
  /// The model's default decides which tokens of the source are global.
  Losses sequence_loss(const SourceTokens& source, const Tensor& tokens, const Tensor& targets,
                       Pass pass) const override;
  std::unique_ptr<DecodeState> start_after(const SourceTokens& source) const override;
  Tensor decode(const Tensor& tokens, DecodeState& state) const override;
  Tensor attention_map(const Tensor& source, int64_t layer) const override;
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
  int64_t decoder_layers() const override { return shell_.decoder_layers(); }
  Tensor decoder_map(const Tensor& source, const Tensor& tokens, int64_t layer,
                     bool cross) const override;
  std::vector<int64_t> divided_heads() const override { return shell_.divided_heads(); }
  void visit(Visitor& v) override { shell_.visit(v); }

 protected:
  ///   name               name of the model, for messages
  ///   encoder_attention  layers that replace the encoder's own attention, one for each block
  EncoderDecoder(std::string name, const TransformerConfig& shell, const Init& init,
                 std::vector<std::unique_ptr<Layer>> encoder_attention = {});

  /// Returns the context of the encoder's layers for an input whose source is [B, S].
  virtual LayerContext layer_context(const SequenceInputs& in, Pass pass) const = 0;

  /// Returns the mask as keys that no query sees, u8 [B, S]; undefined without one.
  static Tensor hidden_tokens(const SequenceInputs& in);

 private:
  /// layer_context() of an input whose source has been checked.
  LayerContext checked_context(const SequenceInputs& in, Pass pass) const;
  /// forward() with the auxiliary losses and statistics of the layers.
  Stack::Result states(const SequenceInputs& in, Pass pass) const;

  std::string name_;
  Transformer shell_;
};

}  // namespace longspan
