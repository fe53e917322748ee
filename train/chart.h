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
/// Sizes of labels and of titles, in units.
constexpr double small_text = 14, large_text = 17;

/// Round numbers along an axis.
struct Ticks {
  std::vector<double> at = {};
  double step = 1;
};

/// Returns about `count` round numbers in [low, high].
Ticks make_ticks(double low, double high, int count);

/// Formats a tick with as many digits as the step needs; thousands as "12k", millions as "12M".
std::string tick_label(double value, double step);

/// An axis of a line plot: maps a value to its position before scaling to units, and holds the
/// ticks.
struct Axis {
  bool logarithmic = false, whole = false;
  bool plain = false;  // logarithmic, with too few powers of two: marked at round numbers
  double low = HUGE_VAL, high = -HUGE_VAL;  // of positions
  Ticks ticks = {};

  double place(double value) const { return logarithmic ? std::log2(value) : value; }
  void include(double value) {
    low = std::fmin(low, place(value)), high = std::fmax(high, place(value));
  }
  /// Chooses about `count` ticks between low and high: powers of two on a logarithmic axis, or of
  /// ten where it has numbers far below 1. Where there are fewer than three of these, round
  /// numbers.
  void mark(int count);
  void mark_decades();
  /// Powers of two from 2^10 on are labelled in units of 1024, as lengths are.
  std::string label(double place) const;
};

/// The rectangle of a plot's data.
struct PlotArea {
  double left, top, right, bottom;
};

/// Returns a text that is at most `limit` units wide in a size, cut if it must be.
std::string shortened(std::string text, double limit, double size = small_text);

/// Writes the title above the plot, smaller if it is long, and cut if it is very long.
void draw_title(Canvas& canvas, const PlotArea& frame, const std::string& title);
/// Writes what the axes mean below the plot and at its left, smaller or cut if there is no room.
void draw_axis_labels(Canvas& canvas, const PlotArea& frame, const std::string& x_label,
                      const std::string& y_label);

/// Returns a file with the picture. Throws ValueError as write_line_plot does.
std::string line_chart(const LinePlot& plot, PictureFormat format);
/// Returns a file with the picture. Throws ValueError as write_heat_map does.
std::string heat_chart(const HeatMap& map, PictureFormat format);

}  // namespace longspan::drawing
