#include "app/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "data/io/files.h"
#include "train/plot.h"

namespace longspan {
namespace {

constexpr int64_t drawn_tokens = 256, drawn_heads = 8, drawn_layers = 8;
constexpr int64_t drawn_span_tokens = 48;

std::string picture(const std::string& out, const char* name) {
  make_folders(out + "/pictures", "pictures");
  return out + "/pictures/" + name;
}

/// Draws a line from 0 for every head, and one across its layer for their mean.
void draw_span_bars(const std::string& path, const std::string& title,
                    const std::vector<std::vector<double>>& layers) {
  LinePlot plot{.title = title, .x_label = "layer", .y_label = "tokens back", .whole_x = true};
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto at = static_cast<double>(i), count = static_cast<double>(layers[i].size());
    double mean = 0;
    for (size_t h = 0; h < layers[i].size(); ++h) {
      const double x = at + 0.8 * ((static_cast<double>(h) + 0.5) / count - 0.5);
      plot.series.push_back({.x = {x, x}, .y = {0, layers[i][h]}});
      plot.series.push_back({.x = {x}, .y = {layers[i][h]}, .markers = true});
      mean += layers[i][h] / count;
    }
    plot.series.push_back({.name = i == 0 ? "mean of the heads of a layer" : "",
                           .x = {at - 0.45, at + 0.45},
                           .y = {mean, mean},
                           .colour = 1});
  }
  write_line_plot(path, plot);
}

}  // namespace

PanelPicture::PanelPicture(int64_t first_layer, int64_t layers, int64_t heads, int64_t rows,
                           int64_t columns)
    : first_layer_(first_layer),
      layers_(layers),
      heads_(heads),
      rows_(rows),
      columns_(columns),
      gap_(std::max<int64_t>(std::max(rows, columns) / 32, 2)) {
  const int64_t cells = (begin(layers_, rows_) - gap_) * (begin(heads_, columns_) - gap_);
  values_.assign(static_cast<size_t>(cells), std::nan(""));
}

void PanelPicture::set(int64_t layer, int64_t head, int64_t row, int64_t column, double share) {
  const int64_t width = begin(heads_, columns_) - gap_;
  const int64_t at = (begin(layer, rows_) + row) * width + begin(head, columns_) + column;
  values_[static_cast<size_t>(at)] = share;
}

void PanelPicture::write(const std::string& path, const Text& text, double exponent) const {
  const auto labels = [this](const char* name, int64_t first, int64_t panels, int64_t size) {
    std::vector<std::string> v(static_cast<size_t>(begin(panels, size) - gap_));
    for (int64_t i = 0; i < panels; ++i) {
      v[static_cast<size_t>(begin(i, size) + size / 2)] = fmt::format("{} {}", name, first + i);
    }
    return v;
  };
  write_heat_map(path, {.title = text.title,
                        .x_label = text.x_label,
                        .y_label = text.y_label,
                        .rows = begin(layers_, rows_) - gap_,
                        .columns = begin(heads_, columns_) - gap_,
                        .values = values_,
                        .row_labels = labels("layer", first_layer_, layers_, rows_),
                        .column_labels = labels("head", 0, heads_, columns_),
                        .low = 0,
                        .high = 1,
                        .exponent = exponent});
}

void draw_loss(const TrainingRun& run, const LossUnit& unit) {
  write_loss_curve(picture(run.out, "loss.png"), run.out + "/metrics.jsonl",
                   run.config.model_name + " on " + run.config.task, unit);
}

bool draw_attention(const TrainingRun& run, const TaskData& task_data) try {
  const std::vector<int32_t> ids =
      task_data.first_tokens(std::min(run.config.length, drawn_tokens));
  const auto n = static_cast<int64_t>(ids.size());
  if (n < 1) return false;
  const Tensor tokens = Tensor::from(ids, {1, n}, run.device);

  std::vector<Tensor> maps;  // [H, L, L] for each layer
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
             0.25);  // a probability of 1/100 gets about a third of the colour range
  return true;
} catch (const NoAttentionMap& e) {  // a model of one's own may have no attention
  std::fprintf(stderr, "no picture of attention: %s\n", e.what());
  return false;
}

