// Tensors of a checkpoint that hold several parameters.

#include "models/checkpoint_format.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "autograd/mode.h"
#include "ops/copy.h"
#include "ops/random.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "tests/models/golden_file.h"
#include "train/pretrained.h"
#include "train/state.h"

namespace longspan::test {
namespace {

/// Two matrices of 3 and 2 rows and a vector.
struct Parts : Module {
  explicit Parts(int64_t columns = 4) : Parts({3, 4}, {2, columns}) {}
  Parts(const Shape& a, const Shape& b)
      : upper(normal(a, Generator{1})),
        lower(normal(b, Generator{2})),
        other(normal({5}, Generator{3})) {}
  void visit(Visitor& v) override {
    v("upper.weight", upper)("other", other)("lower.weight", lower);
  }

  Tensor upper, lower, other;
};

constexpr NamePair part_names[] = {{"upper", "both"}, {"lower", "both"}, {"other", "rest.other"}};
constexpr CheckpointFormat part_format{"parts", "base.", part_names, {}, {}};

TEST(CheckpointFormats, OneTensorHoldsSeveralParameters) {
  const NoGrad off;
  const std::string path = testing::TempDir() + "longspan_parts";
  Parts model;
  save_pretrained(path, named_as(part_format, model), Json(Members{}));
  const auto written = tensors_of(path + "/model.safetensors");
  ASSERT_EQ(written.size(), 2u);
  EXPECT_TRUE(same_bits(written.at("base.both.weight"), concat({model.upper, model.lower}, 0)));
  EXPECT_TRUE(same_bits(written.at("base.rest.other"), model.other));

  Parts again;
  for (Tensor* x : {&again.upper, &again.lower, &again.other}) *x = zeros_like(*x);
  load_pretrained(path, named_as(part_format, again), {.prefix = "base."});
  EXPECT_TRUE(same_bits(again.upper, model.upper));
  EXPECT_TRUE(same_bits(again.lower, model.lower));
  EXPECT_TRUE(same_bits(again.other, model.other));
}

TEST(CheckpointFormats, PartsMustFillTheirTensor) {
  const NoGrad off;
  const std::string path = testing::TempDir() + "longspan_parts_refused";
  Parts model;
  save_pretrained(path, named_as(part_format, model), Json(Members{}));
  Parts longer({3, 4}, {3, 4});
  const Tensor before = clone(longer.upper);
  EXPECT_PRED2(contains,
               message_of<IoError>([&] { load_pretrained(path, named_as(part_format, longer)); }),
               "base.both.weight: f32 [5, 4], expected f32 [6, 4]");
  EXPECT_TRUE(same_bits(longer.upper, before)) << "nothing is written where something is wrong";
  Parts wider(5), vector({3, 4}, {2});
  EXPECT_PRED2(contains,
               message_of<ShapeError>([&] { load_pretrained(path, named_as(part_format, wider)); }),
               "base.both.weight has parts of shapes [3, 4] and [2, 5]");
  EXPECT_PRED2(contains, message_of<ShapeError>([&] {
                 save_pretrained(path, named_as(part_format, vector), Json(Members{}));
               }),
               "has parts of shapes [3, 4] and [2]");
}

}  // namespace
}  // namespace longspan::test
