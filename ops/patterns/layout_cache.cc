#include "ops/patterns/layout_cache.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <list>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "autograd/mode.h"
#include "core/best_fit.h"
#include "core/error.h"
#include "core/graph.h"
#include "core/memory.h"
#include "ops/copy.h"
#include "ops/patterns/layout_work.h"
#include "ops/patterns/tree.h"
#include "ops/shape.h"

namespace longspan {
namespace {

using LayoutPointer = std::shared_ptr<const BlockLayout>;

int64_t bytes_of(const BlockLayout& layout) {
  int64_t bytes = 0;
  const auto add = [&bytes](const Tensor& t) {
    if (!t) return;
    bytes += memory::block_bytes(std::max<int64_t>(1, t.storage().bytes()));  // empty tensors take
                                                                              // a block too
  };
  BlockLayout::visit_tensors(add, layout);
  add(layout.key);
  return bytes;
}

// Sets the category of a new layout's tensors to cache and returns their bytes. No one else may use
// them yet.
int64_t claim(BlockLayout& layout) {
  const auto take = [](const Tensor& t) {
    if (t) t.storage().set_category(Category::cache);
  };
  BlockLayout::visit_tensors(take, layout);
  take(layout.key);
  return bytes_of(layout);
}

uint64_t hash_of(const std::vector<int64_t>& words) {
  uint64_t h = 0x9e3779b97f4a7c15;
  for (const int64_t word : words) {
    h = (h ^ static_cast<uint64_t>(word)) * 0xff51afd7ed558ccd;
    h ^= h >> 32;
  }
  return h;
}

class LayoutCache {
 public:
  LayoutPointer find(uint64_t hash, const std::vector<int64_t>& words) {
    const std::lock_guard lock(mutex_);
    return find_locked(hash, words);
  }

  /// Returns the layout, or the one of the same key that another thread inserted first.
  LayoutPointer insert(uint64_t hash, const std::vector<int64_t>& words, LayoutPointer made,
                       int64_t bytes) {
    std::list<Entry> dropped;  // freed after the lock
    const std::lock_guard lock(mutex_);
    if (LayoutPointer known = find_locked(hash, words)) return known;
    ++made_;
    ask(*made);
    const bool keep = bytes <= limit_;
    std::list<Entry>& list = keep ? kept_ : used_;
    list.push_front({hash, made, keep ? made : nullptr, nullptr, keep ? bytes : 0});
    by_hash_.emplace(hash, list.begin());
    bytes_ += list.front().bytes;
    shrink(dropped);
    return made;
  }

  void keep_copy(const BlockLayout& layout, LayoutPointer copy, int64_t bytes) {
    std::list<Entry> dropped;
    const std::lock_guard lock(mutex_);
    const auto at = std::find_if(kept_.begin(), kept_.end(),
                                 [&](const Entry& e) { return e.kept.get() == &layout; });
    if (at == kept_.end()) return;
    const int64_t more = bytes - std::exchange(at->copy_bytes, bytes);  // replaces a previous copy
    at->bytes += more;
    bytes_ += more;
    std::swap(at->copy, copy);
    if (at->bytes > limit_) return drop(at, dropped);
    shrink(dropped);
  }

  LayoutCacheState state() {
    const std::lock_guard lock(mutex_);
    return {static_cast<int64_t>(kept_.size()), bytes_, made_, asked_bytes_};
  }

  void count_asked() {
    const std::lock_guard lock(mutex_);
    asked_.clear();
    asked_bytes_ = 0;
  }

  int64_t set_limit(int64_t bytes) {
    std::list<Entry> dropped;
    const std::lock_guard lock(mutex_);
    const int64_t before = std::exchange(limit_, bytes);
    shrink(dropped);
    return before;
  }

  void clear() {
    std::list<Entry> dropped;
    const std::lock_guard lock(mutex_);
    while (!kept_.empty()) drop(std::prev(kept_.end()), dropped);
  }

 private:
  struct Entry {
    uint64_t hash;
    std::weak_ptr<const BlockLayout> layout;
    LayoutPointer kept, copy;  // null if the layout is only in use
    int64_t bytes;             // of layout and copy
    int64_t copy_bytes = 0;
  };
  using Position = std::list<Entry>::iterator;

