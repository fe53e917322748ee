#include "data/cluster_task.h"

#include <limits>
#include <utility>
#include <vector>

#include "core/error.h"

namespace longspan {

namespace {

void check(const ClusterTask& t) {
  for (const auto& [option, value] : {std::pair{"clusters.length", t.length},
                                      {"clusters.groups", t.groups},
                                      {"clusters.symbols", t.symbols}}) {
    require(value >= 1, option, "got {}; expected 1 or more", value);
  }
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  require(t.groups <= most / t.symbols, "clusters.groups",
          "got {} of {} symbols; expected {} or fewer", t.groups, t.symbols, most / t.symbols);
}

}  // namespace

void ClusterTask::fit(int64_t run_length, int64_t /*vocabulary*/) {
  if (length == 0) length = run_length;
  check(*this);
}

Sample ClusterTask::sample(const SampleKey& key) const {
  check(*this);
  Draws draws = draws_of("clusters", key);
  std::vector<int32_t> last(static_cast<size_t>(groups), ignored_target);
  Sample s;
  for (int64_t t = 0; t < length; ++t) {
    const int64_t group = draws.below(groups);
    const auto token = static_cast<int32_t>(group * symbols + draws.below(symbols));
    s.tokens.push_back(token);
    s.targets.push_back(last[static_cast<size_t>(group)]);
    last[static_cast<size_t>(group)] = token;
  }
  return s;
}

}  // namespace longspan
