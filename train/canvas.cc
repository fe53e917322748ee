#include "train/canvas.h"

#include <cairo-pdf.h>
#include <cairo.h>
#include <fmt/format.h>
#include <png.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "data/io/files.h"
#include "data/unicode/unicode.h"

namespace longspan::drawing {
namespace {

constexpr size_t header_end = 33;  // of a PNG file: the signature and the first chunk
constexpr std::string_view svg_head =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!-- Software: Longspan -->\n";
constexpr std::string_view pdf_head = "%PDF-", pdf_creator = "/Creator (Longspan)";
constexpr int64_t pdf_tail = 16384;  // bytes that hold what a PDF file says of itself
constexpr double points_of_unit = 0.75;
// Debian's fonts-dejavu-core; where it is missing, another one without serifs.
constexpr const char* font = "DejaVu Sans";

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

/// Whether a file holds these bytes at an offset.
bool holds(const std::string& path, size_t offset, std::string_view bytes) {
  try {
    const File file = open_to_read(path, "plot");
    std::string found(bytes.size(), '\0');
    read_exactly(file, path, "plot", offset, found.data(), std::ssize(found));
    return found == bytes;
  } catch (const IoError&) {
    return false;
  }
}

/// Whether the end of a file holds these bytes.
bool ends_with(const std::string& path, std::string_view bytes) {
  try {
    const File file = open_to_read(path, "plot");
    const int64_t size = size_of_file(file, path, "plot");
    std::string tail(static_cast<size_t>(std::min(size, pdf_tail)), '\0');
    read_exactly(file, path, "plot", static_cast<size_t>(size - std::ssize(tail)), tail.data(),
                 std::ssize(tail));
    return tail.find(bytes) != tail.npos;
  } catch (const IoError&) {
    return false;
  }
}

/// Whether cairo accepts a code point and draws something visible.
bool can_be_drawn(int32_t c) {
  if (c < ' ' || (c >= 0x7F && c < 0xA0)) return false;
  return (c < 0xFDD0 || c > 0xFDEF) && (c & 0xFFFE) != 0xFFFE;
}

/// Returns UTF-8 that cairo takes: line breaks become the arrow of a return key, and what is no
/// character a box.
std::string drawable(std::string_view text) {
  std::string valid;
  for (size_t at = 0; at < text.size();) {
    const auto [c, length] = code_point(text, at);
    append_utf8(valid, c == '\n' ? 0x21B5 : can_be_drawn(c) ? c : 0x25A1);
    at += static_cast<size_t>(length);
  }
  return valid;
}

/// Returns text as XML holds it.
std::string escaped(const std::string& text) {
  std::string all;
  for (const char c : text) {
    all += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return all;
}

/// Returns a length in hundredths of a unit, without zeros at its end.
std::string number(double value) { return fmt::format("{}", std::round(value * 100) / 100 + 0.0); }

std::string hex(Colour c) { return fmt::format("#{:02x}{:02x}{:02x}", c.r, c.g, c.b); }

std::string base64(std::string_view bytes) {
  constexpr std::string_view letters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t three = 0;
    for (size_t k = 0; k < 3; ++k) {
      three = three << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    }
    for (size_t k = 0; k < 4; ++k) {
      const bool there = k == 0 || i + k - 1 < bytes.size();
      text += there ? letters[three >> (18 - 6 * k) & 63] : '=';
    }
  }
  return text;
}

/// Returns a PNG file of rows of three bytes a pixel. Throws ValueError.
std::string png_of(const std::string& rgb, int width, int height) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = 0;
  std::string bytes;
  for (int pass = 0; pass < 2; ++pass) {  // the first pass measures
    const int ok = png_image_write_to_memory(&image, pass == 0 ? nullptr : bytes.data(), &size, 0,
                                             rgb.data(), 0, nullptr);
    require(ok != 0, "plot", "cannot make a picture of {} x {}: {}", width, height, image.message);
    bytes.resize(size);
  }
  return bytes;
}

void choose_font(cairo_t* on, double size) {
  cairo_select_font_face(on, font, CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
  cairo_set_font_size(on, size);
  // Without hints text is as wide as it is in a vector picture.
  cairo_font_options_t* options = cairo_font_options_create();
  cairo_font_options_set_antialias(options, CAIRO_ANTIALIAS_GRAY);
  cairo_font_options_set_hint_style(options, CAIRO_HINT_STYLE_NONE);
  cairo_font_options_set_hint_metrics(options, CAIRO_HINT_METRICS_OFF);
  cairo_set_font_options(on, options);
  cairo_font_options_destroy(options);
}

double width_on(cairo_t* on, const std::string& text, double size) {
  choose_font(on, size);
  cairo_text_extents_t extents;
  cairo_text_extents(on, text.c_str(), &extents);
  return extents.x_advance;
}

cairo_status_t append(void* to, const unsigned char* data, unsigned int length) {
  static_cast<std::string*>(to)->append(reinterpret_cast<const char*>(data), length);
  return CAIRO_STATUS_SUCCESS;
}

/// Returns an image that cairo can draw.
cairo_surface_t* image_of(int width, int height, const std::vector<Colour>& rows) {
  cairo_surface_t* image = cairo_image_surface_create(CAIRO_FORMAT_RGB24, width, height);
  require(cairo_surface_status(image) == CAIRO_STATUS_SUCCESS, "plot",
          "cannot make a picture of {} x {}", width, height);
  const auto stride = static_cast<size_t>(cairo_image_surface_get_stride(image)) / 4;
  auto* to = reinterpret_cast<uint32_t*>(cairo_image_surface_get_data(image));
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t row = i / static_cast<size_t>(width), column = i % static_cast<size_t>(width);
    to[row * stride + column] =
        static_cast<uint32_t>(rows[i].r) << 16 | static_cast<uint32_t>(rows[i].g) << 8 | rows[i].b;
  }
  cairo_surface_mark_dirty(image);
  return image;
}

/// Rounds to whole pixels.
double whole(double position) {
  return std::round(position * Canvas::pixels_of_unit) / Canvas::pixels_of_unit;
}

}  // namespace

