#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "examples/longspan/commands.h"
#include "train/files.h"
#include "train/plot.h"

namespace longspan {
namespace {

constexpr int64_t drawn_tokens = 256, drawn_heads = 8, drawn_layers = 8;

std::string picture(const std::string& out, const char* name) {
  make_folders(out + "/pictures", "pictures");
  return out + "/pictures/" + name;
}

}  // namespace

void draw_loss(const Run& run) {
  write_loss_curve(picture(run.out, "loss.png"), run.out + "/metrics.jsonl",
                   run.config.model_name + " on " + run.config.task);
}

void draw_attention(const Run& run, const Part& part) {
  const int64_t n = std::min({part.size(), run.config.length, drawn_tokens});
  if (n < 1) return;
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(part[i]);
  const Tensor tokens = Tensor::from(ids, {1, n}, run.device);

  std::vector<Tensor> maps;  // [H, L, L] of each layer
  for (int64_t layer = 0; layer < std::min(run.model->layers(), drawn_layers); ++layer) {
    maps.push_back(run.model->attention_map(tokens, layer));
  }
  const auto layers = static_cast<int64_t>(maps.size());
  const int64_t heads = std::min(maps[0].dim(0), drawn_heads);

  // A panel for each head: layers below one another, heads side by side, with a gap between.
  const int64_t gap = std::max<int64_t>(n / 32, 2);
  const auto begin = [&](int64_t panel) { return panel * (n + gap); };
  const auto labels = [&](const char* name, int64_t panels) {
    std::vector<std::string> v(static_cast<size_t>(begin(panels) - gap));
    for (int64_t i = 0; i < panels; ++i) {
      v[static_cast<size_t>(begin(i) + n / 2)] = fmt::format("{} {}", name, i);
    }
    return v;
  };
  HeatMap grid{.title = fmt::format("attention of {} to {} tokens", run.config.model_name, n),
               .x_label = fmt::format("keys 0 to {} of every head", n - 1),
               .y_label = fmt::format("queries 0 to {} of every layer", n - 1),
               .rows = begin(layers) - gap,
               .columns = begin(heads) - gap,
               .row_labels = labels("layer", layers),
               .column_labels = labels("head", heads),
               .low = 0,
               .high = 1,
               .exponent = 0.25};  // a key among a hundred is a third of the way up
  grid.values.assign(static_cast<size_t>(grid.rows * grid.columns), std::nan(""));
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::vector<float> p = maps[static_cast<size_t>(layer)].to_vector<float>();
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t row = (begin(layer) + i) * grid.columns + begin(head);
        for (int64_t j = 0; j < n; ++j) {
          const float share = p[static_cast<size_t>((head * n + i) * n + j)];
          if (share > 0) grid.values[static_cast<size_t>(row + j)] = static_cast<double>(share);
        }
      }
    }
  }
  write_heat_map(picture(run.out, "attention.png"), grid);
}

}  // namespace longspan
