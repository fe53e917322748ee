#include "ops/block_attention.h"

#include <cmath>
#include <limits>

#include "autograd/record.h"
#include "ops/kernels/copy.h"
#include "ops/random.h"

namespace longspan {
namespace {

constexpr const char* kOp = "block_attention";

// Rows in one piece: the last stride 1.
Tensor with_unit_rows(const Tensor& x) {
  if (x.dim(-1) <= 1 || x.strides().back() == 1) return x.detach();
  Tensor y = Tensor::like(x);
  kernels::copy(x.device(), x.view(), y.mut());
  return y;
}

Tensor packed(const Tensor& x) {
  if (x.contiguous()) return x.detach();
  Tensor y = Tensor::like(x);
  kernels::copy(x.device(), x.view(), y.mut());
  return y;
}

// [B, H, L, width] over memory [B, L, H, width].
Tensor heads_inside(const Tensor& like, int64_t rows, int64_t width) {
  const int64_t batch = like.dim(0), heads = like.dim(1);
  return Tensor::empty({batch, rows, heads, width}, like.dtype(), like.device())
      .alias({batch, heads, rows, width}, {rows * heads * width, width, heads * width, 1}, 0);
}

void refuse(bool given, const char* field) {
  require<NotImplemented>(!given, kOp, "{} is not implemented", field);
}

void check_table(const Tensor& q, const Tensor& table, const char* name, int64_t heads, int64_t ids,
                 int64_t width) {
  if (!table) return;
  const int extra = width > 0 ? 1 : 0;
  const bool per_head = table.rank() == 2 + extra;
  bool fits = (per_head || table.rank() == 1 + extra) && table.dim(per_head ? 1 : 0) == ids;
  if (fits && per_head) fits = table.dim(0) == heads;
  if (fits && width > 0) fits = table.dim(-1) == width;
  if (!fits) {
    const std::string row = width > 0 ? fmt::format("{}, {}", ids, width) : fmt::format("{}", ids);
    fail_with<ShapeError>(kOp,
                          fmt::format("{} has shape {}; expected [{}] or [{}, {}]", name,
                                      to_string(table.shape()), row, heads, row),
                          {{"q", q}, {name, table}});
  }
  require_same_dtype(kOp, {"q", q}, {name, table});
  require_same_device(kOp, {"q", q}, {name, table});
}

void check_lengths(const Tensor& q, const Tensor& lengths, const char* name) {
  if (!lengths) return;
  if (lengths.dtype() != DType::i64) {
    fail_with<DTypeError>(kOp, fmt::format("{} is not i64", name), {{name, lengths}});
  }
  if (lengths.rank() != 1 || lengths.dim(0) != q.dim(0) || !lengths.contiguous()) {
    fail_with<ShapeError>(kOp, fmt::format("{} is not [B], B = {}, row-major", name, q.dim(0)),
                          {{"q", q}, {name, lengths}});
  }
  require_same_device(kOp, {"q", q}, {name, lengths});
}

void check(const Tensor& q, const Tensor& k, const Tensor& v, const ScoreTerms& terms,
           const Dropout& dropout) {
  for (const Named& x : {Named{"q", q}, Named{"k", k}, Named{"v", v}}) {
    require<ValueError>(static_cast<bool>(x.tensor), kOp, "{} is not given", x.name);
    require_rank_is(kOp, x.tensor, 4, x.name);
    require_floating(kOp, x.tensor, x.name);
    require_same_dtype(kOp, {"q", q}, x);
    require_same_device(kOp, {"q", q}, x);
  }
  if (k.dim(0) != q.dim(0) || k.dim(1) != q.dim(1) || k.dim(3) != q.dim(3)) {
    fail_with<ShapeError>(kOp, "k must have the batch, heads and width of q", {{"q", q}, {"k", k}});
  }
  if (v.dim(0) != k.dim(0) || v.dim(1) != k.dim(1) || v.dim(2) != k.dim(2)) {
    fail_with<ShapeError>(kOp, "v must have the batch, heads and length of k",
                          {{"k", k}, {"v", v}});
  }
  const int64_t widest = std::max(q.dim(3), v.dim(3));
  if (std::min(q.dim(3), v.dim(3)) < 1 || widest > kernels::kAttentionMaxWidth) {
    fail_with<ShapeError>(kOp, fmt::format("widths must be 1 to {}", kernels::kAttentionMaxWidth),
                          {{"q", q}, {"v", v}});
  }
  require(std::isfinite(terms.scale), kOp, "scale is {}; expected a finite number", terms.scale);
  require(terms.id.left >= 0 && terms.id.right >= 0, kOp,
          "relation ids clip at {} to the left and {} to the right; expected 0 or more",
          terms.id.left, terms.id.right);
  require(dropout.p >= 0 && dropout.p < 1, kOp, "dropout is {}; expected 0 <= p < 1", dropout.p);
  require<NotImplemented>(dropout.p == 0 || !dropout.pass.training || dropout.pass.row == 0, kOp,
                          "dropout.pass.row = {}: dropout of a part of the rows is not implemented",
                          dropout.pass.row);

  const int64_t ids = terms.id.left + terms.id.right + 1;
  check_table(q, terms.relation_key, "relation_key", q.dim(1), ids, q.dim(3));
  check_table(q, terms.relation_bias, "relation_bias", q.dim(1), ids, 0);
  check_table(q, terms.relation_value, "relation_value", q.dim(1), ids, v.dim(3));
  refuse(static_cast<bool>(terms.relative_query), "terms.relative_query");
  refuse(static_cast<bool>(terms.relative_key), "terms.relative_key");
  refuse(static_cast<bool>(terms.span), "terms.span");
  refuse(terms.ramp != 0, "terms.ramp");
  refuse(terms.offset != 0, "terms.offset");
}

void check(const Tensor& q, const AttentionPattern& p, const ScoreTerms& terms) {
  require<NotImplemented>(p.rules.size() == 1, kOp,
                          "rules: {} are given, one for each layout or key segment; one for all is "
                          "implemented",
                          p.rules.size());
  const Rule& rule = p.rules.front();
  check_lengths(q, rule.q_valid, "q_valid");
  check_lengths(q, rule.k_valid, "k_valid");
  refuse(rule.self_last, "rule.self_last");
  refuse(rule.q_segment || rule.k_segment, "rule.q_segment, rule.k_segment");
  refuse(static_cast<bool>(rule.earlier), "rule.earlier");
  refuse(rule.q_cell || rule.k_cell, "rule.q_cell, rule.k_cell");
  refuse(rule.q_free || rule.k_free, "rule.q_free, rule.k_free");
  refuse(rule.q_position || rule.k_position, "rule.q_position, rule.k_position");
  const BlockLayout& layout = *p.layout;
  const bool by_class = p.recipe.kind == Recipe::Kind::classes;
  refuse(rule.window.dilation != 1 && !by_class, "rule.window.dilation with a layout of one's own");
  refuse(rule.stride != 0 && !by_class, "rule.stride with a layout of one's own");
  const bool relations = terms.relation_key || terms.relation_bias || terms.relation_value;
  refuse(relations && (layout.order_q || layout.order_k), "relation terms with order_q, order_k");
  require(rule.window.left >= 0 && rule.window.right >= 0, kOp,
          "the window is {} to the left and {} to the right; expected 0 or more", rule.window.left,
          rule.window.right);
  const bool fits = (layout.which.dim(0) == 1 || layout.which.dim(0) == q.dim(0)) &&
                    (layout.which.dim(1) == 1 || layout.which.dim(1) == q.dim(1));
  require<ShapeError>(fits, kOp, "layout.which has shape {}; expected [1 or {}, 1 or {}]",
                      to_string(layout.which.shape()), q.dim(0), q.dim(1));
}

int64_t times(int64_t steps, int64_t dilation) {
  return steps >= kUnlimited / dilation ? kUnlimited : steps * dilation;
}

// What forward and backward share besides the tensors that are saved.
struct Call {
  std::shared_ptr<const BlockLayout> layout;
  int64_t q_start = 0, left = kUnlimited, right = kUnlimited;
  double scale = 1;
  Relation id;
  kernels::AttentionDropout dropout;
};

// In the order in which they are saved.
struct Arguments {
  Tensor q, k, v, relation_key, relation_bias, relation_value, q_valid, k_valid;
};

// A table as [1 or H, R, ...].
Tensor with_heads(const Tensor& table, int rank) {
  if (!table || table.rank() == rank) return table;
  Shape shape = table.shape();
  shape.insert(0, 1);
  return table.alias(shape, contiguous_strides(shape), 0);
}

kernels::AttentionInputs inputs_of(const Call& call, const Arguments& a) {
  kernels::AttentionInputs in;
  in.q = a.q.view();
  in.k = a.k.view();
  in.v = a.v.view();
  in.layout = call.layout->view();
  in.rule = {call.q_start, call.left, call.right, a.q_valid.view(), a.k_valid.view()};
  in.terms = {call.scale,
              call.id.left,
              call.id.right,
              with_heads(a.relation_key, 3).view(),
              with_heads(a.relation_bias, 2).view(),
              with_heads(a.relation_value, 3).view()};
  in.dropout = call.dropout;
  return in;
}

struct AttentionNode final : autograd::Node {
  explicit AttentionNode(const Call& c) : Node(kOp), call(c) {}

