#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/document_model.h"
#include "models/model_spec.h"
#include "models/parts.h"
#include "nn/layers.h"
#include "nn/stack.h"

namespace longspan {

/// The configuration of HIBERT \cite zhang2019hibert . The last four ids of the vocabulary are the
/// decoder's first input, its end, the end of a sentence in a document, and the token that masks.
struct HibertConfig {
  int64_t vocab = 4096;
  int64_t n_layer = 2;
  int64_t document_layers = 2, decoder_layers = 2;
  int64_t n_head = 4, d_model = 64, d_ff = 256;
  int64_t sentence_length = 51;
  int64_t labels = 0;
  bool label_bias = true;

  bool emb_scale = true;
  int64_t position_offset = 0;
  bool sentence_positions = true;
  bool share_all = false;
  bool merge_ends = false;
  bool merge_begin = false;
  Activation activation = Activation::relu;
  double norm_eps = 1e-5;
  double head_std = 0;

  double smoothing = 0.1;
  float dropout = 0.1f, dropout_attn = -1;
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  void visit(auto& v) {
    v("vocab", vocab, "tokens of the vocabulary; the last four mark sentences and masks");
    v("n_layer", n_layer, range::count, "layers of the sentence encoder");
    v("document_layers", document_layers, range::none_or_count, "layers of the document encoder");
    v("decoder_layers", decoder_layers, range::count, "layers of the decoder");
    v("n_head", n_head, range::positive, meaning::n_head);
    v("d_model", d_model, range::positive, meaning::d_model);
    v("d_ff", d_ff, range::positive, meaning::d_ff);
    v("sentence_length", sentence_length, "maximum tokens of a sentence, with its end token");
    v("labels", labels, range::not_negative,
      "classes of a sentence; 0: a decoder writes masked sentences");
    v("label_bias", label_bias, "b of softmax(W d + b): in the authors' code, not in the paper");
    v("emb_scale", emb_scale, meaning::emb_scale);
    v("position_offset", position_offset, "position of the first token: 2 in the authors' code");
    v("sentence_positions", sentence_positions,
      "the position of a sentence is added to its vector");
    v("share_all", share_all, "the decoder reads the encoder's token table");
    v("merge_ends", merge_ends, "the decoder ends with the end token of sentences");
    v("merge_begin", merge_begin, "the decoder begins with its end token");
    v("activation", activation, meaning::activation);
    v("norm_eps", norm_eps, meaning::norm_eps);
    v("head_std", head_std, range::not_negative, "std of the output matrix; 0: 1 / sqrt(d_model)");
    v("smoothing", smoothing, "label smoothing of masked sentences");
    v("dropout", dropout, range::probability, meaning::dropout);
    v("dropout_attn", dropout_attn, range::as_dropout, meaning::dropout_attn);
    visit_computation(v, *this);
  }
};

/// A hierarchical encoder of documents \cite zhang2019hibert . A sentence encoder turns sentence i
/// into h_i, its state at the end token; a document encoder reads h_i + p_i and returns d_i, which
/// knows the other sentences. A decoder writes a masked sentence from its d_i, or a linear layer
/// labels every sentence.
///   y = LN(x1 + W2 relu(W1 x1)),  x1 = LN(x + MHA(x))      layers of both encoders
///   x <- LN(x + MHA(x)), LN(x + d_i), LN(x + FFN(x))       layers of the decoder
/// Sentences are packed: no row, pair or score of padding exists. Outside training, what else is in
/// a batch changes no bit of a document's results; in training it may change the last bits. In the
/// last layer of the sentence encoder, only the end tokens are queries.
class Hibert final : public DocumentModel {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  Hibert(const HibertConfig& config, const Init& init);

  const HibertConfig& config() const { return config_; }

