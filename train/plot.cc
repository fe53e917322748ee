#include "train/plot.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "data/io/files.h"
#include "train/chart.h"
#include "train/log.h"

namespace longspan {

Series smoothed(const Series& series) {
  Series mean = series;
  const auto n = static_cast<int64_t>(series.y.size());
  const int64_t half = std::max<int64_t>(1, n / 100);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t reach = std::min({half, i, n - 1 - i});
    double sum = 0;
    for (int64_t k = i - reach; k <= i + reach; ++k) sum += series.y[static_cast<size_t>(k)];
    mean.y[static_cast<size_t>(i)] = sum / static_cast<double>(2 * reach + 1);
  }
  return mean;
}

void write_line_plot(const std::string& path, const LinePlot& plot) {
  replace_file(path, drawing::line_chart(plot, drawing::format_of(path)), "plot");
}

void write_heat_map(const std::string& path, const HeatMap& map) {
  replace_file(path, drawing::heat_chart(map, drawing::format_of(path)), "plot");
}

void write_loss_curve(const std::string& path, const std::string& metrics, const std::string& title,
                      const LossUnit& unit) {
  Series train{.faint = true, .colour = 0};
  Series valid{.name = "validation", .markers = true, .colour = 1};
  for (const Json& row : read_rows(metrics)) {
    const Json* step = row.find("step");
    if (step == nullptr || !step->is_number()) continue;
    const auto figure = [&](const char* name) -> std::optional<double> {
      const Json* value = row.find(name);
      if (value == nullptr || !value->is_number()) return std::nullopt;
      return value->number();
    };
    const auto add = [&](std::optional<double> value, Series& series) {
      if (!value) return;
      series.x.push_back(step->number());
      series.y.push_back(*value);
    };
    // "bpb" of earlier versions is bits per target, whatever the unit.
    const std::optional<double> loss = figure("loss");
    add(loss ? unit.bits(*loss) : figure("bpb"), train);
    add(figure("valid_bpb"), valid);
  }
  Series mean = smoothed(train);
  mean.name = "training";
  mean.faint = false;
  LinePlot plot{.title = title, .x_label = "step", .y_label = "bits per " + unit.name};
  if (!train.x.empty()) plot.series = {train, mean};
  if (!valid.x.empty()) plot.series.push_back(valid);
  require(!plot.series.empty(), "plot", "{} has no row with \"loss\", \"bpb\" or \"valid_bpb\"",
          metrics);
  write_line_plot(path, plot);
}

bool is_own_picture(const std::string& path) { return drawing::Canvas::is_own(path); }

std::string byte_label(int byte) {
  if (byte == ' ') return "_";
  if (byte == '\n' || (byte > ' ' && byte <= '~')) return std::string(1, static_cast<char>(byte));
  return fmt::format("{:02x}", byte & 0xFF);
}

}  // namespace longspan
