// order_of_rows SIZE COUNT SEED: prints which of SIZE rows a run with this seed reads first, second
// and so on, one a line. For tests/long/fine_tuning.py.
#include <cstdio>
#include <cstdlib>

#include "data/corpus.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int64_t size = std::atoll(argv[1]), count = std::atoll(argv[2]);
  const auto seed = static_cast<uint64_t>(std::atoll(argv[3]));
  for (int64_t row = 0; row < count; ++row) {
    std::printf("%lld\n", static_cast<long long>(longspan::item_of_row(row, size, seed)));
  }
}
