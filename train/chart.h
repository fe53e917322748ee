#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "train/canvas.h"

namespace longspan {
struct LinePlot;
struct HeatMap;
}  // namespace longspan

namespace longspan::drawing {

/// Colours of text and axes, of grid lines, and of numbers.
constexpr Colour ink{40, 44, 52}, grey{222, 225, 230}, dim{110, 116, 126};
/// Sizes of labels and of titles, in pixels.
constexpr double small_text = 14, large_text = 18;

/// Round numbers along an axis.
struct Ticks {
  std::vector<double> at = {};
  double step = 1;
};

/// Returns about `count` round numbers in [low, high].
Ticks make_ticks(double low, double high, int count);

/// An axis of a line plot: maps a value to its position before scaling to pixels, and holds the
/// ticks.
struct Axis {
  bool logarithmic = false, whole = false;
  double low = HUGE_VAL, high = -HUGE_VAL;  // of positions
  Ticks ticks = {};

  double place(double value) const { return logarithmic ? std::log2(value) : value; }
  void include(double value) {
    low = std::fmin(low, place(value)), high = std::fmax(high, place(value));
  }
  /// Chooses about `count` ticks between low and high: powers of two on a logarithmic axis, or of
  /// ten where it has numbers far below 1.
  void mark(int count);
  void mark_decades();
  /// The same where powers of two in larger steps would be fewer than two: each power, or round
  /// numbers.
  void mark_few(int count);
  /// Powers of two from 2^10 on are labelled in units of 1024, as lengths are.
  std::string label(double place) const;
};

/// The rectangle of a plot's data.
struct PlotArea {
  double left, top, right, bottom;
};

/// Writes the title above the plot, smaller if it is long.
void draw_title(Canvas& canvas, const PlotArea& frame, const std::string& title);
/// Writes what the axes mean below the plot and at its left.
void draw_axis_labels(Canvas& canvas, const PlotArea& frame, const std::string& x_label,
                      const std::string& y_label);

/// Returns a file with the picture. Throws ValueError as write_line_plot does.
std::string line_chart(const LinePlot& plot, PictureFormat format);
/// Returns a file with the picture. Throws ValueError as write_heat_map does.
std::string heat_chart(const HeatMap& map, PictureFormat format);

}  // namespace longspan::drawing
