#include "app/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "data/io/files.h"
#include "ops/copy.h"
#include "ops/shape.h"
#include "train/log.h"
#include "train/plot.h"

namespace longspan {
namespace {

constexpr int64_t reported_tokens = 1024;
constexpr int64_t drawn_tokens = 256, pictured_heads = 8, pictured_layers = 8;
constexpr int64_t drawn_decoded = 128;  // tokens of a decoder that reads a source
constexpr int64_t drawn_span_tokens = 48;
constexpr int64_t lifetime_tokens = 4096, lifetime_rows = 40;

/// Returns the paths of a picture of a run, one for each format.
std::vector<std::string> pictures_of(const TrainingRun& run, const char* name) {
  make_folders(run.out + "/pictures", "pictures");
  return run.config.pictures.paths(run.out + "/pictures/" + name);
}

/// Draws a line from 0 for every head, and one across its layer for their mean.
void draw_span_bars(const std::vector<std::string>& paths, const std::string& title,
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
    plot.series.push_back({.x = {at - 0.45, at + 0.45}, .y = {mean, mean}, .colour = 1});
  }
  for (const std::string& path : paths) write_line_plot(path, plot);
}

/// Returns the kind of a byte as lifetimes.png tells them apart.
std::string kind_of_byte(int32_t byte) {
  constexpr std::string_view markup = "<>[]{}|=&#*/";
  if (byte == ' ' || byte == '\t') return "spaces";
  if (byte == '\n' || byte == '\r') return "line breaks";
  if (byte >= '0' && byte <= '9') return "digits";
  const int32_t small = byte | 0x20;
  if (small >= 'a' && small <= 'z') return "letters";
  const bool is_ascii = byte >= 0 && byte < 128;
  return is_ascii && markup.find(static_cast<char>(byte)) != markup.npos ? "markup" : "others";
}

/// Returns the kind of each token: of bytes, or the token itself if it is one of the most frequent,
/// so that there are at most `most` kinds.
std::vector<std::string> kinds_of(const std::vector<int32_t>& ids, bool bytes, size_t most) {
  std::map<int32_t, int64_t> counts;
  for (const int32_t id : ids) ++counts[id];
  std::vector<std::pair<int64_t, int32_t>> frequent;
  for (const auto& [id, count] : counts) frequent.emplace_back(-count, id);
  std::sort(frequent.begin(), frequent.end());
  std::map<int32_t, std::string> names;
  const size_t named = counts.size() <= most ? most : most - 1;
  for (size_t i = 0; i < std::min(named, frequent.size()); ++i) {
    names[frequent[i].second] = fmt::format("token {}", frequent[i].second);
  }
  std::vector<std::string> kinds;
  for (const int32_t id : ids) {
    const auto name = names.find(id);
    const std::string own = name != names.end() ? name->second : "others";
    kinds.push_back(bytes ? kind_of_byte(id) : own);
  }
  return kinds;
}

/// The attention map of a layer, [H, L, T], on the host: there is one tensor of it at a time.
struct DrawnMap {
  int64_t heads, rows, keys;
  std::vector<float> values;
};

DrawnMap drawn_map(const Tensor& map) {
  return {map.dim(0), map.dim(1), map.dim(2), map.to_vector<float>()};
}

/// Returns the maps of the layers that are drawn. Keys may be more or fewer than rows, and differ
/// between layers.
std::vector<DrawnMap> drawn_maps(const LanguageModel& model, const Tensor& tokens) {
  const auto* const shown = ask<ShowsAttention>(model);
  require<NoAttentionMap>(shown != nullptr, "attention map", "this model has none");
  std::vector<DrawnMap> maps;
  for (int64_t layer = 0; layer < std::min(model.layers(), pictured_layers); ++layer) {
    maps.push_back(drawn_map(shown->attention_map(tokens, layer)));
  }
  return maps;
}

/// Returns a decoder's attention maps: over its own tokens or, if `cross`, over the source.
std::vector<DrawnMap> decoder_maps(const ShowsDecoder& model, const Tensor& source,
                                   const Tensor& tokens, bool cross) {
  std::vector<DrawnMap> maps;
  for (int64_t layer = 0; layer < std::min(model.decoder_layers(), pictured_layers); ++layer) {
    maps.push_back(drawn_map(model.decoder_map(source, tokens, layer, cross)));
  }
  return maps;
}

/// Draws a panel for each layer and head. All panels share one scale.
void write_maps(const std::vector<std::string>& paths, const std::string& title,
                const std::vector<DrawnMap>& maps, const char* queries_of, const char* keys_of) {
  int64_t rows = 0, keys = 0;
  for (const DrawnMap& map : maps) {
    rows = std::max(rows, map.rows);
    keys = std::max(keys, map.keys);
  }
  const auto layers = static_cast<int64_t>(maps.size());
  const int64_t heads = std::min(maps[0].heads, pictured_heads);
  PanelPicture grid(0, layers, heads, rows, keys);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto& [all, own, columns, p] = maps[static_cast<size_t>(layer)];
    for (int64_t i = 0; i < heads * own * columns; ++i) {
      const auto share = static_cast<double>(p[static_cast<size_t>(i)]);
      if (share > 0) {
        grid.set(layer, i / (own * columns), i / columns % own, i % columns, share);
      }
    }
  }
  const PanelPicture::Text text{title, fmt::format("{} 0 to {}", keys_of, keys - 1),
                                fmt::format("{} 0 to {}", queries_of, rows - 1), "probability"};
  grid.write(paths, text, 0.25);  // a probability of 1/100 gets about a third of the colour range
}

