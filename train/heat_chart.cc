#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "train/chart.h"
#include "train/plot.h"

namespace longspan::drawing {
namespace {

constexpr int bar_width = 20;
constexpr double label_drop = 5;  ///< of a base line below the middle of its text

/// Colour map from dark blue over green to pale yellow, with evenly rising brightness.
Colour heat(double share) {
  constexpr Colour stops[] = {{13, 21, 56},   {34, 64, 120},   {34, 113, 140},
                              {45, 160, 130}, {132, 200, 104}, {253, 240, 150}};
  constexpr int last = static_cast<int>(std::size(stops)) - 1;
  const double place = std::clamp(share, 0.0, 1.0) * last;
  const int below = std::min(static_cast<int>(place), last - 1);
  return mix(stops[below], stops[below + 1], place - below);
}

constexpr double label_pitch = 14;  ///< pixels along the axis

/// Whether labels fit along `length` pixels; empty ones need no space.
bool labels_fit(const std::vector<std::string>& labels, double length) {
  const auto none = std::count(labels.begin(), labels.end(), "");
  const auto drawn = static_cast<double>(static_cast<int64_t>(labels.size()) - none);
  return drawn > 0 && drawn * label_pitch <= length;
}

/// Draws labels beside the cells of a heat map: the given ones if they fit, else numbers. place(i,
/// label) draws one.
template <class F>
void draw_cell_labels(int64_t count, double length, const std::vector<std::string>& given,
                      F&& place) {
  if (labels_fit(given, length)) {
    for (int64_t i = 0; i < count; ++i) place(i, given[static_cast<size_t>(i)]);
    return;
  }
  const Ticks ticks = make_ticks(0, static_cast<double>(std::max<int64_t>(count - 1, 1)), 8);
  for (const double at : ticks.at) {
    if (at == std::floor(at) && at < static_cast<double>(count)) {
      place(static_cast<int64_t>(at), fmt::format("{:.0f}", at));
    }
  }
}

void check(const HeatMap& map) {
  require(map.rows >= 1 && map.columns >= 1 && map.rows <= 8192 && map.columns <= 8192, "plot",
          "a heat map of {} x {}: expected 1 to 8192 rows and columns", map.rows, map.columns);
  require(static_cast<int64_t>(map.values.size()) == map.rows * map.columns, "plot",
          "{} values for {} x {} cells", map.values.size(), map.rows, map.columns);
  const auto fits = [](const std::vector<std::string>& labels, int64_t n) {
    return labels.empty() || static_cast<int64_t>(labels.size()) == n;
  };
  require(fits(map.row_labels, map.rows) && fits(map.column_labels, map.columns), "plot",
          "{} row and {} column labels for {} x {} cells", map.row_labels.size(),
          map.column_labels.size(), map.rows, map.columns);
  require(map.exponent > 0, "plot", "exponent {}: expected above 0", map.exponent);
  require(map.cell >= 0 && map.cell <= 8192 / std::max(map.rows, map.columns), "plot",
          "cells of {} pixels in a map of {} x {}: expected 0 to 8192 pixels along a side",
          map.cell, map.rows, map.columns);
}

/// Draws a HeatMap, which check() accepts: cells, labels and the colour bar.
class HeatMapChart {
 public:
  explicit HeatMapChart(const HeatMap& map)
      : map_(map), longer_(std::max(map.rows, map.columns)), frame_(area()) {
    measure_values();
  }

  std::string draw(PictureFormat format) {
    Canvas canvas(static_cast<int>(frame_.right) + 150,
                  std::max(static_cast<int>(frame_.bottom) + 76, 240), format);
    draw_cells(canvas);
    draw_frame(canvas);
    draw_labels(canvas);
    draw_bar(canvas);
    draw_title(canvas, frame_, map_.title);
    draw_axis_labels(canvas, frame_, map_.x_label, map_.y_label);
    return canvas.file();
  }

 private:
  // Cells have whole pixels, about 720 along the longer side; a pixel of a large map shows the
  // maximum of several cells.
  int64_t cell() const { return map_.cell > 0 ? map_.cell : std::max<int64_t>(1, 720 / longer_); }
  int64_t cells_of_pixel() const { return map_.cell > 0 ? 1 : (longer_ + 1439) / 1440; }
  double begin_of(int64_t i) const { return static_cast<double>(i / cells_of_pixel() * cell()); }
  double extent(int64_t n) const { return begin_of(n + cells_of_pixel() - 1); }
  double middle(double start, int64_t i) const {
    return start + begin_of(i) + static_cast<double>(cell()) / 2;
  }

