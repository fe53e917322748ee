#include "ops/attention/edge_attention.h"

#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "autograd/record.h"
#include "ops/attention/heads.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/random.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kEdgeAttention = "edge_attention";

void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& relation,
                  const EdgeLayout& edges) {
  for (const Named& x : {Named{"q", q}, Named{"k", k}, Named{"v", v}}) {
    require<ValueError>(static_cast<bool>(x.tensor), kEdgeAttention, "{} is not given", x.name);
    require_rank_is(kEdgeAttention, x.tensor, 4, x.name);
    require_floating(kEdgeAttention, x.tensor, x.name);
    require_same_dtype(kEdgeAttention, {"q", q}, x);
    require_same_device(kEdgeAttention, {"q", q}, x);
  }
  for (int axis = 0; axis < 2; ++axis) {
    if (q.dim(axis) != k.dim(axis) || q.dim(axis) != v.dim(axis)) {
      fail_with<ShapeError>(kEdgeAttention, "q, k and v must have the same batch and heads",
                            {{"q", q}, {"k", k}, {"v", v}});
    }
  }
  if (q.dim(2) != edges.n_rows || k.dim(2) != edges.n_keys || v.dim(2) != edges.n_keys) {
    fail_with<ShapeError>(kEdgeAttention,
                          fmt::format("the layout has {} rows and {} keys; q must have as many "
                                      "rows, k and v as many keys",
                                      edges.n_rows, edges.n_keys),
                          {{"q", q}, {"k", k}, {"v", v}});
  }
  if (q.dim(3) != k.dim(3)) {
    fail_with<ShapeError>(kEdgeAttention, "q and k must have the same width", {{"q", q}, {"k", k}});
  }
  if (std::min(q.dim(3), v.dim(3)) < 1 ||
      std::max(q.dim(3), v.dim(3)) > kernels::kAttentionMaxWidth) {
    fail_with<ShapeError>(kEdgeAttention,
                          fmt::format("widths must be 1 to {}", kernels::kAttentionMaxWidth),
                          {{"q", q}, {"v", v}});
  }
  if (!relation) return;
  require_same_dtype(kEdgeAttention, {"q", q}, {"relation", relation});
  require_same_device(kEdgeAttention, {"q", q}, {"relation", relation});
  if (relation.rank() != 2 || relation.dim(0) < edges.n_labels || relation.dim(1) != q.dim(3)) {
    fail_with<ShapeError>(
        kEdgeAttention, fmt::format("relation must be [{} or more, {}]", edges.n_labels, q.dim(3)),
        {{"q", q}, {"relation", relation}});
  }
}

/// The scalars and the layout of a call; the tensors are saved separately.
struct EdgeCall {
  std::shared_ptr<const EdgeLayout> edges;
  double scale = 1;
  kernels::AttentionDropout dropout;

  kernels::EdgeAttentionInputs inputs(const Tensor& q, const Tensor& k, const Tensor& v,
                                      const Tensor& relation) const {
    return {q.view(),
            k.view(),
            v.view(),
            relation.view(),
            edges->view(),
            edges->block_keys,
            edges->block_labels,
            edges->strip_slots,
            edges->strip_pieces,
            edges->row_slots,
            edges->key_slots,
            scale,
            dropout};
  }
};

struct EdgeNode final : autograd::Node {
  explicit EdgeNode(EdgeCall c) : Node(kEdgeAttention), call(std::move(c)) {}

  Grads backward(std::span<const Tensor> dy) override {
    const Tensor &q = saved(0), &k = saved(1), &v = saved(2), &relation = saved(3);
    const Tensor &out = saved(4), &lse = saved(5);
    const Tensor dout = detail::last_dim_contiguous(dy[0]);
    Tensor dq = detail::empty_gradient(q);
    Tensor dk = detail::empty_gradient(k);
    Tensor dv = detail::empty_gradient(v);
    Tensor drelation = relation ? Tensor::like(relation) : Tensor{};
    kernels::edge_attention_backward(
        q.device(), call.inputs(q, k, v, relation), out.view(), lse.view(), dout.view(),
        {dq.mut(), dk.mut(), dv.mut(), drelation ? drelation.mut() : View{}});
    return {wants(0) ? dq : Tensor{}, wants(1) ? dk : Tensor{}, wants(2) ? dv : Tensor{},
            drelation};
  }

  EdgeCall call;
};

/// Computes out and lse.
std::array<Tensor, 2> compute(const EdgeCall& call, const Tensor& q, const Tensor& k,
                              const Tensor& v, const Tensor& relation) {
  const int64_t heads = q.dim(0) * q.dim(1);
  // The terms of labels count once for each pair, however often a backend computes them.
  const int64_t width = q.dim(3) * (relation ? 2 : 1) + v.dim(3);
  MacCount::add_attention(heads * call.edges->pairs * width);
  Tensor out = detail::empty_blhd(q, q.dim(2), v.dim(3));
  Tensor lse = Tensor::empty({q.dim(0), q.dim(1), q.dim(2)}, q.dtype(), q.device());
  if (lse.numel() > 0) {
    kernels::edge_attention_forward(q.device(), call.inputs(q, k, v, relation), out.mut(),
                                    lse.mut());
  }
  return {out, lse};
}

}  // namespace

Tensor edge_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& relation,
                      const std::shared_ptr<const EdgeLayout>& edges, double scale,
                      const Dropout& dropout) {
  require<ValueError>(edges != nullptr, kEdgeAttention,
                      "no layout is given; make one with tree_edges()");
  check_inputs(q, k, v, relation, *edges);
  require(std::isfinite(scale) && scale >= 0, kEdgeAttention, "scale is {}; expected 0 or more",
          scale);
  require(dropout.p >= 0 && dropout.p < 1, kEdgeAttention,
          "dropout is {}; expected 0 or more, below 1", dropout.p);
  if (q.dtype() != DType::f64 && q.dtype() != DType::f32) {
    const auto wide = [](const Tensor& x) { return x ? cast(x, DType::f32) : x; };
    return cast(edge_attention(wide(q), wide(k), wide(v), wide(relation), edges, scale, dropout),
                q.dtype());
  }
  require<NotImplemented>(kernels::edge_attention_forward.has(q.device().kind), kEdgeAttention,
                          "has no kernel for {} yet; move the tensors to the CPU",
                          name_of(q.device()));
  EdgeCall call{on_device(edges, q.device()),
                scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(q.dim(3))),
                {}};
  if (dropout.pass.training && dropout.p > 0) {
    RngReuseCheck::note(kEdgeAttention, dropout.pass.gen, 0, std::numeric_limits<int64_t>::max());
    call.dropout = {dropout.p, dropout.pass.gen.device_key(), dropout.pass.head};
  }
  const Tensor x = detail::last_dim_contiguous(q), y = detail::last_dim_contiguous(k),
               z = detail::last_dim_contiguous(v);
  const Tensor r = relation ? contiguous(relation.detach()) : Tensor{};
  const Tensor inputs[] = {q, k, v, relation};
  auto [out, lse] = autograd::reuse_or_recompute<2>(kEdgeAttention, inputs, {},
                                                    [&] { return compute(call, x, y, z, r); });
  record_node(kEdgeAttention, inputs, std::array{&out}, [&] {
    auto node = std::make_shared<EdgeNode>(call);
    node->save({x, y, z, r, out, lse});
    return node;
  });
  return out;
}

}  // namespace longspan
