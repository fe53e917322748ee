// Draws curves. Each line of standard input is a JSON object that describes one picture:
//
//   {"path": "growth.png", "title": "..", "x_label": "..", "y_label": "..", "log": true,
//    "series": [{"name": "..", "x": [..], "y": [..], "faint": false}],
//    "points": [{"name": "..", "x": 1, "y": 2}]}
//
// The end of the path names the format. Series or points may be left out.

#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "train/plot.h"

namespace longspan::bench {
namespace {

void draw(const nlohmann::json& from) {
  LinePlot plot{.title = from.at("title"),
                .x_label = from.at("x_label"),
                .y_label = from.at("y_label"),
                .log_x = from.value("log", false),
                .log_y = from.value("log", false)};
  for (const nlohmann::json& point : from.value("points", nlohmann::json::array())) {
    plot.points.push_back({.name = point.at("name"),
                           .x = point.at("x"),
                           .y = point.at("y"),
                           .colour = static_cast<int>(plot.points.size())});
  }
  for (const nlohmann::json& series : from.value("series", nlohmann::json::array())) {
    const bool faint = series.value("faint", false);
    plot.series.push_back({.name = series.at("name"),
                           .x = series.at("x"),
                           .y = series.at("y"),
                           .faint = faint,
                           .markers = !faint,
                           .colour = static_cast<int>(plot.series.size())});
  }
  write_line_plot(from.at("path"), plot);
}

}  // namespace
}  // namespace longspan::bench

int main() {
  std::string line;
  try {
    for (int c = std::getchar(); c != EOF; c = std::getchar()) {
      if (c != '\n') {
        line.push_back(static_cast<char>(c));
        continue;
      }
      longspan::bench::draw(nlohmann::json::parse(line));
      line.clear();
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
