#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"
#include "nn/after_step.h"
#include "nn/auxiliary_loss.h"
#include "nn/module.h"
#include "nn/objective.h"
#include "nn/segment.h"

namespace longspan {

/// Holds the progress of one decoding run. A model creates it, reads it and advances it.
struct DecodeState {
  DecodeState() = default;
  DecodeState(const DecodeState&) = default;
  DecodeState& operator=(const DecodeState&) = default;
  virtual ~DecodeState() = default;
  /// Replaces row b by what row rows[b] was, rows i64 [B'], as a beam search does when it selects
  /// beams. With `same_context` every row keeps its own context (the encoded source), which then
  /// need not be copied. Throws NotImplemented when the model does not support it.
  virtual void take_rows(const Tensor& rows, bool same_context);
  int64_t position = 0;  ///< tokens decoded so far
};

/// The decoding state of a model whose layers keep what they need of earlier tokens in a
/// SegmentMemory and in LayerContext::choices. An encoder-decoder adds the output of its encoder.
struct StreamState final : DecodeState {
  explicit StreamState(int64_t rows) : batch(rows) {}
  void take_rows(const Tensor& rows, bool same_context) override;
  /// Casts `state` to a StreamState. Throws ValueError when it belongs to another kind of model,
  /// and ShapeError unless tokens are [batch, n], n >= 1.
  static StreamState& of(DecodeState& state, std::string_view model, const Tensor& tokens);

  SegmentMemory memory;
  std::vector<Tensor> choices;  ///< of earlier tokens, for each layer, [B, ..]; may be empty
  Tensor context, lengths;      ///< of the source of an encoder-decoder; else undefined
  Tensor hidden = {};  ///< u8 [B, S]: tokens of the source that no other sees, or undefined
  int64_t batch = 0;
};

/// What programs know of every model over tokens. What only some of them can do, such as decoding,
/// is a capability (models/capabilities.h).
class LanguageModel : public Module {
 public:
  struct Losses {
    Tensor loss;                           ///< scalar: mean over the targets that count, in nats
    std::vector<AuxiliaryLoss> auxiliary;  ///< in training, one of each name; may be empty
    SegmentMemory memory;                  ///< for the next segment
    std::vector<Statistics> statistics;    ///< in training, for end_step(); may be empty

    /// The loss plus the auxiliary losses: what backward() takes.
    Tensor total() const { return total_loss(loss, auxiliary); }
  };

  virtual Objective objective() const = 0;
  virtual int64_t vocab() const = 0;
  /// The largest number of tokens in a segment; for an encoder-decoder, in a target sequence.
  virtual int64_t max_length() const { return std::numeric_limits<int64_t>::max(); }
  virtual Device device() const = 0;
  virtual int64_t layers() const = 0;

  /// tokens, targets [B, L], each of an integer dtype; a target equal to ignored_target does not
  /// count. Applies label smoothing, dropout and the like only if pass.training. Never materializes
  /// [B, L, V]. Throws ShapeError, DTypeError, DeviceError, ValueError on an id out of range, and
  /// NotImplemented for an encoder-decoder, which needs a source.
  virtual Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
                      Pass pass) const = 0;
  /// [B, L] tokens to [B, L, V] logits in f32 (f64 for f64): for tests and short inputs.
  virtual Tensor logits(const Tensor& tokens, Pass pass) const = 0;
};

}  // namespace longspan
