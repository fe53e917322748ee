#include "core/tensor.h"
#include "core/backends.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <sstream>

#include "core/kernel.h"
#include "core/memory.h"

namespace longspan {
namespace {

TEST(Dims, HoldUpToEight) {
  Dims d = {2, 3};
  d.push_back(5);
  d.insert(1, 7);
  EXPECT_EQ(d, (Dims{2, 7, 3, 5}));
  EXPECT_EQ(to_string(d), "[2, 7, 3, 5]");
  d.erase(0);
  EXPECT_EQ(d, (Dims{7, 3, 5}));
  EXPECT_EQ(d.back(), 5);
  EXPECT_FALSE(d == (Dims{7, 3}));
  EXPECT_EQ(Dims::filled(3, 4), (Dims{4, 4, 4}));
  EXPECT_EQ(Dims::filled(8, 1).rank(), 8);
  EXPECT_THROW(Dims::filled(9, 1), ShapeError);
  EXPECT_THROW(Dims({1, 1, 1, 1, 1, 1, 1, 1, 1}), ShapeError);
  Dims full = Dims::filled(8, 1);
  EXPECT_THROW(full.push_back(1), ShapeError);
  EXPECT_EQ(numel({}), 1);
  EXPECT_EQ(numel({3, 0, 2}), 0);
  EXPECT_EQ(to_string(Dims{}), "[]");
}

TEST(Dims, Contiguous) {
  EXPECT_EQ(contiguous_strides({2, 3, 4}), (Strides{12, 4, 1}));
  EXPECT_EQ(contiguous_strides({2, 0, 4}), (Strides{4, 4, 1}));
  EXPECT_TRUE(is_contiguous({2, 3}, {3, 1}));
  EXPECT_FALSE(is_contiguous({2, 3}, {1, 2}));
  EXPECT_FALSE(is_contiguous({2, 3}, {4, 1}));
  EXPECT_FALSE(is_contiguous({2, 3}, {0, 1}));
  EXPECT_TRUE(is_contiguous({1, 3}, {17, 1}));
  EXPECT_TRUE(is_contiguous({3, 1}, {1, 99}));
  EXPECT_TRUE(is_contiguous({}, {}));
  EXPECT_TRUE(is_contiguous({0, 3}, {7, 9}));
  EXPECT_TRUE(is_contiguous({3, 0}, {7, 9}));
  EXPECT_FALSE(is_contiguous({2}, {-1}));
}

TEST(Tensor, HoldsValues) {
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(x.dim(-1), 3);
  EXPECT_EQ(x.alias({3, 2}, {1, 3}, 0).to_vector<float>(), (std::vector<float>{1, 4, 2, 5, 3, 6}));
  EXPECT_THROW(x.to_vector<double>(), DTypeError);
  EXPECT_THROW(x.dim(2), ShapeError);
  EXPECT_THROW(x.dim(-3), ShapeError);
  EXPECT_EQ(x.nbytes(), 24);
  EXPECT_EQ(x.numel(), 6);
}

TEST(Tensor, UndefinedStandsForNotGiven) {
  const Tensor none;
  EXPECT_FALSE(none);
  EXPECT_FALSE(none.view());
  EXPECT_THROW(none.to_vector<float>(), DTypeError);
  EXPECT_THROW(none.item(), ShapeError);
  EXPECT_THROW(Tensor().mut(), ValueError);
  EXPECT_EQ(none.device(), Device{});
}

TEST(Tensor, EmptyIsGivenAllTheSame) {
  const Tensor x = Tensor::empty({0, 3});
  EXPECT_TRUE(x);
  EXPECT_TRUE(x.view());
  EXPECT_EQ(x.nbytes(), 0);
  EXPECT_TRUE(x.to_vector<float>().empty());
  EXPECT_TRUE(x.contiguous());
}

TEST(Tensor, Creation) {
  EXPECT_EQ(Tensor::scalar(3.5).item(), 3.5);
  EXPECT_EQ(Tensor::scalar(int32_t{7}).dtype(), DType::i32);
  EXPECT_EQ(Tensor::scalar(bf16(1.5f)).item(), 1.5);
  EXPECT_EQ(Tensor::zeros({3}, DType::i64).to_vector<int64_t>(), (std::vector<int64_t>{0, 0, 0}));
  const Tensor x = Tensor::empty({2, 3}, DType::f16, {}, Category::data);
  EXPECT_EQ(x.storage().category(), Category::data);
  EXPECT_EQ(Tensor::like(x.alias({3, 2}, {1, 3}, 0)).strides(), (Strides{2, 1}));
  EXPECT_THROW(Tensor::empty({2, -1}), ShapeError);
  EXPECT_THROW(Tensor::from(std::vector<float>{1, 2}, {3}), ShapeError);
  EXPECT_THROW(Tensor::empty({int64_t{1} << 40, int64_t{1} << 40}), ShapeError);
  EXPECT_THROW(Tensor::empty({int64_t{1} << 61}, DType::f64), ShapeError);
}

TEST(Tensor, SizesBeyondReasonAreRefusedAlsoWhereOneIsZero) {
  const int64_t huge = int64_t{1} << 40;
  for (const Shape& shape : {Shape{huge, huge}, Shape{0, huge, huge}, Shape{huge, huge, 0}}) {
    EXPECT_THROW(Tensor::empty(shape), ShapeError) << to_string(shape);
    EXPECT_THROW(Tensor::from(std::vector<float>{}, shape), ShapeError) << to_string(shape);
  }
  EXPECT_THROW(Tensor::empty({std::numeric_limits<int64_t>::max()}, DType::u8), ShapeError);
  EXPECT_THROW(Tensor::empty({int64_t{1} << 58}, DType::f64), OutOfMemory);
  EXPECT_EQ(checked_numel("test", {3, 0, huge}), 0);
  EXPECT_EQ(checked_sum("test", 3, 4), 7);
  EXPECT_THROW(checked_sum("test", huge << 19, 1), ShapeError);
  EXPECT_THROW(checked_product("test", huge, huge), ShapeError);
}

TEST(Tensor, ViewsShareStorageAndVersions) {
  Tensor x = Tensor::from(std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}, {2, 4});
  Tensor right = x.alias({2, 2}, {4, 1}, 2), corner = right.alias({1, 1}, {4, 1}, 5);
  EXPECT_EQ(right.to_vector<int32_t>(), (std::vector<int32_t>{2, 3, 6, 7}));
  EXPECT_EQ(corner.item(), 7);
  EXPECT_TRUE(corner.shares_storage(x));
  EXPECT_FALSE(x.unique());
  const uint64_t before = x.storage().version();
  corner.mut().as<int32_t>()[0] = 70;
  EXPECT_EQ(x.storage().version(), before + 1);
  EXPECT_EQ(x.to_vector<int32_t>()[7], 70);
  x.view();
  EXPECT_EQ(x.storage().version(), before + 1);
  // Views with repeated elements, and with steps.
  EXPECT_EQ(x.alias({2, 3}, {4, 0}, 1).to_vector<int32_t>(),
            (std::vector<int32_t>{1, 1, 1, 5, 5, 5}));
  EXPECT_EQ(x.alias({2, 2}, {4, 2}, 1).to_vector<int32_t>(), (std::vector<int32_t>{1, 3, 5, 70}));
}

TEST(Tensor, StorageGoesWithTheLastHandle) {
  const int64_t before = memory_tracker().live().total();
  Tensor part;
  {
    const Tensor x = Tensor::empty({1000});
    part = x.alias({10}, {1}, 5);
  }
  EXPECT_EQ(memory_tracker().live().total(), before + memory::block_bytes(4000));
  EXPECT_TRUE(part.unique());
  part = {};
  EXPECT_EQ(memory_tracker().live().total(), before);
}

std::string text_of(const Tensor& x) {
  std::ostringstream out;
  out << x;
  return out.str();
}

TEST(Tensor, PrintsEveryDType) {
  EXPECT_EQ(text_of(Tensor::from(std::vector<float>{1, 2.5, -0.125}, {3})),
            "f32[3] cpu [1, 2.5, -0.125]");
  EXPECT_EQ(text_of(Tensor::from(std::vector<double>{1.0 / 3, 1e-20, 2e10}, {3})),
            "f64[3] cpu [0.333333, 1e-20, 2e+10]");
  const std::vector<f16> halves = {f16(1.5f), f16(-65504.0f)};
  EXPECT_EQ(text_of(Tensor::from(halves, {2})), "f16[2] cpu [1.5, -65504]");
  EXPECT_EQ(text_of(Tensor::from(std::vector<bf16>{bf16(3.25f)}, {1})), "bf16[1] cpu [3.25]");
  EXPECT_EQ(text_of(Tensor::from(std::vector<int64_t>{int64_t{1} << 60, -1}, {2})),
            "i64[2] cpu [1152921504606846976, -1]");
  EXPECT_EQ(text_of(Tensor::from(std::vector<int32_t>{-7}, {1})), "i32[1] cpu [-7]");
  EXPECT_EQ(text_of(Tensor::from(std::vector<uint8_t>{0, 1, 65}, {3})), "u8[3] cpu [0, 1, 65]");
  constexpr float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(text_of(Tensor::from(std::vector<float>{inf, -inf, std::nanf("")}, {3})),
            "f32[3] cpu [inf, -inf, nan]");
}

TEST(Tensor, PrintsEveryShape) {
  EXPECT_EQ(text_of({}), "undefined");
  EXPECT_EQ(text_of(Tensor::scalar(3.5f)), "f32[] cpu 3.5");
  EXPECT_EQ(text_of(Tensor::empty({0, 3})), "f32[0, 3] cpu []");
  EXPECT_EQ(text_of(Tensor::empty({2, 3}, DType::bf16, meta_device)), "bf16[2, 3] meta");
  const Tensor x = Tensor::from(std::vector<int32_t>{1, 20, 3, 4, 5, -6}, {3, 2});
  EXPECT_EQ(text_of(x), "i32[3, 2] cpu\n[[ 1, 20],\n [ 3,  4],\n [ 5, -6]]");
  EXPECT_EQ(text_of(x.alias({2, 3}, {1, 2}, 0)), "i32[2, 3] cpu\n[[ 1,  3,  5],\n [20,  4, -6]]");
  EXPECT_EQ(text_of(x.alias({2, 1, 2}, {2, 2, 0}, 0)), "i32[2, 1, 2] cpu\n[[[1, 1]],\n [[3, 3]]]");
}

Tensor counting(const Shape& shape) {
  std::vector<int64_t> values(static_cast<size_t>(numel(shape)));
  std::iota(values.begin(), values.end(), 0);
  return Tensor::from(values, shape);
}

TEST(Tensor, PrintsTheEndsOfLongAxes) {
  EXPECT_EQ(text_of(counting({10})), "i64[10] cpu [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]");
  EXPECT_EQ(text_of(counting({11})), "i64[11] cpu [0, 1, 2, 3, 4, ..., 6, 7, 8, 9, 10]");
  EXPECT_EQ(text_of(counting({2000, 1}).alias({2000}, {1}, 0)),
            "i64[2000] cpu [0, 1, 2, 3, 4, ..., 1995, 1996, 1997, 1998, 1999]");
  EXPECT_EQ(
      text_of(counting({12, 2})),
      "i64[12, 2] cpu\n[[ 0,  1],\n [ 2,  3],\n [ 4,  5],\n [ 6,  7],\n [ 8,  9],\n ...,\n [14, "
      "15],\n [16, 17],\n [18, 19],\n [20, 21],\n [22, 23]]");
  // With five at each end, 2 x 10 x 10 x 10 values would be shown: more than a thousand.
  const std::string many = text_of(counting({2, 11, 11, 11}));
  EXPECT_EQ(std::count(many.begin(), many.end(), ','), 3 + 1 + 2 * 6 + 12 * 6 + 72 * 6);
  EXPECT_NE(many.find("[[[[   0,    1,    2, ...,    8,    9,   10],\n"), std::string::npos)
      << many;
  EXPECT_LT(text_of(counting({3, 3, 3, 3, 3, 3, 3, 3})).size(), size_t{10'000});
}

// What is not shown is not copied either: reading the whole storage of this view, which repeats one
// element, would take 2^59 bytes.
TEST(Tensor, PrintsWithoutReadingEverything) {
  const Tensor x = Tensor::scalar(2.0f).alias({int64_t{1} << 40}, {0}, 0);
  EXPECT_EQ(text_of(x), "f32[1099511627776] cpu [2, 2, 2, 2, 2, ..., 2, 2, 2, 2, 2]");
  const uint64_t before = x.storage().version();
  text_of(x);
  EXPECT_EQ(x.storage().version(), before);
}

TEST(View, KnowsItsAxes) {
  Tensor x = Tensor::zeros({2, 3});
  const View v = x.mut();
  EXPECT_EQ(v.rank(), 2);
  EXPECT_EQ(v.dim(-1), 3);
  EXPECT_EQ(v.stride(0), 3);
  EXPECT_EQ(v.numel(), 6);
  EXPECT_TRUE(v.contiguous());
  const ConstView c = v;
  EXPECT_EQ(c.data, v.data);
  EXPECT_EQ(c.stride(-1), 1);
}

TEST(Device, Names) {
  EXPECT_EQ(name_of(Device{}), "cpu");
  EXPECT_EQ(name_of(Device{DeviceKind::cuda, 1}), "cuda:1");
  EXPECT_EQ(parse_device("cpu"), Device{});
  for (const char* wrong :
       {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda1", "cuda:300", "cpu:1"}) {
    EXPECT_THROW(parse_device(wrong), ValueError) << wrong;
  }
  EXPECT_TRUE(is_available({}));
  EXPECT_FALSE(is_available({DeviceKind::cpu, 1}));
  EXPECT_THROW(Tensor::empty({1}, DType::f32, {DeviceKind::cuda, 100}), DeviceError);
  synchronize({});
}

Kernel<void(int*)> lonely{"lonely"};

TEST(Kernel, AnEmptySlotIsNotImplemented) {
  int called = 0;
  try {
    lonely(Device{DeviceKind::cuda, 2}, &called);
    FAIL() << "nothing was thrown";
  } catch (const NotImplemented& e) {
    EXPECT_NE(std::string(e.what()).find("lonely"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("cuda:2"), std::string::npos);
  }
  EXPECT_FALSE(lonely.has(DeviceKind::cpu));
  EXPECT_EQ(lonely.calls(DeviceKind::cuda), 0);
}

TEST(Kernel, CallsAreCountedAndAllAreListed) {
  long before = 0;
  bool listed = false;
  for (const KernelBase* k : KernelBase::all()) {
    EXPECT_TRUE(k->has(DeviceKind::cpu) || k->has(DeviceKind::cuda)) << k->name();
    if (k != &copy_to_host) continue;
    listed = true;
    before = k->calls(DeviceKind::cpu);
  }
  EXPECT_TRUE(listed);
  EXPECT_EQ(Tensor::scalar(1.0f).to_vector<float>().size(), 1u);
  EXPECT_EQ(copy_to_host.calls(DeviceKind::cpu), before + 1);
}

}  // namespace
}  // namespace longspan
