#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "ops/patterns/layout.h"

namespace longspan {

/// The content that a layout is made from, as integers: two calls with equal keys need equal
/// layouts. It holds no addresses, so it stays valid independently of other objects.
class LayoutKey {
 public:
  /// `maker` is the name of the function that makes the layout; its arguments are added after it.
  explicit LayoutKey(std::string_view maker);

  LayoutKey& add(int64_t number);
  /// Lists and tensors are stored with their lengths, so that adjacent entries cannot be confused.
  LayoutKey& add(const std::vector<int64_t>& numbers);
  LayoutKey& add(const Tensor& numbers);  ///< i32 or i64; undefined counts as none
  /// Adds the key that the layout itself was made from, or its content if it has no key.
  LayoutKey& add(const BlockLayout& layout);

  const std::vector<int64_t>& words() const { return words_; }

 private:
  std::vector<int64_t> words_;
};

/// Returns the layout of a key if it is cached or in use, else calls `make` and caches the result
/// together with its copy on another device. When the bytes of all cached layouts exceed a bound,
/// the least recently used ones are dropped. The bytes count as Category::cache. Layouts in use are
/// shared whether they are cached or not. Thread-safe; `make` may call cached_layout().
std::shared_ptr<const BlockLayout> cached_layout(
    const LayoutKey& key, const std::function<std::shared_ptr<const BlockLayout>()>& make);

/// Caches the device copy of a layout together with the layout, if that is cached.
void keep_copy(const BlockLayout& layout, const std::shared_ptr<BlockLayout>& copy);

/// The number of cached layouts, their bytes on all devices, how many were made since the start,
/// and the bytes on the host of the layouts and trees (tree.h) that were asked for since
/// count_asked_layouts(), each counted once.
struct LayoutCacheState {
  int64_t layouts = 0, bytes = 0, made = 0, asked = 0;
};
LayoutCacheState layout_cache_state();
void count_asked_layouts();

/// Sets the bound in bytes (default 64 MiB) and returns the previous one. 0 caches nothing. The
/// cache is dropped too when a device has no room for a request.
int64_t set_layout_cache_limit(int64_t bytes);

/// Drops all cached layouts.
void clear_layout_cache();

/// Returns the layout if its tensors are on `device`, else a copy there that all callers share.
std::shared_ptr<const BlockLayout> on_device(const std::shared_ptr<const BlockLayout>& layout,
                                             Device device);

/// Returns the layout in which every row also sees all `side_keys` keys of a second segment;
/// `layout` itself if `side_keys` is 0. It comes from the cache. Throws ShapeError if the layout
/// already has side keys.
std::shared_ptr<const BlockLayout> with_side_keys(const std::shared_ptr<const BlockLayout>& layout,
                                                  int64_t side_keys);

/// Returns the part of a layout for heads first to first + count - 1; `layout` itself if all heads
/// share one entry. It comes from the cache. Throws NotImplemented for a layout on a device.
std::shared_ptr<const BlockLayout> with_heads(const std::shared_ptr<const BlockLayout>& layout,
                                              int64_t first, int64_t count);

}  // namespace longspan
