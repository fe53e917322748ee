// Key ranges for packed examples, contexts and sentences, and labels of pairs by class.

#include "ops/patterns/linked.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/divide.h"
#include "ops/copy.h"
#include "ops/patterns/layout_cache.h"

namespace longspan {
namespace {

constexpr const char* kLinkedStreams = "linked streams";

/// A structure tensor on the host: [1 or B, n], or one default value if it is undefined.
class Ids {
 public:
  Ids(const char* name, const Tensor& t, int64_t batch, int64_t n, int64_t missing)
      : given(static_cast<bool>(t)), missing_(missing) {
    if (!given) return;
    require_integer(kLinkedStreams, t, name);
    if (t.rank() < 2 || (t.dim(0) != 1 && t.dim(0) != batch) || t.numel() != t.dim(0) * n) {
      fail_with<ShapeError>(
          kLinkedStreams,
          fmt::format("{} must have {} numbers for each of 1 or {} samples", name, n, batch),
          {{name, t}});
    }
    rows = t.dim(0);
    n_ = n;
    values_ = cast(t, DType::i64).to_vector<int64_t>();
  }

  int64_t operator()(int64_t b, int64_t i) const {
    return given ? values_[static_cast<size_t>((rows == 1 ? 0 : b) * n_ + i)] : missing_;
  }
  void require_range(const char* name, int64_t low, int64_t high) const {
    for (const int64_t x : values_) {
      require(x >= low && x < high, kLinkedStreams, "{} has {}; expected {} to {}", name, x, low,
              high - 1);
    }
  }

  bool given;
  int64_t rows = 1;

 private:
  int64_t missing_, n_ = 0;
  std::vector<int64_t> values_;
};

/// Keys [from, to) of a query.
struct Interval {
  int32_t from = 0, to = 0;
  int64_t size() const { return to - from; }
};

/// Returns for each of n tokens the range of tokens with the same id, which must be contiguous.
/// Tokens whose example, the first element of the id, is negative are padding and get an empty
/// range.
std::vector<Interval> groups(const char* name, int64_t n, const auto& id) {
  std::vector<Interval> of(static_cast<size_t>(n));
  std::map<std::pair<int64_t, int64_t>, int64_t> begins;
  for (int64_t i = 0; i < n;) {
    int64_t end = i + 1;
    while (end < n && id(end) == id(i)) ++end;
    if (id(i).first >= 0) {
      const auto [at, fresh] = begins.emplace(id(i), i);
      require(fresh, kLinkedStreams, "{}: tokens {} and {} are of one, and others between are not",
              name, at->second, i);
      std::fill(of.begin() + i, of.begin() + end,
                Interval{static_cast<int32_t>(i), static_cast<int32_t>(end)});
    }
    i = end;
  }
  return of;
}

/// Key ranges of each query, [rows, n].
struct Bounds {
  std::vector<int32_t> from, to;
  void add(Interval x) {
    from.push_back(x.from);
    to.push_back(x.to);
  }
  void set(PairMask& mask, int64_t rows, int64_t n, Device device) const {
    mask.q_from = Tensor::from(from, {rows, n}, device);
    mask.q_to = Tensor::from(to, {rows, n}, device);
  }
};

std::vector<int32_t> numbers(int64_t n) {
  std::vector<int32_t> x(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) x[static_cast<size_t>(i)] = static_cast<int32_t>(i);
  return x;
}

/// Returns the number of owners that `owner`, [1 or B, n_l] or [1 or B, n_l, O], gives each token.
int64_t owners_of(const Tensor& owner, int64_t n_l) {
  if (!owner || owner.rank() != 3) return 1;
  if (owner.dim(1) != n_l) {
    fail_with<ShapeError>(
        kLinkedStreams,
        fmt::format("owner must have lists for {} long tokens: [1 or B, {}, owners]", n_l, n_l),
        {{"owner", owner}});
  }
  return owner.dim(2);
}

/// What the long tokens of a class have in common: the labels of their pairs with globals, and
/// which of these pairs a hard mask hides.
struct LongClass {
  int64_t link = 0;                  // the row of link_labels
  std::vector<int64_t> owners = {};  // increasing
  bool sees_all = false;             // attends to all globals

