#include "train/plot.h"

#include <fmt/ranges.h>

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

bool PictureFormats::valid(std::string_view text) {
  std::vector<std::string_view> seen;
  for (bool more = true; more;) {
    const size_t comma = text.find(',');
    const std::string_view name = text.substr(0, comma);
    if (name != "png" && name != "svg" && name != "pdf") return false;
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) return false;
    seen.push_back(name);
    more = comma != text.npos;
    if (more) text.remove_prefix(comma + 1);
  }
  return true;
}

void PictureFormats::set(std::string_view text) {
  require(valid(text), "pictures", "got \"{}\"; expected {}", text, expected);
  names.clear();
  for (bool more = true; more;) {
    const size_t comma = text.find(',');
    names.emplace_back(text.substr(0, comma));
    more = comma != text.npos;
    if (more) text.remove_prefix(comma + 1);
  }
}

std::string PictureFormats::text() const { return fmt::format("{}", fmt::join(names, ",")); }

std::vector<std::string> PictureFormats::paths(const std::string& without_end) const {
  std::vector<std::string> all;
  for (const std::string& name : names) all.push_back(without_end + "." + name);
  return all;
}

void write_line_plot(const std::string& path, const LinePlot& plot) {
  replace_file(path, drawing::line_chart(plot, drawing::format_of(path)), "plot");
}

void write_heat_map(const std::string& path, const HeatMap& map) {
  replace_file(path, drawing::heat_chart(map, drawing::format_of(path)), "plot");
}

namespace {

/// Returns what 2^(bits of a target) is called; empty where targets are no parts of a text, and it
/// has no meaning that people know.
std::string perplexity_of(const LossUnit& unit) {
  if (unit.per_target != 1) return "perplexity per token";
  std::string_view part = unit.name;
  if (part.starts_with("hidden ")) part.remove_prefix(7);
  for (const std::string_view known : {"byte", "base", "token", "word"}) {
    if (part == known) return "perplexity per " + unit.name;
  }
  return {};
}

}  // namespace

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
  LinePlot plot{.title = title,
                .x_label = "step",
                .y_label = "bits per " + unit.name,
                .right_label = perplexity_of(unit),
                .right_bits = unit.per_target};
  if (!train.x.empty()) plot.series = {train, mean};
  if (!valid.x.empty()) {
    const auto best = std::min_element(valid.y.begin(), valid.y.end()) - valid.y.begin();
    const double x = valid.x[static_cast<size_t>(best)], y = valid.y[static_cast<size_t>(best)];
    plot.points = {{fmt::format("best: {:.4g} at step {:.0f}", y, x), x, y, valid.colour, true}};
    plot.series.push_back(valid);
  }
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
