// Defaults and checks of a Reformer's configuration.

#include <algorithm>
#include <numeric>

#include "core/divide.h"
#include "models/reformer/reformer.h"

namespace longspan {
int64_t ReformerConfig::head_width() const { return d_head > 0 ? d_head : d_model / n_head; }

int64_t ReformerConfig::local_keys() const { return local_chunk > 0 ? local_chunk : chunk; }

std::vector<ReformerLayer> ReformerConfig::layer_kinds() const {
  std::vector<ReformerLayer> turns;
  for (size_t at = 0; at <= layers.size();) {
    const size_t end = std::min(layers.find(',', at), layers.size());
    const std::string_view word = std::string_view(layers).substr(at, end - at);
    const auto& names = value_names<ReformerLayer>;
    const auto found = std::find(names.begin(), names.end(), word);
    require(found != names.end(), ReformerConfig::model_name,
            "layers has \"{}\"; expected lsh and local, separated by commas", word);
    turns.push_back(static_cast<ReformerLayer>(found - names.begin()));
    at = end + 1;
  }
  std::vector<ReformerLayer> kinds;
  for (int64_t i = 0; i < n_layer; ++i) {
    kinds.push_back(turns[static_cast<size_t>(i) % turns.size()]);
  }
  return kinds;
}

int64_t ReformerConfig::full_up_to() const {
  const int64_t shown = rounds * chunk * (1 + look_back + look_ahead);
  return std::max((full_below < 0 ? shown : full_below) - 1, whole_chunks ? chunk : 0);
}

int64_t ReformerConfig::padded(int64_t length) const {
  if (!whole_chunks) return length;
  int64_t unit = 1, least = length;
  for (const ReformerLayer kind : layer_kinds()) {
    const int64_t m = kind == ReformerLayer::lsh ? chunk : local_keys();
    unit = std::lcm(unit, m);
    least = std::min(least, m);
  }
  return length > least ? round_up(length, unit) : length;
}

std::string_view ReformerConfig::settle_length(int64_t length) {
  if (!buckets.empty()) return {};
  check();
  const LshBuckets nb = buckets_for(bucket_rule, padded(length), chunk, n_max);
  buckets = {nb.first};
  if (nb.second > 1) buckets.push_back(nb.second);
  return "buckets";
}

std::vector<int64_t> ReformerConfig::axes() const {
  return position_shape.empty() ? default_axial_shape(n_max) : position_shape;
}

std::vector<int64_t> ReformerConfig::axis_widths() const {
  if (!position_widths.empty()) return position_widths;
  const auto count = static_cast<int64_t>(axes().size());
  std::vector<int64_t> widths(static_cast<size_t>(count), d_model / count);
  widths.back() += d_model % count;
  return widths;
}

std::string_view ReformerConfig::extend_positions(int64_t length) {
  if (!position_shape.empty() && length > n_max) {
    position_shape = extended_axial_shape(position_shape, length);
  }
  return extend_table("n_max", n_max, length);
}

void ReformerConfig::check() const {
  check_fields(ReformerConfig::model_name, *this);
  require(local_keys() >= 1, ReformerConfig::model_name, "local_chunk is {}; expected 1 or more",
          local_keys());
  require(d_head > 0 || d_model % n_head == 0, ReformerConfig::model_name,
          "d_model {} is not a multiple of n_head {}; set d_head", d_model, n_head);
  require(full_below >= -1, ReformerConfig::model_name,
          "full_below is {}; expected tokens, 0, or -1: by itself", full_below);
  bool even = buckets.size() <= 2;
  for (const int64_t factor : buckets) even = even && factor >= 2 && factor % 2 == 0;
  require(even, ReformerConfig::model_name,
          "buckets are at most two even numbers from 2 on; got {} of them, the first {}",
          buckets.size(), buckets.empty() ? 0 : buckets.front());
  int64_t places = 1, width = 0;
  for (const int64_t n : position_shape) places *= std::max<int64_t>(n, 0);
  for (const int64_t d : position_widths) width += d;
  require(position_shape.empty() || places >= n_max, ReformerConfig::model_name,
          "position_shape holds {} positions; expected n_max = {} or more", places, n_max);
  require(position_widths.empty() || width == d_model, ReformerConfig::model_name,
          "position_widths are {} together; expected d_model = {}", width, d_model);
  layer_kinds();
  require(memory.chunks >= 1, ReformerConfig::model_name, "chunks is {}; expected 1 or more",
          memory.chunks);
  require<NotImplemented>(
      memory.chunks == 1 || !dropout_broadcast || dropout == 0, ReformerConfig::model_name,
      "chunks = {} do not go with dropout_broadcast, which draws once for a whole sequence; "
      "use 1",
      memory.chunks);
}

}  // namespace longspan
