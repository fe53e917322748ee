#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/generator.h"
#include "core/tensor.h"
#include "nn/module.h"
#include "nn/objective.h"
#include "nn/outline.h"
#include "nn/segment.h"

namespace longspan {

/// Where decoding stands: made, read and advanced by one model.
struct DecodeState {
  DecodeState() = default;
  DecodeState(const DecodeState&) = default;
  DecodeState& operator=(const DecodeState&) = default;
  virtual ~DecodeState() = default;
  /// Row b becomes what row rows[b] was, rows i64 [B']: how a beam search follows its beams. With
  /// `same_context` every row keeps the context (the source) of the row in its place, so that it
  /// need not move. Throws NotImplemented where the model cannot.
  virtual void take_rows(const Tensor& rows, bool same_context);
  int64_t position = 0;  ///< tokens taken so far
};

/// The same of a model whose layers keep all that they need in their memory.
struct StreamState final : DecodeState {
  explicit StreamState(int64_t rows) : batch(rows) {}
  void take_rows(const Tensor& rows, bool same_context) override;
  /// The state of such a model. Throws ValueError where it is another model's, ShapeError unless
  /// tokens are [batch, n], n >= 1.
  static StreamState& of(DecodeState& state, std::string_view model, const Tensor& tokens);

  SegmentMemory memory;
  int64_t batch = 0;
};

/// What an encoder-decoder reads before its decoder says anything.
struct SourceTokens {
  Tensor tokens;        ///< [B, S] of an integer dtype
  Tensor lengths = {};  ///< i64 [B]: the valid ones of each row; undefined: all
};

/// What programs need of a model over tokens, whatever is inside.
class LanguageModel : public Module {
 public:
  struct Losses {
    Tensor loss;           ///< scalar: mean over the counted targets, in nats
    Tensor auxiliary;      ///< scalar to add before backward; undefined where the model has none
    SegmentMemory memory;  ///< for the next segment
    std::vector<Tensor> states;  ///< statistics for absorb(), one for each layer; may be empty
  };

  virtual Objective objective() const = 0;
  virtual int64_t vocab() const = 0;
  /// The id that hides a token from a masked objective, -1 where there is none.
  virtual int64_t mask_token() const { return -1; }
  /// Most tokens that a segment may have; of an encoder-decoder those that it may write.
  virtual int64_t max_length() const { return std::numeric_limits<int64_t>::max(); }
  /// Most tokens that it may be given to read: the source of an encoder-decoder, else a segment.
  virtual int64_t max_source_length() const { return max_length(); }
  virtual Device device() const = 0;
  virtual int64_t layers() const = 0;

  /// What the first segment of a batch of streams is given.
  virtual SegmentMemory empty_memory(int64_t /*batch*/) const { return {}; }
  /// tokens, targets [B, L] of one integer dtype or two; a target of ignored_target does not count.
  /// Label smoothing, dropout and the like only where pass.training. Never makes [B, L, V]. Throws
  /// ShapeError, DTypeError, DeviceError, and ValueError on an id out of range.
  virtual Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
                      Pass pass) const = 0;
  /// The same for what follows a source, with teacher forcing: the decoder is given tokens [B, L],
  /// and targets [B, L] say what comes after each. Only with Objective::sequence; else
  /// NotImplemented.
  virtual Losses sequence_loss(const SourceTokens& source, const Tensor& tokens,
                               const Tensor& targets, Pass pass) const;
  /// Applies the statistics that a training pass returned, once.
  virtual void absorb(const std::vector<Tensor>& /*states*/) {}

  /// [B, L] tokens to [B, L, V] logits in f32 (f64 for f64): for tests and short inputs.
  virtual Tensor logits(const Tensor& tokens, Pass pass) const = 0;

  /// Decoding: an empty state, and one step that takes the next tokens [B, n] of every sample and
  /// returns the logits [B, V] after the last one. Throws NotImplemented where the model does not
  /// decode.
  virtual std::unique_ptr<DecodeState> start_decoding(int64_t batch) const;
  /// The state of an encoder-decoder that has read a source. Throws NotImplemented otherwise.
  virtual std::unique_ptr<DecodeState> start_after(const SourceTokens& source) const;
  virtual Tensor decode(const Tensor& tokens, DecodeState& state) const;

  /// [H, L, T] f32: how layer `layer` spreads its attention over tokens [1, L]; for pictures. Of an
  /// encoder-decoder the encoder's, over the source.
  virtual Tensor attention_map(const Tensor& tokens, int64_t layer) const;
  /// Who sees whom in layer `layer` (as above) of `length` tokens, without computing it.
  virtual AttentionOutline attention_outline(int64_t layer, int64_t length) const;

  /// Whether layers are reversible with every memory policy: `reversible` is then the function of
  /// `standard`, with gradients equal to rounding, and no other network.
  virtual bool reversible_layers() const { return false; }
  /// What programs should say of a run over segments of `length` tokens; empty: nothing.
  virtual std::string remark(int64_t /*length*/) const { return {}; }

  /// Multiply-accumulates of a forward pass over one segment of `length` tokens.
  virtual int64_t macs(int64_t length) const = 0;
};

}  // namespace longspan
