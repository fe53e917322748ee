#include "ops/patterns/disjoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "core/divide.h"
#include "core/error.h"
#include "core/graph.h"
#include "ops/patterns/host_view.h"

namespace longspan {
namespace {

/// Keys first, first + step, .. : `count` of them. The step is 1 if there are fewer than two.
struct Progression {
  int64_t first = 0, step = 1, count = 0;

  int64_t last() const { return first + step * (count - 1); }
};

int64_t remainder(int64_t n, int64_t unit) { return n - round_down(n, unit); }

/// Returns the keys of `p` that are at least `lo` and below `hi`.
Progression clipped(const Progression& p, int64_t lo, int64_t hi) {
  const int64_t skip = lo > p.first ? ceil_div(lo - p.first, p.step) : 0;
  const int64_t end = hi > p.first ? std::min(p.count, ceil_div(hi - p.first, p.step)) : 0;
  if (skip >= end) return {};
  return {p.first + skip * p.step, end - skip > 1 ? p.step : 1, end - skip};
}

/// Returns t with a t = 1 modulo m, for a without a common divisor with m.
int64_t inverse(int64_t a, int64_t m) {
  int64_t r = m, t = 0, next_t = 1;
  while (a != 0) {  // Euclid's algorithm, with r = t * (the first a) modulo m
    const int64_t quotient = r / a;
    t = std::exchange(next_t, t - quotient * next_t);
    r = std::exchange(a, r - quotient * a);
  }
  return remainder(t, m);
}

/// Returns the keys that are in both.
Progression common(const Progression& a, const Progression& b) {
  if (a.count == 0 || b.count == 0) return {};
  const int64_t lo = std::max(a.first, b.first), hi = std::min(a.last(), b.last()) + 1;
  if (lo >= hi) return {};
  if (b.step == 1) return clipped(a, lo, hi);
  if (a.step == 1) return clipped(b, lo, hi);
  const int64_t divisor = std::gcd(a.step, b.step), apart = b.first - a.first;
  if (apart % divisor != 0) return {};
  // The first key from a.first on that both would have if they had no ends.
  const int64_t m = b.step / divisor;
  const int64_t steps =
      m == 1 ? 0 : remainder(apart / divisor, m) * inverse(remainder(a.step / divisor, m), m) % m;
  const int64_t first = a.first + a.step * steps, step = a.step * m;
  if (first >= hi) return {};
  return clipped({first, step, ceil_div(hi - first, step)}, lo, hi);
}

/// Neighbouring keys of a run, in place of its slots: all of them, or a part with one step.
struct TiledPart {
  Progression keys;
  int segment;
  RunKind kind;

  bool before(const TiledPart& other) const {
    return segment < other.segment || (segment == other.segment && keys.last() < other.keys.first);
  }
};

/// What the rows of one member of a pattern's layout may see.
class Member {
 public:
  Member(const AttentionPattern& p, int32_t number) {
    const BlockLayout& layout = *p.layout;
    const LayoutMember own = members_of(layout)[static_cast<size_t>(number)];
    const auto order_q = detail::order_of(layout.order_q, own.order_q);
    const auto order_k = detail::order_of(layout.order_k, own.order_k);
    sorted_ = order_k.empty();
    keys_[0] = layout.keys;
    keys_[1] = layout.side_keys;
    for (const int s : {0, 1}) {
      rules_[s] = detail::choose(s == 0 ? p.rules : p.side_rules, own.rule);
      periods_[s] = detail::period_of(rules_[s]);
    }
    tile_of_row_.resize(static_cast<size_t>(layout.queries));
    for (const TileRuns& tile : tiles_of(layout, number)) {
      for (int64_t slot = tile.q0; slot < int64_t{tile.q0} + tile.qn; ++slot) {
        const int64_t row = order_q.empty() ? slot : order_q[static_cast<size_t>(slot)];
        tile_of_row_[static_cast<size_t>(row)] = static_cast<int32_t>(first_.size());
      }
      first_.push_back(pieces_.size());
      for (const KeyRun& run : tile.runs) add(run, order_k);
    }
    first_.push_back(pieces_.size());
  }

  bool sorted() const { return sorted_; }
  int32_t tile_of(int64_t row) const { return tile_of_row_[static_cast<size_t>(row)]; }
  std::span<const TiledPart> pieces(int32_t tile) const {
    const auto t = static_cast<size_t>(tile);
    return std::span(pieces_).subspan(first_[t], first_[t + 1] - first_[t]);
  }
  /// Returns those of `keys`, which are of a piece, that a row sees.
  Progression seen(const TiledPart& piece, const Progression& keys, int64_t row) const {
    if (piece.kind == RunKind::full) return keys;
    const Rule& rule = rules_[piece.segment];
    const int64_t period = periods_[piece.segment], place = row + rule.q_start;
    const int64_t lo = std::max<int64_t>(0, place - rule.window.reach_left());
    int64_t hi = std::min(keys_[piece.segment], place + rule.window.reach_right() + 1);
    if (rule.causal) hi = std::min(hi, place + 1);
    if (lo >= hi) return {};
    if (period == 1) return clipped(keys, lo, hi);
    const int64_t first = lo + remainder(place - lo, period);
    if (first >= hi) return {};
    const int64_t count = (hi - 1 - first) / period + 1;
    return common(keys, {first, count > 1 ? period : 1, count});
  }

