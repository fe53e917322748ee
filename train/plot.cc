#include "train/plot.h"

#include <png.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "data/io/files.h"
#include "train/log.h"

namespace longspan {
namespace {

constexpr size_t header_end = 33;  // of a PNG file: the signature and the first chunk

std::string big_endian(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

/// Returns the chunk of a PNG file that names the software.
std::string software_chunk() {
  const std::string body = std::string("tEXtSoftware") + '\0' + "Longspan";
  const auto crc = static_cast<uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size())));
  return big_endian(static_cast<uint32_t>(body.size() - 4)) + body + big_endian(crc);
}

/// Strokes of the printable ASCII characters from '!' on, separated by spaces. A stroke is a
/// sequence of points, two digits each: x from the left, and y, where 2 is the base line, 6 the
/// height of small letters and 8 that of capitals.
constexpr std::string_view glyphs[] = {
    "0804 0202", "0806 2826", "1218 3238 0444 0646", "473818070615354443321203 2129",
    "0248 0818170708 3343423233", "4216172837360403122244", "0806", "19070311", "09171301",
    "2428 0547 0745", "2327 0545", "1201", "0535", "0202", "0138",
    // 0 to 9
    "123243473818070312", "071812 0222", "07183847460242", "07183847463515 354443321203",
    "32380444", "480805354443321203", "473818070312324344351504", "084812",
    "15060718384746351504031232434435", "031232434738180706153546",
    // : to @
    "0303 0606", "1201 1515", "370533", "0646 0444", "073503", "07183847462524 2222",
    "433212030718384744343626242434",
    // A to Z
    "022842 1434", "02083847463505 3544433202", "4738180703123243", "02082846442202",
    "48080242 0535", "480802 0535", "47381807031232434525", "0802 4842 0545", "0828 1812 0222",
    "4843321203", "0802 4804 1542", "080242", "0208254842", "02084248", "124253574818070312",
    "02083847463505", "124253574818070312 3452", "02083847463505 2542", "473818070615354443321203",
    "0848 2822", "080312324348", "082248", "0812365268", "0842 0248", "082548 2522", "08480242",
    // [ to `
    "29090121", "0831", "09292101", "062846", "0141", "0817",
    // a to z
    "0516364542 441403123243", "0802 0516364543321203", "4536160503123243", "4842 4536160503123243",
    "04444536160503123243", "38281712 0636", "4536160503123243 4641301001", "0802 0516364542",
    "0602 0808", "161100 1818", "0802 4604 1542", "080312", "0602 0516263532 3546566562",
    "0602 0516364542", "123243453616050312", "0600 0516364543321203", "4640 4536160503123243",
    "0602 051636", "45361605143443321203", "18132232 0636", "0603123243 4642", "062246",
    "0612355266", "0642 0246", "0622 461000", "06460242",
    // { to ~
    "29181605141221", "0901", "09181625141201", "05163445"};
static_assert(std::size(glyphs) == '~' - '!' + 1);

std::string_view glyph(char c) {
  if (c == ' ') return "";
  if (c == '\n') return "474404 260422";                        // the arrow of a return key
  return c > ' ' && c <= '~' ? glyphs[c - '!'] : "0208484202";  // a box for anything else
}

/// Width of a character in units of the stroke grid, including the gap after it.
int advance(char c) {
  const std::string_view strokes = glyph(c);
  int width = 0;
  for (size_t i = 0; i < strokes.size(); ++i) {
    if (strokes[i] == ' ') continue;
    width = std::max(width, strokes[i] - '0');
    ++i;  // y
  }
  return c == ' ' ? 3 : width + 2;
}

struct Colour {
  uint8_t r, g, b;
};

constexpr Colour paper{255, 255, 255}, ink{40, 44, 52}, grey{222, 225, 230}, dim{110, 116, 126};
constexpr Colour palette[] = {{31, 100, 180}, {217, 95, 14},  {38, 140, 80},
                              {140, 80, 170}, {190, 30, 60},  {20, 150, 170},
                              {150, 110, 40}, {220, 90, 160}, {90, 95, 105}};

