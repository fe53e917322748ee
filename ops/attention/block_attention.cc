#include "ops/attention/block_attention.h"

#include <array>
#include <cmath>
#include <limits>

#include "autograd/record.h"
#include "core/kernels/copy.h"
#include "ops/attention/heads.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/patterns/disjoint.h"
#include "ops/patterns/layout_cache.h"
#include "ops/patterns/pairs.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "ops/softmax.h"

namespace longspan {
namespace {

using detail::empty_blhd;
using detail::empty_gradient;
using detail::last_dim_contiguous;

constexpr const char* kBlockAttention = "block_attention";

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
    fail_with<ShapeError>(kBlockAttention,
                          fmt::format("{} has shape {}; expected [{}] or [{}, {}]", name,
                                      to_string(table.shape()), row, heads, row),
                          {{"q", q}, {name, table}});
  }
  require_same_dtype(kBlockAttention, {"q", q}, {name, table});
  require_same_device(kBlockAttention, {"q", q}, {name, table});
}

void check_lengths(const Tensor& q, const Tensor& lengths, const char* name) {
  if (!lengths) return;
  if (lengths.dtype() != DType::i64) {
    fail_with<DTypeError>(kBlockAttention, fmt::format("{} is not i64", name), {{name, lengths}});
  }
  if (lengths.rank() != 1 || lengths.dim(0) != q.dim(0) || !lengths.contiguous()) {
    fail_with<ShapeError>(kBlockAttention,
                          fmt::format("{} is not [B], B = {}, row-major", name, q.dim(0)),
                          {{"q", q}, {name, lengths}});
  }
  require_same_device(kBlockAttention, {"q", q}, {name, lengths});
}

void check(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& first_v) {
  for (const Named& x : {Named{"q", q}, Named{"k", k}, Named{"v", v}}) {
    require<ValueError>(static_cast<bool>(x.tensor), kBlockAttention, "{} is not given", x.name);
    require_rank_is(kBlockAttention, x.tensor, 4, x.name);
    require_floating(kBlockAttention, x.tensor, x.name);
    require_same_dtype(kBlockAttention, {"q", q}, x);
    require_same_device(kBlockAttention, {"q", q}, x);
  }
  if (k.dim(0) != q.dim(0) || k.dim(1) != q.dim(1) || k.dim(3) != q.dim(3)) {
    fail_with<ShapeError>(kBlockAttention, "k must have the batch, heads and width of q",
                          {{"q", q}, {"k", k}});
  }
  if (v.dim(0) != k.dim(0) || v.dim(1) != k.dim(1) || v.dim(2) != k.dim(2)) {
    fail_with<ShapeError>(kBlockAttention, "v must have the batch, heads and length of k",
                          {{"k", k}, {"v", v}});
  }
  if (v.dim(3) != first_v.dim(3)) {
    fail_with<ShapeError>(kBlockAttention, "all key segments must have values of one width",
                          {{"first v", first_v}, {"v", v}});
  }
  const int64_t widest = std::max(q.dim(3), v.dim(3));
  if (std::min(q.dim(3), v.dim(3)) < 1 || widest > kernels::kAttentionMaxWidth) {
    fail_with<ShapeError>(kBlockAttention,
                          fmt::format("widths must be 1 to {}", kernels::kAttentionMaxWidth),
                          {{"q", q}, {"v", v}});
  }
}

// Checks a tensor [1 or B, sizes...], row-major, of the given dtype.
void check_table(const Tensor& q, const Tensor& x, const char* name, DType dtype,
                 std::initializer_list<int64_t> sizes) {
  if (x.dtype() != dtype) {
    fail_with<DTypeError>(kBlockAttention, fmt::format("{} is not {}", name, name_of(dtype)),
                          {{name, x}});
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
    fail_with<ShapeError>(kBlockAttention,
                          fmt::format("{} has shape {}; expected {}], row-major", name,
                                      to_string(x.shape()), expected),
                          {{"q", q}, {name, x}});
  }
  require_same_device(kBlockAttention, {"q", q}, {name, x});
}

