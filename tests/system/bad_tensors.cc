// The errors of the library on invalid arguments, as one table. Each case must throw the named
// type, say what was wrong and leak no memory.
#include <gtest/gtest.h>

#include <functional>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "core/backends.h"
#include "core/error.h"
#include "core/memory.h"
#include "models/transformer/transformer.h"
#include "ops/attention/block_attention.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/shape.h"
#include "tests/harness/device.h"
#include "tests/harness/host_device.h"
#include "tests/system/program.h"

namespace longspan::test {
namespace {

Tensor x(const Shape& shape, DType dtype = DType::f32) { return Tensor::zeros(shape, dtype); }
Tensor there(const Shape& shape, DType dtype = DType::f32) {
  return Tensor::zeros(shape, dtype, cuda);
}
Tensor ids(const std::vector<int64_t>& values) {
  return Tensor::from(values, {static_cast<int64_t>(values.size())});
}

/// Returns a decoder with a vocabulary of 17 and 8 learned positions.
const Transformer& model() {
  static const Transformer transformer = [] {
    TransformerConfig c = transformer_preset("tiny");
    c.positions = Positions::learned;
    c.n_max = 8;
    return Transformer(c, Init{Generator{1}});
  }();
  return transformer;
}
void score(const std::vector<int64_t>& tokens) {
  const Tensor t = reshape(ids(tokens), {1, -1});
  model().loss(t, t, {}, Pass{});
}

template <class E>
bool is(const Error& e) {
  return dynamic_cast<const E*>(&e) != nullptr;
}

struct BadTensor {
  const char* name;
  std::function<void()> call;
  bool (*type)(const Error&);
  std::vector<const char*> says;
};

const std::vector<BadTensor>& bad_tensors() {
  static const std::vector<BadTensor> table = {
      // Token ids.
      {"id beyond the table",
       [] {
         embedding(x({5, 3}), ids({1, 5}));
       },
       is<ValueError>,
       {"embedding", "5"}},
      {"negative id",
       [] {
         embedding(x({5, 3}), ids({-1}));
       },
       is<ValueError>,
       {"embedding", "-1"}},
      {"row beyond the rows",
       [] {
         take(x({4, 2}), ids({4}));
       },
       is<ValueError>,
       {"take", "4"}},
      {"target beyond the classes",
       [] {
         cross_entropy(x({2, 4}), ids({0, 4}));
       },
       is<ValueError>,
       {"cross_entropy", "4"}},
      {"token beyond the vocabulary",
       [] {
         score({1, 17, 2});
       },
       is<ValueError>,
       {"17"}},
      {"negative token",
       [] {
         score({1, -2, 2});
       },
       is<ValueError>,
       {"-2"}},
      {"ids that are no integers",
       [] {
         embedding(x({5, 3}), x({2}));
       },
       is<DTypeError>,
       {"embedding", "f32"}},
      {"more tokens than positions",
       [] {
         score({1, 2, 3, 4, 5, 6, 7, 8, 9});
       },
       is<ValueError>,
       {"9", "8"}},

      // Shapes.
      {"matmul of other widths",
       [] {
         matmul(x({2, 3}), x({4, 5}));
       },
       is<ShapeError>,
       {"matmul", "f32[2, 3]", "f32[4, 5]"}},
      {"matmul of other batches",
       [] {
         matmul(x({2, 3, 4}), x({3, 4, 5}));
       },
       is<ShapeError>,
       {"matmul", "[2, 3, 4]", "[3, 4, 5]"}},
      {"sum that does not broadcast",
       [] {
         add(x({2, 3}), x({2}));
       },
       is<ShapeError>,
       {"add", "[2, 3]", "[2]"}},
      {"linear of another width",
       [] {
         linear(x({2, 3}), x({5, 4}));
       },
       is<ShapeError>,
       {"linear", "[2, 3]", "[5, 4]"}},
      {"bias of another width",
       [] {
         linear(x({2, 3}), x({5, 3}), x({4}));
       },
       is<ShapeError>,
       {"linear", "[4]"}},
      {"norm of another width",
       [] {
         layer_norm(x({2, 3}), x({4}), x({4}));
       },
       is<ShapeError>,
       {"layer_norm", "[3]", "[4]"}},
      {"concat of other rows",
       [] {
         concat({x({2, 3}), x({4, 3})}, 1);
       },
       is<ShapeError>,
       {"concat", "[4, 3]"}},
      {"reshape to more",
       [] {
         reshape(x({2, 3}), {7});
       },
       is<ShapeError>,
       {"reshape", "[2, 3]", "[7]"}},
      {"keys of another width",
       [] {
         block_attention(x({1, 2, 4, 8}), x({1, 2, 4, 6}), x({1, 2, 4, 8}), patterns::dense());
       },
       is<ShapeError>,
       {"block_attention", "[1, 2, 4, 6]"}},
      {"targets of another shape",
       [] {
         cross_entropy(x({2, 4}), ids({0, 1, 2}));
       },
       is<ShapeError>,
       {"cross_entropy", "[2]", "[3]"}},
      {"gradient of another shape",
       [] {
         Tensor w = x({3});
         set_requires_grad(w);
         backward(mul(w, 2.0), x({4}));
       },
       is<ShapeError>,
       {"[3]", "[4]"}},
      {"more elements than there can be",
       [] {
         Tensor::empty({int64_t{1} << 40, int64_t{1} << 40});
       },
       is<ShapeError>,
       {"[1099511627776, 1099511627776]", "2^59"}},
      {"more bytes than there are",
       [] { Tensor::empty({int64_t{1} << 50}); },
       is<OutOfMemory>,
       {"out of memory", "4503599627370496 bytes"}},

      // Dtypes.
      {"sum of two dtypes",
       [] { add(x({2}), x({2}, DType::f64)); },
       is<DTypeError>,
       {"add", "f32", "f64"}},
      {"product of two dtypes",
       [] {
         matmul(x({2, 2}), x({2, 2}, DType::bf16));
       },
       is<DTypeError>,
       {"matmul", "f32", "bf16"}},
      {"concat of two dtypes",
       [] {
         concat({x({2}), x({2}, DType::i64)}, 0);
       },
       is<DTypeError>,
       {"concat", "f32", "i64"}},
      {"norm of integers",
       [] {
         layer_norm(x({2, 3}, DType::i64));
       },
       is<DTypeError>,
       {"layer_norm", "i64"}},
      {"targets that are no integers",
       [] {
         cross_entropy(x({2, 4}), x({2}));
       },
       is<DTypeError>,
       {"cross_entropy", "f32"}},
      {"attention of two dtypes",
       [] {
         block_attention(x({1, 1, 4, 8}), x({1, 1, 4, 8}, DType::bf16), x({1, 1, 4, 8}),
                         patterns::dense());
       },
       is<DTypeError>,
       {"block_attention", "bf16"}},

      // Devices.
      {"sum over two devices",
       [] { add(x({2}), there({2})); },
       is<DeviceError>,
       {"add", "cpu", "cuda:0"}},
      {"product over two devices",
       [] {
         matmul(x({2, 3}), there({3, 2}));
       },
       is<DeviceError>,
       {"matmul", "cpu", "cuda:0"}},
      {"linear over two devices",
       [] {
         linear(x({2, 3}), there({4, 3}));
       },
       is<DeviceError>,
       {"linear", "cpu", "cuda:0"}},
      {"bias of another device",
       [] {
         linear(x({2, 3}), x({4, 3}), there({4}));
       },
       is<DeviceError>,
       {"linear", "cpu", "cuda:0"}},
      {"norm over two devices",
       [] {
         layer_norm(x({2, 3}), there({3}), there({3}));
       },
       is<DeviceError>,
       {"layer_norm", "cpu", "cuda:0"}},
      {"ids of another device",
       [] {
         embedding(x({5, 3}), there({2}, DType::i64));
       },
       is<DeviceError>,
       {"embedding", "cpu", "cuda:0"}},
      {"targets of another device",
       [] {
         cross_entropy(x({2, 4}), there({2}, DType::i64));
       },
       is<DeviceError>,
       {"cross_entropy", "cpu", "cuda:0"}},
      {"concat over two devices",
       [] {
         concat({x({2}), there({2})}, 0);
       },
       is<DeviceError>,
       {"concat", "cpu", "cuda:0"}},
      {"attention over two devices",
       [] {
         block_attention(x({1, 1, 4, 8}), there({1, 1, 4, 8}), x({1, 1, 4, 8}), patterns::dense());
       },
       is<DeviceError>,
       {"block_attention", "cpu", "cuda:0"}},
      {"tokens of another device",
       [] {
         const Tensor t = there({1, 4}, DType::i64);
         model().loss(t, t, {}, Pass{});
       },
       is<DeviceError>,
       {"cpu", "cuda:0"}},
      {"gradient of another device",
       [] {
         Tensor w = x({3});
         set_requires_grad(w);
         backward(mul(w, 2.0), there({3}));
       },
       is<DeviceError>,
       {"cpu", "cuda:0"}},
      {"a device that is not there",
       [] { parse_device("tpu"); },
       is<ValueError>,
       {"tpu", "cuda:N"}},
  };
  return table;
}

TEST(BadTensors, EveryCaseOfTheTable) {
  if (!is_available(cuda)) enable_host_device();
  model();
  for (const BadTensor& c : bad_tensors()) {
    SCOPED_TRACE(c.name);
    EXPECT_THROW(c.call(), Error);  // fills the cache of layouts for these lengths
    const int64_t before = memory_tracker().live().total();
    const int64_t before_there = memory_tracker(cuda).live().total();
    try {
      c.call();
      ADD_FAILURE() << "was taken";
    } catch (const Error& e) {
      EXPECT_TRUE(c.type(e)) << "another type: " << e.what();
      for (const char* part : c.says) {
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos)
            << "not said: " << part << "\n"
            << e.what();
      }
    }
    EXPECT_EQ(memory_tracker().live().total(), before);
    EXPECT_EQ(memory_tracker(cuda).live().total(), before_there);
  }
}

}  // namespace
}  // namespace longspan::test
