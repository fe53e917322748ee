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

/// What a Canvas becomes: pixels, or shapes that stay sharp at any size.
enum class PictureFormat { png, svg };

/// Returns svg for a path that ends in ".svg", else png.
PictureFormat format_of(std::string_view path);

/// A drawing surface, measured in pixels from the upper left corner, that cairo draws on.
class Canvas {
 public:
  /// A position.
  struct Point {
    double x, y;
  };
  /// The point of a text that its position means, along the line.
  enum class Anchor { begin, middle, end };

  static constexpr Colour paper{255, 255, 255};  ///< of the background

  Canvas(int width, int height, PictureFormat format);
  ~Canvas();
  Canvas(const Canvas&) = delete;
  Canvas& operator=(const Canvas&) = delete;

  int width() const { return width_; }
  int height() const { return height_; }

  /// Fills a rectangle whose corners are rounded to whole pixels.
  void fill(double x0, double y0, double x1, double y1, Colour colour);
  /// Draws a line of `width` pixels with round ends through all points; one point is a dot.
  void stroke(const std::vector<Point>& points, double width, Colour colour);
  /// Puts rows of `width` pixels with their upper left corner at a whole position.
  void pixels(double x, double y, int width, const std::vector<Colour>& rows);
  /// Writes text whose base line begins, has its middle or ends at (x, y). It may hold any bytes.
  void text(double x, double y, std::string_view text, double size, Colour colour,
            Anchor anchor = Anchor::begin);
  /// Writes text from bottom to top with its middle at y.
  void text_upwards(double x, double y, std::string_view text, double size, Colour colour);

  /// Returns the width of a text of this size, in pixels.
  static double width_of(std::string_view text, double size);

  /// Ends the drawing and returns the bytes of a file that names Longspan as its software. Throws
  /// ValueError if cairo could not draw.
  std::string file();

  /// Whether a file is one that file() returned.
  static bool is_own(const std::string& path);

 private:
  struct Surface;
  std::string png() const;

  int width_, height_;
  PictureFormat format_;
  std::unique_ptr<Surface> surface_;
};

}  // namespace longspan::drawing