  bool owned_by(int64_t m) const { return std::binary_search(owners.begin(), owners.end(), m); }
  friend auto operator<=>(const LongClass&, const LongClass&) = default;
};

/// Builds the patterns of both sides.
class Structure {
 public:
  Structure(const LinkedOptions& c, const LinkedStructure& s, int64_t batch, int64_t n_l,
            int64_t n_g, Device device)
      : c_(c),
        batch_(batch),
        n_l_(n_l),
        n_g_(n_g),
        device_(device),
        labels_{c.max_distance},
        owners_(owners_of(s.owner, n_l)),
        link_classes_(s.link_labels && s.link_labels.rank() == 3 ? s.link_labels.dim(1) : 1),
        owner_("owner", s.owner, batch, n_l * owners_, -1),
        example_("example", s.example, batch, n_l, 0),
        global_example_("global_example", s.global_example, batch, n_g, 0),
        context_("context", s.context, batch, n_l, -1),
        global_context_("global_context", s.global_context, batch, n_g, -1),
        g2l_all_("g2l_all", s.g2l_all, batch, n_g, 0),
        l2g_all_("l2g_all", s.l2g_all, batch, n_l, 0),
        global_labels_("global_labels", s.global_labels, batch, n_g * n_g, 0),
        link_labels_("link_labels", s.link_labels, batch, link_classes_ * n_g, 0),
        link_class_("link_class", s.link_class, batch, n_l, 0) {
    owner_.require_range("owner", -1, n_g);
    global_labels_.require_range("global_labels", -1, c.relations);
    link_labels_.require_range("link_labels", -1, c.relations);
    link_class_.require_range("link_class", 0, link_classes_);
    require(link_labels_.given == link_class_.given, kLinkedStreams,
            "link_labels and link_class belong together; got one of them");
    for (int64_t b = 0; b < batch; ++b) index(b);
    classify();
  }

  LinkedPatterns patterns() const {
    LinkedPatterns p;
    if (n_l_ > 0) long_side(p);
    if (n_g_ > 0) global_side(p);
    return p;
  }

 private:
  /// Calls f(m) once for each global that owns long token j of sample b.
  void for_owners(int64_t b, int64_t j, const auto& f) const {
    const auto at = [&](int64_t o) { return owner_(b, j * owners_ + o); };
    for (int64_t o = 0; o < owners_; ++o) {
      bool first = at(o) >= 0;
      for (int64_t before = 0; first && before < o; ++before) first = at(before) != at(o);
      if (first) f(at(o));
    }
  }
  /// Whether a hard mask restricts long token j, which is no padding, to its owners.
  bool sees_owners(int64_t b, int64_t j) const { return c_.hard_l2g && l2g_all_(b, j) == 0; }

