#include "ops/attention/block_attention.h"

#include <array>
#include <cmath>
#include <limits>

#include "autograd/record.h"
#include "core/kernels/copy.h"
#include "ops/attention/heads.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/patterns/layout_cache.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
namespace {

using detail::empty_blhd;
using detail::last_dim_contiguous;

constexpr const char* kOp = "block_attention";

Tensor packed(const Tensor& x) {
  if (x.contiguous()) return x.detach();
  Tensor y = Tensor::like(x);
  kernels::copy(x.device(), x.view(), y.mut());
  return y;
}

void check_relation(const Tensor& q, const Tensor& table, const char* name, int64_t heads,
                    int64_t ids, int64_t width) {
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

void check(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& first_v) {
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
  if (v.dim(3) != first_v.dim(3)) {
    fail_with<ShapeError>(kOp, "all key segments must have values of one width",
                          {{"first v", first_v}, {"v", v}});
  }
  const int64_t widest = std::max(q.dim(3), v.dim(3));
  if (std::min(q.dim(3), v.dim(3)) < 1 || widest > kernels::kAttentionMaxWidth) {
    fail_with<ShapeError>(kOp, fmt::format("widths must be 1 to {}", kernels::kAttentionMaxWidth),
                          {{"q", q}, {"v", v}});
  }
}

// Checks a tensor [1 or B, sizes...], row-major, of the given dtype.
void check_table(const Tensor& q, const Tensor& x, const char* name, DType dtype,
                 std::initializer_list<int64_t> sizes) {
  if (x.dtype() != dtype) {
    fail_with<DTypeError>(kOp, fmt::format("{} is not {}", name, name_of(dtype)), {{name, x}});
  }
  bool fits = x.rank() == 1 + static_cast<int>(sizes.size()) && x.contiguous() &&
              (x.dim(0) == 1 || x.dim(0) == q.dim(0));
  std::string expected = fmt::format("[1 or {}", q.dim(0));
  int axis = 1;
  for (const int64_t n : sizes) {
    fits = fits && x.dim(axis++) == n;
    expected += fmt::format(", {}", n);
  }
  if (!fits) {
    fail_with<ShapeError>(kOp,
                          fmt::format("{} has shape {}; expected {}], row-major", name,
                                      to_string(x.shape()), expected),
                          {{"q", q}, {name, x}});
  }
  require_same_device(kOp, {"q", q}, {name, x});
}

// Checks a mask and replaces class labels by ones that are safe for kernels to use.
void check(const Tensor& q, const Tensor& k, PairMask& mask, int64_t ids) {
  check_lengths(q, mask.k_valid, "k_valid");
  require(static_cast<bool>(mask.q_from) == static_cast<bool>(mask.q_to), kOp,
          "q_from and q_to bound a row together; one of them is not given");
  if (mask.q_from) {
    check_table(q, mask.q_from, "q_from", DType::i32, {q.dim(2)});
    check_table(q, mask.q_to, "q_to", DType::i32, {q.dim(2)});
    require<ShapeError>(mask.q_from.dim(0) == mask.q_to.dim(0), kOp,
                        "q_from is for {} samples and q_to for {}", mask.q_from.dim(0),
                        mask.q_to.dim(0));
  }
  if (mask.k_hidden) check_table(q, mask.k_hidden, "k_hidden", DType::u8, {k.dim(2)});
  const int given = static_cast<int>(static_cast<bool>(mask.q_class)) +
                    static_cast<int>(static_cast<bool>(mask.k_class)) +
                    static_cast<int>(static_cast<bool>(mask.class_id));
  require(given == 0 || given == 3, kOp,
          "q_class, k_class and class_id label pairs together; {} of the three are given", given);
  if (given == 0) return;
  check_table(q, mask.q_class, "q_class", DType::i32, {q.dim(2)});
  check_table(q, mask.k_class, "k_class", DType::i32, {k.dim(2)});
  require_rank_is(kOp, mask.class_id, 3, "class_id");
  check_table(q, mask.class_id, "class_id", DType::i32,
              {mask.class_id.dim(1), mask.class_id.dim(2)});
  mask.q_class = detail::checked_ids(kOp, mask.q_class, 0, mask.class_id.dim(1), "q_class");
  mask.k_class = detail::checked_ids(kOp, mask.k_class, 0, mask.class_id.dim(2), "k_class");
  mask.class_id = detail::checked_ids(kOp, mask.class_id, -1, ids, "class_id");
}

// Returns the rows R of the relation tables: one per distance, or more if class labels may use
// them.
int64_t relation_ids(const ScoreTerms& terms, bool classes) {
  const int64_t distances = terms.id.left + terms.id.right + 1;
  if (!classes) return distances;
  const Tensor& table = terms.relation_key    ? terms.relation_key
                        : terms.relation_bias ? terms.relation_bias
                                              : terms.relation_value;
  if (!table) return std::numeric_limits<int32_t>::max();  // labels have no table that they index
  const int rank_of_one = static_cast<bool>(terms.relation_key) || !terms.relation_bias ? 2 : 1;
  if (table.rank() != rank_of_one && table.rank() != rank_of_one + 1) return distances;
  return std::max(distances, table.dim(table.rank() - rank_of_one));
}

void check(const Tensor& q, const Tensor& k, const Tensor& v, const ScoreTerms& terms, int64_t ids,
           const Dropout& dropout) {
  require(std::isfinite(terms.scale), kOp, "scale is {}; expected a finite number", terms.scale);
  require(terms.id.left >= 0 && terms.id.right >= 0, kOp,
          "relation ids clip at {} to the left and {} to the right; expected 0 or more",
          terms.id.left, terms.id.right);
  require(dropout.p >= 0 && dropout.p < 1, kOp, "dropout is {}; expected 0 <= p < 1", dropout.p);
  require<NotImplemented>(dropout.p == 0 || !dropout.pass.training || dropout.pass.row == 0, kOp,
                          "dropout.pass.row = {}: dropout of a part of the rows is not implemented",
                          dropout.pass.row);
  check_relation(q, terms.relation_key, "relation_key", q.dim(1), ids, q.dim(3));
  check_relation(q, terms.relation_bias, "relation_bias", q.dim(1), ids, 0);
  check_relation(q, terms.relation_value, "relation_value", q.dim(1), ids, v.dim(3));
  if (const Tensor& r = terms.relation_query) {
    require(static_cast<bool>(terms.relation_key), kOp,
            "relation_query is given without relation_key, which it is multiplied with");
    require_same_dtype(kOp, {"q", q}, {"relation_query", r});
    require_same_device(kOp, {"q", q}, {"relation_query", r});
    if (r.shape() != q.shape()) {
      fail_with<ShapeError>(kOp, "relation_query must have the shape of q",
                            {{"q", q}, {"relation_query", r}});
    }
  }
  const Tensor& span = terms.span;
  if (!span) return;
  require_same_dtype(kOp, {"q", q}, {"span", span});
  require_same_device(kOp, {"q", q}, {"span", span});
  const auto one_or = [&](int axis, int64_t n) {
    return span.dim(axis) == 1 || span.dim(axis) == n;
  };
  if (span.rank() != 3 || !one_or(0, q.dim(0)) || !one_or(1, q.dim(1)) || !one_or(2, k.dim(2))) {
    fail_with<ShapeError>(kOp,
                          fmt::format("span has shape {}; expected [1 or {}, 1 or {}, 1 or {}]",
                                      to_string(span.shape()), q.dim(0), q.dim(1), k.dim(2)),
                          {{"q", q}, {"span", span}});
  }
  require(std::isfinite(terms.ramp) && terms.ramp > 0, kOp, "ramp is {}; expected more than 0",
          terms.ramp);
  require(std::isfinite(terms.offset), kOp, "offset is {}; expected a finite number", terms.offset);
}

// Fills the windows of one segment from its rules; a single rule serves all layout members.
void fill_windows(const AttentionPattern& p, const std::vector<Rule>& rules, bool by_class,
                  kernels::AttentionSegment& segment) {
  const int used = p.layout->rules, given = static_cast<int>(rules.size());
  require(given <= kernels::kAttentionRules, kOp, "{} rules of a key segment; expected at most {}",
          given, kernels::kAttentionRules);
  require(given == 1 || given >= used, kOp,
          "{} rules of a key segment, of which the layout's members use {}", given, used);
  segment.q_start = rules.front().q_start;
  for (size_t n = 0; n < rules.size(); ++n) {
    const Rule& rule = rules[n];
    const Window& w = rule.window;
    require(rule.q_start == segment.q_start, kOp,
            "rule {} has q_start {}, rule 0 {}; positions are the same for all rules of a segment",
            n, rule.q_start, segment.q_start);
    require(w.dilation >= 1 && rule.stride >= 0, kOp,
            "rule {} has dilation {} and stride {}; expected 1 or more, and 0 or more", n,
            w.dilation, rule.stride);
    require(by_class || (w.dilation == 1 && rule.stride == 0), kOp,
            "rule {} has dilation {} and stride {}: that needs a layout with an order by class", n,
            w.dilation, rule.stride);
    const int64_t left = w.reach_left(), right = w.reach_right();
    segment.windows[n] = {left, rule.causal ? std::min<int64_t>(0, right) : right};
    require(segment.windows[n].left >= -segment.windows[n].right, kOp,
            "the window of rule {} is {} to the left and {} to the right, which holds nothing", n,
            w.left, rule.causal ? std::min<int64_t>(0, w.right) : w.right);
  }
  for (int n = given; n < used; ++n) segment.windows[n] = segment.windows[0];
}

// Checks the masks and the layout of a resolved pattern against the tensors of a call.
void check(const Tensor& q, std::span<const Keys> keys, AttentionPattern& p, int64_t ids) {
  check_lengths(q, p.q_valid, "q_valid");
  check(q, keys[0].k, p.mask, ids);
  if (keys.size() > 1) check(q, keys[1].k, p.side_mask, ids);
  const Tensor& layout_index = p.layout->layout_index;
  require<ShapeError>((layout_index.dim(0) == 1 || layout_index.dim(0) == q.dim(0)) &&
                          (layout_index.dim(1) == 1 || layout_index.dim(1) == q.dim(1)),
                      kOp, "layout.layout_index has shape {}; expected [1 or {}, 1 or {}]",
                      to_string(layout_index.shape()), q.dim(0), q.dim(1));
}

// The tensors that forward and backward read, except those of the patterns; saved in this order.
struct Arguments {
  static constexpr int kTerms = 5, kCount = 10;
  std::array<Tensor, kCount> x;

  const Tensor& q() const { return x[0]; }
  const Tensor& k(int s) const { return x[static_cast<size_t>(1 + 2 * s)]; }
  const Tensor& v(int s) const { return x[static_cast<size_t>(2 + 2 * s)]; }
  const Tensor& relation_query() const { return x[kTerms]; }
  const Tensor& relation_key() const { return x[kTerms + 1]; }
  const Tensor& relation_bias() const { return x[kTerms + 2]; }
  const Tensor& relation_value() const { return x[kTerms + 3]; }
  const Tensor& span() const { return x[kTerms + 4]; }
};

// The mask tensors of a pattern: q_valid, and seven of each segment; saved in this order.
using Masks = std::array<Tensor, 15>;

// Returns a table as [1 or H, R, ...].
Tensor with_heads(const Tensor& table, int rank) {
  if (!table || table.rank() == rank) return table;
  Shape shape = table.shape();
  shape.insert(0, 1);
  return table.alias(shape, contiguous_strides(shape), 0);
}

Arguments arguments_of(const Tensor& q, std::span<const Keys> keys, const ScoreTerms& terms) {
  Arguments a;
  const auto pack = [](const Tensor& t) { return t ? packed(t) : Tensor{}; };
  a.x[0] = last_dim_contiguous(q);
  for (size_t s = 0; s < keys.size(); ++s) {
    a.x[1 + 2 * s] = last_dim_contiguous(keys[s].k);
    a.x[2 + 2 * s] = last_dim_contiguous(keys[s].v);
  }
  if (terms.relation_query) a.x[Arguments::kTerms] = last_dim_contiguous(terms.relation_query);
  a.x[Arguments::kTerms + 1] = pack(terms.relation_key);
  a.x[Arguments::kTerms + 2] = pack(terms.relation_bias);
  a.x[Arguments::kTerms + 3] = pack(terms.relation_value);
  a.x[Arguments::kTerms + 4] = pack(terms.span);
  return a;
}

Masks masks_of(const AttentionPattern& p) {
  Masks masks;
  size_t at = 0;
  masks[at++] = p.q_valid;
  for (const PairMask* m : {&p.mask, &p.side_mask}) {
    for (const Tensor* t : {&m->k_valid, &m->q_from, &m->q_to, &m->k_hidden, &m->q_class,
                            &m->k_class, &m->class_id}) {
      masks[at++] = *t;
    }
  }
  return masks;
}

// A pattern as the kernels need it: its layout and the windows of its rules.
struct Part {
  std::shared_ptr<const BlockLayout> layout;
  kernels::AttentionSegment segment[kernels::kAttentionSegments];
};

Part part_of(const AttentionPattern& p, Device device) {
  Part part;
  part.layout = on_device(p.layout, device);
  fill_windows(p, p.rules, static_cast<bool>(p.layout->order_k), part.segment[0]);
  fill_windows(p, p.side_rules, false, part.segment[1]);
  return part;
}

// The scalars and layouts that forward and backward share, besides the saved tensors.
struct Call {
  std::vector<Part> parts;
  int segments = 1;
  double scale = 1, ramp = 1, offset = 0;
  Relation id;
  int64_t ids = 0;
  kernels::AttentionDropout dropout;
};

// Returns the kernel inputs for part n with the given masks.
kernels::AttentionInputs inputs_of(const Call& call, size_t n, const Arguments& a,
                                   const Masks& masks) {
  const Part& part = call.parts[n];
  kernels::AttentionInputs in;
  in.q = a.q().view();
  in.q_valid = masks[0].view();
  in.segments = call.segments;
  size_t at = 1;
  for (int s = 0; s < kernels::kAttentionSegments; ++s) {
    kernels::AttentionSegment& segment = in.segment[s];
    segment = part.segment[s];
    segment.k = a.k(s).view();
    segment.v = a.v(s).view();
    for (ConstView* v : {&segment.k_valid, &segment.q_from, &segment.q_to, &segment.k_hidden,
                         &segment.q_class, &segment.k_class, &segment.class_id}) {
      *v = masks[at++].view();
    }
  }
  in.layout = part.layout->view();
  in.terms.scale = call.scale;
  in.terms.left = call.id.left;
  in.terms.right = call.id.right;
  in.terms.ids = call.ids;
  in.terms.relation_query = a.relation_query().view();
  in.terms.relation_key = with_heads(a.relation_key(), 3).view();
  in.terms.relation_bias = with_heads(a.relation_bias(), 2).view();
  in.terms.relation_value = with_heads(a.relation_value(), 3).view();
  in.terms.span = a.span().view();
  in.terms.ramp = call.ramp;
  in.terms.offset = call.offset;
  in.dropout = call.dropout;
  in.accumulate = n > 0;
  return in;
}

struct AttentionNode final : autograd::Node {
  explicit AttentionNode(Call c) : Node(kOp), call(std::move(c)) {}

  Grads backward(std::span<const Tensor> dy) override {
    int at = 0;
    const Tensor& out = saved(at++);
    const Tensor& lse = saved(at++);
    Arguments a;
    for (Tensor& x : a.x) x = saved(at++);
    Tensor dout, dlse;
    if (dy[0]) {
      dout = last_dim_contiguous(dy[0]);
    } else {
      dout = Tensor::zeros(out.shape(), out.dtype(), out.device());
    }
    if (dy[1]) dlse = dy[1];

    // A span gets its gradient with the keys if it has one value per key, else with the queries.
    const bool want_span = wants(9), by_key = want_span && a.span().dim(2) > 1;
    bool want_keys = by_key;
    for (int i = 1; i < Arguments::kTerms; ++i) want_keys = want_keys || wants(i);
    std::array<Tensor, Arguments::kCount> d;
    for (int i = 0; i < Arguments::kCount; ++i) {
      const Tensor& x = a.x[static_cast<size_t>(i)];
      const bool keys = i > 0 && i < Arguments::kTerms;
      const bool wanted = keys ? want_keys : wants(i) || (i == 0 && want_span && !by_key);
      if (!x || !wanted) continue;
      d[static_cast<size_t>(i)] =
          i <= Arguments::kTerms ? empty_blhd(x, x.dim(2), x.dim(3)) : Tensor::like(x);
    }
    const auto target = [](Tensor& x, int rank) { return x ? with_heads(x, rank).mut() : View{}; };
    Tensor* const t = d.data() + Arguments::kTerms;
    const kernels::AttentionGradients grads{target(d[0], 4),
                                            {target(d[1], 4), target(d[3], 4)},
                                            {target(d[2], 4), target(d[4], 4)},
                                            target(t[0], 4),
                                            target(t[1], 3),
                                            target(t[2], 2),
                                            target(t[3], 3),
                                            target(t[4], 3)};
    for (size_t n = 0; n < call.parts.size(); ++n) {
      Masks masks;
      for (Tensor& x : masks) x = saved(at++);
      kernels::block_attention_backward(a.q().device(), inputs_of(call, n, a, masks), out.view(),
                                        lse.view(), dout.view(), dlse.view(), grads);
    }
    Grads result;
    for (int i = 0; i < Arguments::kCount; ++i) {
      result.push_back(wants(i) ? d[static_cast<size_t>(i)] : Tensor{});
    }
    return result;
  }

  void release() override {
    Node::release();
    call.parts.clear();
  }

  Call call;
};

}  // namespace

AttentionResult block_attention(const Tensor& q, std::span<const Keys> keys,
                                std::span<const AttentionPattern> parts, const ScoreTerms& terms,
                                const Dropout& dropout) {
  require(keys.size() == 1 || keys.size() == 2, kOp, "{} key segments are given; expected 1 or 2",
          keys.size());
  require(!parts.empty(), kOp, "no pattern is given; expected at least one");
  for (const Keys& s : keys) check(q, s.k, s.v, keys[0].v);
  const bool two = keys.size() > 1;
  const Tensor &k = keys[0].k, &v = keys[0].v;
  std::vector<AttentionPattern> patterns;
  bool classes = false;
  for (const AttentionPattern& part : parts) {
    const AttentionPattern& p =
        patterns.emplace_back(resolve(part, q.dim(2), k.dim(2), two ? keys[1].k.dim(2) : 0));
    classes = classes || p.mask.class_id || p.side_mask.class_id;
  }
  Call call;
  call.ids = relation_ids(terms, classes);
  check(q, k, v, terms, call.ids, dropout);
  for (AttentionPattern& p : patterns) {
    check(q, keys, p, call.ids);
    call.parts.push_back(part_of(p, q.device()));
  }
  call.segments = static_cast<int>(keys.size());
  call.scale = terms.scale != 0 ? terms.scale : 1 / std::sqrt(static_cast<double>(q.dim(3)));
  call.id = terms.id;
  call.ramp = terms.ramp;
  call.offset = terms.offset;
  if (dropout.pass.training && dropout.p > 0) {
    RngReuseCheck::note(kOp, dropout.pass.gen, 0, std::numeric_limits<int64_t>::max());
    call.dropout = {dropout.p, dropout.pass.gen.device_key()};
  }
  const Arguments a = arguments_of(q, keys, terms);

  const Tensor inputs[] = {q,
                           k,
                           v,
                           two ? keys[1].k : Tensor{},
                           two ? keys[1].v : Tensor{},
                           terms.relation_query,
                           terms.relation_key,
                           terms.relation_bias,
                           terms.relation_value,
                           terms.span};
  auto [out, lse] =
      autograd::reuse_or_recompute<2>(kOp, inputs, {}, [&]() -> std::array<Tensor, 2> {
        Tensor y = empty_blhd(q, q.dim(2), v.dim(3));
        Tensor sums = Tensor::empty({q.dim(0), q.dim(1), q.dim(2)},
                                    q.dtype() == DType::f64 ? DType::f64 : DType::f32, q.device());
        for (size_t n = 0; n < patterns.size(); ++n) {
          kernels::block_attention_forward(q.device(), inputs_of(call, n, a, masks_of(patterns[n])),
                                           y.mut(), sums.mut());
        }
        return {y, sums};
      });
  if (autograd::anomaly_mode()) autograd::check_finite(kOp, "forward", out);  // lse may be -inf
  if (autograd::wants_graph(inputs)) {
    auto node = std::make_shared<AttentionNode>(std::move(call));
    node->save({out, lse});
    for (const Tensor& t : a.x) node->save({t});
    for (const AttentionPattern& p : patterns) {
      for (const Tensor& t : masks_of(p)) node->save({t});
    }
    Tensor* const outputs[] = {&out, &lse};
    autograd::attach(node, inputs, outputs);
  }
  return {out, lse};
}

AttentionResult block_attention(const Tensor& q, std::span<const Keys> keys,
                                const AttentionPattern& pattern, const ScoreTerms& terms,
                                const Dropout& dropout) {
  return block_attention(q, keys, std::span<const AttentionPattern>(&pattern, 1), terms, dropout);
}

AttentionResult block_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                const AttentionPattern& pattern, const ScoreTerms& terms,
                                const Dropout& dropout) {
  const Keys keys{k, v};
  return block_attention(q, std::span<const Keys>(&keys, 1), pattern, terms, dropout);
}

