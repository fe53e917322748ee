#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "ops/patterns/layout.h"

namespace longspan {

/// The content from which a layout is made, as numbers: two calls with equal keys want equal
/// layouts. Nothing in it is an address, so it cannot outlive what it stands for.
class LayoutKey {
 public:
  /// `maker` is the name of the function that makes it; what follows is its arguments.
  explicit LayoutKey(std::string_view maker);

  LayoutKey& add(int64_t number);
  /// Lists and tensors come with their lengths, so that neighbours cannot be confused.
  LayoutKey& add(const std::vector<int64_t>& numbers);
  LayoutKey& add(const Tensor& numbers);  ///< i32 or i64; undefined: none
  /// What the layout itself was made from.
  LayoutKey& add(const BlockLayout& layout);

  const std::vector<int64_t>& words() const { return words_; }

 private:
  std::vector<int64_t> words_;
};

/// The layout of a key: one that is kept or in use, else what `make` returns, which is kept, with
/// its copy on another device, until the bytes of all those kept pass a bound: then those go that
/// were wanted longest ago. They count as Category::cache. Layouts in use are shared, kept or not.
/// Thread-safe; `make` may ask for other layouts.
std::shared_ptr<const BlockLayout> cached_layout(
    const LayoutKey& key, const std::function<std::shared_ptr<const BlockLayout>()>& make);

/// Keeps the copy of a layout with it, where that is kept.
void keep_copy(const BlockLayout& layout, const std::shared_ptr<BlockLayout>& copy);

/// Layouts that are kept, their bytes on all devices, and how many were made since the start.
struct LayoutCacheState {
  int64_t layouts = 0, bytes = 0, made = 0;
};
LayoutCacheState layout_cache_state();

/// The bound, 64 MiB at first; returns the one before. 0 keeps nothing.
int64_t set_layout_cache_limit(int64_t bytes);

/// Drops all that is kept.
void clear_layout_cache();

}  // namespace longspan
