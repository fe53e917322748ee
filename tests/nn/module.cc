#include "nn/module.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "nn/fields.h"
#include "nn/layers.h"
#include "nn/memory_policy.h"
#include "tests/harness/messages.h"

namespace longspan {
namespace {

using test::message_of;

struct Pair : Module {
  explicit Pair(const Init& init)
      : a(3, 2, true, init.at("a"), Scheme::normal(1)),
        b(3, 2, false, init.at("b"), Scheme::zeros()) {
    tied.weight = a.weight;
    statistics = Tensor::zeros({4});
    list.push_back(a);
    list.push_back(b);
  }
  void visit(Visitor& v) override {
    v("a", a)("b", b)("tied", tied)("list", list)("missing", missing);
    v.buffer("statistics", statistics);
  }
  Linear a, b, tied;
  std::vector<Linear> list;
  std::optional<Linear> missing;
  Tensor statistics;
};

std::vector<std::string> names(const TensorList& list) {
  std::vector<std::string> out;
  for (const NamedTensor& t : list) out.push_back(t.name);
  return out;
}

TEST(Module, NamesEveryParameterOnce) {
  Pair pair(Init{.gen = Generator{1}});
  EXPECT_EQ(names(named_parameters(pair)),
            (std::vector<std::string>{"a.weight", "a.bias", "b.weight"}));
  EXPECT_EQ(names(named_buffers(pair)), (std::vector<std::string>{"statistics"}));
  EXPECT_EQ(names(named_state(pair)),
            (std::vector<std::string>{"a.weight", "a.bias", "b.weight", "statistics"}));
  EXPECT_EQ(parameter_count(pair), 6 + 2 + 6);
  EXPECT_EQ(parameters(pair).size(), 3u);
}

TEST(Module, VisitsListsByNumber) {
  struct Recorder final : Visitor {
    void on_parameter(const std::string& name, Tensor&) override { seen.push_back(name); }
    std::vector<std::string> seen;
  };
  Pair pair(Init{.gen = Generator{1}});
  Recorder r;
  r("pair", pair);
  EXPECT_EQ(r.seen, (std::vector<std::string>{"pair.a.weight", "pair.a.bias", "pair.b.weight",
                                              "pair.tied.weight", "pair.list.0.weight",
                                              "pair.list.0.bias", "pair.list.1.weight"}));
}

TEST(Module, RefusesTwoTensorsOfOneName) {
  struct Twice : Module {
    void visit(Visitor& v) override { v("x", a)("x", b); }
    Tensor a = Tensor::zeros({1}), b = Tensor::zeros({1});
  };
  Twice twice;
  EXPECT_THROW(named_parameters(twice), ValueError);
  struct Both : Module {
    void visit(Visitor& v) override { v("x", a).buffer("x", b); }
    Tensor a = Tensor::zeros({1}), b = Tensor::zeros({1});
  } both;
  EXPECT_THROW(named_state(both), ValueError);
}

TEST(Module, ParametersNameTheirClipGroup) {
  struct Apart : Module {
    explicit Apart(const Init& init) : inner(init) {}
    void visit(Visitor& v) override {
      v("first", first).clipped_apart("own", "inner", inner)("last", last);
      v.clipped_apart("alone", "single", single);
    }
    Pair inner;
    Tensor first = Tensor::zeros({1}), last = Tensor::zeros({1}), single = Tensor::zeros({1});
  };
  struct Outer : Module {
    explicit Outer(const Init& init) : apart(init) {}
    void visit(Visitor& v) override { v("layers", apart); }
    Apart apart;
  } outer(Init{.gen = Generator{1}});
  std::vector<std::pair<std::string, std::string>> groups;
  for (const NamedTensor& p : named_parameters(outer)) groups.emplace_back(p.name, p.clip_group);
  EXPECT_EQ(groups,
            (std::vector<std::pair<std::string, std::string>>{{"layers.first", ""},
                                                              {"layers.inner.a.weight", "own"},
                                                              {"layers.inner.a.bias", "own"},
                                                              {"layers.inner.b.weight", "own"},
                                                              {"layers.last", ""},
                                                              {"layers.single", "alone"}}));
}

TEST(Module, CopySharesWeights) {
  Linear a(2, 2, true, Init{.gen = Generator{1}}, Scheme::normal(1));
  const Linear b = a;
  a.weight.mut().as<float>()[0] = 5;
  EXPECT_EQ(b.weight.to_vector<float>()[0], 5);
}

struct Inner {
  double rate = 0.5;
  void visit(auto& v) { v("rate", rate); }
};
struct Outer {
  int64_t count = 1;
  bool flag = false;
  Activation f = Activation::geglu;
  std::vector<int64_t> list{1, 2};
  MemoryPolicy memory;
  Inner inner;
  void visit(auto& v) {
    v("count", count)("flag", flag)("f", f)("list", list)("memory", memory)("inner", inner);
  }
};

/// Writes "path=value" lines, and changes the int64, choice and written fields.
class Texts final : public Fields {
 public:
  void field(std::string_view n, bool& x) override { line(n, x ? "true" : "false"); }
  void field(std::string_view n, int64_t& x) override {
    line(n, std::to_string(x));
    ++x;
  }
  void field(std::string_view n, uint64_t& x) override { line(n, std::to_string(x)); }
  void field(std::string_view n, float& x) override { line(n, fmt::format("{}", x)); }
  void field(std::string_view n, double& x) override { line(n, fmt::format("{}", x)); }
  void field(std::string_view n, std::string& x) override { line(n, x); }
  void field(std::string_view n, std::vector<int64_t>& x) override {
    line(n, std::to_string(x.size()));
  }
  void field(std::string_view n, std::vector<std::string>& x) override {
    line(n, std::to_string(x.size()));
  }
  void choice(std::string_view n, int& i, std::span<const std::string_view> names) override {
    line(n, std::string(names[static_cast<size_t>(i)]));
    i = 0;
  }
  void written(std::string_view n, std::string& x, bool (*valid)(std::string_view),
               std::string_view) override {
    line(n, x);
    EXPECT_TRUE(valid("checkpoint:4"));
    x = "checkpoint:4";
  }
  void enter(std::string_view n) override { path += std::string(n) + "."; }
  void leave() override { path.clear(); }
  void line(std::string_view n, const std::string& x) {
    text += path + std::string(n) + "=" + x + "\n";
  }
  std::string path, text;
};

TEST(MemoryPolicy, IsReadAndWritten) {
  for (const char* text :
       {"standard", "lean", "selective", "checkpoint", "checkpoint:3", "checkpoint:12:4:1",
        "checkpoint:3+1+rest", "checkpoint:2+rest", "reversible", "reversible:1", "reversible:4",
        "reversible:stored", "reversible:2:stored", "reversible:exact", "reversible:exact:14",
        "reversible:exact:14:stored", "reversible:exact:stored"}) {
    EXPECT_EQ(MemoryPolicy(text).text(), text);
  }
  EXPECT_EQ(MemoryPolicy("checkpoint:1").text(), "checkpoint");
  for (const char* text : {"",
                           "standart",
                           "checkpoint:",
                           "checkpoint:0",
                           "checkpoint:rest",
                           "checkpoint:0+rest",
                           "checkpoint:2+rest+1",
                           "checkpoint:2+1",
                           "checkpoint:-1",
                           "checkpoint:2:2",
                           "checkpoint:2:3",
                           "checkpoint:2x",
                           "checkpoint:2:",
                           "checkpoint:99999999999999999999",
                           "lean:2",
                           "reversible:float:",
                           "reversible:",
                           "reversible:4:2",
                           "reversible:0",
                           "reversible:exact:",
                           "reversible:exact:24",
                           "reversible:exact:-1",
                           "reversible:exact:8:8",
                           "reversible:stored:exact",
                           "checkpoint:stored"}) {
    EXPECT_FALSE(MemoryPolicy::valid(text)) << text;
    EXPECT_THROW(MemoryPolicy{text}, ValueError) << text;
  }
  MemoryPolicy policy;
  policy.chunks = 7;
  policy.set("checkpoint:2");
  policy.set("lean");
  EXPECT_EQ(policy.chunks, 7);
  EXPECT_TRUE(policy.segments.empty());
  policy.set("reversible:exact:12:stored");
  EXPECT_EQ(policy.grid, 12);
  EXPECT_TRUE(policy.stored);
  policy.set("reversible:exact");
  EXPECT_EQ(policy.text(), "reversible:exact");
}

TEST(Fields, SeesEveryKindByName) {
  Outer outer;
  Texts t;
  t("outer", outer);
  EXPECT_EQ(t.text,
            "outer.count=1\nouter.flag=false\nouter.f=geglu\nouter.list=2\nouter.memory=standard\n"
            "outer.inner.rate=0.5\n");
  EXPECT_EQ(outer.count, 2);
  EXPECT_EQ(outer.f, Activation::relu);
  EXPECT_EQ(outer.memory.segments, std::vector<int64_t>{4});
  EXPECT_EQ(name_of_value(Activation::silu), "silu");
}

/// A module whose visit() reaches only as many members as `visited` says.
struct Forgetful : Module {
  Forgetful(const Init& init, int n)
      : a(3, 2, true, init.at("a"), Scheme::normal(1)),
        b(3, 2, false, init.at("list").at(1), Scheme::zeros()),
        visited(n) {
    centroids = init.at("centroids").make_buffer({4}, Scheme::zeros());
    b.weight = Init{init}.at("list").at(1).make({2, 3}, Scheme::zeros());  // replaces the first
  }
  void visit(Visitor& v) override {
    v("a", a);
    if (visited > 0) v.buffer("centroids", centroids);
    if (visited > 1) v("b", b);
  }
  Linear a, b;
  Tensor centroids;
  int visited;
};

TEST(InitWatch, FindsWhatAVisitForgets) {
  const Init init{.gen = Generator{1}};
  const InitWatch outer;
  for (const int visited : {0, 1, 2}) {
    const InitWatch made;
    Forgetful model(init, visited);
    if (visited == 2) {
      made.require_visited(model);
      outer.require_visited(model);
      continue;
    }
    const std::string text = message_of<ValueError>([&] { made.require_visited(model); });
    EXPECT_NE(text.find("\n  list.1  [2, 3]"), std::string::npos) << text;
    EXPECT_EQ(text.find("\n  centroids  [4]") != std::string::npos, visited == 0) << text;
    EXPECT_EQ(text.find("\n  a"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace longspan