// Checks a mask and replaces class labels by ones that are safe for kernels to use.
void check(const Tensor& q, const Tensor& k, PairMask& mask, int64_t ids) {
  check_lengths(q, mask.k_valid, "k_valid");
  check_lengths(q, mask.k_begin, "k_begin");
  require(static_cast<bool>(mask.q_from) == static_cast<bool>(mask.q_to), kBlockAttention,
          "q_from and q_to bound a row together; one of them is not given");
  if (mask.q_from) {
    check_table(q, mask.q_from, "q_from", DType::i32, {q.dim(2)});
    check_table(q, mask.q_to, "q_to", DType::i32, {q.dim(2)});
    require<ShapeError>(mask.q_from.dim(0) == mask.q_to.dim(0), kBlockAttention,
                        "q_from is for {} samples and q_to for {}", mask.q_from.dim(0),
                        mask.q_to.dim(0));
  }
  if (mask.k_hidden) check_table(q, mask.k_hidden, "k_hidden", DType::u8, {k.dim(2)});
  const int given = static_cast<int>(static_cast<bool>(mask.q_class)) +
                    static_cast<int>(static_cast<bool>(mask.k_class)) +
                    static_cast<int>(static_cast<bool>(mask.class_id));
  require(given == 0 || given == 3, kBlockAttention,
          "q_class, k_class and class_id label pairs together; {} of the three are given", given);
  if (given == 0) return;
  check_table(q, mask.q_class, "q_class", DType::i32, {q.dim(2)});
  check_table(q, mask.k_class, "k_class", DType::i32, {k.dim(2)});
  require_rank_is(kBlockAttention, mask.class_id, 3, "class_id");
  check_table(q, mask.class_id, "class_id", DType::i32,
              {mask.class_id.dim(1), mask.class_id.dim(2)});
  mask.q_class =
      detail::checked_ids(kBlockAttention, mask.q_class, 0, mask.class_id.dim(1), "q_class");
  mask.k_class =
      detail::checked_ids(kBlockAttention, mask.k_class, 0, mask.class_id.dim(2), "k_class");
  mask.class_id = detail::checked_ids(kBlockAttention, mask.class_id, -1, ids, "class_id");
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

// Checks a span [1 or B, 1 or H, n], or also [.., .., 1] if one may serve all n.
void check_span(const Tensor& q, const Tensor& span, const char* name, int64_t n,
                bool one_for_all) {
  if (!span) return;
  const DType expected = accumulator_of(q.dtype());
  if (span.dtype() != expected) {
    fail_with<DTypeError>(kBlockAttention,
                          fmt::format("{} is not {}: spans are f32 whatever q is, and f64 for f64",
                                      name, name_of(expected)),
                          {{"q", q}, {name, span}});
  }
  require_same_device(kBlockAttention, {"q", q}, {name, span});
  const auto one_or = [&](int axis, int64_t many) {
    return span.dim(axis) == 1 || span.dim(axis) == many;
  };
  if (span.rank() != 3 || !one_or(0, q.dim(0)) || !one_or(1, q.dim(1)) ||
      (span.dim(2) != n && !(one_for_all && span.dim(2) == 1))) {
    fail_with<ShapeError>(
        kBlockAttention,
        fmt::format("{} has shape {}; expected [1 or {}, 1 or {}, {}{}]", name,
                    to_string(span.shape()), q.dim(0), q.dim(1), one_for_all ? "1 or " : "", n),
        {{"q", q}, {name, span}});
  }
}

void check(const Tensor& q, const Tensor& k, const Tensor& v, const ScoreTerms& terms, int64_t ids,
           const Dropout& dropout) {
  require(std::isfinite(terms.scale), kBlockAttention, "scale is {}; expected a finite number",
          terms.scale);
  require(terms.id.left >= 0 && terms.id.right >= 0, kBlockAttention,
          "relation ids clip at {} to the left and {} to the right; expected 0 or more",
          terms.id.left, terms.id.right);
  require(dropout.p >= 0 && dropout.p < 1, kBlockAttention, "dropout is {}; expected 0 <= p < 1",
          dropout.p);
  require<NotImplemented>(
      dropout.p == 0 || !dropout.pass.training || dropout.pass.row == 0, kBlockAttention,
      "dropout.pass.row = {}: dropout of a part of the rows is not implemented", dropout.pass.row);
  check_relation(q, terms.relation_key, "relation_key", q.dim(1), ids, q.dim(3));
  check_relation(q, terms.relation_bias, "relation_bias", q.dim(1), ids, 0);
  check_relation(q, terms.relation_value, "relation_value", q.dim(1), ids, v.dim(3));
  if (const Tensor& r = terms.relation_query) {
    require(static_cast<bool>(terms.relation_key), kBlockAttention,
            "relation_query is given without relation_key, which it is multiplied with");
    require_same_dtype(kBlockAttention, {"q", q}, {"relation_query", r});
    require_same_device(kBlockAttention, {"q", q}, {"relation_query", r});
    if (r.shape() != q.shape()) {
      fail_with<ShapeError>(kBlockAttention, "relation_query must have the shape of q",
                            {{"q", q}, {"relation_query", r}});
    }
  }
  if (!terms.span && !terms.query_span) return;
  check_span(q, terms.span, "span", k.dim(2), true);
  check_span(q, terms.query_span, "query_span", q.dim(2), false);
  require(std::isfinite(terms.ramp) && terms.ramp > 0, kBlockAttention,
          "ramp is {}; expected more than 0", terms.ramp);
  require(std::isfinite(terms.offset), kBlockAttention, "offset is {}; expected a finite number",
          terms.offset);
}

// Fills the windows of segment s from its rules; a single rule serves all layout members.
void fill_windows(const AttentionPattern& p, const std::vector<Rule>& rules, bool by_class, int s,
                  kernels::AttentionNumbers& numbers) {
  const int used = p.layout->rules, given = static_cast<int>(rules.size());
  require(given <= kernels::kAttentionRules, kBlockAttention,
          "{} rules of a key segment; expected at most {}", given, kernels::kAttentionRules);
  require(given == 1 || given >= used, kBlockAttention,
          "{} rules of a key segment, of which the layout's members use {}", given, used);
  int64_t& q_start = numbers.q_start[s];
  auto& windows = numbers.windows[s];
  q_start = rules.front().q_start;
  for (size_t n = 0; n < rules.size(); ++n) {
    const Rule& rule = rules[n];
    const Window& w = rule.window;
    require(rule.q_start == q_start, kBlockAttention,
            "rule {} has q_start {}, rule 0 {}; positions are the same for all rules of a segment",
            n, rule.q_start, q_start);
    require(w.dilation >= 1 && rule.stride >= 0, kBlockAttention,
            "rule {} has dilation {} and stride {}; expected 1 or more, and 0 or more", n,
            w.dilation, rule.stride);
    require(by_class || (w.dilation == 1 && rule.stride == 0), kBlockAttention,
            "rule {} has dilation {} and stride {}: that needs a layout with an order by class", n,
            w.dilation, rule.stride);
    const int64_t left = w.reach_left(), right = w.reach_right();
    windows[n] = {left, rule.causal ? std::min<int64_t>(0, right) : right};
    require(windows[n].left >= -windows[n].right, kBlockAttention,
            "the window of rule {} is {} to the left and {} to the right, which holds nothing", n,
            w.left, rule.causal ? std::min<int64_t>(0, w.right) : w.right);
  }
  for (int n = given; n < used; ++n) windows[n] = windows[0];
}

// Checks the masks and the layout of a resolved pattern against the tensors of a call.
void check(const Tensor& q, std::span<const Keys> keys, AttentionPattern& p, int64_t ids) {
  check_lengths(q, p.q_valid, "q_valid");
  check(q, keys[0].k, p.mask, ids);
  if (keys.size() > 1) check(q, keys[1].k, p.side_mask, ids);
  const Tensor& layout_index = p.layout->layout_index;
  require<ShapeError>((layout_index.dim(0) == 1 || layout_index.dim(0) == q.dim(0)) &&
                          (layout_index.dim(1) == 1 || layout_index.dim(1) == q.dim(1)),
                      kBlockAttention,
                      "layout.layout_index has shape {}; expected [1 or {}, 1 or {}]",
                      to_string(layout_index.shape()), q.dim(0), q.dim(1));
}

using Operands = kernels::AttentionOperands<Tensor>;
// A call over one pattern. The patterns of one softmax make a list of problems with equal inputs.
using Problem = kernels::AttentionProblemOf<Tensor, std::shared_ptr<const BlockLayout>>;

// Gives a table without a first axis of heads one, so that it has `rank` axes.
template <class V>
V with_heads(V table, int rank) {
  if (table && table.rank() < rank) {
    table.shape.insert(0, 1);
    table.strides.insert(0, 0);
  }
  return table;
}

// Returns the views of operands; view(tensor) makes one view.
template <class V, class F>
kernels::AttentionOperands<V> views_of(const Operands& x, F view) {
  kernels::AttentionOperands<V> v;
  Operands::visit_tensors([&view](V& to, const Tensor& from) { to = view(from); }, v, x);
  v.relation_key = with_heads(v.relation_key, 3);
  v.relation_bias = with_heads(v.relation_bias, 2);
  v.relation_value = with_heads(v.relation_value, 3);
  return v;
}

kernels::AttentionProblem view_of(const Problem& problem) {
  const auto view = [](const Tensor& x) { return x.view(); };
  kernels::AttentionProblem v;
  v.inputs = views_of<ConstView>(problem.inputs, view);
  Problem::visit_masks([&view](ConstView& to, const Tensor& from) { to = view(from); }, v, problem);
  v.layout = problem.layout->view();
  v.numbers = problem.numbers;
  v.accumulate = problem.accumulate;
  return v;
}

// Returns the operands as the kernels need them: without history, rows or whole tables contiguous.
Operands prepared(const Operands& given) {
  Operands x;
  const auto prepare = [](Tensor& to, const Tensor& from) {
    if (from) to = from.rank() == 4 ? last_dim_contiguous(from) : packed(from);
  };
  Operands::visit_tensors(prepare, x, given);
  return x;
}

struct AttentionNode final : autograd::Node {
  AttentionNode(std::vector<Problem> all, const Tensor& out, const Tensor& lse)
      : Node(kBlockAttention), problems(std::move(all)) {
    const auto save_tensor = [this](Tensor& x) { save({std::exchange(x, {})}); };
    save({out, lse});
    Operands::visit_tensors(save_tensor, problems[0].inputs);
    for (Problem& p : problems) {
      p.inputs = {};
      Problem::visit_masks(save_tensor, p);
    }
  }

  Grads backward(std::span<const Tensor> dy) override {
    int at = 0;
    const Tensor& out = saved(at++);
    const Tensor& lse = saved(at++);
    const auto restore = [this, &at](Tensor& x) { x = saved(at++); };
    Operands x;
    Operands::visit_tensors(restore, x);
    Tensor dout, dlse;
    if (dy[0]) {
      dout = last_dim_contiguous(dy[0]);
    } else {
      dout = Tensor::zeros(out.shape(), out.dtype(), out.device());
    }
    if (dy[1]) dlse = dy[1];

    Operands d = destinations(x);
    const auto mut = [](const Tensor& t) { return t ? Tensor(t).mut() : View{}; };
    const kernels::AttentionGradients grads = views_of<View>(d, mut);
    for (const Problem& problem : problems) {
      Problem p = problem;
      p.inputs = x;
      Problem::visit_masks(restore, p);
      kernels::block_attention_backward(x.q.device(), view_of(p), out.view(), lse.view(),
                                        dout.view(), dlse.view(), grads);
    }
    Grads result;
    const auto give = [this, &result](Tensor& t) {
      result.push_back(wants(static_cast<int>(result.size())) ? std::move(t) : Tensor{});
    };
    Operands::visit_tensors(give, d);
    return result;
  }

  void release() override {
    Node::release();
    problems.clear();
  }

  // Allocates the gradients that the kernels must compute: the wanted ones, and any that a kernel
  // computes together with them.
  Operands destinations(const Operands& x) const {
    // A span gets its gradient with the keys if it has one value per key, else with the queries.
    const bool want_span = wants(Operands::count - 2), by_key = want_span && x.span.dim(2) > 1;
    const bool want_q = (want_span && !by_key) || wants(Operands::count - 1);
    bool want_keys = by_key;
    for (int i = 1; i <= 2 * kernels::kAttentionSegments; ++i) want_keys = want_keys || wants(i);
    Operands d;
    int i = 0;
    const auto allocate = [&](Tensor& to, const Tensor& from) {
      const bool is_q = i == 0, is_key = i > 0 && i <= 2 * kernels::kAttentionSegments;
      const bool wanted = is_key ? want_keys : wants(i) || (is_q && want_q);
      ++i;
      if (!from || !wanted) return;
      to = from.rank() == 4 ? empty_gradient(from) : Tensor::like(from);
    };
    Operands::visit_tensors(allocate, d, x);
    return d;
  }

  std::vector<Problem> problems;  // inputs and masks are saved tensors
};

/// Adds the visible pairs of a call, times the widths of keys and values, to the thread's MacCount.
void count_macs(const Tensor& q, const Tensor& k, const Tensor& v,
                std::span<const AttentionPattern> patterns) {
  if (!MacCount::active()) return;
  thread_local PairsOfLayouts known;
  for (const AttentionPattern& p : patterns) {
    const int64_t pairs = known.count(p, q.dim(0), q.dim(1), q.dim(2), k.dim(2));
    MacCount::add_attention(pairs * (q.dim(3) + v.dim(3)));
  }
}

}  // namespace