  PlotArea area() const {
    double row_width = 34;
    if (labels_fit(map_.row_labels, extent(map_.rows))) {
      for (const std::string& label : map_.row_labels) {
        row_width = std::max(row_width, std::ceil(Canvas::width_of(label, small_text)));
      }
    }
    return {58 + row_width, 62, 58 + row_width + extent(map_.columns), 62 + extent(map_.rows)};
  }

  void measure_values() {
    low_ = map_.low, high_ = map_.high;
    if (low_ != high_) return;
    low_ = HUGE_VAL, high_ = -HUGE_VAL;
    for (const double v : map_.values) {
      if (std::isfinite(v)) low_ = std::min(low_, v), high_ = std::max(high_, v);
    }
    require(low_ <= high_, "plot", "there is no finite value to draw");
    if (low_ == high_) high_ = low_ + 1;
  }

  void draw_cells(Canvas& canvas) const {
    const auto width = static_cast<int64_t>(extent(map_.columns));
    const auto height = static_cast<int64_t>(extent(map_.rows));
    std::vector<Colour> pixels(static_cast<size_t>(width * height), Canvas::paper);
    const int64_t step = cells_of_pixel();
    for (int64_t r = 0; r < map_.rows; r += step) {
      for (int64_t c = 0; c < map_.columns; c += step) {
        const double value = largest(r, c);
        if (std::isnan(value)) continue;
        const double share = std::clamp((value - low_) / (high_ - low_), 0.0, 1.0);
        const Colour colour = heat(std::pow(share, map_.exponent));
        for (int64_t y = r / step * cell(); y < (r / step + 1) * cell(); ++y) {
          const auto row = pixels.begin() + y * width + c / step * cell();
          std::fill(row, row + cell(), colour);
        }
      }
    }
    canvas.pixels(frame_.left, frame_.top, static_cast<int>(width), pixels);
  }

  /// Returns the largest value of the cells of a pixel, NaN if they have none.
  double largest(int64_t r, int64_t c) const {
    const int64_t step = cells_of_pixel();
    double value = std::numeric_limits<double>::quiet_NaN();
    for (int64_t i = r; i < std::min(map_.rows, r + step); ++i) {
      for (int64_t j = c; j < std::min(map_.columns, c + step); ++j) {
        value = std::fmax(value, map_.values[static_cast<size_t>(i * map_.columns + j)]);
      }
    }
    return value;
  }

  void draw_frame(Canvas& canvas) const {
    const auto [left, top, right, bottom] = frame_;
    canvas.fill(left - 2, top - 2, right + 2, top, ink);
    canvas.fill(left - 2, bottom, right + 2, bottom + 2, ink);
    canvas.fill(left - 2, top, left, bottom, ink);
    canvas.fill(right, top, right + 2, bottom, ink);
  }

  void draw_labels(Canvas& canvas) const {
    draw_cell_labels(map_.rows, extent(map_.rows), map_.row_labels,
                     [&](int64_t i, const std::string& l) {
                       canvas.text(frame_.left - 12, middle(frame_.top, i) + label_drop, l,
                                   small_text, dim, Canvas::Anchor::end);
                     });
    draw_cell_labels(map_.columns, extent(map_.columns), map_.column_labels,
                     [&](int64_t i, const std::string& l) {
                       canvas.text(middle(frame_.left, i), frame_.bottom + 24, l, small_text, dim);
                     });
  }

  /// Draws the colour bar, with values at even fractions of its height.
  void draw_bar(Canvas& canvas) const {
    const double bar = frame_.right + 34, height = frame_.bottom - frame_.top;
    std::vector<Colour> pixels;
    for (double y = frame_.top; y < frame_.bottom; ++y) {
      pixels.insert(pixels.end(), bar_width, heat((frame_.bottom - 0.5 - y) / height));
    }
    canvas.pixels(bar, frame_.top, bar_width, pixels);
    const int marks = height > 300 ? 5 : 3;
    for (int i = 0; i < marks; ++i) {
      const double share = static_cast<double>(i) / (marks - 1);
      const double value = low_ + (high_ - low_) * std::pow(share, 1 / map_.exponent);
      canvas.text(bar + 28, frame_.bottom - share * height + label_drop,
                  value < 99.5 ? fmt::format("{:.2g}", value) : fmt::format("{:.0f}", value),
                  small_text, dim);
    }
  }

  const HeatMap& map_;
  int64_t longer_;
  PlotArea frame_;
  double low_ = 0, high_ = 0;
};

}  // namespace

std::string heat_chart(const HeatMap& map, PictureFormat format) {
  check(map);
  return HeatMapChart(map).draw(format);
}

}  // namespace longspan::drawing