/// A drawing of cairo, for PNG and PDF, or the elements of an SVG file. That file is written here,
/// because cairo's has shapes in place of text.
struct Canvas::Surface {
  std::string bytes = {};  // of the file, so far
  bool svg;
  cairo_surface_t* surface;
  cairo_t* context;

  Surface(int width, int height, PictureFormat format)
      : svg(format == PictureFormat::svg),
        surface(format == PictureFormat::pdf
                    ? cairo_pdf_surface_create_for_stream(append, &bytes, width * points_of_unit,
                                                          height * points_of_unit)
                : svg ? cairo_image_surface_create(CAIRO_FORMAT_RGB24, 1, 1)  // measures text
                      : cairo_image_surface_create(CAIRO_FORMAT_RGB24, width * pixels_of_unit,
                                                   height * pixels_of_unit)),
        context(cairo_create(surface)) {
    const double scale = format == PictureFormat::pdf ? points_of_unit : svg ? 1 : pixels_of_unit;
    cairo_scale(context, scale, scale);
  }
  ~Surface() {
    cairo_destroy(context);
    cairo_surface_destroy(surface);
  }
  Surface(const Surface&) = delete;
  Surface& operator=(const Surface&) = delete;

  void colour(Colour c) { cairo_set_source_rgb(context, c.r / 255.0, c.g / 255.0, c.b / 255.0); }
};

Colour mix(Colour a, Colour b, double share) {
  const auto one = [&](uint8_t x, uint8_t y) {
    return static_cast<uint8_t>(std::lround(x + (y - x) * share));
  };
  return {one(a.r, b.r), one(a.g, b.g), one(a.b, b.b)};
}

PictureFormat format_of(std::string_view path) {
  if (path.ends_with(".pdf")) return PictureFormat::pdf;
  return path.ends_with(".svg") ? PictureFormat::svg : PictureFormat::png;
}