  /// Finds the group of each token of sample b, and the tokens of each global.
  void index(int64_t b) {
    const auto pair = [](int64_t a, int64_t x) { return std::pair{a, x}; };
    examples_l_.push_back(
        groups("example", n_l_, [&](int64_t i) { return pair(example_(b, i), 0); }));
    examples_g_.push_back(
        groups("global_example", n_g_, [&](int64_t i) { return pair(global_example_(b, i), 0); }));
    contexts_.push_back(
        groups("context", n_l_, [&](int64_t i) { return pair(example_(b, i), context_(b, i)); }));
    std::vector<Interval> hull(static_cast<size_t>(n_g_));
    std::vector<int64_t> owned(static_cast<size_t>(n_g_));
    for (int64_t j = 0; j < n_l_; ++j) {
      if (example_(b, j) < 0) continue;
      int64_t count = 0;
      for_owners(b, j, [&](int64_t m) {
        require(example_(b, j) == global_example_(b, m), kLinkedStreams,
                "long token {} of example {} has an owner of example {}", j, example_(b, j),
                global_example_(b, m));
        Interval& h = hull[static_cast<size_t>(m)];
        if (owned[static_cast<size_t>(m)]++ == 0) h.from = static_cast<int32_t>(j);
        h.to = static_cast<int32_t>(j + 1);
        ++count;
      });
      hides_globals_ |= sees_owners(b, j) && owners_hull(b, j).size() != count;
    }
    for (int64_t m = 0; c_.hard_g2l && m < n_g_; ++m) {
      hides_tokens_ |= hull[static_cast<size_t>(m)].size() != owned[static_cast<size_t>(m)];
    }
    hulls_.push_back(std::move(hull));
    ranges_.emplace_back();
    for (int64_t j = 0; j < n_l_; ++j) {
      const int64_t e = example_(b, j);
      if (e >= 0) ranges_.back()[e].first = examples_l_.back()[static_cast<size_t>(j)];
    }
    for (int64_t m = 0; m < n_g_; ++m) {
      const int64_t e = global_example_(b, m);
      if (e >= 0) ranges_.back()[e].second = examples_g_.back()[static_cast<size_t>(m)];
    }
  }

  /// The smallest interval of globals that has all owners of a long token.
  Interval owners_hull(int64_t b, int64_t j) const {
    Interval x;
    for_owners(b, j, [&](int64_t m) {
      const auto at = static_cast<int32_t>(m);
      x = x.size() == 0 ? Interval{at, at + 1}
                        : Interval{std::min(x.from, at), std::max(x.to, at + 1)};
    });
    return x;
  }

  /// Gives each long token its class. Classes with at most one owner have the first numbers or,
  /// with link_class, its classes.
  void classify() {
    const bool linked = link_labels_.given;
    const bool by_owner = !linked || hides_tokens_ || hides_globals_;
    const bool special = hides_globals_ && l2g_all_.given;
    for (int64_t i = 0; linked && i < link_classes_; ++i) classes_.push_back({.link = i});
    for (int64_t m = 0; !linked && m < n_g_; ++m) classes_.push_back({.owners = {m}});
    if (!linked) classes_.push_back({});
    std::map<LongClass, int64_t> numbers;
    class_rows_ =
        special ? rows({&owner_, &link_class_, &l2g_all_}) : rows({&owner_, &link_class_});
    class_of_.reserve(static_cast<size_t>(class_rows_ * n_l_));
    for (int64_t b = 0; b < class_rows_; ++b) {
      for (int64_t j = 0; j < n_l_; ++j) {
        int64_t count = 0, last = n_g_;
        if (by_owner) {
          for_owners(b, j, [&](int64_t m) {
            last = m;
            ++count;
          });
        }
        const bool all = special && l2g_all_(b, j) != 0;
        int64_t number = linked ? link_class_(b, j) : last;
        if (all || count > (linked ? 0 : 1)) {
          LongClass own{.link = link_class_(b, j), .sees_all = all};
          if (by_owner) for_owners(b, j, [&](int64_t m) { own.owners.push_back(m); });
          std::sort(own.owners.begin(), own.owners.end());
          const auto [at, fresh] = numbers.emplace(own, static_cast<int64_t>(classes_.size()));
          if (fresh) classes_.push_back(own);
          number = at->second;
        }
        class_of_.push_back(static_cast<int32_t>(number));
      }
    }
  }

