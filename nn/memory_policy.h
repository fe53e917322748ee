#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// What a stack saves in its forward pass.
enum class MemoryKind : uint8_t {
  standard,         ///< save everything that ops save
  lean,             ///< recompute norms and elementwise functions, but no product and no attention
  selective,        ///< as lean, and also recompute the last product of each branch
  checkpoint,       ///< save the inputs of segments of blocks, and recompute the segments
  reversible,       ///< save only the two streams of the last block, and invert block by block
  reversible_exact  ///< as reversible, with streams on a grid on which inversion is exact
};

/// What a stack of blocks saves for its backward pass, a value with a text form:
///   standard, lean, selective, checkpoint, reversible, reversible:exact
///   checkpoint:K      segments of K blocks
///   checkpoint:K:J    and within them segments of J blocks, and so on
///   checkpoint:K+J+rest    segments of K and of J blocks, from the first on; the rest keep all
///   reversible:K      saves the true streams after every K blocks too
///   reversible:exact:G     streams are multiples of 2^-G instead of 2^-16
///   ...:stored        for reversible kinds: the same function, saving everything that its ops save
/// The field `chunks` says into how many pieces of its rows a feed-forward layer is cut.
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
  /// Sets the policy from its text form; `chunks` stays. Throws ValueError that lists the forms
  /// above.
  void set(std::string_view text);
  std::string text() const;

  MemoryKind kind = MemoryKind::standard;
  /// checkpoint: blocks per segment, descending, the outermost first. reversible: blocks between
  /// saved pairs of streams; empty: only the last pair is saved.
  std::vector<int64_t> segments;
  std::vector<int64_t> cut;  ///< checkpoint: sizes of consecutive segments, in place of equal ones
  int grid = 16;             ///< reversible_exact: streams are multiples of 2^-grid
  bool stored = false;       ///< reversible: nothing is inverted
  int64_t chunks = 1;
};

/// Whether the stack has two streams.
inline bool is_reversible(const MemoryPolicy& policy) {
  return policy.kind == MemoryKind::reversible || policy.kind == MemoryKind::reversible_exact;
}

}  // namespace longspan