AttentionResult block_attention(const Tensor& q, std::span<const Keys> keys,
                                std::span<const AttentionPattern> parts, const ScoreTerms& terms,
                                const Dropout& dropout) {
  require(keys.size() == 1 || keys.size() == 2, kBlockAttention,
          "{} key segments are given; expected 1 or 2", keys.size());
  require(!parts.empty(), kBlockAttention, "no pattern is given; expected at least one");
  for (const Keys& s : keys) check(q, s.k, s.v, keys[0].v);
  const Tensor &k = keys[0].k, &v = keys[0].v;
  std::vector<AttentionPattern> patterns;
  bool classes = false;
  for (const AttentionPattern& part : parts) {
    const int64_t side_keys = keys.size() > 1 ? keys[1].k.dim(2) : 0;
    const AttentionPattern& p = patterns.emplace_back(resolve(part, q.dim(2), k.dim(2), side_keys));
    classes = classes || p.mask.class_id || p.side_mask.class_id;
  }
  kernels::AttentionNumbers numbers;
  numbers.ids = relation_ids(terms, classes);
  check(q, k, v, terms, numbers.ids, dropout);
  numbers.segments = static_cast<int>(keys.size());
  numbers.scale = terms.scale != 0 ? terms.scale : 1 / std::sqrt(static_cast<double>(q.dim(3)));
  numbers.left = terms.id.left;
  numbers.right = terms.id.right;
  numbers.ramp = terms.ramp;
  numbers.offset = terms.offset;
  if (dropout.pass.training && dropout.p > 0) {
    RngReuseCheck::note(kBlockAttention, dropout.pass.gen, 0, std::numeric_limits<int64_t>::max());
    numbers.dropout = {dropout.p, dropout.pass.gen.device_key(), dropout.pass.head};
  }
  Operands given;
  given.q = q;
  for (size_t s = 0; s < keys.size(); ++s) {
    given.k[s] = keys[s].k;
    given.v[s] = keys[s].v;
  }
  given.relation_query = terms.relation_query;
  given.relation_key = terms.relation_key;
  given.relation_bias = terms.relation_bias;
  given.relation_value = terms.relation_value;
  given.span = terms.span;
  given.query_span = terms.query_span;
  const Operands x = prepared(given);
  std::vector<Problem> problems;
  for (AttentionPattern& p : patterns) {
    check(q, keys, p, numbers.ids);
    Problem& problem = problems.emplace_back(
        Problem{x, p.q_valid, {p.mask, p.side_mask}, on_device(p.layout, q.device()), numbers});
    fill_windows(p, p.rules, static_cast<bool>(p.layout->order_k), 0, problem.numbers);
    fill_windows(p, p.side_rules, false, 1, problem.numbers);
    problem.accumulate = problems.size() > 1;
  }
  require_disjoint(kBlockAttention, patterns, q.dim(0), q.dim(1));

  std::array<Tensor, Operands::count> inputs;
  size_t at = 0;
  Operands::visit_tensors([&](const Tensor& t) { inputs[at++] = t; }, given);
  auto [out, lse] =
      autograd::reuse_or_recompute<2>(kBlockAttention, inputs, {}, [&]() -> std::array<Tensor, 2> {
        count_macs(q, k, v, patterns);
        Tensor y = empty_blhd(q, q.dim(2), v.dim(3));
        Tensor sums =
            Tensor::empty({q.dim(0), q.dim(1), q.dim(2)}, accumulator_of(q.dtype()), q.device());
        for (const Problem& p : problems) {
          kernels::block_attention_forward(q.device(), view_of(p), y.mut(), sums.mut());
        }
        return {y, sums};
      });
  const autograd::OpEnd end{kBlockAttention, out.shape()};
  if (autograd::anomaly_mode())
    autograd::check_finite(kBlockAttention, "forward", out);  // lse may be -inf
  if (autograd::wants_graph(inputs)) {
    auto node = std::make_shared<AttentionNode>(std::move(problems), out, lse);
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
  // Not exp(each - lse): if all lse are large, their difference has too few digits for the weights
  // to sum to 1.
  const Tensor share = cast(softmax(each), parts[0].out.dtype());
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
