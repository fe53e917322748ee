#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/generator.h"
#include "core/tensor.h"
#include "nn/after_step.h"
#include "nn/auxiliary_loss.h"
#include "nn/module.h"
#include "nn/objective.h"
#include "nn/outline.h"
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
  int64_t batch = 0;
};

/// The input of the encoder of an encoder-decoder.
struct SourceTokens {
  Tensor tokens;        ///< [B, S] of an integer dtype
  Tensor lengths = {};  ///< i64 [B]: number of valid tokens in each row; undefined: all
};

class DocumentModel;
class Encoder;

/// The interface that programs use for any model over tokens.
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
  /// Returns the model as an encoder with heads for tasks (models/encoder.h); null if it is none.
  virtual const Encoder* as_encoder() const { return nullptr; }
  /// Returns the model as one of documents (models/document_model.h); null if it is none.
  virtual const DocumentModel* as_document_model() const { return nullptr; }
  virtual int64_t vocab() const = 0;
  /// The id that hides a token for a masked objective, -1 if the model has none.
  virtual int64_t mask_token() const { return -1; }
  /// The largest number of tokens in a segment; for an encoder-decoder, in a target sequence.
  virtual int64_t max_length() const { return std::numeric_limits<int64_t>::max(); }
  /// The largest number of input tokens: of the source for an encoder-decoder, else of a segment.
  virtual int64_t max_source_length() const { return max_length(); }
  virtual Device device() const = 0;
  virtual int64_t layers() const = 0;

  /// Rows that each layer keeps from one segment to the next; 0: a segment depends on no earlier
  /// one. A model with a memory is trained and evaluated on contiguous streams.
  virtual int64_t memory_length() const { return 0; }
  /// Tokens that one layer's memory stands for when it is full.
  virtual int64_t memory_tokens() const { return memory_length(); }
  /// The memory to pass with the first segment of a batch of streams. Those that loss() returns
  /// have the same shapes.
  virtual SegmentMemory empty_memory(int64_t /*batch*/) const { return {}; }
  /// The same for evaluation: a memory may keep more than the inputs of layers, because weights do
  /// not change (SegmentMemory::projected). It may be passed on once, and only to loss() without
  /// training.
  virtual SegmentMemory evaluation_memory(int64_t batch) const { return empty_memory(batch); }
  /// tokens, targets [B, L], each of an integer dtype; a target equal to ignored_target does not
  /// count. Applies label smoothing, dropout and the like only if pass.training. Never materializes
  /// [B, L, V]. Throws ShapeError, DTypeError, DeviceError, and ValueError on an id out of range.
  virtual Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
                      Pass pass) const = 0;
  /// The loss of an encoder-decoder with teacher forcing: the decoder reads tokens [B, L], and
  /// targets [B, L] hold the token that follows each of them. Requires Objective::sequence;
  /// otherwise throws NotImplemented.
  virtual Losses sequence_loss(const SourceTokens& source, const Tensor& tokens,
                               const Tensor& targets, Pass pass) const;

  /// [B, L] tokens to [B, L, V] logits in f32 (f64 for f64): for tests and short inputs.
  virtual Tensor logits(const Tensor& tokens, Pass pass) const = 0;
  /// The same after the segments in `memory`, which becomes that for the next segment, without
  /// training. Throws NotImplemented if the model has no memory.
  virtual Tensor logits_after(SegmentMemory& memory, const Tensor& tokens) const;

  /// Whether loss() and logits() are there; an encoder may have heads for other tasks alone.
  virtual bool predicts_tokens() const { return true; }
  /// The number of classes, or of yes-or-no answers, of a whole sequence; 0: the model has no head
  /// for them.
  virtual int64_t classes() const { return 0; }
  /// Returns the logits of the classes of whole sequences, [B, classes]. Throws NotImplemented
  /// without such a head.
  virtual Tensor class_logits(const SourceTokens& in, Pass pass) const;

  /// start_decoding() returns an empty state; decode() takes the next tokens [B, n] of every sample
  /// and returns the logits [B, V] after the last one. Throws NotImplemented if the model cannot
  /// decode.
  virtual std::unique_ptr<DecodeState> start_decoding(int64_t batch) const;
  /// Encodes a source and returns the state to decode from. Throws NotImplemented unless the model
  /// is an encoder-decoder.
  virtual std::unique_ptr<DecodeState> start_after(const SourceTokens& source) const;
  virtual Tensor decode(const Tensor& tokens, DecodeState& state) const;

  /// [H, L, T] f32: the attention probabilities of layer `layer` for tokens [1, L], for pictures.
  /// For an encoder-decoder: those of the encoder, for the source.
  virtual Tensor attention_map(const Tensor& tokens, int64_t layer) const;
  /// Says which keys each query attends to in layer `layer` (numbered as above) for `length`
  /// tokens, without computing attention.
  virtual AttentionOutline attention_outline(int64_t layer, int64_t length) const;

  /// Returns how many tokens back each of the tokens [1, L] sees in each layer and head, for
  /// pictures: [layers, H, L] f32. Undefined unless the model learns that.
  virtual Tensor seen_spans(const Tensor& /*tokens*/) const { return {}; }
  /// Returns for each layer how many steps each of tokens [B, L] is remembered after the segments
  /// in `memory`, [B, L] f32 (f64 for f64). Empty unless the model learns that.
  virtual std::vector<Tensor> token_spans(const Tensor& /*tokens*/,
                                          const SegmentMemory& /*memory*/) const {
    return {};
  }
  /// Returns for each layer how many rows of `memory` the next token can see, averaged over
  /// samples. Empty unless rows are deleted before they are too old. Waits for the device.
  virtual std::vector<double> living(const SegmentMemory& /*memory*/) const { return {}; }

  /// Sets what the model takes from data before its first step, from the tokens [B, L] of a batch.
  /// Programs call it once, with the first batch of a run that starts with drawn weights; does
  /// nothing for most models.
  virtual void begin_training(const Tensor& /*tokens*/, Generator /*gen*/) {}

  /// Returns lines that programs print about how the model attends to tokens [1, L], one for each
  /// layer; empty: there is nothing to say.
  virtual std::vector<std::string> report(const Tensor& /*tokens*/) const { return {}; }

  /// Returns numbers that programs log in each step beside the losses, by name, such as how full
  /// clusters are. Empty unless the model has any. Waits for the device.
  virtual std::vector<std::pair<std::string, double>> log_values() const { return {}; }

  /// Whether the layers are reversible under every memory policy, so that policy `reversible`
  /// computes the same function as `standard`, with gradients equal up to rounding, and not another
  /// network.
  virtual bool reversible_layers() const { return false; }
  /// A remark that programs print about a run over segments of `length` tokens; empty: nothing.
  virtual std::string remark(int64_t /*length*/) const { return {}; }
};

/// Returns the multiply-accumulates (ops/cost.h) of the loss over `batch` segments of `length`
/// tokens, or, for Objective::sequence, over sources of that length and targets as long, at most
/// max_length(). Runs the model: build it on the meta device, where that costs no work and no
/// memory.
int64_t forward_macs(const LanguageModel& model, int64_t length, int64_t batch = 1);

}  // namespace longspan
