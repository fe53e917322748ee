#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/loss_unit.h"

namespace longspan {

/// A curve. Points that are not finite are drawn as gaps.
struct Series {
  std::string name = {};  ///< in the legend; empty: not listed
  std::vector<double> x = {}, y = {};
  bool faint = false;      ///< thin and pale, behind the others
  bool markers = false;    ///< a dot at every point
  int colour = 0;          ///< index into the palette
  std::string label = {};  ///< written beside the last point; empty: none
};

/// Curves on one pair of axes.
struct LinePlot {
  std::string title = {}, x_label = {}, y_label = {};
  std::vector<Series> series = {};
  bool log_x = false,
       log_y = false;    ///< logarithmic; values of 0 and below are drawn as gaps
  bool whole_x = false;  ///< x is marked at whole numbers only
  int width = 1200, height = 720;
};

/// A matrix as coloured cells, row 0 at the top.
struct HeatMap {
  std::string title = {}, x_label = {}, y_label = {};
  int64_t rows = 0, columns = 0;
  std::vector<double> values = {};  ///< row-major; NaN is drawn in the background colour
  /// A label for every row or column, "" for none; drawn if they fit. Empty: some indices are drawn
  /// as numbers.
  std::vector<std::string> row_labels = {}, column_labels = {};
  double low = 0, high = 0;  ///< range of the colours; equal: from the smallest value to the
                             ///< largest
  double exponent = 1;       ///< of the position in the range, e.g. 0.5 to tell small values apart
  int cell = 0;              ///< pixels of a cell; 0: about 720 pixels along the longer side
};

/// Returns a running mean over about a fiftieth of the points.
Series smoothed(const Series& series);

/// Writes a picture that names Longspan as its software: SVG if the path ends in ".svg", else PNG.
/// The legend hides no curve. Texts may hold any bytes; what is no character is drawn as a box.
/// Throws IoError, ValueError if x and y differ in length or there is nothing to draw.
void write_line_plot(const std::string& path, const LinePlot& plot);

/// Writes a picture in the format that the end of the path names (write_line_plot()). Throws
/// IoError, ValueError if sizes do not fit.
void write_heat_map(const std::string& path, const HeatMap& map);

/// Draws the loss curve of a run over "step", from the rows of a metrics.jsonl: "loss" (nats per
/// target) converted to the unit, or else "bpb", with its running mean; and "valid_bpb", which is
/// in the unit already. Throws ValueError if no row has them.
void write_loss_curve(const std::string& path, const std::string& metrics, const std::string& title,
                      const LossUnit& unit = {});

/// Whether a file is a picture that one of the functions above wrote.
bool is_own_picture(const std::string& path);

/// Returns a short label of a byte: the character, "_" for a space, or two hexadecimal digits. A
/// line break is drawn as an arrow.
std::string byte_label(int byte);

}  // namespace longspan
