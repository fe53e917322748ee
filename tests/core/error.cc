#include "core/error.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/scope.h"
#include "core/tensor.h"
#include "data/unicode/unicode.h"
#include "tests/harness/messages.h"

namespace longspan {
namespace {

using test::message_of;

TEST(Error, NamesOpTensorsAndScope) {
  const Tensor a = Tensor::empty({8, 512}), b = Tensor::empty({256, 64}, DType::bf16);
  const Scope model("model");
  const Scope layer("layers", 3);
  EXPECT_EQ(message_of<Error>([&] {
              fail_with<ShapeError>("matmul", "inner dimensions differ: 512 and 256",
                                    {{"a", a}, {"b", b}, {"c", Tensor()}});
            }),
            "matmul: inner dimensions differ: 512 and 256\n"
            "  a  f32[8, 512]  cpu\n"
            "  b  bf16[256, 64]  cpu\n"
            "  c  undefined\n"
            "  in model.layers.3");
}

TEST(Error, RequireFormatsOnlyOnFailure) {
  EXPECT_NO_THROW(require(true, "op", "never {}", 1));
  EXPECT_EQ(message_of<Error>([] { require(false, "op", "{} of {}", 2, "three"); }),
            "op: 2 of three");
  EXPECT_THROW(require<IoError>(false, "op", "x"), IoError);
  EXPECT_THROW(require(false, "op", "x"), ValueError);
  EXPECT_THROW(fail<NotImplemented>("op", "x"), NotImplemented);
}

// What a hostile file holds reaches neither the terminal as it is nor fills it.
TEST(Error, ShowsWhatFilesHoldInPlainCharacters) {
  const auto shown = [](const std::string& value) {
    return message_of<Error>([&] { fail("op", "got \"{}\"", value); });
  };
  EXPECT_EQ(shown("\x1b[2Jevil"), "op: got \"\\x1b[2Jevil\"");
  EXPECT_EQ(shown(std::string("a\0b", 3)), "op: got \"a\\x00b\"");
  EXPECT_EQ(shown("bell\a\rback\b\x7f"), "op: got \"bell\\x07\\x0dback\\x08\\x7f\"");
  EXPECT_EQ(shown("tab\tline\n"), "op: got \"tab\tline\n\"");
  EXPECT_EQ(shown("Zürich 東京 🙂"), "op: got \"Zürich 東京 🙂\"");
  EXPECT_EQ(shown("\xC2\x9B"
                  "31m"),
            "op: got \"\\u{9b}31m\"");  // CSI in one character
  EXPECT_EQ(shown("\xE2\x80\xAE"
                  "gpj"),
            "op: got \"\\u{202e}gpj\"");                   // writes backwards
  EXPECT_EQ(shown("\xff\xC3"), "op: got \"\\xff\\xc3\"");  // no UTF-8, and a half
  EXPECT_EQ(shown("\xC0\x80\xED\xA0\x80"),
            "op: got \"\\xc0\\x80\\xed\\xa0\\x80\"");  // overlong; surrogate
}

TEST(Error, LongValuesAreCut) {
  const auto shown = [](const std::string& value) {
    return message_of<Error>([&] { fail("op", "got \"{}\" in FILE:3", value); });
  };
  EXPECT_EQ(shown(std::string(500, 'v')).size(),
            500 + std::string("op: got \"\" in FILE:3").size());
  const std::string text = shown(std::string(9'000'000, 'v'));
  EXPECT_LT(text.size(), 700u);
  EXPECT_TRUE(test::contains(text, "op: got \"vvv")) << text;
  EXPECT_TRUE(test::contains(text, "vvv\" in FILE:3")) << text;
  EXPECT_TRUE(test::contains(text, " bytes left out) ")) << text;
  std::string wide;
  for (int i = 0; i < 1000; ++i) wide += "€";
  for (const char* const more : {"", "a", "ab"}) {  // no character is cut in two
    EXPECT_TRUE(is_utf8(shown(more + wide)));
  }
  std::string lines;
  for (int i = 0; i < 1'000'000; ++i) lines += "line\n";
  EXPECT_LT(shown(lines).size(), 16'000u);
}

TEST(Error, FamilyHasOneBase) {
  EXPECT_THROW(throw ShapeError("x"), Error);
  EXPECT_THROW(throw DTypeError("x"), Error);
  EXPECT_THROW(throw DeviceError("x"), Error);
  EXPECT_THROW(throw ValueError("x"), Error);
  EXPECT_THROW(throw NotImplemented("x"), Error);
  EXPECT_THROW(throw GradientError("x"), Error);
  EXPECT_THROW(throw OutOfMemory("x"), Error);
  EXPECT_THROW(throw CudaError("x"), Error);
  EXPECT_THROW(throw IoError("x"), std::runtime_error);
}

TEST(Error, SharedChecks) {
  const Tensor x = Tensor::empty({2, 3}), n = Tensor::empty({2}, DType::i64), none;
  EXPECT_NO_THROW(require_floating("op", x));
  EXPECT_THROW(require_floating("op", n), DTypeError);
  EXPECT_THROW(require_floating("op", none), DTypeError);
  EXPECT_NO_THROW(require_integer("op", n));
  EXPECT_THROW(require_integer("op", x), DTypeError);
  EXPECT_NO_THROW(require_rank("op", x, 1));
  EXPECT_THROW(require_rank("op", x, 3), ShapeError);
  EXPECT_THROW(require_rank("op", none, 0), ShapeError);
  EXPECT_NO_THROW(require_rank_is("op", x, 2));
  EXPECT_THROW(require_rank_is("op", x, 1), ShapeError);
  EXPECT_THROW(require_same_dtype("op", {"x", x}, {"n", n}), DTypeError);
  EXPECT_NO_THROW(require_same_device("op", {"x", x}, {"n", n}));
  EXPECT_THROW(require_same_shape("op", {"x", x}, {"n", n}), ShapeError);
  EXPECT_NO_THROW(require_shape("op", x, {2, 3}));
  EXPECT_THROW(require_shape("op", x, {3, 2}), ShapeError);
  EXPECT_THROW(require_shape("op", none, {}), ShapeError);
  EXPECT_NE(message_of<Error>([&] {
              require_shape("op", x, {3, 2}, "weight");
            }).find("weight must have shape [3, 2]"),
            std::string::npos);
}

TEST(Scope, IsAStackForEachThread) {
  EXPECT_EQ(Scope::path(), "");
  {
    const Scope a("a");
    {
      const Scope b("b", 0);
      EXPECT_EQ(Scope::path(), "a.b.0");
      std::thread([] {
        EXPECT_EQ(Scope::path(), "");
        const Scope c("c");
        EXPECT_EQ(Scope::path(), "c");
      }).join();
    }
    EXPECT_EQ(Scope::path(), "a");
    EXPECT_ANY_THROW({
      const Scope inner("inner");
      throw 1;
    });
    EXPECT_EQ(Scope::path(), "a");
  }
  EXPECT_EQ(Scope::path(), "");
}

TEST(Scope, MayBeThatOfAnotherPlace) {
  const Scope a("a");
  {
    const ScopeAt elsewhere("model.layers.3");
    EXPECT_EQ(Scope::path(), "model.layers.3");
    const Scope inner("inner");
    EXPECT_EQ(Scope::path(), "model.layers.3.inner");
    {
      const ScopeAt top("");
      EXPECT_EQ(Scope::path(), "");
    }
    EXPECT_EQ(Scope::path(), "model.layers.3.inner");
  }
  EXPECT_EQ(Scope::path(), "a");
}

}  // namespace
}  // namespace longspan
