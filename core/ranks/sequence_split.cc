#include "core/ranks/sequence_split.h"

#include "core/error.h"

namespace longspan {

SequenceSplit::Range SequenceSplit::rows(int64_t all, int index) const {
  const int64_t first = all * index / size();
  return {first, all * (index + 1) / size() - first};
}

SequenceSplit::Range SequenceSplit::heads(int64_t all, std::string_view name) const {
  require(all % size() == 0, name,
          "{} heads cannot be split among {} processes; set ranks.sequence to a divisor of {}", all,
          size(), all);
  return {all / size() * index(), all / size()};
}

}  // namespace longspan