 private:
  void add(const KeyRun& run, const std::vector<int32_t>& order_k) {
    if (run.segment > 0 || order_k.empty()) {
      pieces_.push_back({{run.k0, 1, run.kn}, run.segment, run.kind});
      return;
    }
    const int32_t* const key = order_k.data() + run.k0;  // ascending
    for (int32_t from = 0, to = 0; from < run.kn; from = to) {
      to = from + 1;
      const int64_t step = to < run.kn ? key[to] - key[from] : 1;
      while (to < run.kn && key[to] - key[to - 1] == step) ++to;
      pieces_.push_back({{key[from], to - from > 1 ? step : 1, to - from}, 0, run.kind});
    }
  }

  bool sorted_;  // pieces ascend in every tile
  int64_t keys_[2], periods_[2];
  Rule rules_[2];
  std::vector<int32_t> tile_of_row_;
  std::vector<TiledPart> pieces_;
  std::vector<size_t> first_;  // piece of each tile, and the end
};

/// Calls visit(row, segment, keys) for the keys that a row sees in both members, run by run, until
/// it returns true. Returns whether it did.
template <class F>
bool visit_shared(const Member& a, const Member& b, int64_t rows, F&& visit) {
  for (int64_t row = 0, end = 0; row < rows; row = end) {
    const int32_t of_a = a.tile_of(row), of_b = b.tile_of(row);
    for (end = row + 1; end < rows && a.tile_of(end) == of_a && b.tile_of(end) == of_b;) ++end;
    const std::span<const TiledPart> others = b.pieces(of_b);
    size_t from = 0;
    for (const TiledPart& x : a.pieces(of_a)) {
      for (size_t n = from; n < others.size(); ++n) {
        const TiledPart& y = others[n];
        if (b.sorted() && x.before(y)) break;
        if (a.sorted() && b.sorted() && y.before(x)) from = n + 1;
        if (x.segment != y.segment) continue;
        const Progression both = common(x.keys, y.keys);
        for (int64_t i = row; both.count > 0 && i < end; ++i) {
          const Progression seen = b.seen(y, a.seen(x, both, i), i);
          if (seen.count > 0 && visit(i, x.segment, seen)) return true;
        }
      }
    }
  }
  return false;
}

/// Returns the member of each head, [batch, heads] row-major.
std::vector<int32_t> members_of_heads(const BlockLayout& layout, int64_t batch, int64_t heads) {
  const int64_t rows = layout.layout_index.dim(0), columns = layout.layout_index.dim(1);
  const auto all = layout.layout_index.to_vector<int32_t>();
  std::vector<int32_t> members;
  for (int64_t sample = 0; sample < batch; ++sample) {
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t at = (rows > 1 ? sample : 0) * columns + (columns > 1 ? head : 0);
      members.push_back(all[static_cast<size_t>(at)]);
    }
  }
  return members;
}

/// A pair of a call.
struct PartPair {
  int64_t sample, head, query, key;
  int segment;
};

/// Compares two patterns of one call.
class PartComparison {
 public:
  PartComparison(const AttentionPattern& a, const AttentionPattern& b) : patterns_{&a, &b} {}

  /// Returns a pair that both show, if there is one.
  std::optional<PartPair> find(int64_t batch, int64_t heads) {
    // Heads with the same two members can differ only in the masks of their samples.
    std::map<std::pair<int32_t, int32_t>, std::vector<std::pair<int64_t, int64_t>>> cases;
    const auto a = members_of_heads(*patterns_[0]->layout, batch, heads);
    const auto b = members_of_heads(*patterns_[1]->layout, batch, heads);
    for (size_t at = 0; at < a.size(); ++at) {
      const int64_t sample = static_cast<int64_t>(at) / heads;
      auto& known = cases[{a[at], b[at]}];
      if (known.empty() || known.back().first != sample) {
        known.emplace_back(sample, static_cast<int64_t>(at) % heads);
      }
    }
    for (const auto& [members, where] : cases) {
      std::optional<PartPair> found;
      visit_shared(member(0, members.first), member(1, members.second),
                   patterns_[0]->layout->queries,
                   [&](int64_t row, int segment, const Progression& keys) {
                     touches_ = true;
                     if (masks_.empty() && !read_masks()) return true;
                     found = shown(where, row, segment, keys);
                     return found.has_value();
                   });
      if (found) return found;
    }
    return {};
  }

  /// Whether only masks hid the pairs that find() did not report.
  bool masks_decide() const { return touches_; }

 private:
  const Member& member(size_t pattern, int32_t number) {
    std::unique_ptr<Member>& m = members_[pattern][number];
    if (m == nullptr) m = std::make_unique<Member>(*patterns_[pattern], number);
    return *m;
  }

