#include "train/plot.h"

#include <png.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "core/error.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::Folder;
using test::message_of;
using test::read_bytes;
using test::write_bytes;

struct Pixels {
  int width = 0, height = 0;
  std::vector<std::array<uint8_t, 3>> rgb;
  const std::array<uint8_t, 3>& at(int x, int y) const {
    return rgb[static_cast<size_t>(y * width + x)];
  }
  std::set<std::array<uint8_t, 3>> colours() const { return {rgb.begin(), rgb.end()}; }
};

/// Reads the picture back with libpng, which validates it.
Pixels read_png(const std::string& path) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  Pixels pixels;
  EXPECT_NE(png_image_begin_read_from_file(&image, path.c_str()), 0) << image.message;
  image.format = PNG_FORMAT_RGB;
  pixels.width = static_cast<int>(image.width);
  pixels.height = static_cast<int>(image.height);
  pixels.rgb.resize(static_cast<size_t>(image.width) * image.height);
  EXPECT_NE(png_image_finish_read(&image, nullptr, pixels.rgb.data(), 0, nullptr), 0)
      << image.message;
  return pixels;
}

constexpr std::array<uint8_t, 3> white{255, 255, 255}, blue{31, 100, 180};

/// Says whether the centre of the bounding box of all blue pixels is blue.
bool middle_is_blue(const Pixels& pixels) {
  int left = pixels.width, right = 0, top = pixels.height, bottom = 0;
  for (int y = 0; y < pixels.height; ++y) {
    for (int x = 0; x < pixels.width; ++x) {
      if (pixels.at(x, y) != blue) continue;
      left = std::min(left, x), right = std::max(right, x);
      top = std::min(top, y), bottom = std::max(bottom, y);
    }
  }
  return pixels.at((left + right) / 2, (top + bottom) / 2) == blue;
}

TEST(Plot, LogarithmicAxesMakePowersStraight) {
  const Folder folder;
  LinePlot plot{.title = "cubes", .x_label = "x", .y_label = "y"};
  plot.series = {{.x = {-1, 1, 2, 4, 8, 16}, .y = {5, 1, 8, 64, 512, 4096}}};
  plot.log_x = plot.log_y = true;
  write_line_plot(folder / "log.png", plot);
  EXPECT_TRUE(middle_is_blue(read_png(folder / "log.png")));
  plot.series = {{.x = {1, 2, 4, 8, 16}, .y = {1, 8, 64, 512, 4096}}};
  plot.log_x = plot.log_y = false;
  write_line_plot(folder / "linear.png", plot);
  EXPECT_FALSE(middle_is_blue(read_png(folder / "linear.png")));
}

TEST(Plot, LinesWithAxes) {
  const Folder folder;
  LinePlot plot{.title = "title", .x_label = "x", .y_label = "y"};
  plot.series = {{.name = "a", .x = {0, 1, 2}, .y = {3, 1, 2}},
                 {.name = "b", .x = {0, 2}, .y = {1, 3}, .markers = true, .colour = 1}};
  write_line_plot(folder / "x.png", plot);
  const Pixels pixels = read_png(folder / "x.png");
  EXPECT_EQ(pixels.width, 1200);
  EXPECT_EQ(pixels.height, 720);
  EXPECT_GT(pixels.colours().size(), 20u);  // antialiased edges
  EXPECT_TRUE(pixels.colours().count(blue));
  EXPECT_EQ(pixels.at(1199, 0), white);

  write_line_plot(folder / "y.png", plot);
  EXPECT_EQ(read_bytes(folder / "x.png"), read_bytes(folder / "y.png"));
  plot.series[0].y[1] = 1.5;
  write_line_plot(folder / "y.png", plot);
  EXPECT_NE(read_bytes(folder / "x.png"), read_bytes(folder / "y.png"));
}

TEST(Plot, PicturesSayThatTheyAreOurs) {
  const Folder folder;
  write_line_plot(folder / "x.png", {.series = {{.x = {0, 1}, .y = {0, 1}}}});
  EXPECT_TRUE(is_own_picture(folder / "x.png"));
  std::string bytes = read_bytes(folder / "x.png");
  bytes[45] ^= 1;  // a letter of the name
  write_bytes(folder / "y.png", bytes);
  write_bytes(folder / "short.png", bytes.substr(0, 40));
  for (const char* name : {"y.png", "short.png", "none.png", ""}) {
    EXPECT_FALSE(is_own_picture(folder / name)) << name;
  }
}

