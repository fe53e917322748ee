#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace longspan {

/// A run of consecutive code points, the last one included.
struct CodePoints {
  int32_t first, last;
};

/// Bits of all code points, in blocks of which equal ones are kept once.
template <class T>
class CodePointTable {
 public:
  CodePointTable() { all_.resize(code_points); }

  void add(int32_t code_point, T bit) {
    all_[static_cast<size_t>(code_point)] =
        static_cast<T>(all_[static_cast<size_t>(code_point)] | bit);
  }
  template <size_t N>
  void add(const CodePoints (&runs)[N], T bit) {
    for (const CodePoints& run : runs) {
      for (int32_t c = run.first; c <= run.last; ++c) add(c, bit);
    }
  }
  /// Keeps equal blocks once. Bits can be read from then on, and no more added.
  void compress() {
    std::map<Block, uint16_t> known;
    for (size_t b = 0; b < places_.size(); ++b) {
      Block block;
      std::copy_n(all_.begin() + static_cast<std::ptrdiff_t>(b * block_size), block_size,
                  block.begin());
      const auto [at, is_new] = known.try_emplace(block, static_cast<uint16_t>(blocks_.size()));
      if (is_new) blocks_.push_back(block);
      places_[b] = at->second;
    }
    all_ = {};
  }

  /// Returns the bits of a code point; a value that is no code point, such as an invalid byte (-1),
  /// has no bits.
  T operator[](int32_t code_point) const {
    const auto at = static_cast<uint32_t>(code_point);
    if (at >= code_points) return 0;
    return blocks_[places_[at / block_size]][at % block_size];
  }

 private:
  static constexpr size_t code_points = 0x110000, block_size = 256;
  using Block = std::array<T, block_size>;

  std::vector<T> all_;  // while it is made
  std::vector<Block> blocks_;
  std::array<uint16_t, code_points / block_size> places_{};
};

}  // namespace longspan
