// What layers keep of earlier tokens: states by type, and what follows from the kinds of their
// tensors.

#include "nn/layer_memory.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "nn/segment.h"
#include "ops/copy.h"
#include "ops/elementwise.h"

namespace longspan::test {
namespace {

struct Rows {
  Tensor rows;
  void visit(const StateVisitor& v) { v({.name = "rows", .x = rows, .blank = 7}); }
};

struct Places {
  Tensor ascending, of_source, of_all;
  void visit(const StateVisitor& v) {
    v({.name = "ascending", .x = ascending, .blanks = [this] {
         const auto n = static_cast<double>(ascending.dim(1));
         return arange(0, n, 1, ascending.dtype(), ascending.device());
       }});
    v({"of_source", of_source, StateKind::source});
    v({"of_all", of_all, StateKind::shared});
  }
};

Tensor column(const std::vector<double>& x) {
  return Tensor::from(x, {static_cast<int64_t>(x.size()), 1});
}

SegmentMemory two_samples() {
  const Tensor pairs = Tensor::from(std::vector<double>{5, 6, 7, 8}, {2, 2});
  SegmentMemory memory;
  memory.layers = {LayerMemory::of(Rows{column({1, 2})}),
                   LayerMemory::of(Places{pairs, column({3, 4}), column({9, 10})})};
  return memory;
}

std::vector<double> values(const Tensor& x) { return x.to_vector<double>(); }

TEST(LayerMemory, CopiesShareStatesUntilOneIsReplaced) {
  LayerMemory first = LayerMemory::of(Rows{column({1, 2})});
  LayerMemory second = first;
  EXPECT_TRUE(second.get<Rows>().rows.shares_storage(first.get<Rows>().rows));
  second.visit([](const StateTensor& t) { t.x = column({3}); });
  EXPECT_EQ(values(first.get<Rows>().rows), (std::vector<double>{1, 2}));
  EXPECT_EQ(values(second.get<Rows>().rows), std::vector<double>{3});
  second.set(Places{});
  EXPECT_TRUE(second.has<Places>());
  second.drop<Rows>();
  EXPECT_FALSE(second.has<Rows>());
  EXPECT_FALSE(second.get<Rows>().rows);
}

TEST(LayerMemory, TensorsComeInOneOrder) {
  const Rows rows{column({1})};
  const Places places{column({2}), {}, column({3})};
  const auto names = [](LayerMemory m) {
    std::string all;
    m.visit([&](const StateTensor& t) { all += std::string(t.name) + " "; });
    return all;
  };
  EXPECT_EQ(names(LayerMemory::of(rows, places)), names(LayerMemory::of(places, rows)));
  EXPECT_EQ(names(LayerMemory::of(places)), "ascending of_all ");  // not what is undefined
}

TEST(LayerMemory, BeamsTakeRowsOfSamplesAndOfTheSourceWhereAsked) {
  const Tensor rows = Tensor::from(std::vector<int64_t>{1, 1, 0}, {3});
  for (const bool source : {false, true}) {
    const SegmentMemory taken = take_rows(two_samples(), rows, source);
    EXPECT_EQ(values(taken.layers[0].get<Rows>().rows), (std::vector<double>{2, 2, 1}));
    const auto& places = taken.layers[1].get<Places>();
    EXPECT_EQ(values(places.ascending), (std::vector<double>{7, 8, 7, 8, 5, 6}));
    EXPECT_EQ(values(places.of_source),
              source ? (std::vector<double>{4, 4, 3}) : (std::vector<double>{3, 4}));
    EXPECT_EQ(values(places.of_all), (std::vector<double>{9, 10}));
  }
}

TEST(LayerMemory, AStreamThatBeginsHoldsTheBlanks) {
  const SegmentMemory next = forget(two_samples(), Tensor::from(std::vector<uint8_t>{0, 1}, {2}));
  EXPECT_EQ(values(next.layers[0].get<Rows>().rows), (std::vector<double>{1, 7}));
  const auto& places = next.layers[1].get<Places>();
  EXPECT_EQ(values(places.ascending), (std::vector<double>{5, 6, 0, 1}));
  EXPECT_EQ(values(places.of_source), (std::vector<double>{3, 4}));
  EXPECT_EQ(values(places.of_all), (std::vector<double>{9, 10}));
  EXPECT_THROW(forget(two_samples(), Tensor::from(std::vector<uint8_t>{1}, {1})), ShapeError);
}

TEST(LayerMemory, CheckpointsNameWhatBelongsToSamples) {
  std::string names;
  for (const NamedTensor& t : named_tensors(two_samples())) names += t.name + " ";
  EXPECT_EQ(names, "layers.0.rows layers.1.ascending ");
}

TEST(LayerMemory, LayersThatShareATensorShareWhatReplacesIt) {
  SegmentMemory memory;
  const Rows rows{column({1, 2})};
  memory.layers = {LayerMemory::of(rows), LayerMemory::of(rows)};
  int calls = 0;
  const SegmentMemory next = replaced(memory, [&](const std::string&, const Tensor& x) {
    ++calls;
    return clone(x);
  });
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(next.layers[0].get<Rows>().rows.shares_storage(next.layers[1].get<Rows>().rows));
}

}  // namespace
}  // namespace longspan::test
