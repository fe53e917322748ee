#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "app/commands.h"
#include "app/make_config.h"
#include "app/pictures.h"
#include "app/run_folder.h"
#include "app/tasks/task_data.h"
#include "core/error.h"
#include "data/io/files.h"

namespace longspan {
namespace {

// Maximum number of panels of a picture, and of cells along one side of a panel.
constexpr int64_t drawn_layers = 8, drawn_heads = 8, drawn_cells = 256;

struct DrawCommandOptions {
  int64_t layer = -1;
  void visit(auto& v) { v("layer", layer); }
};

/// The pairs that each head of a layer attends to.
struct LayerPairs {
  AttentionOutline outline;
  std::vector<OutlineCount> heads;
};

std::string name_of(const AttentionOutline& outline) {
  std::string name;
  for (const AttentionCall& call : outline.calls) {
    name += (name.empty() ? "" : " + ") + call.pattern.name;
  }
  return name;
}

/// Returns what a layer attends to. Of a run, whose picture of attention shows more, nothing if
/// that depends on the tokens; else throws NotImplemented then.
LayerPairs pairs_of(const LanguageModel& model, int64_t layer, int64_t length, bool of_run) try {
  LayerPairs pairs{need<ShowsAttention>(model).attention_outline(layer, length), {}};
  for (int64_t head = 0; head < pairs.outline.heads; ++head) {
    pairs.heads.push_back(count_pairs(pairs.outline, head));
  }
  return pairs;
} catch (const NotImplemented&) {
  if (!of_run) throw;
  return {};
}

/// Prints a line for each run of heads that attend to the same number of pairs.
void print_layer(int64_t layer, const LayerPairs& pairs) {
  const auto& heads = pairs.heads;
  if (heads.empty()) {
    std::puts(fmt::format("{:>5}  depends on the tokens: see pictures/attention", layer).c_str());
  }
  for (size_t first = 0; first < heads.size();) {
    size_t last = first;
    while (last + 1 < heads.size() && heads[last + 1].attended == heads[first].attended &&
           heads[last + 1].computed == heads[first].computed) {
      ++last;
    }
    const OutlineCount& n = heads[first];
    const auto all = static_cast<double>(pairs.outline.rows * pairs.outline.columns);
    const std::string who =
        first == last ? fmt::format("{}", first) : fmt::format("{} to {}", first, last);
    std::puts(fmt::format("{:>5}  {:>8}  {:>14}  {:>14}  {:>8.3f}  {:>8.2f}  {}", layer, who,
                          n.attended, n.computed,
                          static_cast<double>(n.computed) /
                              static_cast<double>(std::max<int64_t>(n.attended, 1)),
                          100 * static_cast<double>(n.attended) / std::max(all, 1.0),
                          name_of(pairs.outline))
                  .c_str());
    first = last + 1;
  }
}

/// Draws the share of attended pairs in each cell of a head's panel.
void draw_head(const LayerPairs& pairs, int64_t head, int64_t cell, int64_t layer_panel,
               PanelPicture& picture) {
  const int64_t rows = pairs.outline.rows, columns = pairs.outline.columns;
  const int64_t high = (rows + cell - 1) / cell, wide = (columns + cell - 1) / cell;
  std::vector<int64_t> seen(static_cast<size_t>(high * wide), 0);
  count_pairs(pairs.outline, head, [&](int64_t row, int64_t column) {
    ++seen[static_cast<size_t>(row / cell * wide + column / cell)];
  });
  for (int64_t r = 0; r < high; ++r) {
    for (int64_t c = 0; c < wide; ++c) {
      const int64_t n = seen[static_cast<size_t>(r * wide + c)];
      const int64_t all = std::min(cell, rows - r * cell) * std::min(cell, columns - c * cell);
      if (n > 0)
        picture.set(layer_panel, head, r, c, static_cast<double>(n) / static_cast<double>(all));
    }
  }
}

/// Draws the pairs of layers, of which `first` is the number of the first. Panels are as large as
/// the largest layer.
void draw_pattern(const RunConfig& config, int64_t first, const std::vector<LayerPairs>& layers,
                  const std::vector<std::string>& paths) {
  int64_t rows = 1, columns = 1, heads = 1;
  for (const LayerPairs& pairs : layers) {
    heads = std::max(heads, std::min(std::ssize(pairs.heads), drawn_heads));
    rows = std::max(rows, pairs.outline.rows);
    columns = std::max(columns, pairs.outline.columns);
  }
  const int64_t cell = (std::max(rows, columns) + drawn_cells - 1) / drawn_cells;
  const int64_t panels = std::min(std::ssize(layers), drawn_layers);
  PanelPicture picture(first, panels, heads, (rows + cell - 1) / cell, (columns + cell - 1) / cell);
  for (int64_t layer = 0; layer < panels; ++layer) {
    const LayerPairs& pairs = layers[static_cast<size_t>(layer)];
    for (int64_t head = 0; head < std::min(heads, pairs.outline.heads); ++head) {
      draw_head(pairs, head, cell, layer, picture);
    }
  }
  const std::string grain = cell == 1 ? "" : fmt::format(", in cells of {} x {}", cell, cell);
  const std::string title =
      fmt::format("pairs of {} in {} tokens", config.model_name, config.length);
  picture.write(paths,
                {title, fmt::format("keys 0 to {}{}", columns - 1, grain),
                 fmt::format("queries 0 to {}", rows - 1), "share of pairs"},
                0.5, true);
}

/// Draws what the checkpoint that a run has loaded computes.
void draw_checkpoint(const TrainingRun& run, const Position& at) {
  const auto data = open_task_data(run);
  for (const std::string& line : draw_run(run, *data, at.unit.value_or(data->loss_unit()))) {
    say(line);
  }
  for (const std::string& line : used_keys(run, *data)) say(line);
  for (const std::string& line : reported(run, *data)) say(line);
}

void require_layer(int64_t layer, const RunConfig& config, const LanguageModel& model) {
  require(layer >= -1 && layer < model.layers(), "--layer", "got {}; {} has layers 0 to {}", layer,
          config.model_name, model.layers() - 1);
}

}  // namespace

int draw_command(int argc, const char* const* argv) {
  const Flag own[] = {{"--out", "", "the run folder; the picture goes to its pictures/"},
                      {"--layer", "draw.layer", "only this layer; without it all"},
                      other_data_flag};
  CommandLine line = read_command_line(
      argc, argv, own,
      "longspan draw --model NAME --length L --out DIR: which pairs each layer and head attends "
      "to, "
      "as a table and as pictures/pattern.png. With the folder of a run, and no --model, of its "
      "newest checkpoint, and pictures/attention.png, with pictures/spans.png if the model learns "
      "spans, and pictures/lifetimes.png if it learns how long it remembers.");
  DrawCommandOptions o;
  set_fields(o, taken(line, "draw."));
  const std::string* const out = line.value("--out");
  require(out != nullptr && !out->empty(), "--out", "no folder given; expected --out DIR");
  require_own_folder(*out, "draw");

  RunConfig config;
  std::unique_ptr<LanguageModel> model;
  const bool of_run = last_setting(line.settings, "model.name") == nullptr;
  if (!of_run) {
    config = make_config(line.settings);
    require_used(line, config);
    set_process(config);
    say_positions(config);
    model = config.model->build(Init{.meta = true});  // no outline needs values without a run
  } else {
    Trained trained = load_run(line, line, Reads::data);
    require_layer(o.layer, trained.run.config, *trained.run.model);
    draw_checkpoint(trained.run, trained.at);
    config = std::move(trained.run.config);
    model = std::move(trained.run.model);  // learned spans are in its parameters
  }
  require_length(config, *model);
  require_layer(o.layer, config, *model);
  const int64_t first = o.layer >= 0 ? o.layer : 0;
  const int64_t last = o.layer >= 0 ? o.layer + 1 : model->layers();

  std::puts(fmt::format("{} over {} tokens\nlayer  {:>8}  {:>14}  {:>14}  {:>8}  {:>8}  pattern",
                        config.model_name, config.length, "heads", "attended", "computed", "ratio",
                        "% of all")
                .c_str());
  std::vector<LayerPairs> layers;
  OutlineCount total;
  for (int64_t layer = first; layer < last; ++layer) {
    LayerPairs pairs = pairs_of(*model, layer, config.length, of_run);
    for (const OutlineCount& head : pairs.heads) {
      total.attended += head.attended;
      total.computed += head.computed;
    }
    print_layer(layer, pairs);
    layers.push_back(std::move(pairs));
  }
  std::puts(fmt::format("  all            {:>14}  {:>14}  {:>8.3f}", total.attended, total.computed,
                        static_cast<double>(total.computed) /
                            static_cast<double>(std::max<int64_t>(total.attended, 1)))
                .c_str());

  if (total.attended == 0) return 0;
  make_folders(*out + "/pictures", "pictures");
  const std::vector<std::string> paths = config.pictures.paths(*out + "/pictures/pattern");
  draw_pattern(config, first, layers, paths);
  say(fmt::format("pattern: {}", fmt::join(paths, ", ")));
  return 0;
}

}  // namespace longspan
