#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/causal_decoder.h"
#include "models/compressive/compressive_attention.h"
#include "models/model_spec.h"

namespace longspan {

/// What the memory of a stream begins with: no row, or zero vectors, which are attended to and
/// compressed, as in algorithm 1 of the paper.
enum class MemoryStart : uint8_t { grow, zeros };
template <>
inline constexpr std::array<std::string_view, 2> value_names<MemoryStart>{"grow", "zeros"};

/// The Compressive Transformer \cite rae2020 .
struct CompressiveConfig {
  int64_t vocab = 256, n_layer = 4, n_head = 4, d_model = 128, d_ff = 512;
  int64_t d_head = 0;
  int64_t mem_len = 128;
  int64_t compressed_len = 64;
  int64_t rate = 4;
  /// Layers that have memories, ascending from 0; empty: all. The others see the segment alone.
  std::vector<int64_t> memory_layers = {};
  /// n_s, tokens after which decoding moves the memory on: the length of segments in training.
  int64_t segment = 128;
  Eviction eviction = Eviction::carry;
  MemoryStart start = MemoryStart::grow;
  Compression compression = Compression::conv;
  int64_t dilation = 2;
  ConvStart conv_init = ConvStart::average;
  CompressionLoss loss = CompressionLoss::attention;
  LossNorm loss_norm = LossNorm::mse;
  int64_t clamp = 0;
  bool untie_biases = false;
  NormPlace norm = NormPlace::post;
  double norm_eps = 1e-5;
  bool final_norm = true;
  bool tie_embedding = true, head_bias = true;
  /// Adaptive embedding and softmax (nn/adaptive.h); empty: one table.
  std::vector<int64_t> cutoffs = {}, tie_projections = {};
  int64_t div_value = 1;
  bool emb_scale = true;
  float dropout = 0;
  float dropout_attn = 0;
  double init_std = 0.02;
  double embed_std = 0;
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};
  bool history = false;  ///< CompressiveOptions::history; no option of programs

  void visit(auto& v) {
    visit_sizes(v, *this);
    v("d_head", d_head, range::not_negative, meaning::d_head);
    v("mem_len", mem_len, range::positive, "n_m, newest inputs that each layer keeps");
    v("compressed_len", compressed_len, range::not_negative,
      "n_cm, compressed rows before them; 0: none");
    v("rate", rate, range::positive, "c, rows that become one");
    v("memory_layers", memory_layers, "layers with memories, ascending from 0; empty: all");
    v("segment", segment, range::positive, "n_s, tokens after which decoding moves the memory on");
    v("eviction", eviction, "rows that are too few to compress: carried along, or dropped");
    v("start", start, "the first memory: empty, or of zero rows");
    v("compression", compression, "how c rows become one");
    v("dilation", dilation, range::positive,
      "compression = dilated: distance of the rows of a kernel");
    v("conv_init", conv_init, "how the kernels of conv and dilated begin");
    v("loss", loss, "loss that trains the compression");
    v("loss_norm", loss_norm, "norm of that loss");
    v("clamp", clamp, range::not_negative, meaning::clamp);
    v("untie_biases", untie_biases, meaning::untie_biases);
    v("norm", norm, meaning::norm)("norm_eps", norm_eps, range::above_zero, meaning::norm_eps);
    v("final_norm", final_norm, meaning::final_norm);
    v("tie_embedding", tie_embedding, meaning::tie_embedding);
    v("head_bias", head_bias, meaning::head_bias)("emb_scale", emb_scale, meaning::emb_scale);
    v("cutoffs", cutoffs, meaning::cutoffs);
    v("tie_projections", tie_projections, meaning::tie_projections);
    v("div_value", div_value, meaning::div_value);
    v("dropout", dropout, range::probability, meaning::dropout);
    v("dropout_attn", dropout_attn, range::probability, "of attention probabilities");
    v("init_std", init_std, range::not_negative, meaning::init_std);
    v("embed_std", embed_std, range::not_negative, "std of tokens; 0: init_std");
    visit_computation(v, *this);
  }