  Grads backward(std::span<const Tensor> dy) override {
    const Arguments a{saved(0), saved(1), saved(2), saved(3),
                      saved(4), saved(5), saved(6), saved(7)};
    const Tensor& out = saved(8);
    const Tensor& lse = saved(9);
    const bool want_keys = wants(1) || wants(2);
    Tensor dout, dlse;
    if (dy[0]) {
      dout = with_unit_rows(dy[0]);
    } else {
      dout = Tensor::zeros(out.shape(), out.dtype(), out.device());
    }
    if (dy[1]) dlse = dy[1];

    Tensor dq, dk, dv, dkey, dbias, dvalue;
    if (wants(0)) dq = heads_inside(a.q, a.q.dim(2), a.q.dim(3));
    if (want_keys) {
      dk = heads_inside(a.k, a.k.dim(2), a.k.dim(3));
      dv = heads_inside(a.v, a.v.dim(2), a.v.dim(3));
    }
    if (wants(3)) dkey = Tensor::like(a.relation_key);
    if (wants(4)) dbias = Tensor::like(a.relation_bias);
    if (wants(5)) dvalue = Tensor::like(a.relation_value);
    const auto target = [](Tensor& x, int rank) { return x ? with_heads(x, rank).mut() : View{}; };
    const kernels::AttentionGradients grads{target(dq, 4),   target(dk, 4),    target(dv, 4),
                                            target(dkey, 3), target(dbias, 2), target(dvalue, 3)};
    kernels::block_attention_backward(a.q.device(), inputs_of(call, a), out.view(), lse.view(),
                                      dout.view(), dlse.view(), grads);
    return {dq, wants(1) ? dk : Tensor{}, wants(2) ? dv : Tensor{}, dkey, dbias, dvalue};
  }