TEST(Plot, PathsInSvgGetVectorPictures) {
  const Folder folder;
  const LinePlot plot{.title = "any \xFF \xEF\xBF\xBF <&> text",
                      .series = {{.x = {0, 1}, .y = {0, 1}}}};
  write_line_plot(folder / "x.svg", plot);
  write_line_plot(folder / "y.svg", plot);
  const std::string bytes = read_bytes(folder / "x.svg");
  EXPECT_EQ(bytes, read_bytes(folder / "y.svg"));
  EXPECT_TRUE(bytes.starts_with("<?xml"));
  EXPECT_TRUE(bytes.ends_with("</svg>\n"));
  EXPECT_TRUE(contains(bytes, "width=\"1200px\" height=\"720px\"")) << bytes.substr(0, 400);
  EXPECT_TRUE(is_own_picture(folder / "x.svg"));
  write_bytes(folder / "z.svg", "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg></svg>\n");
  EXPECT_FALSE(is_own_picture(folder / "z.svg"));
  write_heat_map(folder / "map.svg", {.rows = 1, .columns = 2, .values = {0, 1}});
  EXPECT_TRUE(contains(read_bytes(folder / "map.svg"), "<image"));
  EXPECT_TRUE(is_own_picture(folder / "map.svg"));
}

// A curve that fills top and bottom leaves no room for a legend but beside the plot.
TEST(Plot, LegendsHideNoCurve) {
  const Folder folder;
  const auto right_end = [&](const std::vector<double>& y) {
    LinePlot plot{.series = {{.name = "curve", .x = {0, 3, 0, 3}, .y = y}}};
    write_line_plot(folder / "x.png", plot);
    const Pixels pixels = read_png(folder / "x.png");
    int end = 0;  // of the line below the plot
    for (int x = 0; x < pixels.width; ++x) {
      if (pixels.at(x, 720 - 75) == std::array<uint8_t, 3>{40, 44, 52}) end = x;
    }
    return end;
  };
  EXPECT_EQ(right_end({0, 0, 0, 1}), 1200 - 34 - 1);
  EXPECT_LT(right_end({0, 0, 1, 1}), 1200 - 34 - 80);
}

TEST(Plot, OddData) {
  const Folder folder;
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const std::vector<Series> all = {
      {.x = {5}, .y = {7}},
      {.x = {0, 1, 2}, .y = {4, 4, 4}},
      {.x = {0, 1, 2, 3, 4}, .y = {1, nan, infinity, 2, -infinity}},
      {.x = {0, 1e9}, .y = {-1e-12, 1e-12}},
      {.x = {-1e300, 1e300}, .y = {-1e300, 1e300}},
      {.name = "text of any bytes \xFF \n \x01", .x = {1, 2}, .y = {1e6, 2e6}},
  };
  for (const Series& s : all) {
    write_line_plot(folder / "x.png", {.series = {s}});
    EXPECT_GT(read_png(folder / "x.png").colours().size(), 5u);
  }
  const auto refuse = [&](const LinePlot& plot, const char* part) {
    const std::string message =
        message_of<ValueError>([&] { write_line_plot(folder / "z.png", plot); });
    EXPECT_TRUE(contains(message, part)) << message;
    EXPECT_EQ(read_bytes(folder / "z.png"), "");
  };
  refuse({}, "no point");
  refuse({.series = {{.x = {nan}, .y = {1}}}}, "no point");
  refuse({.series = {{.name = "s", .x = {1, 2}, .y = {1}}}}, "\"s\" has 2 x and 1 y");
  refuse({.series = {{.x = {1}, .y = {1}}}, .width = 3}, "pixels");
  EXPECT_THROW(write_line_plot(folder / "no/x.png", {.series = {{.x = {1}, .y = {1}}}}), IoError);
}

TEST(Plot, HeatMapColoursItsCells) {
  const Folder folder;
  const double nan = std::nan("");
  HeatMap map{.title = "map", .rows = 2, .columns = 3, .values = {0, 0.5, 1, nan, 1, 0}};
  map.row_labels = {"a", byte_label('\n')};
  map.column_labels = {"x", byte_label(200), byte_label(' ')};
  write_heat_map(folder / "x.png", map);
  const Pixels pixels = read_png(folder / "x.png");
  // Cells have 240 pixels, starting at the corner of the frame.
  int left = 0;
  while (left < pixels.width && pixels.at(left, 120) != (std::array<uint8_t, 3>{13, 21, 56})) {
    ++left;
  }
  ASSERT_LT(left, 200);
  const auto cell = [&](int row, int column) {
    return pixels.at(left + 240 * column + 120, 62 + 240 * row + 120);
  };
  EXPECT_EQ(cell(0, 0), cell(1, 2));
  EXPECT_EQ(cell(0, 2), cell(1, 1));
  EXPECT_EQ(cell(0, 2), (std::array<uint8_t, 3>{253, 240, 150}));
  EXPECT_EQ(cell(1, 0), white);
  EXPECT_NE(cell(0, 1), cell(0, 0));
  EXPECT_NE(cell(0, 1), cell(0, 2));
}