Colour mix(Colour a, Colour b, double share) {
  const auto one = [&](uint8_t x, uint8_t y) {
    return static_cast<uint8_t>(std::lround(x + (y - x) * share));
  };
  return {one(a.r, b.r), one(a.g, b.g), one(a.b, b.b)};
}

struct Point {
  double x, y;
};

/// Pixels, with antialiased strokes and text.
class Picture {
 public:
  Picture(int width, int height)
      : width_(width),
        height_(height),
        pixels_(static_cast<size_t>(width * height), paper),
        coverage_(pixels_.size()) {}

  int width() const { return width_; }
  int height() const { return height_; }

  void fill(double x0, double y0, double x1, double y1, Colour colour) {
    const auto at = [](double v, int limit) {
      return std::clamp(static_cast<int>(std::lround(v)), 0, limit);
    };
    for (int y = at(y0, height_); y < at(y1, height_); ++y) {
      for (int x = at(x0, width_); x < at(x1, width_); ++x) pixels_[index(x, y)] = colour;
    }
  }

  /// Draws a line of `width` pixels with round ends through all points.
  void stroke(const std::vector<Point>& points, double width, Colour colour) {
    for (size_t i = 0; i + 1 < points.size(); ++i) cover(points[i], points[i + 1], width / 2);
    if (points.size() == 1) cover(points[0], points[0], width / 2);
    blend(colour);
  }

  /// Draws text whose base line begins at (x, y), with `unit` pixels per font unit. Returns its end
  /// x.
  double text(double x, double y, std::string_view text, double unit, Colour colour) {
    return write(text, unit, colour, [&](double u, double v) { return Point{x + u, y - v}; }) + x;
  }
  /// Draws text from bottom to top.
  void text_upwards(double x, double y, std::string_view text, double unit, Colour colour) {
    write(text, unit, colour, [&](double u, double v) { return Point{x - v, y - u}; });
  }
  static double width_of(std::string_view text, double unit) {
    int units = 0;
    for (const char c : text) units += advance(c);
    return text.empty() ? 0 : (units - 2) * unit;
  }

  std::string png() const {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    image.width = static_cast<png_uint_32>(width_);
    image.height = static_cast<png_uint_32>(height_);
    image.format = PNG_FORMAT_RGB;
    png_alloc_size_t size = 0;
    std::string bytes;
    for (int pass = 0; pass < 2; ++pass) {  // the first pass measures
      const int ok = png_image_write_to_memory(&image, pass == 0 ? nullptr : bytes.data(), &size, 0,
                                               pixels_.data(), 0, nullptr);
      require(ok != 0, "plot", "cannot make a picture of {} x {}: {}", width_, height_,
              image.message);
      bytes.resize(size);
    }
    bytes.insert(header_end, software_chunk());
    return bytes;
  }

 private:
  size_t index(int x, int y) const {
    return static_cast<size_t>(y) * static_cast<size_t>(width_) + static_cast<size_t>(x);
  }

  template <class F>
  double write(std::string_view text, double unit, Colour colour, F&& place) {
    double left = 0;
    for (const char c : text) {
      std::vector<Point> points;
      const std::string_view strokes = glyph(c);
      for (size_t i = 0; i <= strokes.size(); ++i) {
        if (i == strokes.size() || strokes[i] == ' ') {
          for (size_t k = 0; k + 1 < points.size(); ++k) {
            cover(points[k], points[k + 1], 0.42 * unit);
          }
          points.clear();
          continue;
        }
        points.push_back(place(left + (strokes[i] - '0') * unit, (strokes[i + 1] - '2') * unit));
        ++i;
      }
      left += advance(c) * unit;
    }
    blend(colour);
    return left;
  }