Canvas::Canvas(int width, int height, PictureFormat format, std::string_view title)
    : width_(width),
      height_(height),
      format_(format),
      surface_(std::make_unique<Surface>(width, height, format)) {
  const std::string name = drawable(title);
  if (format == PictureFormat::pdf) {
    cairo_surface_t* pdf = surface_->surface;
    if (!name.empty()) cairo_pdf_surface_set_metadata(pdf, CAIRO_PDF_METADATA_TITLE, name.c_str());
    cairo_pdf_surface_set_metadata(pdf, CAIRO_PDF_METADATA_CREATOR, "Longspan");
    // The time would differ from run to run.
    cairo_pdf_surface_set_metadata(pdf, CAIRO_PDF_METADATA_CREATE_DATE, nullptr);
  } else if (format == PictureFormat::svg) {
    surface_->bytes = fmt::format(
        "{}<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{}px\" "
        "height=\"{}px\" viewBox=\"0 0 {} {}\" font-family=\"'{}', Verdana, sans-serif\">\n"
        "<title>{}</title>\n",
        svg_head, width, height, width, height, font, escaped(name));
  }
  fill(0, 0, width, height, paper);
}

Canvas::~Canvas() = default;

void Canvas::fill(double x0, double y0, double x1, double y1, Colour colour) {
  const double left = whole(x0), top = whole(y0), right = whole(x1), bottom = whole(y1);
  if (surface_->svg) {
    surface_->bytes += fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n", number(left),
        number(top), number(right - left), number(bottom - top), hex(colour));
    return;
  }
  surface_->colour(colour);
  cairo_rectangle(surface_->context, left, top, right - left, bottom - top);
  cairo_fill(surface_->context);
}

void Canvas::stroke(const std::vector<Point>& points, double width, Colour colour) {
  if (points.empty()) return;
  if (surface_->svg && points.size() == 1) {
    surface_->bytes +=
        fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\"/>\n", number(points[0].x),
                    number(points[0].y), number(width / 2), hex(colour));
    return;
  }
  if (surface_->svg) {
    surface_->bytes += "<polyline points=\"";
    for (const Point& p : points) surface_->bytes += number(p.x) + "," + number(p.y) + " ";
    surface_->bytes.back() = '"';
    surface_->bytes += fmt::format(
        " fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linecap=\"round\" "
        "stroke-linejoin=\"round\"/>\n",
        hex(colour), number(width));
    return;
  }
  cairo_t* on = surface_->context;
  surface_->colour(colour);
  if (points.size() == 1) {
    cairo_arc(on, points[0].x, points[0].y, width / 2, 0, 2 * std::numbers::pi);
    cairo_fill(on);
    return;
  }
  cairo_set_line_width(on, width);
  cairo_set_line_cap(on, CAIRO_LINE_CAP_ROUND);
  cairo_set_line_join(on, CAIRO_LINE_JOIN_ROUND);
  for (const Point& p : points) cairo_line_to(on, p.x, p.y);
  cairo_stroke(on);
}

void Canvas::pixels(double x, double y, int width, const std::vector<Colour>& rows) {
  const int height = static_cast<int>(rows.size()) / width;
  const double left = whole(x), top = whole(y);
  if (surface_->svg) {
    std::string rgb;
    for (const Colour c : rows) {
      for (const uint8_t part : {c.r, c.g, c.b}) rgb += static_cast<char>(part);
    }
    surface_->bytes += fmt::format(
        "<image x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\" "
        "style=\"image-rendering:pixelated\" href=\"data:image/png;base64,{}\"/>\n",
        number(left), number(top), number(static_cast<double>(width) / pixels_of_unit),
        number(static_cast<double>(height) / pixels_of_unit), base64(png_of(rgb, width, height)));
    return;
  }
  cairo_surface_t* image = image_of(width, height, rows);
  cairo_t* on = surface_->context;
  cairo_save(on);
  cairo_translate(on, left, top);
  cairo_scale(on, 1.0 / pixels_of_unit, 1.0 / pixels_of_unit);
  cairo_set_source_surface(on, image, 0, 0);
  cairo_pattern_set_filter(cairo_get_source(on), CAIRO_FILTER_NEAREST);
  cairo_rectangle(on, 0, 0, width, height);
  cairo_fill(on);
  cairo_restore(on);
  cairo_surface_destroy(image);
}