  bool packed() const { return example_.given || global_example_.given; }
  int64_t rows(std::initializer_list<const Ids*> all) const {
    int64_t n = 1;
    for (const Ids* x : all) n = std::max(n, x->rows);
    return n;
  }
  /// Label of the pair of a class of long tokens and a global; -1: masked.
  int64_t link(int64_t b, const LongClass& of, int64_t m) const {
    if (link_labels_.given) return link_labels_(b, of.link * n_g_ + m);
    return of.owned_by(m) ? labels_.linked() : labels_.unlinked();
  }
  int64_t global_label(int64_t b, int64_t m, int64_t other) const {
    if (global_labels_.given) return global_labels_(b, m * n_g_ + other);
    const int64_t x = global_context_(b, m), y = global_context_(b, other);
    return x >= 0 && y >= 0 && x != y ? labels_.other_context() : labels_.distance(other - m);
  }
  int64_t class_count() const { return static_cast<int64_t>(classes_.size()); }
  int32_t row(int64_t label) const {
    if (label < 0) return -1;
    return static_cast<int32_t>(c_.labels ? labels_.row(label) : 0);
  }
  Tensor long_classes() const { return Tensor::from(class_of_, {class_rows_, n_l_}, device_); }
  Tensor global_classes() const { return Tensor::from(numbers(n_g_), {1, n_g_}, device_); }
  Interval example_range(int64_t b, int64_t example, bool globals) const {
    const auto at = ranges_[static_cast<size_t>(b)].find(example);
    if (at == ranges_[static_cast<size_t>(b)].end()) return {};
    return globals ? at->second.second : at->second.first;
  }
  static AttentionPattern with_side(AttentionPattern p, int64_t side) {
    p.layout = with_side_keys(p.layout, side);
    p.layout_spec = {};
    return p;
  }

  void long_side(LinkedPatterns& all) const {
    AttentionPattern& p = all.long_side;
    p = with_side(resolve(patterns::local_bidirectional(2 * c_.radius), n_l_, n_l_), n_g_);
    p.name = "long";
    Bounds local, side;
    const int64_t many = rows({&owner_, &example_, &global_example_, &context_, &l2g_all_});
    for (int64_t b = 0; b < std::min(many, batch_); ++b) {
      for (int64_t i = 0; i < n_l_; ++i) {
        const Interval here = example_(b, i) < 0
                                  ? Interval{}
                                  : contexts_[static_cast<size_t>(b)][static_cast<size_t>(i)];
        Interval global = example_range(b, example_(b, i), true);
        if (sees_owners(b, i) && global.size() > 0) global = owners_hull(b, i);
        local.add(here);
        side.add(global);
      }
    }
    if (packed() || context_.given) local.set(p.mask, many, n_l_, device_);
    if (n_g_ == 0) return;
    if (packed() || c_.hard_l2g) side.set(p.side_mask, many, n_l_, device_);
    if (!c_.labels && !link_labels_.given && !hides_globals_) return;
    std::vector<int32_t> table;
    for (int64_t b = 0; b < link_labels_.rows; ++b) {
      for (const LongClass& of : classes_) {
        for (int64_t m = 0; m < n_g_; ++m) {
          const bool hidden = hides_globals_ && !of.sees_all && !of.owned_by(m);
          table.push_back(hidden ? -1 : row(link(b, of, m)));
        }
      }
    }
    p.side_mask.q_class = long_classes();
    p.side_mask.k_class = global_classes();
    p.side_mask.class_id = Tensor::from(table, {link_labels_.rows, class_count(), n_g_}, device_);
  }