/// Returns ids as a batch of one.
Tensor batch_of(const std::vector<int32_t>& ids, Device device) {
  return Tensor::from(ids, {1, std::ssize(ids)}, device);
}

/// Draws what the decoder of an encoder-decoder attends to, after the source.
void draw_decoder(const TrainingRun& run, const TaskData& task_data, const Tensor& source) {
  const auto* const model = ask<ShowsDecoder>(std::as_const(*run.model));
  if (model == nullptr) return;
  const std::vector<int32_t> ids =
      task_data.first_decoded(std::min(run.model->max_length(), drawn_decoded));
  if (ids.empty()) return;
  const Tensor tokens = batch_of(ids, run.device);
  const std::string name = fmt::format("decoder of {}", run.config.model_name);
  write_maps(pictures_of(run, "attention_decoder"),
             fmt::format("attention of the {} to itself", name),
             decoder_maps(*model, source, tokens, false), "queries", "keys");
  write_maps(pictures_of(run, "attention_cross"),
             fmt::format("attention of the {} to the source", name),
             decoder_maps(*model, source, tokens, true), "queries", "keys of the source");
}

/// Returns for each layer how many steps each of the tokens is remembered, which are read in
/// segments of `length`.
std::vector<std::vector<double>> lifetimes_of(const LanguageModel& model,
                                              const std::vector<int32_t>& ids, int64_t length) {
  const auto* const forgets = ask<ForgetsTokens>(model);
  if (forgets == nullptr) return {};
  const auto& streams = need<Streams>(model);
  std::vector<std::vector<double>> layers;
  SegmentMemory memory = streams.empty_memory(1);
  const int64_t all = std::ssize(ids);
  for (int64_t at = 0; at < all; at += length) {
    const auto begin = ids.begin() + at;
    const std::vector<int32_t> part(begin, begin + std::min(length, all - at));
    const Tensor tokens = Tensor::from(part, {1, std::ssize(part)}, model.device());
    const std::vector<Tensor> spans = forgets->token_spans(tokens, memory);
    layers.resize(spans.size());
    for (size_t i = 0; i < spans.size(); ++i) {
      const auto own = to_device(cast(spans[i], DType::f64), {}).to_vector<double>();
      layers[i].insert(layers[i].end(), own.begin(), own.end());
    }
    streams.logits_after(memory, tokens);
  }
  return layers;
}

