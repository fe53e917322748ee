#include "nn/attention/head_share.h"

#include <vector>

#include "ops/copy.h"
#include "ops/exchange.h"
#include "ops/index.h"
#include "ops/patterns/layout_cache.h"
#include "ops/shape.h"

namespace longspan {

HeadShare::HeadShare(int64_t heads, const Pass& pass) {
  if (pass.split == nullptr) return;
  split_ = pass.split;
  rows_ = pass.rows;
  heads_ = heads;
  own_ = split_->heads(heads, "attention");
}

Tensor HeadShare::of(const Tensor& x, int axis) const {
  if (!divided() || !x || x.dim(axis) == 1) return x;
  return narrow(x, axis, own_.first, own_.count);
}

Linear HeadShare::of(const Linear& all, int64_t width) const {
  if (!divided()) return all;
  Linear own;
  own.weight = narrow(all.weight, 0, own_.first * width, own_.count * width);
  if (all.bias) own.bias = narrow(all.bias, 0, own_.first * width, own_.count * width);
  return own;
}

AttentionPattern HeadShare::of(const AttentionPattern& pattern) const {
  if (!divided() || !pattern.layout) return pattern;
  AttentionPattern own = pattern;
  own.layout = with_heads(pattern.layout, own_.first, own_.count);
  return own;
}

ScoreTerms HeadShare::of(ScoreTerms terms) const {
  const auto own = [&](const Tensor& table, int rank) {
    return table && table.rank() == rank ? of(table, 0) : table;
  };
  terms.relation_key = own(terms.relation_key, 3);
  terms.relation_bias = own(terms.relation_bias, 2);
  terms.relation_value = own(terms.relation_value, 3);
  return terms;
}

Tensor HeadShare::among_all(const Tensor& x, int axis) const {
  return divided() ? pad(x, axis, own_.first, heads_ - own_.first - own_.count) : x;
}

Pass HeadShare::site(const Pass& pass) const {
  Pass site = pass;
  if (!divided()) return site;
  site.row = 0;
  site.head = own_.first;
  return site;
}

Tensor HeadShare::to_heads(const Tensor& x, int64_t rows) const {
  return divided() ? rows_to_heads(x, *split_, rows) : x;
}

Tensor HeadShare::to_rows(const Tensor& x) const {
  return divided() ? heads_to_rows(x, *split_) : x;
}

Tensor HeadShare::all_rows(const Tensor& x, int64_t rows) const {
  return divided() ? rows_of_all(x, *split_, rows) : x;
}

Tensor HeadShare::rows_at(const Tensor& x, const Tensor& index) const {
  if (!divided()) return permute_rows(x, index);
  if (index.device() == meta_device) {
    const int64_t all = split_->size() * index.dim(1);
    return permute_rows(rows_of_all(permute_rows(x, index), *split_, all), index);
  }
  // Each process sends all G places, with zeros for rows that it does not have; then each place is
  // taken from the process that has the row.
  const std::vector<int64_t> places = index.to_vector<int64_t>();
  const auto count = std::ssize(places);
  std::vector<int64_t> here, from;
  for (int64_t g = 0; g < count; ++g) {
    const int64_t row = places[static_cast<size_t>(g)];
    int owner = 0;
    while (owner + 1 < split_->size() && split_->rows(rows_, owner + 1).first <= row) ++owner;
    const bool own = row >= 0 && owner == split_->index();
    here.push_back(own ? row - split_->rows(rows_).first : -1);
    from.push_back(row < 0 ? -1 : owner * count + g);
  }
  const Tensor given = permute_rows(x, Tensor::from(here, index.shape(), index.device()));
  return permute_rows(rows_of_all(given, *split_, split_->size() * count),
                      Tensor::from(from, index.shape(), index.device()));
}

}  // namespace longspan