std::vector<std::string> used_keys(const TrainingRun& run, const TaskData& task_data) try {
  const std::vector<int32_t> ids =
      task_data.first_tokens(std::min(run.config.length, drawn_tokens));
  const auto n = static_cast<int64_t>(ids.size());
  if (n < 1) return {};
  const Tensor tokens = Tensor::from(ids, {1, n}, run.device);
  std::vector<std::string> lines;
  bool sparse = false;
  for (int64_t layer = 0; layer < run.model->layers(); ++layer) {
    const Tensor map = run.model->attention_map(tokens, layer);  // [H, L, L]
    const AttentionOutline outline = run.model->attention_outline(layer, n);
    const std::vector<float> p = map.to_vector<float>();
    std::string line = fmt::format("keys that layer {} uses, of those that each head sees:", layer);
    for (int64_t head = 0; head < map.dim(0); ++head) {
      int64_t used = 0, seen = 0;
      count_pairs(outline, head, [&](int64_t row, int64_t column) {
        ++seen;
        used += p[static_cast<size_t>((head * n + row) * n + column)] > 0;
      });
      sparse = sparse || used < seen;
      line += fmt::format(" {:.1f} %", 100 * static_cast<double>(used) /
                                           static_cast<double>(std::max<int64_t>(seen, 1)));
    }
    lines.push_back(line);
  }
  if (!sparse) lines.clear();
  return lines;
} catch (const NotImplemented&) {  // pairs depend on the tokens, or there is no map
  return {};
}

bool draw_spans(const TrainingRun& run, const TaskData& task_data) {
  const std::vector<int32_t> ids =
      task_data.first_tokens(std::min(run.config.length, drawn_tokens));
  const auto n = static_cast<int64_t>(ids.size());
  if (n < 1) return false;
  const Tensor spans = run.model->seen_spans(Tensor::from(ids, {1, n}, run.device));
  if (!spans) return false;
  const std::vector<float> all = spans.to_vector<float>();
  const int64_t layers = spans.dim(0), heads = spans.dim(1);
  const int64_t shown = std::min(n, drawn_span_tokens);
  HeatMap map{
      .title = fmt::format("tokens back that {} sees from each token", run.config.model_name),
      .x_label = fmt::format("the first {} tokens", shown),
      .y_label = "layer.head",
      .rows = layers * heads,
      .columns = shown,
      .cell = static_cast<int>(std::min<int64_t>(22, 8192 / (layers * heads)))};
  std::vector<std::vector<double>> means(static_cast<size_t>(layers));
  bool differ = false;
  for (int64_t row = 0; row < layers * heads; ++row) {
    double sum = 0;
    for (int64_t t = 0; t < n; ++t) {
      const auto span = static_cast<double>(all[static_cast<size_t>(row * n + t)]);
      differ = differ || all[static_cast<size_t>(row * n + t)] != all[static_cast<size_t>(row * n)];
      sum += span;
      if (t < shown) map.values.push_back(span);
    }
    means[static_cast<size_t>(row / heads)].push_back(sum / static_cast<double>(n));
    map.row_labels.push_back(fmt::format("{}.{}", row / heads, row % heads));
  }
  draw_span_bars(picture(run.out, "spans.png"),
                 fmt::format("spans of {}: every head of every layer", run.config.model_name),
                 means);
  if (!differ) return true;
  const bool bytes = task_data.items() == "bytes";
  for (int64_t t = 0; t < shown; ++t) {
    const int32_t id = ids[static_cast<size_t>(t)];
    map.column_labels.push_back(bytes ? byte_label(id) : std::to_string(id));
  }
  write_heat_map(picture(run.out, "spans_along_text.png"), map);
  return true;
}

}  // namespace longspan
