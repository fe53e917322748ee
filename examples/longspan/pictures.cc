#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "examples/longspan/commands.h"
#include "train/files.h"
#include "train/plot.h"

namespace longspan {
namespace {

constexpr int64_t drawn_tokens = 64, drawn_heads = 8, drawn_layers = 8;

std::string picture(const std::string& out, const char* name) {
  make_folders(out + "/pictures", "pictures");
  return out + "/pictures/" + name;
}

}  // namespace

void draw_loss(const Run& run) {
  write_loss_curve(picture(run.out, "loss.png"), run.out + "/metrics.jsonl",
                   run.config.model_name + " on " + data_path(run.config));
}

void draw_attention(const Run& run, const BytePart& part) {
  const int64_t n = std::min({part.size(), run.config.length, drawn_tokens});
  if (n < 1) return;
  std::vector<int32_t> bytes;
  for (int64_t i = 0; i < n; ++i) bytes.push_back(part.bytes[static_cast<size_t>(i)]);
  const Tensor tokens = Tensor::from(bytes, {1, n}, run.device);

  // Layers below one another, heads side by side, with a gap between.
  const int64_t layers = std::min(run.model->layers(), drawn_layers), gap = 2;
  std::vector<std::vector<float>> maps;
  int64_t heads = 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const Tensor map = run.model->attention_map(tokens, layer);  // [H, L, L]
    heads = std::min(map.dim(0), drawn_heads);
    maps.push_back(map.to_vector<float>());
  }
  HeatMap grid{.title = "attention to the first bytes",
               .x_label = "keys, head by head",
               .y_label = "queries, layer by layer",
               .rows = layers * (n + gap) - gap,
               .columns = heads * (n + gap) - gap,
               .low = 0,
               .high = 1,
               .exponent = 0.5};
  grid.values.assign(static_cast<size_t>(grid.rows * grid.columns), std::nan(""));
  for (int64_t layer = 0; layer < layers; ++layer) {
    const int64_t top = layer * (n + gap);
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t left = head * (n + gap);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          grid.values[static_cast<size_t>((top + i) * grid.columns + left + j)] =
              static_cast<double>(
                  maps[static_cast<size_t>(layer)][static_cast<size_t>((head * n + i) * n + j)]);
        }
      }
    }
  }
  write_heat_map(picture(run.out, "attention.png"), grid);
}

}  // namespace longspan
