#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/commands.h"
#include "app/panels.h"
#include "core/error.h"
#include "data/io/files.h"
#include "train/plot.h"

namespace longspan {
namespace {

constexpr int64_t drawn_tokens = 256, drawn_heads = 8, drawn_layers = 8;

std::string picture(const std::string& out, const char* name) {
  make_folders(out + "/pictures", "pictures");
  return out + "/pictures/" + name;
}

}  // namespace

void draw_loss(const TrainingRun& run, const LossUnit& unit) {
  write_loss_curve(picture(run.out, "loss.png"), run.out + "/metrics.jsonl",
                   run.config.model_name + " on " + run.config.task, unit);
}

void draw_attention(const TrainingRun& run, const TaskData& task_data) {
  const std::vector<int32_t> ids =
      task_data.first_tokens(std::min(run.config.length, drawn_tokens));
  const auto n = static_cast<int64_t>(ids.size());
  if (n < 1) return;
  const Tensor tokens = Tensor::from(ids, {1, n}, run.device);

  std::vector<Tensor> maps;  // [H, L, L] of each layer
  for (int64_t layer = 0; layer < std::min(run.model->layers(), drawn_layers); ++layer) {
    maps.push_back(run.model->attention_map(tokens, layer));
  }
  const auto layers = static_cast<int64_t>(maps.size());
  const int64_t heads = std::min(maps[0].dim(0), drawn_heads);

  PanelPicture grid(0, layers, heads, n, n);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::vector<float> p = maps[static_cast<size_t>(layer)].to_vector<float>();
    for (int64_t i = 0; i < heads * n * n; ++i) {
      const auto share = static_cast<double>(p[static_cast<size_t>(i)]);
      if (share > 0) grid.set(layer, i / (n * n), i / n % n, i % n, share);
    }
  }
  const PanelPicture::Text text{
      fmt::format("attention of {} to {} tokens", run.config.model_name, n),
      fmt::format("keys 0 to {} of every head", n - 1),
      fmt::format("queries 0 to {} of every layer", n - 1)};
  grid.write(picture(run.out, "attention.png"), text,
             0.25);  // a key among a hundred is a third of the way up
}

}  // namespace longspan
