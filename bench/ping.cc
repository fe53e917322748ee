// Two numbers of a network, under mpirun: seconds of a small message and seconds of a byte, while
// all processes exchange with all others, as the gradients of a step do. Prints a JSON line.
//
//   mpirun -np 2 build/dev/bench/bench_ping

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/ranks/communicator.h"

namespace longspan::bench {
namespace {

/// The median seconds of an exchange in which each process sends so many bytes to each other one.
double seconds_of(Communicator& ranks, int64_t bytes, int turns) {
  const auto all = static_cast<size_t>(bytes * ranks.size());
  std::vector<char> out(all, 'x'), in(all);
  std::vector<double> seconds;
  for (int turn = 0; turn < turns; ++turn) {
    ranks.gather("", "the next turn");
    std::vector<Communicator::Send> sends;
    std::vector<Communicator::Receive> receives;
    for (int r = 0; r < ranks.size(); ++r) {
      if (r == ranks.rank()) continue;
      sends.push_back({r, out.data() + r * bytes, bytes});
      receives.push_back({r, in.data() + r * bytes, bytes});
    }
    const auto begin = std::chrono::steady_clock::now();
    auto pending = ranks.start(sends, receives, "a ping");
    ranks.wait(pending);
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + turns / 2, seconds.end());
  return seconds[static_cast<size_t>(turns / 2)];
}

}  // namespace
}  // namespace longspan::bench

int main() {
  using namespace longspan;
  const std::unique_ptr<Communicator> ranks = open_communicator();
  constexpr int64_t small = 64, large = int64_t{1} << 20;
  const double few = bench::seconds_of(*ranks, small, 400);
  const double many = bench::seconds_of(*ranks, large, 60);
  if (ranks->rank() != 0) return 0;
  const auto peers = static_cast<double>(std::max(ranks->size() - 1, 1));
  std::printf("%s\n", nlohmann::json{{"ranks", ranks->size()},
                                     {"alpha", few / peers},
                                     {"beta", (many - few) / (peers * (large - small))}}
                          .dump()
                          .c_str());
}