  void global_side(LinkedPatterns& all) const {
    AttentionPattern& p = all.global_side;
    p = with_side(resolve(patterns::dense(), n_g_, n_g_), n_l_);
    p.name = "global";
    const bool table = global_labels_.given || (global_context_.given && c_.labels);
    Bounds global, side;
    const int64_t many = rows({&owner_, &example_, &global_example_, &g2l_all_});
    for (int64_t b = 0; b < std::min(many, batch_); ++b) {
      for (int64_t m = 0; m < n_g_; ++m) {
        const auto at = static_cast<size_t>(m);
        const Interval here = examples_g_[static_cast<size_t>(b)][at];
        const bool own = c_.hard_g2l && g2l_all_(b, m) == 0;
        Interval tokens = example_range(b, global_example_(b, m), false);
        if (own) tokens = here.size() > 0 ? hulls_[static_cast<size_t>(b)][at] : Interval{};
        global.add(here);
        side.add(tokens);
      }
    }
    if (packed()) global.set(p.mask, many, n_g_, device_);
    if (table) {
      const int64_t n = rows({&global_labels_, &global_context_});
      std::vector<int32_t> ids;
      for (int64_t b = 0; b < n; ++b) {
        for (int64_t m = 0; m < n_g_; ++m) {
          for (int64_t o = 0; o < n_g_; ++o) ids.push_back(row(global_label(b, m, o)));
        }
      }
      p.mask.q_class = p.mask.k_class = global_classes();
      p.mask.class_id = Tensor::from(ids, {n, n_g_, n_g_}, device_);
    }
    if (n_l_ == 0) return;
    if (packed() || c_.hard_g2l) side.set(p.side_mask, many, n_g_, device_);
    if (!c_.labels && !link_labels_.given && !hides_tokens_) return;
    const int64_t n = rows({&link_labels_, hides_tokens_ ? &g2l_all_ : &link_labels_});
    std::vector<int32_t> ids;
    for (int64_t b = 0; b < n; ++b) {
      for (int64_t m = 0; m < n_g_; ++m) {
        for (const LongClass& of : classes_) {
          const bool hidden = hides_tokens_ && !of.owned_by(m) && g2l_all_(b, m) == 0;
          ids.push_back(hidden ? -1 : row(link(b, of, m)));
        }
      }
    }
    p.side_mask.q_class = global_classes();
    p.side_mask.k_class = long_classes();
    p.side_mask.class_id = Tensor::from(ids, {n, n_g_, class_count()}, device_);
  }

  const LinkedOptions& c_;
  int64_t batch_, n_l_, n_g_;
  Device device_;
  RelationLabels labels_;
  int64_t owners_, link_classes_;
  Ids owner_, example_, global_example_, context_, global_context_, g2l_all_, l2g_all_,
      global_labels_, link_labels_, link_class_;
  // Whether classes hide pairs, since hard masks leave a global tokens with others between them, or
  // a token globals with others between them.
  bool hides_tokens_ = false, hides_globals_ = false;
  std::vector<LongClass> classes_;
  std::vector<int32_t> class_of_;  // [class_rows, n_l]
  int64_t class_rows_ = 1;
  // For each sample: groups by example and context, tokens that globals own, and ranges of
  // examples.
  std::vector<std::vector<Interval>> examples_l_, examples_g_, contexts_, hulls_;
  std::vector<std::map<int64_t, std::pair<Interval, Interval>>> ranges_;
};

}  // namespace

LinkedPatterns LinkedPatterns::of_layer(int64_t i) const {
  LinkedPatterns one{long_side, global_side};
  if (!more.empty()) one.more = {more[static_cast<size_t>(i)]};
  return one;
}

LinkedPatterns patterns::linked(const LinkedOptions& options, const LinkedStructure& structure,
                                int64_t batch, int64_t n_l, int64_t n_g, Device device) {
  return Structure(options, structure, batch, n_l, n_g, device).patterns();
}

Tensor hierarchy_labels(const LinkedOptions& options, const Tensor& level, const Tensor& parent) {
  const RelationLabels labels{options.max_distance};
  require(options.relations > labels.has_part(), kLinkedStreams,
          "a hierarchy needs relations >= 2 max_distance + 6 = {}; there are {}",
          labels.has_part() + 1, options.relations);
  require_rank_is(kLinkedStreams, level, 2, "level");
  const int64_t batch = level.dim(0), n = level.dim(1);
  const Ids of("level", level, batch, n, 0), above("parent", parent, batch, n, -1);
  std::vector<int32_t> table;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t m = 0; m < n; ++m) {
      for (int64_t o = 0; o < n; ++o) {
        int64_t label = labels.other_context();
        if (of(b, m) == of(b, o)) label = labels.distance(o - m);
        if (above(b, m) == o) label = labels.part_of();
        if (above(b, o) == m) label = labels.has_part();
        table.push_back(static_cast<int32_t>(label));
      }
    }
  }
  return Tensor::from(table, {batch, n, n}, level.device());
}

}  // namespace longspan
