#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "train/chart.h"
#include "train/plot.h"

namespace longspan::drawing {
namespace {

constexpr int bar_width = 16;
constexpr double label_drop = 5;  ///< of a base line below the middle of its text
constexpr int64_t per_unit = Canvas::pixels_of_unit;
constexpr int64_t usual_side = 800, longest_side = 1440;  // of all cells, in pixels

/// Colour map from dark blue over green to pale yellow, with evenly rising brightness.
Colour heat(double share) {
  constexpr Colour stops[] = {{13, 21, 56},   {34, 64, 120},   {34, 113, 140},
                              {45, 160, 130}, {132, 200, 104}, {253, 240, 150}};
  constexpr int last = static_cast<int>(std::size(stops)) - 1;
  const double place = std::clamp(share, 0.0, 1.0) * last;
  const int below = std::min(static_cast<int>(place), last - 1);
  return mix(stops[below], stops[below + 1], place - below);
}

constexpr double label_pitch = 15;  ///< units along the axis

/// Returns how many labels are not empty.
int64_t drawn_labels(const std::vector<std::string>& labels) {
  return std::ssize(labels) - std::count(labels.begin(), labels.end(), "");
}

/// Whether labels fit along `length` units, one above the other; empty ones need no space.
bool labels_fit(const std::vector<std::string>& labels, double length) {
  const int64_t drawn = drawn_labels(labels);
  return drawn > 0 && static_cast<double>(drawn) * label_pitch <= length;
}

double widest_of(const std::vector<std::string>& labels) {
  double widest = 0;
  for (const std::string& label : labels) {
    widest = std::max(widest, std::ceil(Canvas::width_of(label, small_text)));
  }
  return widest;
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
  const int marks = std::clamp(static_cast<int>(length / 40), 1, 8);
  const Ticks ticks = make_ticks(0, static_cast<double>(std::max<int64_t>(count - 1, 1)), marks);
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
  require(map.cell >= 0 && map.cell <= 4096 / std::max(map.rows, map.columns), "plot",
          "cells of {} units in a map of {} x {}: expected 0 to 4096 units along a side", map.cell,
          map.rows, map.columns);
  require(map.gap >= 0 && map.panel_rows >= 0 && map.panel_columns >= 0 &&
              (map.panel_rows > 0) == (map.panel_columns > 0),
          "plot", "panels of {} x {} cells, {} between them: expected both above 0, or both 0",
          map.panel_rows, map.panel_columns, map.gap);
}

/// Draws a HeatMap, which check() accepts: cells, labels and the colour bar.
class HeatMapChart {
 public:
  explicit HeatMapChart(const HeatMap& map)
      : map_(map), longer_(std::max(map.rows, map.columns)), cell_(cell_of(map)), frame_(area()) {
    measure_values();
  }

  std::string draw(PictureFormat format) {
    const auto below = static_cast<int>(std::ceil(column_height())) + 46;
    Canvas canvas(static_cast<int>(std::ceil(frame_.right)) + (map_.value_label.empty() ? 96 : 112),
                  std::max(static_cast<int>(std::ceil(frame_.bottom)) + below, 150), format,
                  map_.title);
    draw_cells(canvas);
    draw_frames(canvas);
    draw_labels(canvas);
    draw_bar(canvas);
    draw_title(canvas, frame_, map_.title);
    draw_axis_labels(canvas, frame_, map_.x_label, map_.y_label);
    return canvas.file();
  }

 private:
  /// Returns the pixels of a cell: about usual_side along the longer side of the map, or as many as
  /// the labels need that all rows have. A pixel of a large map shows the maximum of several cells.
  static int64_t cell_of(const HeatMap& map) {
    if (map.cell > 0) return map.cell * per_unit;
    const int64_t longer = std::max(map.rows, map.columns);
    const int64_t rounded_up = (usual_side + longer - 1) / longer;
    const int64_t usual = rounded_up * longer <= longest_side
                              ? rounded_up
                              : std::max<int64_t>(1, usual_side / longer);
    const auto needed = static_cast<int64_t>(label_pitch) * per_unit;
    const bool all = drawn_labels(map.row_labels) == map.rows && map.rows * needed <= longest_side;
    return all ? std::max(usual, needed) : usual;
  }
  int64_t cells_of_pixel() const {
    return map_.cell > 0 ? 1 : (longer_ + longest_side - 1) / longest_side;
  }
  int64_t pixels_before(int64_t i) const { return i / cells_of_pixel() * cell_; }
  int64_t pixels_of(int64_t n) const { return pixels_before(n + cells_of_pixel() - 1); }
  /// Returns units.
  static double units(int64_t pixels) { return static_cast<double>(pixels) / per_unit; }
  double extent(int64_t n) const { return units(pixels_of(n)); }
  double middle(double start, int64_t i) const {
    return start + units(pixels_before(i)) + units(cell_) / 2;
  }

  PlotArea area() const {
    double row_width = 30;
    if (labels_fit(map_.row_labels, extent(map_.rows))) {
      row_width = std::max(row_width, widest_of(map_.row_labels));
    }
    const double left = 46 + row_width;
    return {left, 44, left + extent(map_.columns), 44 + extent(map_.rows)};
  }

  /// Whether the labels of columns are written upwards, because they are wider than their columns.
  bool columns_upwards() const {
    const int64_t drawn = drawn_labels(map_.column_labels);
    if (!labels_fit(map_.column_labels, extent(map_.columns))) return false;
    return (widest_of(map_.column_labels) + 2) * static_cast<double>(drawn) > extent(map_.columns);
  }
  /// Returns the height below the cells that the labels of columns take.
  double column_height() const {
    return columns_upwards() ? widest_of(map_.column_labels) + 4 : 16;
  }