  /// Raises the coverage of pixels near a segment. Overlapping segments of one stroke take the
  /// maximum.
  void cover(Point a, Point b, double radius) {
    const double reach = radius + 1;
    const int x0 = std::max(0, static_cast<int>(std::floor(std::min(a.x, b.x) - reach)));
    const int x1 = std::min(width_ - 1, static_cast<int>(std::ceil(std::max(a.x, b.x) + reach)));
    const int y0 = std::max(0, static_cast<int>(std::floor(std::min(a.y, b.y) - reach)));
    const int y1 = std::min(height_ - 1, static_cast<int>(std::ceil(std::max(a.y, b.y) + reach)));
    const double dx = b.x - a.x, dy = b.y - a.y, squared = dx * dx + dy * dy;
    for (int y = y0; y <= y1; ++y) {
      for (int x = x0; x <= x1; ++x) {
        const double px = x + 0.5 - a.x, py = y + 0.5 - a.y;
        const double t = squared > 0 ? std::clamp((px * dx + py * dy) / squared, 0.0, 1.0) : 0;
        const double distance = std::hypot(px - t * dx, py - t * dy);
        const double share = std::clamp(radius + 0.5 - distance, 0.0, 1.0);
        float& covered = coverage_[index(x, y)];
        covered = std::max(covered, static_cast<float>(share));
      }
    }
    if (x0 > x1 || y0 > y1) return;
    left_ = std::min(left_, x0), right_ = std::max(right_, x1);
    top_ = std::min(top_, y0), bottom_ = std::max(bottom_, y1);
  }

  void blend(Colour colour) {
    for (int y = top_; y <= bottom_; ++y) {
      for (int x = left_; x <= right_; ++x) {
        float& covered = coverage_[index(x, y)];
        if (covered > 0) {
          Colour& pixel = pixels_[index(x, y)];
          pixel = mix(pixel, colour, covered);
          covered = 0;
        }
      }
    }
    left_ = top_ = std::numeric_limits<int>::max();
    right_ = bottom_ = -1;
  }

  int width_, height_;
  std::vector<Colour> pixels_;
  std::vector<float> coverage_;  // of the current stroke
  int left_ = std::numeric_limits<int>::max(), top_ = left_, right_ = -1, bottom_ = -1;
};
static_assert(sizeof(Colour) == 3);

constexpr double small = 1.75, large = 2.2;  // font unit, in pixels

struct Ticks {
  std::vector<double> at;
  double step = 1;
};

/// Returns about `count` round numbers in [low, high].
Ticks make_ticks(double low, double high, int count) {
  const double raw = (high - low) / std::max(count, 1);
  const double power = std::pow(10, std::floor(std::log10(raw)));
  Ticks ticks;
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    ticks.step = factor * power;
    if (ticks.step >= raw * 0.999) break;
  }
  const double first = std::ceil(low / ticks.step - 1e-9);
  for (double i = first; i * ticks.step <= high + 1e-9 * ticks.step; ++i) {
    ticks.at.push_back(i * ticks.step + 0.0);  // -0 becomes 0
  }
  return ticks;
}

/// Formats a tick with as many digits as the step needs; thousands as "12k".
std::string tick_label(double value, double step) {
  if (std::abs(value) < 1e-9 * step) return "0";
  if (step >= 1000 && std::fmod(step, 1000) == 0) return fmt::format("{:.0f}k", value / 1000);
  const double digits = -std::floor(std::log10(step) + 1e-9);
  if (digits > 6 || std::abs(value) >= 1e7) return fmt::format("{:.3g}", value);
  return fmt::format("{:.{}f}", value, std::max(0, static_cast<int>(digits)));
}

/// An axis of a line plot: maps a value to its position before scaling to pixels, and holds the
/// ticks.
struct Axis {
  bool logarithmic = false, whole = false;
  double low = HUGE_VAL, high = -HUGE_VAL;  // of positions
  Ticks ticks = {};

  double place(double value) const { return logarithmic ? std::log2(value) : value; }
  void include(double value) {
    low = std::min(low, place(value)), high = std::max(high, place(value));
  }
  void mark(int count) {
    ticks = make_ticks(low, high, count);
    if (logarithmic && ticks.step < 1) ticks = make_ticks(low, high, static_cast<int>(high - low));
    if (!whole || ticks.step >= 1) return;
    ticks = {};
    for (double i = std::ceil(low); i <= high; ++i) ticks.at.push_back(i + 0.0);
  }
  /// Powers of two from 2^10 on are labelled in units of 1024, as lengths are.
  std::string label(double place) const {
    if (!logarithmic) return tick_label(place, ticks.step);
    if (place >= 10) return fmt::format("{:g}k", std::exp2(place - 10));
    return fmt::format("{:.3g}", std::exp2(place));
  }
};

