#include "ops/patterns/pattern.h"

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/patterns/layout_cache.h"
#include "ops/patterns/layout_spec.h"
#include "ops/shape.h"

namespace longspan {
namespace {

/// Returns the bound of a window in figures, or that there is none.
std::string to_text(int64_t bound) {
  return bound >= kUnlimited ? "unbounded" : fmt::format("{}", bound);
}

AttentionPattern make_pattern(std::string name, const Rule& rule, const LayoutSpec& layout_spec) {
  AttentionPattern p;
  p.rules = {rule};
  p.layout_spec = layout_spec;
  p.name = std::move(name);
  return p;
}

AttentionPattern causal_pattern(std::string name, const LayoutSpec& layout_spec) {
  Rule rule;
  rule.causal = true;
  return make_pattern(std::move(name), rule, layout_spec);
}

LayoutSpec fixed_layout_spec(const char* op, int64_t block, int64_t columns, int64_t sub_block) {
  require(block >= 1, op, "block is {}; expected 1 or more", block);
  require(columns >= 1 && columns <= block, op, "columns is {}; expected 1 to block = {}", columns,
          block);
  require(sub_block >= 0 && sub_block < block / columns, op,
          "sub_block is {}; expected 0 to {}, for block {} has so many times {} columns", sub_block,
          block / columns - 1, block, columns);
  return {.kind = LayoutSpec::Kind::fixed,
          .block = block,
          .first_column = block - (sub_block + 1) * columns,
          .columns = columns};
}

// Returns the index of a rule in a list; appends the rule if it is new.
int32_t place_in(std::vector<Rule>& rules, const Rule& rule) {
  const auto known = std::find(rules.begin(), rules.end(), rule);
  const auto place = static_cast<int32_t>(known - rules.begin());
  if (known == rules.end()) rules.push_back(rule);
  return place;
}

// Appends order `number` of a layout to a list and returns its index; -1 if `number` is negative.
int32_t add_order(const Tensor& all, int32_t number, std::vector<Tensor>& orders) {
  if (number < 0) return -1;
  orders.push_back(narrow(all, 0, number, 1));
  return static_cast<int32_t>(orders.size()) - 1;
}

// Merges the layouts of several patterns, which have one member each, into one with the given
// rules.
std::shared_ptr<const BlockLayout> merged(const std::vector<AttentionPattern>& patterns,
                                          const std::vector<int32_t>& rules, const Tensor& which) {
  std::vector<std::vector<TileRuns>> tiles;
  std::vector<Tensor> orders_q, orders_k;
  LayoutOptions options{.layout_index = which};
  for (size_t n = 0; n < patterns.size(); ++n) {
    const BlockLayout& layout = *patterns[n].layout;
    const auto member = layout.members.to_vector<int32_t>();  // [1, 3]
    tiles.push_back(tiles_of(layout, 0));
    options.members.push_back({rules[n], add_order(layout.order_q, member[1], orders_q),
                               add_order(layout.order_k, member[2], orders_k)});
  }
  if (!orders_q.empty()) options.order_q = concat(orders_q, 0);
  if (!orders_k.empty()) options.order_k = concat(orders_k, 0);
  const BlockLayout& first = *patterns.front().layout;
  return make_layout(first.queries, first.keys, tiles, options);
}

}  // namespace

AttentionPattern with_hidden_keys(AttentionPattern pattern, const Tensor& hidden) {
  Tensor& all = pattern.mask.k_hidden;
  all = all ? where(hidden, hidden, all) : hidden;
  return pattern;
}

AttentionPattern with_lengths(AttentionPattern pattern, const Tensor& q_valid,
                              const Tensor& k_valid) {
  pattern.q_valid = q_valid;
  pattern.mask.k_valid = k_valid;
  return pattern;
}

AttentionPattern resolve(const AttentionPattern& pattern, int64_t queries, int64_t keys,
                         int64_t side_keys) {
  constexpr const char* op = "attention pattern";
  AttentionPattern p = pattern;
  if (p.rules.empty()) p.rules.emplace_back();
  if (p.side_rules.empty()) p.side_rules.push_back({.q_start = 0});
  for (Rule& rule : p.rules) {
    if (rule.q_start == Rule::align_ends) rule.q_start = keys - queries;
  }
  for (Rule& rule : p.side_rules) {
    if (rule.q_start == Rule::align_ends) rule.q_start = side_keys - queries;
  }
  if (p.layout != nullptr) {
    require<ShapeError>(
        p.layout->queries == queries && p.layout->keys == keys && p.layout->side_keys == side_keys,
        op,
        "{} has a layout for {} queries, {} keys and {} of a second segment; got "
        "{}, {} and {}",
        p.name, p.layout->queries, p.layout->keys, p.layout->side_keys, queries, keys, side_keys);
    return p;
  }
  require(p.layout_spec.kind != LayoutSpec::Kind::none, op,
          "no pattern was given: {} has neither a layout nor a layout_spec for one; pass one of "
          "patterns, such as patterns::causal(), or set its layout",
          p.name);
  require(side_keys == 0, op,
          "{} has a layout_spec for one key segment, and {} keys of a second one", p.name,
          side_keys);
  const Rule& rule = p.rules.front();
  // Beyond the largest distance every class has one member, so a larger stride changes nothing.
  const int64_t stride = std::min(rule.stride > 0 ? rule.stride : rule.window.dilation,
                                  queries + keys + std::abs(rule.q_start) + 1);
  const int64_t right = rule.causal ? std::min<int64_t>(0, rule.window.right) : rule.window.right;
  p.layout =
      layout_of({p.layout_spec, queries, keys, rule.q_start, rule.window.left, right, stride});
  return p;
}

bool rule_allows(const Rule& rule, int64_t i, int64_t j) {
  const int64_t distance = i + rule.q_start - j;
  if (rule.causal && distance < 0) return false;
  const Window& w = rule.window;
  if (distance > w.reach_left() || -distance > w.reach_right()) {
    return false;
  }
  if (distance % w.dilation != 0) return false;
  return rule.stride == 0 || distance % rule.stride == 0;
}

namespace patterns {

AttentionPattern dense() { return make_pattern("dense", {}, {.kind = LayoutSpec::Kind::dense}); }

AttentionPattern causal() { return causal_pattern("causal", {.kind = LayoutSpec::Kind::band}); }

AttentionPattern local(int64_t width) {
  require(width >= 1, "patterns::local", "width is {}; a query sees at least itself: 1 or more",
          width);
  Rule rule;
  rule.causal = true;
  rule.window.left = width - 1;
  return make_pattern(fmt::format("local({})", width), rule, {.kind = LayoutSpec::Kind::band});
}

AttentionPattern local_bidirectional(int64_t width) {
  require(width >= 0, "patterns::local_bidirectional", "width is {}; expected 0 or more", width);
  Rule rule;
  rule.window.left = rule.window.right = width / 2;
  return make_pattern(fmt::format("local_bidirectional({})", width), rule,
                      {.kind = LayoutSpec::Kind::band});
}

AttentionPattern local_block(int64_t block, int64_t key_start) {
  require(block >= 1, "patterns::local_block", "block is {}; expected 1 or more", block);
  require(key_start >= 0, "patterns::local_block", "key_start is {}; expected 0 or more",
          key_start);
  return causal_pattern(fmt::format("local_block({})", block),
                        {.kind = LayoutSpec::Kind::blocks, .block = block, .key_start = key_start});
}

AttentionPattern dilated(int64_t left, int64_t right, int64_t dilation) {
  require(left >= -right, "patterns::dilated",
          "the window is {} to the left and {} to the right, and holds nothing", to_text(left),
          to_text(right));
  require(dilation >= 1, "patterns::dilated", "dilation is {}; expected 1 or more", dilation);
  Rule rule;
  rule.window = {left, right, dilation};
  return make_pattern(fmt::format("dilated({}, {}, {})", to_text(left), to_text(right), dilation),
                      rule,
                      {.kind = dilation > 1 ? LayoutSpec::Kind::classes : LayoutSpec::Kind::band});
}

AttentionPattern strided(int64_t stride) {
  require(stride >= 1, "patterns::strided", "stride is {}; expected 1 or more", stride);
  Rule rule;
  rule.causal = true;
  rule.stride = stride;
  return make_pattern(fmt::format("strided({})", stride), rule,
                      {.kind = LayoutSpec::Kind::classes});
}

AttentionPattern fixed_block(int64_t block) {
  require(block >= 1, "patterns::fixed_block", "block is {}; expected 1 or more", block);
  return causal_pattern(fmt::format("fixed_block({})", block),
                        {.kind = LayoutSpec::Kind::fixed, .block = block, .own_block = true});
}

AttentionPattern fixed_summary(int64_t block, int64_t columns, int64_t sub_block) {
  return causal_pattern(fmt::format("fixed_summary({}, {}, {})", block, columns, sub_block),
                        fixed_layout_spec("patterns::fixed_summary", block, columns, sub_block));
}

AttentionPattern fixed(int64_t block, int64_t columns, int64_t sub_block) {
  LayoutSpec layout_spec = fixed_layout_spec("patterns::fixed", block, columns, sub_block);
  layout_spec.own_block = true;
  return causal_pattern(fmt::format("fixed({}, {}, {})", block, columns, sub_block), layout_spec);
}

AttentionPattern by_head(const std::vector<AttentionPattern>& heads, int64_t queries,
                         int64_t keys) {
  constexpr const char* op = "patterns::by_head";
  require(!heads.empty(), op, "needs a pattern for each head, got none");
  std::vector<AttentionPattern> members;  // equal patterns share a layout
  std::vector<int32_t> which;
  AttentionPattern all;
  all.name = "";
  for (const AttentionPattern& head : heads) {
    AttentionPattern p = resolve(head, queries, keys);
    require<NotImplemented>(p.layout->layouts() == 1, op,
                            "{}, whose heads or samples differ already", p.name);
    const auto known = std::find_if(members.begin(), members.end(), [&](const auto& m) {
      return m.layout == p.layout && m.rules == p.rules;
    });
    which.push_back(static_cast<int32_t>(known - members.begin()));
    if (known != members.end()) continue;
    all.name += (all.name.empty() ? "" : " | ") + head.name;
    members.push_back(std::move(p));
  }
  if (members.size() == 1) return members.front();

  LayoutKey key("by_head");
  std::vector<int32_t> rules;
  for (const AttentionPattern& m : members) {
    const int32_t own = m.layout->members.to_vector<int32_t>()[0];
    rules.push_back(
        place_in(all.rules, m.rules[m.rules.size() > 1 ? static_cast<size_t>(own) : 0]));
    if (m.layout_spec.kind == LayoutSpec::Kind::classes) all.layout_spec.kind = m.layout_spec.kind;
    key.add(*m.layout).add(rules.back());
  }
  const Tensor chosen = Tensor::from(which, {1, static_cast<int64_t>(which.size())});
  all.layout = cached_layout(key.add(chosen), [&] { return merged(members, rules, chosen); });
  return all;
}

}  // namespace patterns
}  // namespace longspan