/// Adds a row for each kind to a histogram whose columns are below 1, 1 to sqrt(2), sqrt(2) to 2
/// and so on.
void add_histogram(HeatMap& map, int64_t layer, const std::vector<double>& steps,
                   const std::vector<std::string>& kinds) {
  struct Row {
    std::vector<double> tokens;
    double count = 0, sum = 0;
  };
  std::map<std::pair<size_t, std::string>, Row> rows;  // short names first: token 2 before token 10
  for (size_t i = 0; i < steps.size(); ++i) {
    Row& row = rows[{kinds[i].size(), kinds[i]}];
    row.tokens.resize(static_cast<size_t>(map.columns), 0.0);
    const double column = steps[i] < 1 ? 0 : 1 + std::floor(2 * std::log2(steps[i]));
    row.tokens[std::min(static_cast<size_t>(column), row.tokens.size() - 1)] += 1;
    row.count += 1;
    row.sum += steps[i];
  }
  for (const auto& [kind, row] : rows) {
    for (const double n : row.tokens) map.values.push_back(n / row.count);
    const double mean = row.sum / row.count;
    const std::string text = mean < 100 ? fmt::format("{:.3g}", mean) : fmt::format("{:.0f}", mean);
    map.row_labels.push_back(fmt::format("{} {}: {}", layer, kind.second, text));
    ++map.rows;
  }
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

void PanelPicture::write(const std::vector<std::string>& paths, const Text& text, double exponent,
                         bool dark_high) const {
  const auto labels = [this](const char* name, int64_t first, int64_t panels, int64_t size) {
    std::vector<std::string> v(static_cast<size_t>(begin(panels, size) - gap_));
    for (int64_t i = 0; i < panels; ++i) {
      v[static_cast<size_t>(begin(i, size) + size / 2)] = fmt::format("{} {}", name, first + i);
    }
    return v;
  };
  const HeatMap map{.title = text.title,
                    .x_label = text.x_label,
                    .y_label = text.y_label,
                    .value_label = text.value_label,
                    .rows = begin(layers_, rows_) - gap_,
                    .columns = begin(heads_, columns_) - gap_,
                    .values = values_,
                    .row_labels = labels("layer", first_layer_, layers_, rows_),
                    .column_labels = labels("head", 0, heads_, columns_),
                    .low = 0,
                    .high = 1,
                    .exponent = exponent,
                    .dark_high = dark_high,
                    .panel_rows = rows_,
                    .panel_columns = columns_,
                    .gap = gap_};
  for (const std::string& path : paths) write_heat_map(path, map);
}

std::vector<std::string> draw_run(const TrainingRun& run, const TaskData& task_data,
                                  const LossUnit& unit) {
  std::vector<std::string> drawn;
  const auto add = [&](const char* what, const char* file) {
    const std::string path = run.out + "/pictures/" + file;
    drawn.push_back(fmt::format("{}: {}", what, fmt::join(run.config.pictures.paths(path), ", ")));
  };
  if (kind_of_path(run.out + "/metrics.jsonl", "pictures") == PathKind::file) {
    try {
      draw_loss(run, unit);
      add("losses", "loss");
    } catch (const ValueError&) {  // no figures yet
    }
    if (draw_living(run)) add("memories that are kept", "living");
  }
  if (draw_attention(run, task_data)) {
    add("attention on the validation part", "attention");
  }
  if (draw_spans(run, task_data)) add("spans", "spans");
  if (draw_lifetimes(run, task_data)) add("lifetimes of memories", "lifetimes");
  return drawn;
}

void draw_loss(const TrainingRun& run, const LossUnit& unit) {
  for (const std::string& path : pictures_of(run, "loss")) {
    write_loss_curve(path, run.out + "/metrics.jsonl",
                     run.config.model_name + " on " + run.config.task, unit);
  }
}

bool draw_attention(const TrainingRun& run, const TaskData& task_data) try {
  const std::vector<int32_t> ids =
      task_data.first_tokens(std::min(run.config.length, drawn_tokens));
  if (ids.empty()) return false;
  const Tensor tokens = batch_of(ids, run.device);
  write_maps(pictures_of(run, "attention"),
             fmt::format("attention of {} to {} tokens", run.config.model_name, ids.size()),
             drawn_maps(*run.model, tokens), "queries", "keys");
  draw_decoder(run, task_data, tokens);
  return true;
} catch (const NoAttentionMap& e) {  // a model of one's own may have no attention
  static bool said = false;          // once, not at each validation
  if (!std::exchange(said, true)) {
    std::fprintf(stderr, "no picture of attention: %s\n", e.what());
  }
  return false;
}

std::vector<std::string> used_keys(const TrainingRun& run, const TaskData& task_data) try {
  const std::vector<int32_t> ids =
      task_data.first_tokens(std::min(run.config.length, drawn_tokens));
  const auto n = static_cast<int64_t>(ids.size());
  if (n < 1) return {};
  const Tensor tokens = Tensor::from(ids, {1, n}, run.device);
  const auto& shown = need<ShowsAttention>(*run.model);
  std::vector<std::string> lines;
  bool sparse = false;
  for (int64_t layer = 0; layer < run.model->layers(); ++layer) {
    const Tensor map = shown.attention_map(tokens, layer);  // [H, L, T]
    const AttentionOutline outline = shown.attention_outline(layer, n);
    const std::vector<float> p = map.to_vector<float>();
    std::string line = fmt::format("keys that layer {} uses, of those that each head sees:", layer);
    for (int64_t head = 0; head < map.dim(0); ++head) {
      int64_t used = 0, seen = 0;
      count_pairs(outline, head, [&](int64_t row, int64_t column) {
        ++seen;
        used += p[static_cast<size_t>((head * map.dim(1) + row) * map.dim(2) + column)] > 0;
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

std::vector<std::string> reported(const TrainingRun& run, const TaskData& task_data) {
  const std::vector<int32_t> ids =
      task_data.first_tokens(std::min(run.config.length, reported_tokens));
  const auto n = static_cast<int64_t>(ids.size());
  const auto* const remarks = ask<Remarks>(std::as_const(*run.model));
  if (n < 1 || remarks == nullptr) return {};
  return remarks->report(Tensor::from(ids, {1, n}, run.device));
}

bool draw_spans(const TrainingRun& run, const TaskData& task_data) {
  const std::vector<int32_t> ids =
      task_data.first_tokens(std::min(run.config.length, drawn_tokens));
  const auto n = static_cast<int64_t>(ids.size());
  const auto* const learns = ask<LearnsSpans>(std::as_const(*run.model));
  if (n < 1 || learns == nullptr) return false;
  const Tensor spans = learns->seen_spans(Tensor::from(ids, {1, n}, run.device));
  const std::vector<float> all = spans.to_vector<float>();
  const int64_t layers = spans.dim(0), heads = spans.dim(1);
  const int64_t shown = std::min(n, drawn_span_tokens);
  HeatMap map{
      .title = fmt::format("tokens back that {} sees from each token", run.config.model_name),
      .x_label = fmt::format("the first {} tokens", shown),
      .y_label = "layer.head",
      .value_label = "tokens back",
      .rows = layers * heads,
      .columns = shown,
      .cell = static_cast<int>(
          std::min<int64_t>(18, 4096 / std::max(layers * heads, drawn_span_tokens)))};
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
  draw_span_bars(
      pictures_of(run, "spans"),
      fmt::format("spans of {}: heads, and their mean in each layer", run.config.model_name),
      means);
  if (!differ) return true;
  const bool bytes = task_data.items() == "bytes";
  for (int64_t t = 0; t < shown; ++t) {
    const int32_t id = ids[static_cast<size_t>(t)];
    map.column_labels.push_back(bytes ? byte_label(id) : std::to_string(id));
  }
  for (const std::string& path : pictures_of(run, "spans_along_text")) write_heat_map(path, map);
  return true;
}

bool draw_lifetimes(const TrainingRun& run, const TaskData& task_data) {
  const std::vector<int32_t> ids = task_data.first_tokens(lifetime_tokens);
  if (ids.empty() || memory_length(*run.model) == 0) return false;
  const std::vector<std::vector<double>> layers = lifetimes_of(*run.model, ids, run.config.length);
  if (layers.empty()) return false;
  const std::vector<std::string> kinds =
      kinds_of(ids, task_data.items() == "bytes",
               std::max<size_t>(static_cast<size_t>(lifetime_rows) / layers.size(), 6));
  double longest = 1;
  for (const std::vector<double>& steps : layers) {
    longest = std::max(longest, *std::max_element(steps.begin(), steps.end()));
  }
  HeatMap map{.title = fmt::format("how long {} remembers", run.config.model_name),
              .x_label = "steps, from",
              .y_label = "layer, kind of token: mean",
              .value_label = "share of the kind",
              .columns = 2 + static_cast<int64_t>(2 * std::log2(longest)),
              .high = 1,
              .exponent = 0.5};
  for (int64_t i = 0; i < map.columns; ++i) {
    map.column_labels.push_back(
        i == 0 ? "0" : fmt::format("{:.0f}", std::exp2((static_cast<double>(i) - 1) / 2)));
    if (i % 2 == 0 && i > 0) map.column_labels.back() = "";
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    add_histogram(map, static_cast<int64_t>(i), layers[i], kinds);
  }
  for (const std::string& path : pictures_of(run, "lifetimes")) write_heat_map(path, map);
  return true;
}

void rehearse_pictures(const LanguageModel& model, int64_t length) {
  const Tensor tokens =
      Tensor::zeros({1, std::min(length, drawn_tokens)}, DType::i32, model.device());
  try {
    drawn_maps(model, tokens);
    if (const auto* const decoder = ask<ShowsDecoder>(model)) {
      const Tensor decoded = Tensor::zeros({1, std::min(model.max_length(), drawn_decoded)},
                                           DType::i32, model.device());
      for (const bool cross : {false, true}) decoder_maps(*decoder, tokens, decoded, cross);
    }
  } catch (const NoAttentionMap&) {  // then there is no picture
  }
  if (const auto* const learns = ask<LearnsSpans>(model)) learns->seen_spans(tokens);
  if (memory_length(model) == 0) return;
  constexpr int64_t alike = 3;  // later segments need what the third does
  const auto ids = static_cast<size_t>(std::min(lifetime_tokens, alike * length));
  lifetimes_of(model, std::vector<int32_t>(ids), length);
}

bool draw_living(const TrainingRun& run) {
  Series living;
  for (const Json& row : read_rows(run.out + "/metrics.jsonl")) {
    const Json* rows = row.find("living_memories");
    if (rows == nullptr || !rows->is_number()) continue;
    living.x.push_back(row["step"].number());
    living.y.push_back(rows->number());
  }
  if (living.x.empty()) return false;
  const LinePlot plot{
      .title = fmt::format("memories of {} that the next token sees", run.config.model_name),
      .x_label = "step",
      .y_label = "memories of a layer",
      .series = {living}};
  for (const std::string& path : pictures_of(run, "living")) write_line_plot(path, plot);
  return true;
}

}  // namespace longspan
