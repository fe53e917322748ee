#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace longspan::drawing {

/// A colour without transparency.
struct Colour {
  uint8_t r, g, b;
};

/// Returns the colour at `share` of the way from a to b.
Colour mix(Colour a, Colour b, double share);

/// What a Canvas becomes: pixels, or shapes and text that stay sharp at any size.
enum class PictureFormat { png, svg, pdf };

/// Returns the format that a path's end names, ".svg" or ".pdf"; else png.
PictureFormat format_of(std::string_view path);

/// A drawing surface, measured in units of 1/96 inch from the upper left corner. Text of size 14 is
/// text of 10.5 points. Equal calls give equal bytes.
class Canvas {
 public:
  /// A position.
  struct Point {
    double x, y;
  };
  /// The point of a text that its position means, along the line.
  enum class Anchor { begin, middle, end };

  static constexpr Colour paper{255, 255, 255};  ///< of the background
  static constexpr int pixels_of_unit = 2;       ///< of a PNG, along each side

  /// `title` names the picture for readers of files, where the format has a place for it. It may
  /// hold any bytes.
  Canvas(int width, int height, PictureFormat format, std::string_view title = {});
  ~Canvas();
  Canvas(const Canvas&) = delete;
  Canvas& operator=(const Canvas&) = delete;

  int width() const { return width_; }
  int height() const { return height_; }

  /// Fills a rectangle whose corners are rounded to whole pixels.
  void fill(double x0, double y0, double x1, double y1, Colour colour);
  /// Draws a line of `width` units with round ends through all points; one point is a dot.
  void stroke(const std::vector<Point>& points, double width, Colour colour);
  /// Puts rows of `width` pixels, of which pixels_of_unit are a unit, with their upper left corner
  /// at a position that is rounded to whole pixels.
  void pixels(double x, double y, int width, const std::vector<Colour>& rows);
  /// Writes text whose base line begins, has its middle or ends at (x, y). It may hold any bytes.
  void text(double x, double y, std::string_view text, double size, Colour colour,
            Anchor anchor = Anchor::begin);
  /// Writes text from bottom to top; its beginning, middle or end is at y.
  void text_upwards(double x, double y, std::string_view text, double size, Colour colour,
                    Anchor anchor = Anchor::middle);

  /// Returns the width of a text of this size, in units.
  static double width_of(std::string_view text, double size);

  /// Ends the drawing and returns the bytes of a file that names Longspan as its software. Text of
  /// SVG and PDF stays text: SVG names its font, PDF embeds it. Throws ValueError if cairo could
  /// not draw.
  std::string file();

  /// Whether a file is one that file() returned.
  static bool is_own(const std::string& path);

 private:
  struct Surface;
  void write(Point at, double degrees, std::string_view text, double size, Colour colour,
             Anchor anchor);

  int width_, height_;
  PictureFormat format_;
  std::unique_ptr<Surface> surface_;
};

}  // namespace longspan::drawing