TEST(Plot, CellsMayHaveASizeOfTheirOwn) {
  const Folder folder;
  HeatMap map{.rows = 3, .columns = 5, .values = std::vector<double>(15, 1), .cell = 20};
  write_heat_map(folder / "x.png", map);
  const int width = read_png(folder / "x.png").width;
  map.cell = 30;
  write_heat_map(folder / "x.png", map);
  EXPECT_EQ(read_png(folder / "x.png").width, width + 5 * 10);
  map.cell = 2000;
  EXPECT_TRUE(contains(message_of<ValueError>([&] { write_heat_map(folder / "x.png", map); }),
                       "2000 pixels"));
}

TEST(Plot, WholeNumbersAreMarkedWhereAskedFor) {
  const Folder folder;
  LinePlot plot{.series = {{.x = {0, 1, 2}, .y = {1, 2, 3}}}};
  const auto drawn = [&] {
    write_line_plot(folder / "x.png", plot);
    return read_bytes(folder / "x.png");
  };
  const std::string halves = drawn();
  plot.whole_x = true;
  EXPECT_NE(drawn(), halves);
  plot.series[0].x = {-0.45, 1, 1.45};  // 0 and 1 are marked
  const auto lines_across = [&] {       // columns of pixels without a grid line, above the curve
    drawn();
    const Pixels pixels = read_png(folder / "x.png");
    int lines = 0;
    for (int x = 200; x < pixels.width - 60; ++x) lines += pixels.at(x, 80) == white ? 0 : 1;
    return lines;
  };
  EXPECT_EQ(lines_across(), 2);
  plot.series[0].x = {0, 10, 20};
  const std::string tens = drawn();
  plot.whole_x = false;
  EXPECT_EQ(drawn(), tens);
}

/// A range within two octaves has more than one mark too: its picture is that of two marks, 16 and
/// 32, and one within an octave has round numbers.
TEST(Plot, LogarithmicAxesOfFewOctavesHaveMarks) {
  const Folder folder;
  const auto rows_of_marks = [&](double low, double high) {
    LinePlot plot{.title = "t", .x_label = "x", .y_label = "y"};
    plot.log_y = true;
    plot.series = {{.x = {0, 1}, .y = {low, high}}};
    write_line_plot(folder / "x.png", plot);
    const Pixels pixels = read_png(folder / "x.png");
    constexpr std::array<uint8_t, 3> grid{222, 225, 230};
    int rows = 0;
    for (int y = 0; y < pixels.height; ++y) {
      int grey = 0;
      for (int x = 0; x < pixels.width; ++x) grey += pixels.at(x, y) == grid ? 1 : 0;
      rows += grey > pixels.width / 2 ? 1 : 0;
    }
    return rows;
  };
  EXPECT_EQ(rows_of_marks(15.5, 38), 2);
  EXPECT_GE(rows_of_marks(17, 30), 3);
  EXPECT_GE(rows_of_marks(1, 1 << 10), 4);  // as before: powers of two
}

/// Labels of near points find places of their own: none is written over another.
TEST(Plot, LabelsStandBesideTheirPoints) {
  const Folder folder;
  LinePlot plot{.title = "t", .x_label = "x", .y_label = "y"};
  plot.series = {{.x = {0}, .y = {0}, .markers = true},
                 {.x = {5}, .y = {1}, .markers = true, .colour = 4},
                 {.x = {5}, .y = {1.01}, .markers = true}};
  // Pixels that are more red than blue, or the other way round, with those at the edges of letters.
  const auto count = [&](size_t more, size_t less) {
    write_line_plot(folder / "x.png", plot);
    const Pixels pixels = read_png(folder / "x.png");
    return std::count_if(pixels.rgb.begin(), pixels.rgb.end(),
                         [&](const auto& rgb) { return rgb[more] > rgb[less] + 60; });
  };
  const auto red = [&] { return count(0, 2); };
  const auto blue_ones = [&] { return count(2, 0); };
  plot.series[0].label = "i";  // so that all three pictures have the same axes
  const auto disc = red(), others = blue_ones();
  plot.series[1].label = "mmmmmmmmmmmmmmmm";
  const auto alone = red();
  EXPECT_GT(alone, disc);
  EXPECT_EQ(blue_ones(), others);  // not over a point
  plot.series[2].label = "wwwwwwwwwwwwwwww";
  EXPECT_EQ(red(), alone);
  EXPECT_GT(blue_ones(), others);
}