AttentionResult merge_attention(std::span<const AttentionResult> parts) {
  constexpr const char* op = "merge_attention";
  require(!parts.empty(), op, "needs at least one part, got none");
  for (const AttentionResult& part : parts) {
    const Tensor &out = part.out, &lse = part.lse;
    require(out && lse, op, "a part lacks out or lse");
    require_rank_is(op, out, 4, "out");
    if (lse.shape() != Shape{out.dim(0), out.dim(1), out.dim(2)}) {
      fail_with<ShapeError>(op, "lse must be [B, H, L] of out", {{"out", out}, {"lse", lse}});
    }
    if (out.shape() != parts[0].out.shape()) {
      fail_with<ShapeError>(op, "all parts must have one shape",
                            {{"first out", parts[0].out}, {"out", out}});
    }
    require_same_dtype(op, {"first out", parts[0].out}, {"out", out});
    require_same_dtype(op, {"first lse", parts[0].lse}, {"lse", lse});
    require_same_device(op, {"first out", parts[0].out}, {"out", out});
    require_same_device(op, {"out", out}, {"lse", lse});
  }
  if (parts.size() == 1) return parts[0];
  // Replaces -inf, whose differences are NaN; clamping also stops the gradients of such rows.
  constexpr double none = -1e30, all = 1e30;
  std::vector<Tensor> columns;
  for (const AttentionResult& part : parts) {
    columns.push_back(unsqueeze(clamp(part.lse, none, all), 3));
  }
  const Tensor each = concat(columns, 3);  // [B, H, L, parts]
  const Tensor lse = logsumexp(each, 3);
  const Tensor share = cast(exp(sub(each, unsqueeze(lse, 3))), parts[0].out.dtype());
  Tensor out;
  for (size_t n = 0; n < parts.size(); ++n) {
    const Tensor weighted = mul(parts[n].out, narrow(share, 3, static_cast<int64_t>(n), 1));
    out = out ? add(out, weighted) : weighted;
  }
  const Tensor limit = full({}, none / 2, lse.dtype(), lse.device());
  const Tensor empty =
      full({}, -std::numeric_limits<double>::infinity(), lse.dtype(), lse.device());
  return {out, where(less(lse, limit), empty, lse)};
}

}  // namespace longspan
