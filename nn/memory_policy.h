#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// What a stack keeps of its forward pass.
enum class MemoryKind : uint8_t {
  standard,         ///< keep all that ops save
  lean,             ///< run norms and elementwise functions again, but no product and no attention
  selective,        ///< the same and the last product of each branch
  checkpoint,       ///< keep the inputs of segments of blocks, and run these again
  reversible,       ///< keep two streams of the last block alone, and invert block by block
  reversible_exact  ///< the same on a grid, where inverting is exact
};

/// What a stack of blocks keeps for its backward pass, a value with a written form:
///   standard, lean, selective, checkpoint, reversible, reversible:exact
///   checkpoint:K      segments of K blocks
///   checkpoint:K:J    and within them segments of J blocks, and so on
///   checkpoint:K+J+rest    segments of K and of J blocks, from the first on; the rest keep all
///   reversible:K      true streams are kept after every K blocks too
///   reversible:exact:G     multiples of 2^-G, in place of 2^-16
///   ...:stored        of reversible ones: the same function, with all that its ops save kept
/// and into how many pieces of its rows a feed-forward layer is cut, a field beside it.
struct MemoryPolicy {
  static constexpr std::string_view expected =
      "standard, lean, selective, checkpoint, checkpoint:K (K blocks to a segment), "
      "checkpoint:K:J (segments of J within those of K), checkpoint:K+J+rest (segments of K and of "
      "J "
      "blocks, the rest keep all), reversible, reversible:K (true streams "
      "every K blocks), reversible:exact, reversible:exact:G (multiples of 2^-G, G from 0 to 23), "
      "and the last four with :stored at the end";

  MemoryPolicy() = default;
  MemoryPolicy(const char* text) { set(text); }  // NOLINT(google-explicit-constructor)

  static bool valid(std::string_view text);
  /// Takes the written form; `chunks` stays. Throws ValueError with those above.
  void set(std::string_view text);
  std::string text() const;

  MemoryKind kind = MemoryKind::standard;
  /// checkpoint: blocks to a segment, falling; the outermost first. reversible: blocks from one
  /// kept pair of streams to the next; empty: the last pair alone.
  std::vector<int64_t> segments;
  std::vector<int64_t> cut;  ///< checkpoint: segments one after another, in place of equal ones
  int grid = 16;             ///< reversible_exact: streams are multiples of 2^-grid
  bool stored = false;       ///< reversible: nothing is inverted
  int64_t chunks = 1;
};

/// Whether the stack is one of two streams.
inline bool is_reversible(const MemoryPolicy& policy) {
  return policy.kind == MemoryKind::reversible || policy.kind == MemoryKind::reversible_exact;
}

}  // namespace longspan