  /// Returns h, [sentences, D]. Throws as sentence_loss().
  Tensor sentence_vectors(const PackedDocuments& in, Pass pass) const;
  /// Returns d, [sentences, D].
  Tensor encode(const PackedDocuments& in, Pass pass) const;
  /// Returns the decoder's states, [inputs, D], for contexts d of encode(). head() maps them to
  /// logits [inputs, V].
  Tensor write(const Tensor& d, const SentenceTargets& written, Pass pass) const;
  Tensor head(const Tensor& states) const;

  Losses sentence_loss(const PackedDocuments& in, const SentenceTargets& written,
                       Pass pass) const override;
  Tensor sentence_logits(const PackedDocuments& in, const SentenceTargets& written,
                         Pass pass) const override;
  Tensor label_logits(const PackedDocuments& in, Pass pass) const override;

  /// Keeps keys and values of the decoder's earlier tokens.
  std::unique_ptr<DecodeState> start_writing(const PackedDocuments& in,
                                             const std::vector<int64_t>& slots) const override;
  Tensor decode(const Tensor& tokens, DecodeState& state) const override;

  DocumentTokens special() const override;
  int64_t max_sentence() const override { return config_.sentence_length; }
  int64_t labels() const override { return config_.labels; }
  int64_t vocab() const override { return config_.vocab; }
  Device device() const override { return token_.weight.device(); }
  /// Layers of the sentence encoder, followed by layers of the document encoder.
  int64_t layers() const override { return config_.n_layer + config_.document_layers; }
  /// The last layer of the sentence encoder has the rows of end tokens alone, and in layers of the
  /// document encoder these stand for their sentences. The token before an end token that was added
  /// to the row stands for both.
  Tensor attention_map(const Tensor& tokens, int64_t layer) const override;
  /// Throws NotImplemented: it depends on the tokens, which say where sentences end.
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
  void visit(Visitor& v) override;

 private:
  /// Returns the decoder's states of the sentences that it writes, [inputs, D].
  Tensor written_states(const PackedDocuments& in, const SentenceTargets& written, Pass pass) const;
  void check(const PackedDocuments& in) const;
  void check(const PackedDocuments& in, const SentenceTargets& written) const;
  /// Embeds ids [n] of sequences of these lengths: [1, n, D].
  Tensor embed(const Embedding& table, const std::vector<int32_t>& ids,
               const std::vector<int64_t>& lengths, Pass site) const;
  /// Returns the end tokens' rows [1, sentences, D] before the last layer of the sentence encoder,
  /// and sets what they attend to.
  Tensor ends_input(const PackedDocuments& in, Pass pass, LayerContext& last) const;
  /// Returns h_i + p_i, [1, sentences, D].
  Tensor documents_input(const PackedDocuments& in, Pass pass) const;
  /// Returns the rows of positions 0 to lengths[s] - 1 of each sequence s, [n, D].
  Tensor positions(const std::vector<int64_t>& lengths) const;
  Tensor scaled(const Tensor& x) const;

  HibertConfig config_;
  DType compute_;
  Embedding token_;          // [V, D]
  Stack words_, ends_;       // layers of the sentence encoder: all but the last, the last
  Stack documents_;          // of the document encoder
  Embedding written_token_;  // [V, D], token_ with share_all
  Stack decoder_;
  Linear head_;    // [V, D]
  Linear labels_;  // [labels, D]
};

/// Returns the sinusoids of HIBERT, [length, width] in `dtype`: row r is position first + r, with
/// sin((first + r) w_m) in column m < width / 2 and the cosines in the other half,
/// w_m = 10000^(-m / (width / 2 - 1)). Throws ValueError unless width is even and 4 or more.
Tensor hibert_positions(int64_t first, int64_t length, int64_t width, DType dtype, Device device);

/// Entry of the model under the name that programs use.
const ModelEntry& hibert_entry();

/// Configurations by name. Throws ValueError on an unknown name.
HibertConfig hibert_preset(std::string_view name);

}  // namespace longspan
