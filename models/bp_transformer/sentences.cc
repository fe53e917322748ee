#include "models/bp_transformer/sentences.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <utility>

#include "core/graph.h"
#include "models/bp_transformer/tree_layers.h"
#include "ops/copy.h"
#include "ops/patterns/edge_builder.h"

namespace longspan {
namespace {

/// Returns tokens, read from the device; empty where sentences do not depend on them.
std::vector<int64_t> tokens_on_host(std::string_view model, const Tensor& tokens, int64_t end) {
  if (end < 0 || tokens.device() == meta_device) return {};
  if (tokens.device().kind == DeviceKind::cuda) {
    graph::refuse(model, "what tokens attend to depends on where sentences end");
  }
  return cast(to_device(tokens, {}), DType::i64).to_vector<int64_t>();
}

/// A cache of the layouts used last. A step that is recorded needs the same layout again.
class LastLayouts {
 public:
  std::shared_ptr<const EdgeRows> find(const std::vector<int64_t>& key) {
    const std::lock_guard lock(mutex_);
    for (const auto& [known, rows] : all_) {
      if (known == key) return rows;
    }
    return nullptr;
  }
  void insert(std::vector<int64_t> key, std::shared_ptr<const EdgeRows> rows) {
    constexpr size_t most = 8;
    std::shared_ptr<const EdgeRows> dropped;  // freed after the lock
    const std::lock_guard lock(mutex_);
    all_.emplace_front(std::move(key), std::move(rows));
    if (all_.size() <= most) return;
    dropped = std::move(all_.back().second);
    all_.pop_back();
  }

 private:
  std::mutex mutex_;
  std::list<std::pair<std::vector<int64_t>, std::shared_ptr<const EdgeRows>>> all_;
};

// Never destroyed: memory on a device cannot be freed once the driver has shut down.
LastLayouts& last_layouts() {
  static auto* instance = new LastLayouts;
  return *instance;
}

}  // namespace

SourceSentences sentences_of(std::string_view model, const SourceTokens& in, int64_t end) {
  const int64_t batch = in.tokens.dim(0), length = in.tokens.dim(1);
  const std::vector<int64_t> tokens = tokens_on_host(model, in.tokens, end),
                             lengths = lengths_on_host(model, in);
  SourceSentences all;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t n = lengths.empty() ? length : lengths[static_cast<size_t>(b)];
    std::vector<SourceSentences::Keys> sentences;
    int64_t first = 0;
    for (int64_t i = 0; i < n; ++i) {
      const bool ends = !tokens.empty() && tokens[static_cast<size_t>(b * length + i)] == end;
      if (!ends && i + 1 < n) continue;
      sentences.push_back({all.rows + first, i + 1 - first});
      first = i + 1;
    }
    all.of_sample.push_back(std::move(sentences));
    all.rows += n;
  }
  return all;
}

std::vector<int64_t> sentences_of_targets(std::string_view model, const Tensor& tokens, int64_t end,
                                          const std::vector<int64_t>& before, bool begins) {
  const int64_t batch = tokens.dim(0), length = tokens.dim(1);
  const std::vector<int64_t> ids = tokens_on_host(model, tokens, end);
  std::vector<int64_t> sentences;
  for (int64_t b = 0; b < batch; ++b) {
    int64_t now = before[static_cast<size_t>(b)];
    for (int64_t i = 0; i < length; ++i) {
      const bool ended = !ids.empty() && ids[static_cast<size_t>(b * length + i)] == end;
      if (ended && !(begins && i == 0)) ++now;
      sentences.push_back(now);
    }
  }
  return sentences;
}

std::shared_ptr<const EdgeRows> sentence_rows(const SourceSentences& source,
                                              const std::vector<int64_t>& sample,
                                              const std::vector<int64_t>& sentence) {
  const size_t length = sample.empty() ? 0 : sentence.size() / sample.size();
  std::vector<int64_t> key{source.rows, static_cast<int64_t>(length)};
  for (size_t row = 0; row < sentence.size(); ++row) {
    const auto& own = source.of_sample[static_cast<size_t>(sample[row / length])];
    const auto last = std::ssize(own) - 1;
    const auto& keys = own[static_cast<size_t>(std::min(sentence[row], last))];
    key.insert(key.end(), {keys.first, keys.count});
  }
  if (std::shared_ptr<const EdgeRows> known = last_layouts().find(key)) return known;
  EdgeLayoutBuilder builder;
  for (size_t row = 0; row < sentence.size(); ++row) {
    const EdgeRun run{key[2 + 2 * row], key[3 + 2 * row], EdgeLayoutBuilder::one_label(0)};
    builder.add_row(std::span(&run, 1));
    if ((row + 1) % length == 0) builder.end_group();
  }
  auto rows = std::make_shared<EdgeRows>();
  rows->layout = builder.build(source.rows, 1);
  last_layouts().insert(std::move(key), rows);
  return rows;
}

}  // namespace longspan