  LayoutPointer find_locked(uint64_t hash, const std::vector<int64_t>& words) {
    const auto [first, last] = by_hash_.equal_range(hash);
    for (auto at = first; at != last; ++at) {
      LayoutPointer layout = at->second->layout.lock();
      if (layout == nullptr || !equal(layout->key, words)) continue;
      if (at->second->kept != nullptr) kept_.splice(kept_.begin(), kept_, at->second);
      ask(*layout);
      return layout;
    }
    return nullptr;
  }

  void ask(const BlockLayout& layout) {
    if (asked_.insert(&layout).second) asked_bytes_ += bytes_of(layout);
  }

  static bool equal(const Tensor& key, const std::vector<int64_t>& words) {
    const size_t bytes = words.size() * sizeof(int64_t);
    return key.nbytes() == static_cast<int64_t>(bytes) &&
           std::memcmp(key.storage().data(), words.data(), bytes) == 0;
  }

  void shrink(std::list<Entry>& dropped) {
    for (Position at = used_.begin(); at != used_.end();) {
      const Position here = at++;
      if (here->layout.expired()) forget(here, used_, dropped);
    }
    while (bytes_ > limit_ && !kept_.empty()) drop(std::prev(kept_.end()), dropped);
  }

  /// A layout dropped from the cache is still shared while it is in use.
  void drop(Position at, std::list<Entry>& dropped) {
    bytes_ -= at->bytes;
    used_.splice(used_.begin(), kept_, at);
    dropped.push_back({0, {}, std::move(at->kept), std::move(at->copy), 0});
    at->bytes = at->copy_bytes = 0;
  }

  void forget(Position at, std::list<Entry>& from, std::list<Entry>& dropped) {
    auto [first, last] = by_hash_.equal_range(at->hash);
    while (first->second != at) ++first;
    by_hash_.erase(first);
    dropped.splice(dropped.begin(), from, at);
  }