  /// Returns the colour at a position in the range, 0 to 1.
  Colour colour_of(double place) const { return heat(map_.dark_high ? 1 - place : place); }

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
    const int64_t width = pixels_of(map_.columns), height = pixels_of(map_.rows);
    std::vector<Colour> pixels(static_cast<size_t>(width * height), Canvas::paper);
    const int64_t step = cells_of_pixel();
    for (int64_t r = 0; r < map_.rows; r += step) {
      for (int64_t c = 0; c < map_.columns; c += step) {
        const double value = largest(r, c);
        if (std::isnan(value)) continue;
        const double share = std::clamp((value - low_) / (high_ - low_), 0.0, 1.0);
        const Colour colour = colour_of(std::pow(share, map_.exponent));
        for (int64_t y = r / step * cell_; y < (r / step + 1) * cell_; ++y) {
          const auto row = pixels.begin() + y * width + c / step * cell_;
          std::fill(row, row + cell_, colour);
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

  static void draw_frame(Canvas& canvas, const PlotArea& box, double width, Colour colour) {
    const auto [left, top, right, bottom] = box;
    canvas.fill(left - width, top - width, right + width, top, colour);
    canvas.fill(left - width, bottom, right + width, bottom + width, colour);
    canvas.fill(left - width, top, left, bottom, colour);
    canvas.fill(right, top, right + width, bottom, colour);
  }

  /// Draws a frame around the map, or around each of its panels.
  void draw_frames(Canvas& canvas) const {
    if (map_.panel_rows == 0) return draw_frame(canvas, frame_, 1, ink);
    for (int64_t r = 0; r < map_.rows; r += map_.panel_rows + map_.gap) {
      for (int64_t c = 0; c < map_.columns; c += map_.panel_columns + map_.gap) {
        const int64_t bottom = std::min(r + map_.panel_rows, map_.rows);
        const int64_t right = std::min(c + map_.panel_columns, map_.columns);
        draw_frame(canvas,
                   {frame_.left + extent(c), frame_.top + extent(r), frame_.left + extent(right),
                    frame_.top + extent(bottom)},
                   0.5, dim);
      }
    }
  }

  void draw_labels(Canvas& canvas) const {
    draw_cell_labels(map_.rows, extent(map_.rows), map_.row_labels,
                     [&](int64_t i, const std::string& l) {
                       canvas.text(frame_.left - 8, middle(frame_.top, i) + label_drop, l,
                                   small_text, dim, Canvas::Anchor::end);
                     });
    const bool upwards = columns_upwards();
    draw_cell_labels(map_.columns, extent(map_.columns), map_.column_labels,
                     [&](int64_t i, const std::string& l) {
                       const double x = middle(frame_.left, i);
                       if (upwards) {
                         canvas.text_upwards(x + label_drop, frame_.bottom + 8, l, small_text, dim,
                                             Canvas::Anchor::end);
                       } else {
                         canvas.text(x, frame_.bottom + 19, l, small_text, dim,
                                     Canvas::Anchor::middle);
                       }
                     });
  }

  /// Returns the values that the colour bar marks: round ones, some units apart.
  Ticks marks(double height) const {
    const int most = std::max(static_cast<int>(height / 40), 1);
    if (map_.exponent == 1) return make_ticks(low_, high_, most);
    std::vector<double> round = {low_, high_};  // small values have much of the bar
    for (const double part : {1.0, 0.3}) {
      for (int decade = 0; decade < 5; ++decade) {
        round.push_back(low_ + part * (high_ - low_) / std::pow(10, decade));
      }
    }
    std::vector<double> all;
    for (const double value : round) {
      const auto near = [&](double other) {
        return std::abs(place_of(value) - place_of(other)) * height < 22;
      };
      if (std::none_of(all.begin(), all.end(), near)) all.push_back(value);
    }
    return {all, 0};
  }
  /// Returns the position of a value along the colour bar, 0 to 1.
  double place_of(double value) const {
    return std::pow((value - low_) / (high_ - low_), map_.exponent);
  }

  /// Draws the colour bar.
  void draw_bar(Canvas& canvas) const {
    const double bar = frame_.right + 18, height = frame_.bottom - frame_.top;
    const int64_t rows = pixels_of(map_.rows);
    std::vector<Colour> pixels;
    for (int64_t y = 0; y < rows; ++y) {
      const double share = (static_cast<double>(rows - y) - 0.5) / static_cast<double>(rows);
      pixels.insert(pixels.end(), bar_width * per_unit, colour_of(share));
    }
    canvas.pixels(bar, frame_.top, static_cast<int>(bar_width * per_unit), pixels);
    double widest = 0;
    const Ticks ticks = marks(height);
    for (const double value : ticks.at) {
      const bool large = std::abs(value) >= 99.5;
      const std::string text = ticks.step > 0 ? tick_label(value, ticks.step)
                               : large        ? fmt::format("{:.0f}", value)
                                              : fmt::format("{:.2g}", value);
      canvas.text(bar + bar_width + 6, frame_.bottom - place_of(value) * height + label_drop, text,
                  small_text, dim);
      widest = std::max(widest, Canvas::width_of(text, small_text));
    }
    const std::string label = shortened(map_.value_label, canvas.height() - 20);
    canvas.text_upwards(bar + bar_width + 24 + widest, (frame_.top + frame_.bottom) / 2, label,
                        small_text, ink);
  }

  const HeatMap& map_;
  int64_t longer_, cell_;
  PlotArea frame_;
  double low_ = 0, high_ = 0;
};

}  // namespace

std::string heat_chart(const HeatMap& map, PictureFormat format) {
  check(map);
  return HeatMapChart(map).draw(format);
}

}  // namespace longspan::drawing