  void release() override {
    Node::release();
    call.layout = nullptr;
  }

  Call call;
};

}  // namespace

AttentionResult block_attention(const Tensor& q, std::span<const Keys> keys,
                                const AttentionPattern& pattern, const ScoreTerms& terms,
                                const Dropout& dropout) {
  require<NotImplemented>(keys.size() == 1, kOp, "{} key segments; one is implemented",
                          keys.size());
  const Tensor& k = keys[0].k;
  const Tensor& v = keys[0].v;
  check(q, k, v, terms, dropout);
  const AttentionPattern resolved = resolve(pattern, q.dim(2), k.dim(2));
  check(q, resolved, terms);

  const Rule& rule = resolved.rules.front();
  Call call;
  call.layout = on_device(resolved.layout, q.device());
  call.q_start = rule.q_start;
  call.left = times(rule.window.left, rule.window.dilation);
  call.right = rule.causal ? 0 : times(rule.window.right, rule.window.dilation);
  call.scale = terms.scale != 0 ? terms.scale : 1 / std::sqrt(static_cast<double>(q.dim(3)));
  call.id = terms.id;
  if (dropout.pass.training && dropout.p > 0) {
    DrawWatch::note(kOp, dropout.pass.gen, 0, std::numeric_limits<int64_t>::max());
    call.dropout = {dropout.p, dropout.pass.gen.key};
  }
  Arguments a{with_unit_rows(q), with_unit_rows(k), with_unit_rows(v), {}, {}, {}, {}, {}};
  if (terms.relation_key) a.relation_key = packed(terms.relation_key);
  if (terms.relation_bias) a.relation_bias = packed(terms.relation_bias);
  if (terms.relation_value) a.relation_value = packed(terms.relation_value);
  a.q_valid = rule.q_valid;
  a.k_valid = rule.k_valid;

  Tensor out = heads_inside(q, q.dim(2), v.dim(3));
  Tensor lse = Tensor::empty({q.dim(0), q.dim(1), q.dim(2)},
                             q.dtype() == DType::f64 ? DType::f64 : DType::f32, q.device());
  kernels::block_attention_forward(q.device(), inputs_of(call, a), out.mut(), lse.mut());

  if (autograd::anomaly_mode()) autograd::check_finite(kOp, "forward", out);  // lse may be -inf
  const Tensor inputs[] = {q, k, v, terms.relation_key, terms.relation_bias, terms.relation_value};
  if (autograd::wants_graph(inputs)) {
    auto node = std::make_shared<AttentionNode>(call);
    node->save({a.q, a.k, a.v, a.relation_key, a.relation_bias, a.relation_value, a.q_valid,
                a.k_valid, out, lse});
    Tensor* const outputs[] = {&out, &lse};
    autograd::attach(node, inputs, outputs);
  }
  return {out, lse};
}

AttentionResult block_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                const AttentionPattern& pattern, const ScoreTerms& terms,
                                const Dropout& dropout) {
  const Keys keys{k, v};
  return block_attention(q, std::span<const Keys>(&keys, 1), pattern, terms, dropout);
}

}  // namespace longspan
