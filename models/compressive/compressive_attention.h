#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "models/compressive/compressed_queue.h"
#include "models/compressive/compression.h"
#include "nn/attention/decoding_memory.h"
#include "nn/attention/relative.h"
#include "nn/segment.h"

namespace longspan {

/// What trains the compression: nothing; that attention over compressed rows is that over the rows
/// themselves; or that the rows can be restored.
enum class CompressionLoss : uint8_t { none, attention, autoencode };
template <>
inline constexpr std::array<std::string_view, 3> value_names<CompressionLoss>{"none", "attention",
                                                                              "autoencode"};

/// Options of CompressiveAttention.
struct CompressiveOptions {
  CompressedQueue queue = {};  ///< with fine = 0 the layer has no memory and sees the segment alone
  int64_t segment = 1;         ///< n_s of decoding
  CompressionOptions compression = {};
  CompressionLoss loss = CompressionLoss::none;
  LossNorm norm = LossNorm::mse;
  /// Memories keep their history, so that the loss of later segments trains the compression: the
  /// paper's back-propagation through time, here for tests of short unrolls alone.
  bool history = false;
};

/// What the layer keeps beside InputRows, whose older rows are compressed; in evaluation and
/// decoding beside KeyValues too.
struct CompressedRows {
  /// i64 [B]: the first row of the memory that is not compressed.
  Tensor fine_begin = {};
  /// What rows were used for, [B, capacity, 2] (f64 for f64, else f32), with most_used: the
  /// attention that each got, and the most that it could get.
  Tensor usage = {};
  Tensor open = {};  ///< inputs of a segment that decoding has not completed, [B, n, D]
  int64_t fine_begin_of_stream = 0;  ///< `fine_begin` before the first segment

  void visit(const StateVisitor& v) {
    v({.name = "fine_begin", .x = fine_begin, .blank = static_cast<double>(fine_begin_of_stream)});
    v({"usage", usage});
    v({"open", open});
  }
};

/// Transformer-XL's attention over [cm; m; h], which makes the next cm and m itself \cite rae2020
/// (algorithm 1):
///   queue = [m; h]    old = queue[: e], e = |queue| - n_m    m <- SG(queue[e :])
///   new = f_c(SG(old))    cm <- the last n_cm rows of [cm; SG(new)]
/// In training it returns the loss "compression", of which there is none where a segment of this
/// length can never evict a group:
///   attention   |A(h, old) - A(h, new)|, A(h, z) = softmax((h Wq)(z Wk)^T / sqrt(d)) z Wv by head,
///               without positions, biases and masks; with pre-norm h, old and new are normed
///   autoencode  |old - g(f_c(old))|
/// In it h, old, Wq, Wk, Wv and the norm are constants, so that only f_c and g learn from it, and
/// nothing else trains them; their gradients are clipped apart, as group "compression".
class CompressiveAttention final : public RelativeMultiHead {
 public:
  CompressiveAttention(const AttentionOptions& options, const CompressiveOptions& compressive,
                       int64_t reach, const Tensor& u, const Tensor& v, const Init& init,
                       bool own_biases);

  /// As MultiHead::forward(), and returns the memory for the next segment in Output::kept, for
  /// evaluation if ctx has a memory of evaluation(). When decoding, x continues the open segment,
  /// and the queue moves on when it has `segment` rows. Throws ValueError without a memory in ctx,
  /// when training with one of evaluation, and when decoding beyond the end of the open segment.
  Output computed(const Tensor& onto, const Tensor& x, const LayerContext& ctx,
                  Pass pass) const override;
  void visit(Visitor& v) override;
  bool splits() const override { return false; }

  /// Rows of the memory.
  int64_t rows() const;
  /// Returns an empty memory for evaluation, where weights do not change. It holds keys and values
  /// of the queue, [B, H, rows(), d], which are projected once, and the states of those rows alone
  /// that are still to be compressed, the fine ones: [B, rows() - n_cm, D]. Keys and values of fine
  /// rows determine those of the compressed row with most_used, and with mean if no norm precedes
  /// the projections; all other compressions need the states.
  LayerMemory evaluation(int64_t batch, DType dtype, Device device) const;

  /// Returns the attention that each key of [queue; x] gets from all rows of x and all heads, [B,
  /// T]. The rows' sums add up to L H.
  Tensor mass(const Tensor& x, const LayerContext& ctx) const;

 private:
  Tensor mass_of(const Projected& p, const LayerContext& ctx, const ScoreTerms& terms) const;
  Output decode(const Tensor& x, const LayerContext& ctx) const;
  /// Returns queries of x, and keys and values of [queue; x], without the terms of positions.
  Projected content(const Tensor& x, const LayerContext& ctx) const;
  /// Returns usage [B, rows, 2] of the rows of [queue; segment], with `mass` added to those that
  /// exist and were in the memory.
  Tensor usage_after(const Tensor& usage, const Tensor& mass, int64_t queries) const;
  /// Returns the memory after the segment x [B, L, D], and adds the loss to `losses` if given.
  LayerMemory advanced(const LayerMemory& before, const Tensor& x, const Tensor& usage,
                       const LayerContext& ctx, const Projected& content,
                       std::vector<AuxiliaryLoss>* losses) const;
  /// The same for a memory of evaluation(), or of states at the first end of a segment in decoding.
  LayerMemory advanced_keys(const LayerMemory& before, const Tensor& x, const Tensor& usage,
                            const LayerContext& ctx, const Projected& content) const;
  Tensor compression_loss(const OldRows& old, const Tensor& made,
                          const CompressedQueue::Update& update, const LayerContext& ctx,
                          const Projected& content) const;

  CompressiveOptions compressive_;
  Compressor compressor_;
  std::optional<Restorer> restorer_;
};

}  // namespace longspan