  /// See ModelSpec: segments in decoding are those of training.
  std::string_view settle_length(int64_t length) {
    segment = length;
    return "segment";
  }
  CompressedQueue queue() const { return {compressed_len, mem_len, rate, eviction}; }
  /// Whether layer i has memories.
  bool remembers(int64_t i) const {
    return memory_layers.empty() || std::ranges::find(memory_layers, i) != memory_layers.end();
  }
};

/// Transformer-XL whose layers do not throw their oldest states away but compress them, c rows into
/// one (CompressiveAttention):
///   h~ = [SG(cm); SG(m); h]     q = W_q h     k, v = W_k h~, W_v h~
///   s_ij = ((q_i + u) . k_j + (q_i + v) . W_R R_{C + M + i - j}) / sqrt(d)
///   h <- LN(h + Drop(W_o softmax(s) v));  h <- LN(h + Drop(W_2 relu(W_1 h)))
/// A compressed row counts as one step of distance. All layers share u and v unless untie_biases. R
/// is the same for all layers, and its dropout too. In training the auxiliary loss "compression" is
/// summed over layers; it has no weight, because no parameter is trained by it and by another loss.
class Compressive final : public CausalDecoder, public Remarks {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  Compressive(const CompressiveConfig& config, const Init& init);

  const CompressiveConfig& config() const { return config_; }
  /// Rows of the queue of each layer, those for evicted rows that wait for a group included.
  int64_t memory_length() const override { return rows_; }
  int64_t memory_tokens() const override;
  SegmentMemory empty_memory(int64_t batch) const override;
  /// Keeps projected keys and values, and W_R R (CompressiveAttention::evaluation); with
  /// start = zeros it is empty_memory().
  SegmentMemory evaluation_memory(int64_t batch) const override;
  std::unique_ptr<DecodeState> start_decoding(int64_t batch) const override;
  /// New tokens append to the open segment; when it has `segment` of them, the memory moves on.
  Tensor decode(const Tensor& tokens, DecodeState& state) const override;
  std::string remark(int64_t length) const override;
  std::vector<int64_t> divided_heads() const override { return {}; }

  /// Returns [N, T] f64: the fraction of its attention that each layer gives to each of the T keys
  /// [cm; m; h] of the segment after `memory`, a mean over samples, heads and rows. Rows sum to 1;
  /// layers without memories give nothing to cm and m.
  Tensor attention_shares(const Tensor& tokens, const SegmentMemory& memory) const;

 private:
  LayerContext layer_context(int64_t queries, int64_t keys, int64_t first_key) const override;
  Stack::Result states(const Tensor& tokens, const SegmentMemory& memory, Pass pass) const override;
  Stack::Result run(const Tensor& x, const LayerContext& ctx, StreamState* state,
                    Pass pass) const override;
  /// Adds the first rows of the queue, and usage, to the empty memory of a layer. `phantom` rows of
  /// zeros exist when a stream begins, and phantom_fine of them are not compressed.
  void add_queue(LayerMemory& m, int64_t batch, int64_t phantom, int64_t phantom_fine) const;
  void visit_more(Visitor& v) override { v("u", u_)("v", v_); }

  CompressiveConfig config_;
  int64_t rows_;
  Tensor u_, v_;  // [H, d], shared by all layers; undefined with untie_biases
  DistanceTable distances_;
  std::vector<const CompressiveAttention*> attention_;  // of each layer, in stack_
};

/// Returns the sums of `shares` [T] over `buckets` consecutive ranges of keys, as equal as
/// possible: the data of a figure of attention over age.
std::vector<double> in_buckets(const std::vector<double>& shares, int64_t buckets);

/// Entry of the model under the name that programs use.
const ModelEntry& compressive_entry();

/// Configurations of the paper. Throws ValueError on an unknown name.
CompressiveConfig compressive_preset(std::string_view name);

}  // namespace longspan
