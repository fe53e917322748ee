#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/generator.h"
#include "core/tensor.h"
#include "models/model.h"
#include "nn/outline.h"

namespace longspan {

// What a model can do besides its loss is a capability: an interface that its class implements or
// does not. A model whose configuration decides says so in available(). Programs ask with
// ask<Capability>(model), or with need<Capability>(model) where they cannot go on without it.

/// Decodes sequences token by token.
class Decodes {
 public:
  static constexpr std::string_view capability = "decoding token by token";
  virtual ~Decodes() = default;
  /// Takes the next tokens [B, n] of every sample and returns the logits [B, V] after the last one.
  /// Throws ValueError on another model's state, ShapeError on another number of samples.
  virtual Tensor decode(const Tensor& tokens, DecodeState& state) const = 0;
  bool available() const { return true; }
};

/// Continues sequences, as a decoder does.
class ContinuesSequences : public virtual Decodes {
 public:
  static constexpr std::string_view capability = "continuing a sequence";
  /// Whether the model, as it is configured, does so.
  virtual bool continues_sequences() const { return true; }
  /// Returns the state of a batch in which nothing has been decoded.
  virtual std::unique_ptr<DecodeState> start_decoding(int64_t batch) const = 0;
  bool available() const { return continues_sequences(); }
};

/// The input of the encoder of an encoder-decoder.
struct SourceTokens {
  Tensor tokens;        ///< [B, S] of an integer dtype
  Tensor lengths = {};  ///< i64 [B]: number of valid tokens in each row; undefined: all
  /// [B, S] zero at tokens that no other token sees; undefined: none. Only for models whose encoder
  /// reads it; others throw NotImplemented.
  Tensor mask = {};
};

/// Writes a sequence after reading another one, as an encoder-decoder does.
class WritesSequences : public virtual Decodes {
 public:
  static constexpr std::string_view capability = "writing a sequence after a source";
  /// Whether the model, as it is configured, does so.
  virtual bool writes_sequences() const { return true; }
  /// The maximum number of tokens of a source; LanguageModel::max_length() bounds the target.
  virtual int64_t max_source_length() const = 0;
  /// The loss with teacher forcing: the decoder reads tokens [B, L], and targets [B, L] hold the
  /// token that follows each of them.
  virtual LanguageModel::Losses sequence_loss(const SourceTokens& source, const Tensor& tokens,
                                              const Tensor& targets, Pass pass) const = 0;
  /// Encodes a source and returns the state to decode from.
  virtual std::unique_ptr<DecodeState> start_after(const SourceTokens& source) const = 0;
  bool available() const { return writes_sequences(); }
};

/// Remembers: a segment depends on those before it. Such a model is trained and evaluated on
/// contiguous streams.
class Streams {
 public:
  static constexpr std::string_view capability = "a memory between segments";
  virtual ~Streams() = default;
  /// Rows that each layer keeps from one segment to the next; 0: the model, as it is configured,
  /// remembers nothing.
  virtual int64_t memory_length() const { return 0; }
  /// Tokens that one layer's memory stands for when it is full.
  virtual int64_t memory_tokens() const { return memory_length(); }
  /// The memory to pass with the first segment of a batch of streams. Those that loss() returns
  /// have the same shapes.
  virtual SegmentMemory empty_memory(int64_t batch) const = 0;
  /// The same for evaluation: a memory may keep more than the inputs of layers, because weights do
  /// not change (SegmentMemory::projected). It may be passed on once, and only to loss() without
  /// training.
  virtual SegmentMemory evaluation_memory(int64_t batch) const = 0;
  /// LanguageModel::logits() after the segments in `memory`, which becomes that for the next
  /// segment, without training. Throws NotImplemented if memory_length() is 0.
  virtual Tensor logits_after(SegmentMemory& memory, const Tensor& tokens) const = 0;
  bool available() const { return memory_length() > 0; }
};

/// The inputs of models with heads for whole sequences, tokens and spans.
struct EncoderInputs {
  Tensor tokens = {};   ///< [B, L] of an integer dtype
  Tensor lengths = {};  ///< i64 [B]: number of valid tokens of each sample; undefined: all
  Tensor types = {};    ///< [B, L] token types; undefined: all 0
  Tensor global = {};   ///< [B, L] nonzero at global tokens; only for models that have some
  /// [B, L] zero at tokens that no other token sees, as padding on the left or a gap; undefined:
  /// none. Their own rows have unspecified values.
  Tensor mask = {};
};

/// Throw NotImplemented if an input has a mask, which the model does not read.
void require_no_mask(std::string_view model, const EncoderInputs& in);
void require_no_mask(std::string_view model, const SourceTokens& in);

/// What programs ask about EncoderInputs.
class ReadsInputs {
 public:
  static constexpr std::string_view capability = "inputs with lengths, types and global tokens";
  virtual ~ReadsInputs() = default;
  /// Whether EncoderInputs::global has an effect.
  virtual bool takes_global_tokens() const { return false; }
  /// The number of token types; 0: EncoderInputs::types must be undefined.
  virtual int64_t token_types() const { return 0; }
  /// Whether the model has a head for tokens, so that loss() and logits() are there.
  virtual bool predicts_tokens() const = 0;
  bool available() const { return true; }
};

/// Classifies whole sequences, or answers yes-or-no questions about them.
class ClassifiesSequences : public virtual ReadsInputs {
 public:
  static constexpr std::string_view capability = "classes of whole sequences (model.classes)";
  /// Their number; 0: the model, as it is configured, has no head for them.
  virtual int64_t classes() const = 0;
  /// Returns the logits [B, classes].
  virtual Tensor class_logits(const EncoderInputs& in, Pass pass) const = 0;
  bool available() const { return classes() > 0; }
};

/// Classifies tokens.
class TagsTokens : public virtual ReadsInputs {
 public:
  static constexpr std::string_view capability = "classes of tokens (model.tags)";
  /// The number of classes; 0: the model, as it is configured, has no head for them.
  virtual int64_t tags() const = 0;
  /// Returns the logits [B, L, tags].
  virtual Tensor tag_logits(const EncoderInputs& in, Pass pass) const = 0;
  bool available() const { return tags() > 0; }
};

/// The logits of the starts and ends of answers, each [B, L]; -inf beyond a sample's length.
struct SpanLogits {
  Tensor start, end;
};

/// Returns the logits [B, L, 2] as those of starts and ends, -inf from `lengths` (i64 [B]) on;
/// undefined: all are valid.
SpanLogits span_logits_of(const Tensor& logits, const Tensor& lengths);

/// Finds the place of an answer in a text.
class FindsSpans : public virtual ReadsInputs {
 public:
  static constexpr std::string_view capability = "places of answers (model.span_head)";
  /// Whether the model, as it is configured, has a head for them.
  virtual bool finds_spans() const = 0;
  virtual SpanLogits span_logits(const EncoderInputs& in, Pass pass) const = 0;
  bool available() const { return finds_spans(); }
};

/// Chooses one of several candidates that are marked in a text.
class ChoosesCandidates : public virtual ReadsInputs {
 public:
  static constexpr std::string_view capability = "choices among candidates (model.choice_head)";
  /// Whether the model, as it is configured, has a head for them.
  virtual bool chooses_candidates() const = 0;
  /// Returns the scores [Q, C] of the candidates of Q questions; places i64 [Q, C, m] are those of
  /// Encoder::choose().
  virtual Tensor candidate_scores(const EncoderInputs& in, const Tensor& places,
                                  Pass pass) const = 0;
  bool available() const { return chooses_candidates(); }
};

/// Predicts tokens that a mask token hides.
class FillsMasks {
 public:
  static constexpr std::string_view capability = "filling in masked tokens";
  virtual ~FillsMasks() = default;
  /// The id that hides a token; -1: the model, as it is configured, has none.
  virtual int64_t mask_token() const = 0;
  bool available() const { return mask_token() >= 0; }
};

/// Computes one sequence in several processes, each with some of its rows and, inside attention,
/// with some of the heads (Pass::split).
class SplitsSequences {
 public:
  static constexpr std::string_view capability = "sequences split over processes (ranks.sequence)";
  virtual ~SplitsSequences() = default;
  /// The numbers of heads that the number of processes must divide; empty: the model, as it is
  /// configured, splits no sequence.
  virtual std::vector<int64_t> divided_heads() const = 0;
  bool available() const { return !divided_heads().empty(); }
};

/// Shows which tokens it attends to.
class ShowsAttention {
 public:
  static constexpr std::string_view capability = "pictures of its attention";
  virtual ~ShowsAttention() = default;
  /// [H, L, T] f32: the attention probabilities of layer `layer` for tokens [1, L]. For an
  /// encoder-decoder, tokens are the source and layers are the encoder's. Throws NoAttentionMap if
  /// the layer computes no probabilities.
  virtual Tensor attention_map(const Tensor& tokens, int64_t layer) const = 0;
  /// Says which keys each query attends to in layer `layer` (numbered as above) for `length`
  /// tokens, without computing attention. Throws NotImplemented, also here, if that depends on the
  /// tokens.
  virtual AttentionOutline attention_outline(int64_t layer, int64_t length) const;
  bool available() const { return true; }
};

/// Shows what its decoder attends to, as an encoder-decoder.
class ShowsDecoder {
 public:
  static constexpr std::string_view capability = "pictures of its decoder's attention";
  virtual ~ShowsDecoder() = default;
  /// Whether the model, as it is configured, has a decoder that reads a source.
  virtual bool has_decoder() const { return true; }
  virtual int64_t decoder_layers() const = 0;
  /// [H, L, T] f32: the attention probabilities of layer `layer` of the decoder for its inputs
  /// tokens [1, L], after the source [1, S]: to what is decoded so far, or, with `cross`, to the
  /// source. Throws ValueError if there is no such layer.
  virtual Tensor decoder_map(const Tensor& source, const Tensor& tokens, int64_t layer,
                             bool cross) const = 0;
  bool available() const { return has_decoder(); }
};

/// Learns how many tokens back each token sees.
class LearnsSpans {
 public:
  static constexpr std::string_view capability = "learned spans of attention";
  virtual ~LearnsSpans() = default;
  /// Returns how many tokens back each of the tokens [1, L] sees in each layer and head:
  /// [layers, H, L] f32.
  virtual Tensor seen_spans(const Tensor& tokens) const = 0;
  bool available() const { return true; }
};

/// Learns how long to remember each token, and deletes it then.
class ForgetsTokens {
 public:
  static constexpr std::string_view capability = "memories that expire";
  virtual ~ForgetsTokens() = default;
  /// Returns for each layer how many steps each of tokens [B, L] is remembered after the segments
  /// in `memory`, [B, L] f32 (f64 for f64).
  virtual std::vector<Tensor> token_spans(const Tensor& tokens,
                                          const SegmentMemory& memory) const = 0;
  /// Returns for each layer how many rows of `memory` the next token can see, averaged over
  /// samples. Waits for the device.
  virtual std::vector<double> living(const SegmentMemory& memory) const = 0;
  bool available() const { return true; }
};

/// Has something to tell that programs print and log.
class Remarks {
 public:
  static constexpr std::string_view capability = "remarks";
  virtual ~Remarks() = default;
  /// A remark about a run over segments of `length` tokens; empty: nothing.
  virtual std::string remark(int64_t /*length*/) const { return {}; }
  /// Returns lines about how the model attends to tokens [1, L], one for each layer; may be empty.
  virtual std::vector<std::string> report(const Tensor& /*tokens*/) const { return {}; }
  /// Returns numbers to log in each step beside the losses, by name, such as how full clusters are;
  /// may be empty. Waits for the device.
  virtual std::vector<std::pair<std::string, double>> log_values() const { return {}; }
  bool available() const { return true; }
};

/// Takes from data what it needs before its first step.
class BeginsWithData {
 public:
  static constexpr std::string_view capability = "a beginning that depends on the data";
  virtual ~BeginsWithData() = default;
  /// Programs call it once, with the tokens [B, L] of the first batch of a run that starts with
  /// drawn weights.
  virtual void begin_training(const Tensor& tokens, Generator gen) = 0;
  bool available() const { return true; }
};

/// Has layers that are reversible under every memory policy, so that policy `reversible` computes
/// the same function as `standard`, with gradients equal up to rounding, and not another network.
class ReversibleLayers {
 public:
  static constexpr std::string_view capability = "reversible layers";
  virtual ~ReversibleLayers() = default;
  bool available() const { return true; }
};

/// Returns the model as one whose class has this capability, whatever its configuration says: null
/// if it has not.
template <class Capability, class Model>
auto implements(Model& model) {
  using Found = std::conditional_t<std::is_const_v<Model>, const Capability, Capability>;
  return dynamic_cast<Found*>(&model);
}

/// Returns the model as one with this capability; null if its class or its configuration lacks it.
template <class Capability, class Model>
auto ask(Model& model) {
  auto* const found = implements<Capability>(model);
  return found != nullptr && found->Capability::available() ? found : nullptr;
}

/// Returns the capabilities of a model in words: "continuing a sequence, a memory between
/// segments".
std::string capabilities_of(const LanguageModel& model);

/// Throws NotImplemented: the model lacks `capability`. Names what it has.
[[noreturn]] void fail_for_capability(const LanguageModel& model, std::string_view capability);

/// Returns the model as one with this capability. Throws NotImplemented that names the capability
/// and those that the model has.
template <class Capability>
const Capability& need(const LanguageModel& model) {
  const Capability* const found = ask<Capability>(model);
  if (found == nullptr) fail_for_capability(model, Capability::capability);
  return *found;
}

// What follows of capabilities for a model with or without them.

/// Streams::memory_length(), 0 without; memory_tokens() likewise.
int64_t memory_length(const LanguageModel& model);
int64_t memory_tokens(const LanguageModel& model);
/// Streams::empty_memory() and evaluation_memory(); a memory of no layers without.
SegmentMemory empty_memory(const LanguageModel& model, int64_t batch);
SegmentMemory evaluation_memory(const LanguageModel& model, int64_t batch);
/// FillsMasks::mask_token(), -1 without.
int64_t mask_token(const LanguageModel& model);
/// The largest number of input tokens: of the source if the model reads one, else of a segment.
int64_t max_input_length(const LanguageModel& model);
/// Remarks::remark(), empty without.
std::string remark(const LanguageModel& model, int64_t length);

/// Returns the multiply-accumulates (ops/cost.h) of the loss over `batch` segments of `length`
/// tokens, or, if the model reads a source, over sources of that length and targets as long, at
/// most max_length(). Runs the model: build it on the meta device, where that costs no work and no
/// memory.
int64_t forward_macs(const LanguageModel& model, int64_t length, int64_t batch = 1);

}  // namespace longspan
