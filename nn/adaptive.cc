#include "nn/adaptive.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "ops/softmax.h"

namespace longspan {
namespace {

constexpr const char* kEmbedding = "adaptive_embedding";
constexpr const char* kSoftmax = "adaptive_softmax";

std::string text_of(const std::vector<int64_t>& values) {
  std::string text;
  for (const int64_t v : values) text += (text.empty() ? "" : ", ") + std::to_string(v);
  return "[" + text + "]";
}

std::vector<Linear> projections_of(const AdaptiveOptions& o, const Init& init) {
  std::vector<Linear> result;
  for (int64_t c = 0; o.projects() && c < o.clusters(); ++c) {
    result.emplace_back(o.width(c), o.d_model, false, init.at("projection").at(c), o.projections);
  }
  return result;
}

Tensor list_of(const std::vector<int64_t>& values, Device device) {
  return Tensor::from(values, {std::ssize(values)}, device);
}

/// The rows of a batch of T ids by cluster. On the host and on the meta device the lists of a
/// cluster hold its own rows alone, n_c of them. On other devices n_c = T for each cluster.
struct ClusterRows {
  std::vector<Tensor> rows;  // [n_c]: which row of the batch, -1: none
  std::vector<Tensor> ids;   // [n_c]: which row of the table of the cluster
  Tensor places;  // [T]: where in the concatenation of the lists a row of the batch is, -1: nowhere
};

/// Reads ids [T] on the host. On the meta device all of them are `assumed`.
std::vector<int64_t> read(const Tensor& ids, int64_t assumed) {
  const Tensor wide = cast(ids, DType::i64);
  if (ids.device() == meta_device) {
    return std::vector<int64_t>(static_cast<size_t>(ids.numel()), assumed);
  }
  return wide.to_vector<int64_t>();
}

/// The cluster of an id.
int64_t cluster_of(const AdaptiveOptions& o, int64_t id) {
  return std::upper_bound(o.cutoffs.begin(), o.cutoffs.end(), id) - o.cutoffs.begin();
}

/// Returns the rows of clusters first, first + 1, ...; rows with negative ids are in none.
ClusterRows rows_on_host(const AdaptiveOptions& o, const std::vector<int64_t>& ids, int64_t first,
                         Device device) {
  const auto n = static_cast<size_t>(o.clusters());
  std::vector<std::vector<int64_t>> rows(n), local(n);
  for (size_t t = 0; t < ids.size(); ++t) {
    const int64_t c = ids[t] < 0 ? -1 : cluster_of(o, ids[t]);
    if (c < first) continue;
    rows[static_cast<size_t>(c)].push_back(static_cast<int64_t>(t));
    local[static_cast<size_t>(c)].push_back(ids[t] - o.begin(c));
  }
  ClusterRows result;
  std::vector<int64_t> places(ids.size(), -1);
  int64_t next = 0;
  for (auto c = static_cast<size_t>(first); c < n; ++c) {
    for (const int64_t t : rows[c]) places[static_cast<size_t>(t)] = next++;
    result.rows.push_back(list_of(rows[c], device));
    result.ids.push_back(list_of(local[c], device));
  }
  result.places = list_of(places, device);
  return result;
}

/// Numbers that the device computes with in f64, in which all ids and rows are exact.
Tensor number(double x, Device device) { return full({}, x, DType::f64, device); }

/// The same for a device: wide [T] are the ids in f64. The ids of other rows are `absent`.
ClusterRows rows_on_device(const AdaptiveOptions& o, const Tensor& wide, int64_t first,
                           double absent) {
  const Device on = wide.device();
  const int64_t T = wide.numel();
  const Tensor row = iota(T, DType::f64, on), none = number(-1, on);
  ClusterRows result;
  Tensor places = none;
  for (int64_t c = first; c < o.clusters(); ++c) {
    const auto low = static_cast<double>(o.begin(c)), high = static_cast<double>(o.begin(c + 1));
    const Tensor below = less(wide, number(high, on)), above = less(wide, number(low, on));
    const auto choose = [&](const Tensor& x, const Tensor& otherwise) {
      return where(above, otherwise, where(below, x, otherwise));
    };
    result.rows.push_back(cast(choose(row, none), DType::i64));
    result.ids.push_back(cast(choose(sub(wide, low), number(absent, on)), DType::i64));
    places = choose(add(row, static_cast<double>((c - first) * T)), places);
  }
  result.places = cast(places, DType::i64);
  return result;
}

/// The rows that the softmaxes of a loss over T targets compute.
struct TargetRows {
  ClusterRows tails;  // of clusters 1, 2, ...
  Tensor head;        // [n]: targets of the first softmax, or ignored_target
  Tensor counted;     // [n]: the rows that it reads, -1: zeros; undefined: all
  Tensor places;      // [T]: index in the n rows of each row of the batch; undefined: its own index
};

/// `select`: rows with an ignored target must not reach the first softmax, not even as a factor.
TargetRows targets_on_host(const AdaptiveOptions& o, const std::vector<int64_t>& targets,
                           const std::vector<int64_t>& head_of_cluster, bool select,
                           Device device) {
  TargetRows result;
  result.tails = rows_on_host(o, targets, 1, device);
  std::vector<int64_t> head, counted, places(targets.size(), -1);
  for (size_t t = 0; t < targets.size(); ++t) {
    const int64_t id = targets[t];
    if (id == ignored_target && select) continue;
    const int64_t c = id == ignored_target ? 0 : cluster_of(o, id);
    places[t] = std::ssize(counted);
    counted.push_back(static_cast<int64_t>(t));
    head.push_back(c == 0 ? id : head_of_cluster[static_cast<size_t>(c - 1)]);
  }
  result.head = list_of(head, device);
  if (counted.size() < targets.size()) {
    result.counted = list_of(counted, device);
    result.places = list_of(places, device);
  }
  return result;
}

TargetRows targets_on_device(const AdaptiveOptions& o, const Tensor& targets,
                             const std::vector<int64_t>& head_of_cluster, bool select) {
  const Device on = targets.device();
  const Tensor wide = cast(targets, DType::f64);
  TargetRows result;
  result.tails = rows_on_device(o, wide, 1, ignored_target);
  Tensor head = wide;
  for (int64_t c = 1; c < o.clusters(); ++c) {
    const auto entry = static_cast<double>(head_of_cluster[static_cast<size_t>(c - 1)]);
    head = where(less(wide, number(static_cast<double>(o.begin(c)), on)), head, number(entry, on));
  }
  result.head = cast(head, DType::i64);
  if (select) {
    const Tensor ignored = equal(wide, number(ignored_target, on));
    result.counted =
        cast(where(ignored, number(-1, on), iota(targets.numel(), DType::f64, on)), DType::i64);
  }
  return result;
}

void check_hidden(const AdaptiveOptions& o, const Tensor& hidden, const Tensor& weight) {
  require_floating(kSoftmax, hidden, "hidden");
  require_rank(kSoftmax, hidden, 1, "hidden");
  require_same_device(kSoftmax, {"hidden", hidden}, {"weight", weight});
  if (hidden.dim(-1) == o.d_model) return;
  fail_with<ShapeError>(
      kSoftmax,
      fmt::format("hidden has {} features, the softmax takes {}; pass [..., {}] or build it with "
                  "d_model = {}",
                  hidden.dim(-1), o.d_model, o.d_model, hidden.dim(-1)),
      {{"hidden", hidden}});
}

/// Returns x [...] as one axis.
Tensor line(const Tensor& x) { return reshape(x, {x.numel()}); }

/// Checks targets [...] for hidden [..., D] and returns them as [T].
Tensor checked_targets(const AdaptiveOptions& o, const Tensor& hidden, const Tensor& targets) {
  require_integer(kSoftmax, targets, "targets");
  require_same_device(kSoftmax, {"hidden", hidden}, {"targets", targets});
  Shape expected = hidden.shape();
  expected.erase(expected.rank() - 1);
  require_shape(kSoftmax, targets, expected, "targets");
  return detail::checked_ids(
      line(targets), 0, o.vocab, ignored_target, [V = o.vocab](int64_t at, int64_t id) {
        fail<ValueError>(kSoftmax,
                         "target {} at position {} is not in [0, {}) and not the ignored value {}",
                         id, at, V, ignored_target);
      });
}

}  // namespace

int64_t AdaptiveOptions::begin(int64_t c) const {
  if (c == 0) return 0;
  return c < clusters() ? cutoffs[static_cast<size_t>(c - 1)] : vocab;
}

int64_t AdaptiveOptions::width(int64_t c) const {
  int64_t w = d_embed > 0 ? d_embed : d_model;
  for (int64_t i = 0; i < c && w > 0; ++i) w /= div_value;
  return w;
}

bool AdaptiveOptions::projects() const {
  return width(0) != d_model || (div_value != 1 && clusters() > 1);
}

void AdaptiveOptions::check(std::string_view op) const {
  require(vocab >= 1, op, "vocab is {}; expected 1 or more", vocab);
  require(d_model >= 1, op, "d_model is {}; expected 1 or more", d_model);
  require(d_embed >= 0, op, "d_embed is {}; expected 0 or more", d_embed);
  require(div_value >= 1, op, "div_value is {}; expected 1 or more", div_value);
  int64_t before = 0;
  for (const int64_t cutoff : cutoffs) {
    require(cutoff > before && cutoff < vocab, op,
            "cutoffs are {}; expected ids that increase, from 1 to vocab - 1 = {}",
            text_of(cutoffs), vocab - 1);
    before = cutoff;
  }
  const int64_t last = clusters() - 1;
  require(width(last) >= 1, op,
          "cluster {} has no width: {} / {}^{} is below 1; lower div_value, widen d_embed or leave "
          "out cutoffs",
          last, width(0), div_value, last);
}

AdaptiveEmbedding::AdaptiveEmbedding(const AdaptiveOptions& o, const Init& init) : options(o) {
  o.check(kEmbedding);
  for (int64_t c = 0; c < o.clusters(); ++c) {
    tables.emplace_back(o.size(c), o.width(c), init.at("table").at(c), o.tables);
  }
  projections = projections_of(o, init);
}

Tensor AdaptiveEmbedding::forward(const Tensor& ids) const {
  const AdaptiveOptions& o = options;
  require_integer(kEmbedding, ids, "ids");
  require_same_device(kEmbedding, {"weight", tables[0].weight}, {"ids", ids});
  const Tensor checked = detail::checked_ids(kEmbedding, ids, 0, o.vocab);
  const auto project = [&](size_t c, const Tensor& x) {
    return projections.empty() ? x : projections[c].forward(x);
  };
  if (o.clusters() == 1) return project(0, tables[0].forward(checked));

  const Tensor flat = line(checked);
  const bool lists = ids.device().kind == DeviceKind::cpu || ids.device() == meta_device;
  const ClusterRows rows = lists ? rows_on_host(o, read(flat, 0), 0, ids.device())
                                 : rows_on_device(o, cast(flat, DType::f64), 0, -1);
  std::vector<Tensor> parts;
  for (size_t c = 0; c < tables.size(); ++c) {
    parts.push_back(project(c, permute_rows(tables[c].weight, rows.ids[c])));  // [n_c, D]
  }
  const Tensor all = concat(parts, 0);
  parts.clear();
  Shape shape = ids.shape();
  shape.push_back(o.d_model);
  return reshape(permute_rows(all, rows.places), shape);
}

AdaptiveSoftmax::AdaptiveSoftmax(const AdaptiveOptions& o, const AdaptiveSoftmaxOptions& s,
                                 const Init& init, const AdaptiveEmbedding* tied)
    : options(o), softmax(s) {
  o.check(kSoftmax);
  require(tied != nullptr || (!s.tie_weights && s.tie_projections.empty()), kSoftmax,
          "tie_weights and tie_projections need an embedding to tie to");
  const auto same = [&](const AdaptiveOptions& e) {
    return e.vocab == o.vocab && e.d_model == o.d_model && e.cutoffs == o.cutoffs &&
           e.width(0) == o.width(0) && e.div_value == o.div_value;
  };
  require(tied == nullptr || same(tied->options), kSoftmax,
          "the embedding to tie to has other sizes; give both the same vocab, d_model, d_embed, "
          "cutoffs and div_value");
  std::vector<bool> tie(static_cast<size_t>(o.clusters()), false);
  for (const int64_t c : s.tie_projections) {
    require(c >= 0 && c < o.clusters(), kSoftmax,
            "tie_projections are {}; expected clusters from 0 to {}", text_of(s.tie_projections),
            o.clusters() - 1);
    require(o.projects(), kSoftmax,
            "tie_projections are {}, but no cluster has a projection, since div_value is 1 and "
            "d_embed is d_model; leave out tie_projections",
            text_of(s.tie_projections));
    tie[static_cast<size_t>(c)] = true;
  }
  for (int64_t c = 0; c < o.clusters(); ++c) {
    const Init at = init.at("table").at(c);
    Linear table;
    if (s.tie_weights) {
      table.weight = tied->tables[static_cast<size_t>(c)].weight;
      if (s.bias) table.bias = at.at("bias").make({o.size(c)}, Scheme::zeros());
    } else {
      table = Linear(o.width(c), o.size(c), s.bias, at, o.tables);
    }
    tables.push_back(std::move(table));
  }
  for (int64_t c = 0; o.projects() && c < o.clusters(); ++c) {
    const auto i = static_cast<size_t>(c);
    projections.push_back(
        tie[i] ? tied->projections[i]
               : Linear(o.width(c), o.d_model, false, init.at("projection").at(c), o.projections));
  }
  if (o.clusters() > 1) {
    cluster = Linear(o.width(0), o.clusters() - 1, s.bias, init.at("cluster"), o.tables);
  }
}

int64_t AdaptiveSoftmax::row_of(int64_t c) const {
  return softmax.cluster_order == ClusterOrder::forward ? c - 1 : options.clusters() - 1 - c;
}

Tensor AdaptiveSoftmax::narrowed(int64_t c, const Tensor& h) const {
  if (projections.empty()) return h;
  return matmul(h, cast(projections[static_cast<size_t>(c)].weight, h.dtype()));
}

Tensor AdaptiveSoftmax::loss(const Tensor& hidden, const Tensor& targets, Reduction reduction,
                             LossGradient gradient) const {
  const AdaptiveOptions& o = options;
  check_hidden(o, hidden, tables[0].weight);
  const bool each = reduction == Reduction::none;
  const bool now = gradient == LossGradient::in_forward;
  require(!each || !now, kSoftmax,
          "gradients in forward need one loss; use Reduction::mean or sum, or recompute");
  const Tensor known = cast(checked_targets(o, hidden, targets), DType::i64);  // [T]

  std::vector<int64_t> entries;  // of clusters 1, 2, ... in the first softmax
  for (int64_t c = 1; c < o.clusters(); ++c) entries.push_back(o.size(0) + row_of(c));
  const Device on = hidden.device();
  const bool lists = on.kind == DeviceKind::cpu || on == meta_device, select = o.projects();
  const int64_t assumed = o.clusters() > 1 ? o.begin(1) : 0;
  const TargetRows rows = lists ? targets_on_host(o, read(known, assumed), entries, select, on)
                                : targets_on_device(o, known, entries, select);

  const CrossEntropyOptions how{.ignore = ignored_target,
                                .reduction = each ? Reduction::none : Reduction::sum,
                                .gradient = now ? gradient : LossGradient::recompute};
  const DType dtype = hidden.dtype();
  const auto as = [&](const Tensor& x) { return x ? cast(x, dtype) : x; };
  const Tensor h = reshape(hidden, {targets.numel(), o.d_model});
  const auto head_of = [&](const Tensor& own, const Tensor& more) {
    return own && more ? concat({as(own), as(more)}, 0) : as(own);
  };
  const Tensor read = rows.counted ? permute_rows(h, rows.counted) : h;
  Tensor total = linear_cross_entropy(narrowed(0, read), head_of(tables[0].weight, cluster.weight),
                                      head_of(tables[0].bias, cluster.bias), rows.head, how);
  std::vector<Tensor> tails;
  for (int64_t c = 1; c < o.clusters(); ++c) {
    const auto i = static_cast<size_t>(c);
    const Tensor& ids = rows.tails.ids[i - 1];
    const Tensor own = narrowed(c, permute_rows(h, rows.tails.rows[i - 1]));  // [n_c, width(c)]
    tails.push_back(linear_cross_entropy(own, as(tables[i].weight), as(tables[i].bias), ids, how));
  }
  if (each) {
    const auto spread = [](const Tensor& losses, const Tensor& places) {
      return squeeze(permute_rows(unsqueeze(losses, 1), places), 1);
    };
    if (rows.places) total = spread(total, rows.places);
    if (!tails.empty()) total = add(total, spread(concat(tails, 0), rows.tails.places));
    return reshape(total, targets.shape());
  }
  for (const Tensor& tail : tails) total = add(total, tail);
  if (reduction == Reduction::sum) return total;
  const Tensor ignored = full({}, ignored_target, DType::i64, on);
  const Tensor count = sum(cast(not_equal(known, ignored), total.dtype()));
  return div(total, maximum(count, ones({}, total.dtype(), on)));
}

Tensor AdaptiveSoftmax::log_probabilities(const Tensor& hidden) const {
  const AdaptiveOptions& o = options;
  check_hidden(o, hidden, tables[0].weight);
  const Tensor h = cast(hidden, tables[0].weight.dtype());
  const Tensor first = narrowed(0, h), own = tables[0].forward(first);  // [..., size(0)]
  if (o.clusters() == 1) return log_softmax(own);
  const Tensor head = log_softmax(concat({own, cluster.forward(first)}, -1));
  std::vector<Tensor> parts{narrow(head, -1, 0, o.size(0))};
  for (int64_t c = 1; c < o.clusters(); ++c) {
    const Tensor tail = log_softmax(tables[static_cast<size_t>(c)].forward(narrowed(c, h)));
    parts.push_back(add(tail, narrow(head, -1, o.size(0) + row_of(c), 1)));
  }
  return concat(parts, -1);
}

}  // namespace longspan
