#include "nn/chunked.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "autograd/mode.h"
#include "core/kernels/copy.h"
#include "nn/checkpoint.h"
#include "ops/elementwise.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr std::string_view kChunked = "chunked";

/// Concatenates its inputs, which hold consecutive rows of the output.
struct JoinNode final : autograd::Node {
  JoinNode() : Node(kChunked) {}
  Grads backward(std::span<const Tensor> dy) override {
    Grads parts;
    int64_t row = 0;
    for (const autograd::Edge& piece : next) {
      const int64_t n = piece.node->outputs[static_cast<size_t>(piece.slot)].shape[1];
      parts.push_back(narrow(dy[0], 1, row, n));
      row += n;
    }
    return parts;
  }
};

/// Copies pieces of [1, T, E] into one tensor as they arrive, so that only one piece is alive at a
/// time.
class Join {
 public:
  explicit Join(int64_t rows) : rows_(rows) {}

  void add(const Tensor& piece) {
    if (!y_) y_ = Tensor::empty({1, rows_, piece.dim(2)}, piece.dtype(), piece.device());
    Tensor to = y_.alias(piece.shape(), y_.strides(), at_ * piece.dim(2));
    kernels::copy(y_.device(), piece.view(), to.mut());
    at_ += piece.dim(1);
    pieces_.push_back(autograd::edge_of(piece));
  }

  Tensor take() {
    if (pieces_.front().node) {
      const auto node = std::make_shared<JoinNode>();
      Tensor* const made[] = {&y_};
      autograd::attach(node, {}, made);
      node->next = std::move(pieces_);
    }
    return y_;
  }

 private:
  int64_t rows_, at_ = 0;
  Tensor y_;
  std::vector<autograd::Edge> pieces_;
};

/// Multiplies the losses of `n` of `total` rows by their share.
std::vector<AuxiliaryLoss> weighted(std::vector<AuxiliaryLoss> losses, int64_t n, int64_t total) {
  if (n == total) return losses;
  const double share = static_cast<double>(n) / static_cast<double>(total);
  for (AuxiliaryLoss& loss : losses) loss.value = mul(loss.value, share);
  return losses;
}

}  // namespace

Output chunked(const Tensor& x, int64_t chunks, Pass pass, const RowFunction& f) {
  require(chunks >= 1, kChunked, "{} chunks; expected 1 or more", chunks);
  require_rank_is(kChunked, x, 3);
  const int64_t total = x.dim(0) * x.dim(1);
  const int64_t size = std::max<int64_t>(1, total / chunks + (total % chunks != 0 ? 1 : 0));
  const Tensor rows = reshape(x, {1, total, x.dim(2)});
  // Saved before the first piece: an enclosing checkpoint scope that recomputes can stop here.
  const auto input = std::make_shared<const detail::Argument>(rows);
  Join join(total);
  Output all;
  const auto collect = [&](Output piece, int64_t n) {
    join.add(piece.y);
    add_losses(all.losses, weighted(std::move(piece.losses), n, total));
    add_statistics(all.statistics, std::move(piece.statistics));
  };
  int64_t begin = 0;
  do {
    const int64_t n = std::min(size, total - begin);
    Pass site = pass;
    site.row += begin;
    if (autograd::recording()) {
      const auto part = std::make_shared<detail::ReplayedPart>(
          autograd::Results::none, [=] { f(narrow(input->again(), 1, begin, n), site); });
      const Tensor piece = narrow(rows, 1, begin, n);
      Output made;
      part->first([&] { made = f(piece, site); });
      collect(std::move(made), n);
    } else {
      collect(f(narrow(rows, 1, begin, n), site), n);
    }
    begin += n;
  } while (begin < total);
  const Tensor y = join.take();
  all.y = reshape(y, {x.dim(0), x.dim(1), y.dim(2)});
  return all;
}

Output chunked(const Layer& layer, const Tensor& x, int64_t chunks, Pass pass) {
  require(layer.position_wise(), kChunked,
          "the layer looks at other rows than its own; only position-wise ones run in pieces");
  return chunked(x, chunks, pass,
                 [&layer](const Tensor& rows, Pass site) { return layer.forward(rows, {}, site); });
}

}  // namespace longspan
