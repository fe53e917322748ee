#include "nn/fields.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "core/error.h"

namespace longspan {

bool Range::contains(double value) const {
  if (value == also) return true;
  return std::isfinite(value) && (above ? value > low : value >= low) &&
         (below ? value < high : value <= high);
}

std::string Range::expected(double value) const {
  if (!text.empty()) return std::string(text);
  if (above) return fmt::format("more than {}", low);
  if (std::isinf(high) || (one_end && value < low)) return fmt::format("{} or more", low);
  return one_end ? fmt::format("{} or less", high) : fmt::format("{} to {}", low, high);
}

template <class T>
void RangedFields::take(std::string_view name, T value) {
  const std::optional<Range> range = std::exchange(range_, {});
  if (!range) return;
  number({name, static_cast<double>(value), fmt::format("{}", value), std::is_integral_v<T>},
         *range);
}

void RangedFields::field(std::string_view name, std::vector<int64_t>& values) {
  const std::optional<Range> range = std::exchange(range_, {});
  for (const int64_t value : values) {
    range_ = range;
    take(name, value);
  }
  range_ = {};
}

template void RangedFields::take(std::string_view, int64_t);
template void RangedFields::take(std::string_view, uint64_t);
template void RangedFields::take(std::string_view, float);
template void RangedFields::take(std::string_view, double);

void FieldChecker::number(const Number& n, const Range& range) {
  if (range.contains(n.value)) return;
  fail(owner_, "{} is {}; expected {}", n.name, n.text, range.expected(n.value));
}

}  // namespace longspan
