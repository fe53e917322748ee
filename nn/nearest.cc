#include "nn/nearest.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace longspan {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replace = diagonal + (a[i] != b[j] ? 1 : 0);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replace, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string nearest(std::string_view name, std::span<const std::string> candidates) {
  std::string best;
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  if (name.size() > 200) return best;
  const auto begins = [](std::string_view word, std::string_view with) {
    return with.size() > 3 && word.starts_with(with);
  };
  for (const std::string& candidate : candidates) {
    const size_t dot = candidate.rfind('.');
    size_t d = edit_distance(name, candidate);
    if (dot != std::string::npos) {
      d = std::min(d, edit_distance(name, std::string_view(candidate).substr(dot + 1)));
    }
    // As "evaluate" with "eval".
    if (begins(name, candidate) || begins(candidate, name)) d = std::min(d, size_t{2});
    if (d < least && d < std::max(name.size(), size_t{2})) {
      least = d;
      best = candidate;
    }
  }
  return best;
}

}  // namespace longspan