  /// Returns the first of these pairs that the masks of both patterns show, in some sample.
  std::optional<PartPair> shown(const std::vector<std::pair<int64_t, int64_t>>& where, int64_t row,
                                int segment, const Progression& keys) {
    for (const auto& [sample, head] : where) {
      kernels::KeyInterval range{keys.first, keys.last() + 1};
      kernels::SampleMasks of[2];
      bool exists = true;
      for (const size_t n : {0, 1}) {
        const int64_t queries = patterns_[n]->layout->queries;
        exists = exists && row < detail::length_of(lengths_[n], sample, queries);
        of[n] = masks_[2 * n + static_cast<size_t>(segment)].of(sample);
        range = of[n].narrowed(row, range);
      }
      const Progression left = clipped(keys, range.lo, range.hi);
      for (int64_t i = 0; exists && i < left.count; ++i) {
        const int64_t key = left.first + i * left.step;
        if (of[0].shows_pair(row, key) && of[1].shows_pair(row, key)) {
          return PartPair{sample, head, row, key, segment};
        }
      }
    }
    return {};
  }

  /// Brings masks and lengths to the host. Returns false if they have no values that the host may
  /// read now.
  bool read_masks() {
    bool readable = true;
    const auto look = [&readable](const Tensor& t) {
      const bool elsewhere = t && t.device() != Device{};
      if (elsewhere && (t.device() == meta_device || graph::recording())) readable = false;
    };
    for (const AttentionPattern* p : patterns_) {
      look(p->q_valid);
      PairMask::visit_tensors(look, p->mask);
      PairMask::visit_tensors(look, p->side_mask);
    }
    if (!readable) return false;
    for (const size_t n : {0, 1}) {
      const AttentionPattern& p = *patterns_[n];
      masks_.emplace_back(p.mask, p.layout->keys);
      masks_.emplace_back(p.side_mask, p.layout->side_keys);
      if (p.q_valid) lengths_[n] = p.q_valid.to_vector<int64_t>();
    }
    return true;
  }

  const AttentionPattern* patterns_[2];
  std::map<int32_t, std::unique_ptr<Member>> members_[2];
  std::vector<detail::HostMasks> masks_;  // of both segments of each pattern, once they were needed
  std::vector<int64_t> lengths_[2];       // q_valid
  bool touches_ = false;
};

/// The patterns whose layouts and rules are known to keep them apart, while their layouts live.
class KnownPatterns {
 public:
  bool holds(const AttentionPattern& a, const AttentionPattern& b, int64_t batch, int64_t heads) {
    const std::lock_guard lock(mutex_);
    const auto [from, to] = known_.equal_range({a.layout.get(), b.layout.get()});
    return std::any_of(from, to, [&](const auto& entry) {
      const Known& k = entry.second;
      return k.layouts[0].lock() == a.layout && k.layouts[1].lock() == b.layout &&
             k.batch == batch && k.heads == heads && k.rules[0] == a.rules &&
             k.rules[1] == b.rules && k.side_rules[0] == a.side_rules &&
             k.side_rules[1] == b.side_rules;
    });
  }

  void insert(const AttentionPattern& a, const AttentionPattern& b, int64_t batch, int64_t heads) {
    const std::lock_guard lock(mutex_);
    std::erase_if(known_, [](const auto& entry) {
      return entry.second.layouts[0].expired() || entry.second.layouts[1].expired();
    });
    known_.emplace(
        Layouts{a.layout.get(), b.layout.get()},
        Known{
            {a.layout, b.layout}, {a.rules, b.rules}, {a.side_rules, b.side_rules}, batch, heads});
  }

 private:
  using Layouts = std::pair<const BlockLayout*, const BlockLayout*>;
  struct Known {
    std::weak_ptr<const BlockLayout> layouts[2];
    std::vector<Rule> rules[2], side_rules[2];
    int64_t batch, heads;
  };
  std::mutex mutex_;
  std::multimap<Layouts, Known> known_;
};

KnownPatterns& known_patterns() {
  static KnownPatterns instance;
  return instance;
}

}  // namespace

void require_disjoint(std::string_view op, std::span<const AttentionPattern> parts, int64_t batch,
                      int64_t heads) {
  for (size_t m = 1; m < parts.size(); ++m) {
    for (size_t n = 0; n < m; ++n) {
      const AttentionPattern &a = parts[n], &b = parts[m];
      if (known_patterns().holds(a, b, batch, heads)) continue;
      PartComparison part_comparison(a, b);
      if (const auto pair = part_comparison.find(batch, heads)) {
        fail(op,
             "query {} sees key {}{} in two patterns of one call, {} and {} (sample {}, head {}), "
             "and would count it twice; leave the pair out of one of them",
             pair->query, pair->key, pair->segment > 0 ? " of the second segment" : "", a.name,
             b.name, pair->sample, pair->head);
      }
      if (!part_comparison.masks_decide()) known_patterns().insert(a, b, batch, heads);
    }
  }
}

}  // namespace longspan