TEST(Plot, HeatMapDrawsAFewLabelsBesideManyCells) {
  const Folder folder;
  HeatMap map{.rows = 1000, .columns = 4, .exponent = 0.5};
  map.values.assign(4000, 1);
  map.row_labels.resize(1000);
  const auto drawn = [&] {
    write_heat_map(folder / "x.png", map);
    return read_bytes(folder / "x.png");
  };
  const std::string numbers = drawn();
  map.row_labels[500] = "middle";
  const std::string few = drawn();
  EXPECT_NE(few, numbers);
  map.row_labels.assign(1000, "crowd");
  EXPECT_EQ(drawn(), numbers);
}

TEST(Plot, HeatMapsOfAllSizes) {
  const Folder folder;
  for (const auto& [rows, columns] :
       {std::pair<int, int>{1, 1}, {1, 100}, {100, 1}, {64, 64}, {1441, 1441}, {3000, 10}}) {
    HeatMap map{.rows = rows, .columns = columns, .exponent = 0.5};
    for (int i = 0; i < rows * columns; ++i) map.values.push_back(i % 7);
    write_heat_map(folder / "x.png", map);
    const Pixels pixels = read_png(folder / "x.png");
    EXPECT_LT(pixels.width, 1800);
    EXPECT_LT(pixels.height, 1700);
    EXPECT_GT(pixels.colours().size(), 5u);
  }
  HeatMap map{.rows = 2, .columns = 2, .values = {1, 1, 1, 1}};
  EXPECT_NO_THROW(write_heat_map(folder / "x.png", map));
  const auto refuse = [&](const char* part) {
    const std::string message =
        message_of<ValueError>([&] { write_heat_map(folder / "x.png", map); });
    EXPECT_TRUE(contains(message, part)) << message;
  };
  map.row_labels = {"one"};
  refuse("1 row");
  map.row_labels = {};
  map.values = {1, 2, 3};
  refuse("3 values");
  map.rows = 0;
  refuse("0 x 2");
  map = {.rows = 1, .columns = 1, .values = {std::nan("")}};
  refuse("no finite value");
  map = {.rows = 1, .columns = 1, .values = {1}, .exponent = 0};
  refuse("exponent");
}

TEST(Plot, LossCurveOfARun) {
  const Folder run;
  write_bytes(
      run / "metrics.jsonl",
      "{\"step\":10,\"bpb\":3}\n{\"step\":20,\"bpb\":null}\n{\"step\":20,\"valid_bpb\":2.5}\n"
      "{\"step\":30,\"bpb\":2}\n{\"step\":40,\"bp");
  write_loss_curve(run / "loss.png", run / "metrics.jsonl", "a run");
  EXPECT_TRUE(read_png(run / "loss.png").colours().count(blue));
  // Losses are nats per target. The "bpb" values of the version that wrote the rows are ignored.
  write_bytes(
      run / "loss.jsonl",
      fmt::format("{{\"step\":10,\"loss\":{},\"bpb\":9}}\n{{\"step\":20,\"valid_bpb\":2.5}}\n"
                  "{{\"step\":30,\"loss\":{},\"bpb\":6}}\n",
                  9 * std::numbers::ln2, 6 * std::numbers::ln2));
  write_loss_curve(run / "tokens.png", run / "loss.jsonl", "a run", {"byte", 3});
  EXPECT_EQ(read_bytes(run / "tokens.png"), read_bytes(run / "loss.png"));
  write_loss_curve(run / "bases.png", run / "metrics.jsonl", "a run", {"base", 1});
  EXPECT_NE(read_bytes(run / "bases.png"), read_bytes(run / "loss.png"));  // the axis label differs
  write_bytes(run / "empty.jsonl", "{\"step\":1}\n");
  EXPECT_TRUE(contains(
      message_of<ValueError>([&] { write_loss_curve(run / "x.png", run / "empty.jsonl", ""); }),
      "no row"));
  EXPECT_THROW(write_loss_curve(run / "x.png", run / "none.jsonl", ""), IoError);
}

}  // namespace
}  // namespace longspan