/// The rectangle of a plot's data.
struct PlotArea {
  double left, top, right, bottom;
};

void draw_title(Picture& picture, const PlotArea& frame, const std::string& title) {
  picture.text(frame.left, frame.top - 18, title, large, ink);
}

void draw_axis_labels(Picture& picture, const PlotArea& frame, const std::string& x_label,
                      const std::string& y_label) {
  const double x = (frame.left + frame.right - Picture::width_of(x_label, small)) / 2;
  picture.text(x, picture.height() - 16, x_label, small, ink);
  const double y = (frame.top + frame.bottom + Picture::width_of(y_label, small)) / 2;
  picture.text_upwards(26, y, y_label, small, ink);
}

/// Returns a running mean over about a fiftieth of the points.
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

/// Colour map from dark blue over green to pale yellow, with evenly rising brightness.
Colour heat(double share) {
  constexpr Colour stops[] = {{13, 21, 56},   {34, 64, 120},   {34, 113, 140},
                              {45, 160, 130}, {132, 200, 104}, {253, 240, 150}};
  constexpr int last = static_cast<int>(std::size(stops)) - 1;
  const double place = std::clamp(share, 0.0, 1.0) * last;
  const int below = std::min(static_cast<int>(place), last - 1);
  return mix(stops[below], stops[below + 1], place - below);
}

