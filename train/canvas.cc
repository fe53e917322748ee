#include "train/canvas.h"

#include <cairo-svg.h>
#include <cairo.h>
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

/// Whether cairo takes a code point, and there is something to see.
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

void choose_font(cairo_t* on, double size) {
  cairo_select_font_face(on, "sans", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
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

}  // namespace

struct Canvas::Surface {
  std::string svg = {};  // what cairo wrote so far
  cairo_surface_t* surface;
  cairo_t* context;

  Surface(int width, int height, PictureFormat format)
      : surface(format == PictureFormat::svg
                    ? cairo_svg_surface_create_for_stream(append, &svg, width, height)
                    : cairo_image_surface_create(CAIRO_FORMAT_RGB24, width, height)) {
    if (format == PictureFormat::svg) {
      cairo_svg_surface_set_document_unit(surface, CAIRO_SVG_UNIT_PX);
    }
    context = cairo_create(surface);
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
  return path.ends_with(".svg") ? PictureFormat::svg : PictureFormat::png;
}

Canvas::Canvas(int width, int height, PictureFormat format)
    : width_(width),
      height_(height),
      format_(format),
      surface_(std::make_unique<Surface>(width, height, format)) {
  fill(0, 0, width, height, paper);
}

Canvas::~Canvas() = default;

void Canvas::fill(double x0, double y0, double x1, double y1, Colour colour) {
  surface_->colour(colour);
  const double left = std::round(x0), top = std::round(y0);
  cairo_rectangle(surface_->context, left, top, std::round(x1) - left, std::round(y1) - top);
  cairo_fill(surface_->context);
}

void Canvas::stroke(const std::vector<Point>& points, double width, Colour colour) {
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
  cairo_t* on = surface_->context;
  cairo_set_source_surface(on, image, std::round(x), std::round(y));
  cairo_pattern_set_filter(cairo_get_source(on), CAIRO_FILTER_NEAREST);
  cairo_rectangle(on, std::round(x), std::round(y), width, height);
  cairo_fill(on);
  cairo_surface_destroy(image);
}

void Canvas::text(double x, double y, std::string_view text, double size, Colour colour,
                  Anchor anchor) {
  const std::string valid = drawable(text);
  const double width = width_on(surface_->context, valid, size);
  surface_->colour(colour);
  const double before = anchor == Anchor::begin ? 0 : anchor == Anchor::middle ? width / 2 : width;
  cairo_move_to(surface_->context, x - before, y);
  cairo_show_text(surface_->context, valid.c_str());
  cairo_new_path(surface_->context);
}

void Canvas::text_upwards(double x, double y, std::string_view text, double size, Colour colour) {
  cairo_save(surface_->context);
  cairo_translate(surface_->context, x, y);
  cairo_rotate(surface_->context, -std::numbers::pi / 2);
  this->text(0, 0, text, size, colour, Anchor::middle);
  cairo_restore(surface_->context);
}

double Canvas::width_of(std::string_view text, double size) {
  Surface scratch(1, 1, PictureFormat::png);
  return width_on(scratch.context, drawable(text), size);
}

std::string Canvas::file() {
  cairo_status_t status = cairo_status(surface_->context);
  if (status == CAIRO_STATUS_SUCCESS && format_ == PictureFormat::svg) {
    cairo_surface_finish(surface_->surface);
    status = cairo_surface_status(surface_->surface);
  }
  require(status == CAIRO_STATUS_SUCCESS, "plot", "cannot make a picture of {} x {}: {}", width_,
          height_, cairo_status_to_string(status));
  if (format_ == PictureFormat::png) return png();
  // Cairo counts the surfaces of a process in their names; the same drawing shall be the same file.
  std::string body = surface_->svg.substr(surface_->svg.find('\n') + 1);
  constexpr std::string_view name = "id=\"surface";
  if (const size_t at = body.find(name); at != std::string::npos) {
    const size_t begin = at + name.size();
    body.erase(begin, body.find('"', begin) - begin);
  }
  return std::string(svg_head) + body;
}

std::string Canvas::png() const {
  cairo_surface_flush(surface_->surface);
  const auto stride = static_cast<size_t>(cairo_image_surface_get_stride(surface_->surface)) / 4;
  const auto* from =
      reinterpret_cast<const uint32_t*>(cairo_image_surface_get_data(surface_->surface));
  std::string rgb;
  for (size_t y = 0; y < static_cast<size_t>(height_); ++y) {
    for (size_t x = 0; x < static_cast<size_t>(width_); ++x) {
      for (const int shift : {16, 8, 0}) {
        rgb += static_cast<char>(from[y * stride + x] >> shift & 0xFF);
      }
    }
  }
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width_);
  image.height = static_cast<png_uint_32>(height_);
  image.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = 0;
  std::string bytes;
  for (int pass = 0; pass < 2; ++pass) {  // the first pass measures
    const int ok = png_image_write_to_memory(&image, pass == 0 ? nullptr : bytes.data(), &size, 0,
                                             rgb.data(), 0, nullptr);
    require(ok != 0, "plot", "cannot make a picture of {} x {}: {}", width_, height_,
            image.message);
    bytes.resize(size);
  }
  bytes.insert(header_end, software_chunk());
  return bytes;
}

bool Canvas::is_own(const std::string& path) {
  return holds(path, header_end, software_chunk()) || holds(path, 0, svg_head);
}

}  // namespace longspan::drawing
