#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "train/loss_unit.h"

namespace longspan {

/// A curve. Points that are not finite are drawn as gaps.
struct Series {
  std::string name = {};  ///< in the legend; empty: not listed
  std::vector<double> x = {}, y = {};
  bool faint = false;    ///< thin and pale, behind the others
  bool markers = false;  ///< a dot at every point
  int colour = 0;        ///< index into the palette
};

/// A point with its name beside it.
struct NamedPoint {
  std::string name = {};
  double x = 0, y = 0;
  int colour = 0;     ///< index into the palette
  bool ring = false;  ///< an open circle, around a point of a curve
};

/// Curves and points on one pair of axes. Axes whose values are whole numbers are marked at whole
/// numbers.
struct LinePlot {
  std::string title = {}, x_label = {}, y_label = {};
  std::vector<Series> series = {};
  /// Names are written where they hide nothing, with a line to their points where those are far.
  std::vector<NamedPoint> points = {};
  bool log_x = false,
       log_y = false;    ///< logarithmic; values of 0 and below are drawn as gaps
  bool whole_x = false;  ///< x is marked at whole numbers only
  /// What an axis at the right means, on which 2^(right_bits y) is marked; empty: there is none.
  std::string right_label = {};
  double right_bits = 1;
  int width = 720, height = 432;  ///< in units of 1/96 inch; a PNG has two pixels for each
};

/// A matrix as coloured cells, row 0 at the top.
struct HeatMap {
  std::string title = {}, x_label = {}, y_label = {};
  std::string value_label = {};  ///< what the colours mean
  int64_t rows = 0, columns = 0;
  std::vector<double> values = {};  ///< row-major; NaN is drawn in the background colour
  /// A label for every row or column, "" for none; drawn if they fit. Empty: some indices are drawn
  /// as numbers.
  std::vector<std::string> row_labels = {}, column_labels = {};
  double low = 0, high = 0;  ///< range of the colours; equal: from the smallest value to the
                             ///< largest
  double exponent = 1;       ///< of the position in the range, e.g. 0.5 to tell small values apart
  bool dark_high = false;    ///< large values are dark, to stand out of a map that is mostly empty
  int cell = 0;  ///< size of a cell, in units of 1/96 inch; 0: about 400 along the longer side
  /// Of a map that consists of panels: the rows and columns of each, and the cells between them.
  /// Each panel has a frame. 0: the map is one panel.
  int64_t panel_rows = 0, panel_columns = 0, gap = 0;
};

/// The formats of pictures, in the text form of options and configurations: "png", or several such
/// as "png,pdf".
struct PictureFormats {
  static constexpr std::string_view expected =
      "png, svg or pdf, or several of them with commas between them, as png,pdf";
  static bool valid(std::string_view text);
  /// Throws ValueError.
  void set(std::string_view text);
  std::string text() const;
  /// Returns the paths of a picture: "pictures/loss" becomes "pictures/loss.png" and so on.
  std::vector<std::string> paths(const std::string& without_end) const;

  std::vector<std::string> names = {"png"};
};

/// Returns a running mean over about a fiftieth of the points.
Series smoothed(const Series& series);

/// Writes a picture that names Longspan as its software: SVG or PDF if the path ends in ".svg" or
/// ".pdf", else PNG. Equal plots give equal bytes. The legend hides no curve. Texts may hold any
/// bytes; what is no character is drawn as a box. Throws IoError, ValueError if x and y differ in
/// length or there is nothing to draw.
void write_line_plot(const std::string& path, const LinePlot& plot);

/// Writes a picture in the format that the end of the path names (write_line_plot()). Throws
/// IoError, ValueError if sizes do not fit.
void write_heat_map(const std::string& path, const HeatMap& map);

/// Draws the loss curve of a run over "step", from the rows of a metrics.jsonl: "loss" (nats per
/// target) converted to the unit, or else "bpb", with its running mean; and "valid_bpb", which is
/// in the unit already, with a ring around the lowest. An axis at the right has the perplexity of a
/// target, 2^(bits of a target). Throws ValueError if no row has them.
void write_loss_curve(const std::string& path, const std::string& metrics, const std::string& title,
                      const LossUnit& unit = {});

/// Whether a file is a picture that one of the functions above wrote.
bool is_own_picture(const std::string& path);

/// Returns a short label of a byte: the character, "_" for a space, or two hexadecimal digits. A
/// line break is drawn as an arrow.
std::string byte_label(int byte);

}  // namespace longspan