void save(const std::string& path, const Picture& picture) {
  replace_file(path, picture.png(), "plot");
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

/// Draws a LinePlot: measures the axes and the legend, then draws grid, curves and legend.
class LineChart {
 public:
  explicit LineChart(const LinePlot& plot)
      : plot_(plot),
        across_{.logarithmic = plot.log_x, .whole = plot.whole_x},
        up_{.logarithmic = plot.log_y},
        picture_(plot.width, plot.height) {
    measure_axes();
    measure_legend();
    double labels = 0;
    for (const double y : up_.ticks.at) {
      labels = std::max(labels, Picture::width_of(up_.label(y), small));
    }
    frame_ = {58 + labels, 62, plot.width - 34.0 - (beside() ? legend_width_ : 0),
              plot.height - 76.0};
  }

  const Picture& draw() {
    draw_grid();
    for (const bool faint : {true, false}) {
      for (const Series& s : plot_.series) {
        if (s.faint == faint) draw_curve(s);
      }
    }
    if (entries_ > 0) draw_legend();
    draw_title(picture_, frame_, plot_.title);
    draw_axis_labels(picture_, frame_, plot_.x_label, plot_.y_label);
    return picture_;
  }

 private:
  /// Whether point i of a series can be drawn: it is finite, also as a logarithm.
  bool drawn(const Series& s, size_t i) const {
    return std::isfinite(across_.place(s.x[i])) && std::isfinite(up_.place(s.y[i]));
  }
  /// Whether the legend has too many entries to fit among the curves.
  bool beside() const { return entries_ > 4; }

  double at_x(double place) const {
    return frame_.left +
           (place - across_.low) / (across_.high - across_.low) * (frame_.right - frame_.left);
  }
  double at_y(double place) const {
    return frame_.bottom - (place - up_.low) / (up_.high - up_.low) * (frame_.bottom - frame_.top);
  }
  double to_x(double x) const { return at_x(across_.place(x)); }
  double to_y(double y) const { return at_y(up_.place(y)); }

  void measure_axes() {
    for (const Series& s : plot_.series) {
      require(s.x.size() == s.y.size(), "plot", "\"{}\" has {} x and {} y", s.name, s.x.size(),
              s.y.size());
      for (size_t i = 0; i < s.x.size(); ++i) {
        if (drawn(s, i)) across_.include(s.x[i]), up_.include(s.y[i]);
      }
    }
    require(across_.low <= across_.high, "plot", "there is no point to draw");
    if (across_.low > 0 && across_.low < 0.05 * across_.high) across_.low = 0;
    if (across_.high == across_.low) across_.low -= 0.5, across_.high += 0.5;
    const double margin =
        up_.high > up_.low ? 0.05 * (up_.high - up_.low) : std::max(0.5, 0.05 * std::abs(up_.high));
    up_.low -= margin, up_.high += margin;
    up_.mark(plot_.height / 90);
    across_.mark(plot_.width / 130);
  }

  void measure_legend() {
    double widest = 0;
    for (const Series& s : plot_.series) {
      if (s.name.empty()) continue;
      widest = std::max(widest, Picture::width_of(s.name, small));
      ++entries_;
    }
    legend_width_ = widest + 76;
  }

  void draw_grid() {
    for (const double y : up_.ticks.at) {
      const double at = std::floor(at_y(y));
      picture_.fill(frame_.left, at, frame_.right, at + 1, grey);
      const std::string label = up_.label(y);
      picture_.text(frame_.left - 12 - Picture::width_of(label, small), at + 3 * small, label,
                    small, dim);
    }
    for (const double x : across_.ticks.at) {
      const double at = std::floor(at_x(x));
      picture_.fill(at, frame_.top, at + 1, frame_.bottom, grey);
      const std::string label = across_.label(x);
      picture_.text(at - Picture::width_of(label, small) / 2, frame_.bottom + 24, label, small,
                    dim);
    }
    picture_.fill(frame_.left, frame_.bottom, frame_.right, frame_.bottom + 2, ink);
    picture_.fill(frame_.left - 2, frame_.top, frame_.left, frame_.bottom + 2, ink);
  }

  static Colour colour_of(const Series& s) {
    const Colour full = palette[static_cast<size_t>(s.colour) % std::size(palette)];
    return s.faint ? mix(full, paper, 0.65) : full;
  }

  /// Draws a curve, broken where points cannot be drawn.
  void draw_curve(const Series& s) {
    const Colour colour = colour_of(s);
    std::vector<Point> run;
    for (size_t i = 0; i <= s.x.size(); ++i) {
      if (i < s.x.size() && drawn(s, i)) {
        run.push_back({to_x(s.x[i]), to_y(s.y[i])});
        if (s.markers) picture_.stroke({run.back()}, 9, colour);
      } else if (!run.empty()) {
        picture_.stroke(run, s.faint ? 1.2 : 2.6, colour);
        run.clear();
      }
    }
  }

  /// Counts points along the curves that a legend with this corner would hide.
  int64_t hidden_by(double x, double y, double height) const {
    int64_t hidden = 0;
    for (const Series& s : plot_.series) {
      for (size_t i = 0; i + 1 < s.x.size(); ++i) {
        for (const double t : {0.0, 0.2, 0.4, 0.6, 0.8, 1.0}) {
          const double px = to_x(s.x[i] + t * (s.x[i + 1] - s.x[i]));
          const double py = to_y(s.y[i] + t * (s.y[i + 1] - s.y[i]));
          hidden +=
              px >= x - 5 && px <= x + legend_width_ + 5 && py >= y - 5 && py <= y + height + 5;
        }
      }
    }
    return hidden;
  }

  /// Draws the legend beside the plot or in the corner where it hides the fewest points.
  void draw_legend() {
    const double height = 26 * entries_ + 12;
    double left = frame_.right + 24, top = frame_.top;
    int64_t least = beside() ? 0 : std::numeric_limits<int64_t>::max();
    for (const double y : {frame_.top + 10, frame_.bottom - 10 - height}) {
      for (const double x : {frame_.right - 6 - legend_width_, frame_.left + 12}) {
        const int64_t hidden = hidden_by(x, y, height);
        if (hidden < least) least = hidden, left = x + 12, top = y;
      }
    }
    picture_.fill(left - 12, top, left - 12 + legend_width_, top + height, paper);
    double y = top + 24;
    for (const Series& s : plot_.series) {
      if (s.name.empty()) continue;
      picture_.stroke({{left, y - 5}, {left + 34, y - 5}}, s.faint ? 1.2 : 2.6, colour_of(s));
      if (s.markers) {
        picture_.stroke({{left + 17, y - 5}}, 9,
                        palette[static_cast<size_t>(s.colour) % std::size(palette)]);
      }
      picture_.text(left + 48, y, s.name, small, ink);
      y += 26;
    }
  }

  const LinePlot& plot_;
  Axis across_, up_;
  Picture picture_;
  PlotArea frame_{};
  int entries_ = 0;
  double legend_width_ = 0;
};

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

  Picture draw() {
    Picture picture(static_cast<int>(frame_.right) + 150,
                    std::max(static_cast<int>(frame_.bottom) + 76, 240));
    draw_cells(picture);
    draw_frame(picture);
    draw_labels(picture);
    draw_bar(picture);
    draw_title(picture, frame_, map_.title);
    draw_axis_labels(picture, frame_, map_.x_label, map_.y_label);
    return picture;
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
        row_width = std::max(row_width, Picture::width_of(label, small));
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

  void draw_cells(Picture& picture) const {
    const int64_t step = cells_of_pixel();
    for (int64_t r = 0; r < map_.rows; r += step) {
      for (int64_t c = 0; c < map_.columns; c += step) {
        const double value = largest(r, c);
        if (std::isnan(value)) continue;
        const double share = std::clamp((value - low_) / (high_ - low_), 0.0, 1.0);
        const double x = frame_.left + begin_of(c), y = frame_.top + begin_of(r);
        const auto size = static_cast<double>(cell());
        picture.fill(x, y, x + size, y + size, heat(std::pow(share, map_.exponent)));
      }
    }
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

  void draw_frame(Picture& picture) const {
    const auto [left, top, right, bottom] = frame_;
    picture.fill(left - 2, top - 2, right + 2, top, ink);
    picture.fill(left - 2, bottom, right + 2, bottom + 2, ink);
    picture.fill(left - 2, top, left, bottom, ink);
    picture.fill(right, top, right + 2, bottom, ink);
  }

  void draw_labels(Picture& picture) const {
    draw_cell_labels(map_.rows, extent(map_.rows), map_.row_labels,
                     [&](int64_t i, const std::string& l) {
                       picture.text(frame_.left - 12 - Picture::width_of(l, small),
                                    middle(frame_.top, i) + 3 * small, l, small, dim);
                     });
    draw_cell_labels(map_.columns, extent(map_.columns), map_.column_labels,
                     [&](int64_t i, const std::string& l) {
                       picture.text(middle(frame_.left, i) - Picture::width_of(l, small) / 2,
                                    frame_.bottom + 24, l, small, dim);
                     });
  }

  /// Draws the colour bar, with values at even fractions of its height.
  void draw_bar(Picture& picture) const {
    const double bar = frame_.right + 34, height = frame_.bottom - frame_.top;
    for (double y = frame_.top; y < frame_.bottom; ++y) {
      picture.fill(bar, y, bar + 20, y + 1, heat((frame_.bottom - 0.5 - y) / height));
    }
    const int marks = height > 300 ? 5 : 3;
    for (int i = 0; i < marks; ++i) {
      const double share = static_cast<double>(i) / (marks - 1);
      const double value = low_ + (high_ - low_) * std::pow(share, 1 / map_.exponent);
      picture.text(bar + 28, frame_.bottom - share * height + 3 * small,
                   value < 99.5 ? fmt::format("{:.2g}", value) : fmt::format("{:.0f}", value),
                   small, dim);
    }
  }

  const HeatMap& map_;
  int64_t longer_;
  PlotArea frame_;
  double low_ = 0, high_ = 0;
};

}  // namespace

void write_line_plot(const std::string& path, const LinePlot& plot) {
  require(plot.width >= 200 && plot.height >= 150 && plot.width <= 10'000 && plot.height <= 10'000,
          "plot", "{} x {} pixels: expected 200 x 150 to 10000 x 10000", plot.width, plot.height);
  save(path, LineChart(plot).draw());
}

void write_heat_map(const std::string& path, const HeatMap& map) {
  check(map);
  save(path, HeatMapChart(map).draw());
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

bool is_own_picture(const std::string& path) {
  try {
    const File file = open_to_read(path, "plot");
    const std::string chunk = software_chunk();
    std::string found(chunk.size(), '\0');
    read_exactly(file, path, "plot", header_end, found.data(), std::ssize(found));
    return found == chunk;
  } catch (const IoError&) {
    return false;
  }
}

std::string byte_label(int byte) {
  if (byte == ' ') return "_";
  if (byte == '\n' || (byte > ' ' && byte <= '~')) return std::string(1, static_cast<char>(byte));
  return fmt::format("{:02x}", byte & 0xFF);
}

}  // namespace longspan