  std::mutex mutex_;
  std::list<Entry> kept_, used_;  // kept_: most recently used first
  std::unordered_multimap<uint64_t, Position> by_hash_;
  std::unordered_set<const BlockLayout*> asked_;  // addresses, of which some may be gone
  int64_t bytes_ = 0, made_ = 0, asked_bytes_ = 0, limit_ = int64_t{64} << 20;
};

// Never destroyed: memory on a device cannot be freed once the driver has shut down.
LayoutCache& layout_cache() {
  static auto* instance = [] {
    memory::when_short(clear_layout_cache);
    return new LayoutCache;
  }();
  return *instance;
}

}  // namespace

LayoutKey::LayoutKey(std::string_view maker) {
  add(std::vector<int64_t>(maker.begin(), maker.end()));
}

LayoutKey& LayoutKey::add(int64_t number) {
  words_.push_back(number);
  return *this;
}

LayoutKey& LayoutKey::add(const std::vector<int64_t>& numbers) {
  words_.push_back(static_cast<int64_t>(numbers.size()));
  words_.insert(words_.end(), numbers.begin(), numbers.end());
  return *this;
}

LayoutKey& LayoutKey::add(const Tensor& numbers) {
  add(static_cast<int64_t>(numbers ? numbers.rank() : -1));
  if (!numbers) return *this;
  for (const int64_t n : numbers.shape()) add(n);
  if (numbers.dtype() == DType::i64) return add(numbers.to_vector<int64_t>());
  const std::vector<int32_t> narrow = numbers.to_vector<int32_t>();
  return add(std::vector<int64_t>(narrow.begin(), narrow.end()));
}

LayoutKey& LayoutKey::add(const BlockLayout& layout) {
  if (layout.key) return add(int64_t{1}).add(layout.key);
  add(int64_t{0}).add(layout.queries).add(layout.keys).add(layout.side_keys);
  BlockLayout::visit_tensors([this](const Tensor& t) { add(t); }, layout);
  return *this;
}

std::shared_ptr<const BlockLayout> cached_layout(const LayoutKey& key,
                                                 const std::function<LayoutPointer()>& make) {
  const std::vector<int64_t>& words = key.words();
  const uint64_t hash = hash_of(words);
  if (LayoutPointer known = layout_cache().find(hash, words)) return known;
  const auto made = std::make_shared<BlockLayout>(*make());
  made->key = Tensor::from(words, {static_cast<int64_t>(words.size())});
  return layout_cache().insert(hash, words, made, claim(*made));
}

void keep_copy(const BlockLayout& layout, const std::shared_ptr<BlockLayout>& copy) {
  if (layout.key) layout_cache().keep_copy(layout, copy, claim(*copy));
}

LayoutCacheState layout_cache_state() {
  LayoutCacheState state = layout_cache().state();
  state.asked += asked_trees();
  return state;
}
void count_asked_layouts() {
  layout_cache().count_asked();
  count_asked_trees();
}
int64_t set_layout_cache_limit(int64_t bytes) { return layout_cache().set_limit(bytes); }
void clear_layout_cache() {
  layout_cache().clear();
  clear_tree_cache();
}

std::shared_ptr<const BlockLayout> on_device(const std::shared_ptr<const BlockLayout>& layout,
                                             Device device) {
  // The meta device shares the layouts of the host.
  if (layout->tiles.device() == device || device == meta_device) return layout;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (auto known = layout->copy.lock(); known && known->tiles.device() == device) {
    graph::keep(known);
    return known;
  }
  graph::refuse("layout",
                "it is not on the device yet; run the step once before, and where that "
                "does not help its layouts depend on its data");
  const NoGrad off;
  auto moved = std::make_shared<BlockLayout>(*layout);
  if (layout->tiles.device() == Device{}) {
    LayoutWork work = work_of(layout->view(), layout->queries, layout->keys, layout->side_keys);
    moved->row_work = std::move(work.rows);
    moved->column_work = std::move(work.columns);
  }
  const auto move = [device](Tensor& t) {
    if (t) t = to_device(t, device);
  };
  BlockLayout::visit_tensors(move, *moved);
  moved->original = layout;
  moved->key = {};
  layout->copy = moved;
  keep_copy(*layout, moved);
  return moved;
}

std::shared_ptr<const BlockLayout> with_side_keys(const std::shared_ptr<const BlockLayout>& layout,
                                                  int64_t side_keys) {
  constexpr const char* op = "with_side_keys";
  require<ShapeError>(layout->side_keys == 0, op, "the layout has {} keys of a second segment",
                      layout->side_keys);
  if (side_keys == 0) return layout;
  return cached_layout(LayoutKey(op).add(*layout).add(side_keys), [&] {
    std::vector<std::vector<TileRuns>> tiles;
    for (int64_t n = 0; n < layout->layouts(); ++n) {
      tiles.push_back(tiles_of(*layout, n));
      for (TileRuns& t : tiles.back()) {
        t.runs.push_back({0, static_cast<int32_t>(side_keys), 1, RunKind::full});
      }
    }
    return make_layout(layout->queries, layout->keys, tiles,
                       {.layout_index = layout->layout_index,
                        .order_q = layout->order_q,
                        .order_k = layout->order_k,
                        .members = members_of(*layout),
                        .side_keys = side_keys});
  });
}

std::shared_ptr<const BlockLayout> with_heads(const std::shared_ptr<const BlockLayout>& layout,
                                              int64_t first, int64_t count) {
  constexpr const char* op = "with_heads";
  if (layout->layout_index.dim(1) == 1) return layout;
  require<NotImplemented>(layout->tiles.device() == Device{}, op, "the layout is on {}",
                          name_of(layout->tiles.device()));
  return cached_layout(LayoutKey(op).add(*layout).add(first).add(count), [&] {
    const NoGrad off;
    std::vector<std::vector<TileRuns>> tiles;
    for (int64_t n = 0; n < layout->layouts(); ++n) tiles.push_back(tiles_of(*layout, n));
    return make_layout(layout->queries, layout->keys, tiles,
                       {.layout_index = contiguous(narrow(layout->layout_index, 1, first, count)),
                        .order_q = layout->order_q,
                        .order_k = layout->order_k,
                        .members = members_of(*layout),
                        .side_keys = layout->side_keys});
  });
}

}  // namespace longspan