void Canvas::write(Point at, double degrees, std::string_view text, double size, Colour colour,
                   Anchor anchor) {
  const std::string valid = drawable(text);
  cairo_t* on = surface_->context;
  const double width = width_on(on, valid, size);
  if (surface_->svg) {
    if (valid.empty()) return;
    constexpr const char* anchors[] = {"start", "middle", "end"};
    const std::string turn = degrees == 0 ? ""
                                          : fmt::format(" transform=\"rotate({} {} {})\"", degrees,
                                                        number(at.x), number(at.y));
    // textLength gives any font the width of the measured one.
    surface_->bytes += fmt::format(
        "<text x=\"{}\" y=\"{}\"{} font-size=\"{}\" text-anchor=\"{}\" textLength=\"{}\" "
        "lengthAdjust=\"spacingAndGlyphs\" xml:space=\"preserve\" fill=\"{}\">{}</text>\n",
        number(at.x), number(at.y), turn, number(size), anchors[static_cast<int>(anchor)],
        number(width), hex(colour), escaped(valid));
    return;
  }
  surface_->colour(colour);
  const double before = anchor == Anchor::begin ? 0 : anchor == Anchor::middle ? width / 2 : width;
  cairo_save(on);
  cairo_translate(on, at.x, at.y);
  cairo_rotate(on, degrees * std::numbers::pi / 180);
  cairo_move_to(on, -before, 0);
  cairo_show_text(on, valid.c_str());
  cairo_new_path(on);
  cairo_restore(on);
}

void Canvas::text(double x, double y, std::string_view text, double size, Colour colour,
                  Anchor anchor) {
  write({x, y}, 0, text, size, colour, anchor);
}

void Canvas::text_upwards(double x, double y, std::string_view text, double size, Colour colour,
                          Anchor anchor) {
  write({x, y}, -90, text, size, colour, anchor);
}

double Canvas::width_of(std::string_view text, double size) {
  Surface scratch(1, 1, PictureFormat::svg);
  return width_on(scratch.context, drawable(text), size);
}

std::string Canvas::file() {
  cairo_status_t status = cairo_status(surface_->context);
  if (status == CAIRO_STATUS_SUCCESS && format_ == PictureFormat::pdf) {
    cairo_surface_finish(surface_->surface);
    status = cairo_surface_status(surface_->surface);
  }
  require(status == CAIRO_STATUS_SUCCESS, "plot", "cannot make a picture of {} x {}: {}", width_,
          height_, cairo_status_to_string(status));
  if (format_ == PictureFormat::pdf) return surface_->bytes;
  if (format_ == PictureFormat::svg) return surface_->bytes + "</svg>\n";
  cairo_surface_flush(surface_->surface);
  const auto stride = static_cast<size_t>(cairo_image_surface_get_stride(surface_->surface)) / 4;
  const auto* from =
      reinterpret_cast<const uint32_t*>(cairo_image_surface_get_data(surface_->surface));
  const int width = width_ * pixels_of_unit, height = height_ * pixels_of_unit;
  std::string rgb;
  for (size_t y = 0; y < static_cast<size_t>(height); ++y) {
    for (size_t x = 0; x < static_cast<size_t>(width); ++x) {
      for (const int shift : {16, 8, 0}) {
        rgb += static_cast<char>(from[y * stride + x] >> shift & 0xFF);
      }
    }
  }
  std::string bytes = png_of(rgb, width, height);
  bytes.insert(header_end, software_chunk());
  return bytes;
}

bool Canvas::is_own(const std::string& path) {
  return holds(path, header_end, software_chunk()) || holds(path, 0, svg_head) ||
         (holds(path, 0, pdf_head) && ends_with(path, pdf_creator));
}

}  // namespace longspan::drawing
