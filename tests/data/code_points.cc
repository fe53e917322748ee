#include "data/code_points.h"

#include "tests/harness/scratch.h"

namespace longspan {
namespace {

TEST(CodePoints, HaveTheirBytes) {
  std::string text;
  std::vector<int64_t> places;
  for (int i = 0; i < 200; ++i) {
    places.push_back(std::ssize(text));
    text += i % 3 == 0 ? "a" : i % 3 == 1 ? "é" : "😀";
  }
  const CodePointIndex index(text);
  for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(index.byte_of(i), places[static_cast<size_t>(i)]);
  EXPECT_EQ(index.byte_of(200), std::ssize(text));
  EXPECT_EQ(index.byte_of(201), -1);
  EXPECT_EQ(index.byte_of(int64_t{1} << 60), -1);
  EXPECT_EQ(index.byte_of(-1), -1);
  const CodePointIndex none;
  EXPECT_EQ(none.byte_of(0), 0);
  EXPECT_EQ(none.byte_of(1), -1);
  const CodePointIndex full(std::string_view(text).substr(0, 7));
  EXPECT_EQ(full.byte_of(3), 7);
  const std::string broken = "\xE9\xE9";
  EXPECT_EQ(CodePointIndex(broken).byte_of(2), 2);
}

}  // namespace
}  // namespace longspan
