// ETC: what it attends to, its parameters, heads and bad input.

#include "models/etc/etc.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "models/convert.h"
#include "models/transformer/transformer.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/patterns/pairs.h"
#include "ops/patterns/window.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "tests/models/etc_oracle.h"
#include "tests/models/small_models.h"

namespace longspan::test {
namespace {

EtcConfig tiny_etc(const std::function<void(EtcConfig&)>& change = {}) {
  EtcConfig c = etc_preset("tiny");
  if (change) change(c);
  return c;
}

/// Returns a scalar that depends on every element of x with a different weight.
Tensor weighed(const Tensor& x) {
  std::vector<double> w(static_cast<size_t>(x.numel()));
  for (size_t i = 0; i < w.size(); ++i) w[i] = std::cos(static_cast<double>(3 * i + 1));
  return sum(mul(x, cast(Tensor::from(w, x.shape()), x.dtype())));
}
Tensor weighed(const LinkedStreams& x) { return add(weighed(x.l), mul(weighed(x.g), 0.7)); }

using Gradients = std::map<std::string, Tensor>;
Gradients etc_gradients(Module& model, const Tensor& loss) {
  for (const NamedTensor& p : named_parameters(model)) set_grad(p.tensor, {});
  backward(loss);
  Gradients all;
  for (const NamedTensor& p : named_parameters(model)) {
    all[p.name] = grad(p.tensor) ? grad(p.tensor) : zeros_like(p.tensor.detach());
  }
  return all;
}

/// Compares the outputs and the gradient of every parameter with the dense definition.
void expect_dense_etc(const EtcConfig& c, const Links& links, const std::string& what) {
  SCOPED_TRACE(what + fmt::format(", {} long and {} global tokens", links.n_l, links.n_g));
  Etc model = randomised<Etc>(c);
  const EtcInputs in = links.inputs(c);
  const LinkedStreams y = model.forward(in, Pass{}), z = dense_encoder(c, model, in, links);
  EXPECT_LE(distance(y.l, z.l), 1e-11);
  EXPECT_LE(distance(y.g, z.g), 1e-11);
  const Gradients dy = etc_gradients(model, weighed(y)), dz = etc_gradients(model, weighed(z));
  for (const auto& [name, g] : dz) {
    EXPECT_LE(distance(dy.at(name), g), 1e-10 * std::max(1.0, largest_of(g))) << name;
  }
}

/// Returns two packed examples with padding in each stream.
Links packed_examples(int64_t n_l) {
  Links s = sentences(2, n_l);
  for (int64_t b = 0; b < 2; ++b) {
    // The second sample is cut at another position.
    const int64_t cut = (s.n_g + b) / 2, end = s.n_g - (s.n_g > 2 ? 1 : 0);
    const auto of = [&](int64_t m) -> int64_t { return m >= end ? -1 : m < cut ? 4 : 2; };
    for (int64_t m = 0; m < s.n_g; ++m) s.global_example.push_back(of(m));
    for (int64_t j = 0; j < n_l; ++j) {
      s.example.push_back(of(s.owner[static_cast<size_t>(b * n_l + j)]));
    }
  }
  return s;
}

/// Returns contexts of three sentences each. The first sentence has no context.
Links contexts(int64_t n_l) {
  Links s = sentences(2, n_l);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t m = 0; m < s.n_g; ++m) s.global_context.push_back(m == 0 ? -1 : m / 3);
    for (int64_t j = 0; j < n_l; ++j) {
      const int64_t m = s.owner[static_cast<size_t>(b * n_l + j)];
      s.context.push_back(m == 0 ? -1 : m / 3);
    }
  }
  return s;
}

/// Returns sentences with interleaved tokens, and some tokens without a sentence.
Links scattered(int64_t n_l) {
  Links s = sentences(2, n_l);
  for (size_t j = 0; j < s.owner.size(); ++j) {
    s.owner[j] = static_cast<int64_t>(j * 7 + j / 5) % (s.n_g + 1) - 1;
  }
  return s;
}

/// Returns the contexts of contexts(), each with a global of its own before those of its sentences.
/// Its tokens have two owners: their sentence and their context. Token 2 has none, and token 3 only
/// its context.
Links paragraphs(int64_t n_l) {
  Links s;
  s.batch = 2;
  s.n_l = n_l;
  s.owners = 2;
  for (int64_t b = 0; b < 2; ++b) {
    int64_t m = -1, context = -1, paragraph = -1;
    s.global_context.resize(static_cast<size_t>(b * s.n_g));
    for (int64_t j = 0; j < n_l; ++j) {
      if (j % (7 + b) == 0) {
        paragraph = ++m;
        ++context;
        s.global_context.push_back(context);
      }
      if (j % (7 + b) == 0 || j % 3 == 0) {
        ++m;
        s.global_context.push_back(context);
      }
      s.owner.push_back(j == 2 || j == 3 ? -1 : m);
      s.owner.push_back(j == 2 ? -1 : paragraph);
      s.context.push_back(context);
      s.l2g_all.push_back(j % 4 == 1 ? 1 : 0);
    }
    if (b == 0) s.n_g = 2 * n_l;  // both samples have as many globals; some own nothing
    s.global_context.resize(static_cast<size_t>((b + 1) * s.n_g), context + 1);
  }
  return s;
}

/// Returns lists of 0 to 5 owners in any order, with repetitions and gaps.
Links owner_lists(int64_t n_l) {
  Links s;
  s.batch = 2;
  s.n_l = n_l;
  s.n_g = 6;
  s.owners = 5;
  for (int64_t i = 0; i < 2 * n_l * s.owners; ++i) {
    const int64_t x = (i * i * 7 + i / 3) % 11;
    s.owner.push_back(i / s.owners % 6 == 0 || x >= s.n_g ? -1 : x);
  }
  for (int64_t j = 0; j < 2 * n_l; ++j) s.l2g_all.push_back(j % 5 == 2 ? 1 : 0);
  for (int64_t m = 0; m < 2 * s.n_g; ++m) s.g2l_all.push_back(m % 4 == 1 ? 1 : 0);
  return s;
}

/// Returns edges of a hierarchy and of mentions, some of them hidden.
Links edges(const EtcConfig& c, int64_t n_l) {
  Links s = sentences(2, n_l);
  s.classes = 3;
  for (int64_t i = 0; i < s.classes * s.n_g; ++i) s.link_labels.push_back((i * 5) % 11 - 1);
  for (int64_t i = 0; i < 2 * n_l; ++i) s.link_class.push_back((i * i + i / 3) % 3);
  for (int64_t i = 0; i < s.n_g * s.n_g; ++i) {
    s.global_labels.push_back((i * 7) % (c.label_count() + 1) - 1);
  }
  return s;
}

TEST(Etc, EveryStructureEqualsTheDenseOracle) {
  const EtcConfig soft = tiny_etc([](EtcConfig& c) { c.hard_g2l = false; });
  const EtcConfig hard = tiny_etc();
  const EtcConfig both = tiny_etc([](EtcConfig& c) { c.hard_l2g = true; });
  for (const int64_t n_l :
       {int64_t{1}, hard.radius, hard.radius + 1, 2 * hard.radius + 3, int64_t{29}}) {
    expect_dense_etc(soft, sentences(2, n_l), "every global sees all");
    expect_dense_etc(hard, sentences(2, n_l), "hard g2l");
    expect_dense_etc(both, sentences(2, n_l), "hard g2l and l2g");
    expect_dense_etc(soft, packed_examples(n_l), "packed");
    expect_dense_etc(hard, packed_examples(n_l), "packed, hard g2l");
    expect_dense_etc(both, packed_examples(n_l), "packed, hard g2l and l2g");
    expect_dense_etc(soft, contexts(n_l), "contexts");
    expect_dense_etc(hard, contexts(n_l), "contexts, hard g2l");
    expect_dense_etc(hard, scattered(n_l), "scattered, hard g2l");
    expect_dense_etc(soft, edges(soft, n_l), "edges");
    Links all = scattered(n_l);
    for (int64_t i = 0; i < 2 * all.n_g; ++i) all.g2l_all.push_back(i % 3 == 0 ? 1 : 0);
    expect_dense_etc(hard, all, "some globals see all");
    Links plain = sentences(2, n_l);
    plain.owner.clear();
    expect_dense_etc(soft, plain, "no owners");
  }
}

TEST(Etc, OwnersAreLists) {
  const auto masks = [](bool hard_g2l, bool hard_l2g, bool labels) {
    return tiny_etc([&](EtcConfig& c) {
      c.hard_g2l = hard_g2l;
      c.hard_l2g = hard_l2g;
      c.labels = labels;
    });
  };
  for (const int64_t n_l : {1, 5, 11, 29}) {
    for (const bool hard_g2l : {false, true}) {
      for (const bool hard_l2g : {false, true}) {
        for (const bool labels : {true, false}) {
          const EtcConfig c = masks(hard_g2l, hard_l2g, labels);
          const std::string what =
              fmt::format("hard_g2l {}, hard_l2g {}, labels {}", hard_g2l, hard_l2g, labels);
          expect_dense_etc(c, paragraphs(n_l), "paragraphs, " + what);
          expect_dense_etc(c, owner_lists(n_l), "lists, " + what);
          Links strict = paragraphs(n_l);
          strict.l2g_all.clear();
          expect_dense_etc(c, strict, "paragraphs, none sees all, " + what);
          // Edges of their own, beside hard masks that no interval says.
          Links both = owner_lists(n_l);
          both.classes = 3;
          for (int64_t i = 0; i < both.classes * both.n_g; ++i) {
            both.link_labels.push_back((i * 5) % 11 - 1);
          }
          for (int64_t i = 0; i < 2 * n_l; ++i) both.link_class.push_back((i * i + i / 3) % 3);
          expect_dense_etc(c, both, "lists and edges, " + what);
        }
      }
    }
  }
}

// Under hard masks the global of a paragraph reads the whole paragraph, and a token both of its
// owners.
TEST(Etc, ParagraphsAndSentencesOwnTheirTokens) {
  Links s;
  s.n_l = 6;
  s.n_g = 4;  // a paragraph, its two sentences, a global without tokens
  s.owners = 2;
  s.owner = {1, 0, 1, 0, 2, 0, 0, 2, 0, -1, -1, -1};
  const EtcConfig c = tiny_etc([](EtcConfig& t) { t.hard_l2g = true; });
  const LinkedPatterns p = etc_patterns(c, s.inputs(c).structure, 1, s.n_l, s.n_g, Device{});
  const auto seen = [](const AttentionPattern& pattern, int64_t queries, int64_t keys,
                       int64_t side) {
    std::vector<std::string> rows;
    for (int64_t i = 0; i < queries; ++i) {
      std::string row;
      for (int64_t j = 0; j < side; ++j) {
        const PairMask& mask = pattern.side_mask;
        const auto at = [](const Tensor& t, int64_t n) {
          return t.to_vector<int32_t>()[static_cast<size_t>(n)];
        };
        const bool inside = at(mask.q_from, i) <= j && j < at(mask.q_to, i);
        const int64_t label =
            at(mask.class_id, at(mask.q_class, i) * mask.class_id.dim(2) + at(mask.k_class, j));
        row += inside && label >= 0 ? '#' : '.';
      }
      rows.push_back(row);
    }
    EXPECT_GT(count_pairs(pattern, queries, keys, side, 0, 0).attended, 0);
    return rows;
  };
  EXPECT_EQ(seen(p.global_side, s.n_g, s.n_g, s.n_l),
            (std::vector<std::string>{"#####.", "##....", "..##..", "......"}));
  EXPECT_EQ(seen(p.long_side, s.n_l, s.n_l, s.n_g),
            (std::vector<std::string>{"##..", "##..", "#.#.", "#.#.", "#...", "...."}));
}

// A list of one owner is that owner, in every bit.
TEST(Etc, ListsOfOneOwnerHaveTheSameBits) {
  for (const bool hard_l2g : {false, true}) {
    const EtcConfig c = tiny_etc([&](EtcConfig& t) { t.hard_l2g = hard_l2g; });
    const Etc model = randomised<Etc>(c, Init{.gen = Generator{7}});
    for (const Links& s : {sentences(2, 29), packed_examples(29), scattered(29)}) {
      const LinkedStreams one = model.forward(s.inputs(c), Pass{});
      for (const int64_t owners : {1, 3}) {
        std::vector<int64_t> lists;
        for (const int64_t m : s.owner) {
          lists.insert(lists.end(), static_cast<size_t>(owners - 1), owners == 3 ? m : -1);
          lists.push_back(m);
        }
        EtcInputs in = s.inputs(c);
        in.structure.owner = Tensor::from(lists, {2, 29, owners});
        const LinkedStreams same = model.forward(in, Pass{});
        EXPECT_TRUE(same_bits(one.l, same.l)) << owners;
        EXPECT_TRUE(same_bits(one.g, same.g)) << owners;
      }
    }
  }
}

TEST(Etc, EveryOptionEqualsTheDenseOracle) {
  const auto run = [](const char* what, const std::function<void(EtcConfig&)>& change) {
    expect_dense_etc(tiny_etc(change), packed_examples(29), what);
    expect_dense_etc(tiny_etc(change), contexts(17), what);
  };
  run("pre-norm", [](EtcConfig& c) { c.norm = NormPlace::pre; });
  run("pre-norm without a final one, as in the published code", [](EtcConfig& c) {
    c.norm = NormPlace::pre;
    c.final_norm = false;
    c.share_qkv = true;
    c.hard_g2l = false;
  });
  run("positions of both streams", [](EtcConfig& c) {
    c.n_positions = 31;
    c.global_positions = true;
  });
  run("share_kv", [](EtcConfig& c) { c.share_kv = true; });
  run("share_qkv", [](EtcConfig& c) { c.share_qkv = true; });
  run("share_out", [](EtcConfig& c) { c.share_out = true; });
  run("own feed-forward", [](EtcConfig& c) { c.share_ff = false; });
  run("no labels", [](EtcConfig& c) { c.labels = false; });
  run("no b", [](EtcConfig& c) { c.rel_bias = false; });
  run("narrow table, no segments", [](EtcConfig& c) {
    c.d_embed = 6;
    c.token_types = 0;
  });
  run("radius 0", [](EtcConfig& c) { c.radius = 0; });
  run("wide radius", [](EtcConfig& c) { c.radius = 100; });
  run("more labels than distances", [](EtcConfig& c) { c.relations = 17; });
}

// With a radius that covers everything, shared projections and no labels, the two streams act as
// one.
TEST(Etc, DenseLimitIsAStandardEncoder) {
  for (const bool shared : {true, false}) {
    TransformerConfig t;
    t.wiring = Wiring::encoder;
    t.vocab = 23;
    t.n_layer = t.n_head = 2;
    t.d_model = 16;
    t.d_ff = 32;
    t.positions = Positions::none;
    t.norm = NormPlace::post;
    t.norm_eps = 1e-12;
    t.activation = Activation::gelu_tanh;
    t.token_types = 2;
    t.qkv_bias = t.out_bias = t.emb_norm = t.mlm_head = t.head_bias = t.tie_embedding = true;
    t.dropout = 0;
    Transformer standard(t, in_f64);
    randomise(standard, 0.3, 5);
    const int64_t n_l = 13, n_g = 4;
    Etc etc(tiny_etc([&](EtcConfig& c) {
              c.radius = n_l - 1;
              c.labels = c.hard_g2l = false;
              c.share_qkv = c.share_out = shared;
            }),
            in_f64);
    EXPECT_TRUE(lift(named_parameters(standard), etc).empty());

    const EtcInputs in{.tokens = some_tokens(2, n_l, 23), .globals = some_tokens(2, n_g, 23, 3)};
    const LinkedStreams y = etc.forward(in, Pass{});
    const Tensor all = concat({y.g, y.l}, 1);
    const Tensor x = standard.forward({.tokens = concat({in.globals, in.tokens}, 1)}, Pass{});
    EXPECT_LE(distance(all, x), 1e-12);
    EXPECT_LE(distance(etc.head(all), standard.head(x)), 1e-12);

    // A gradient of the standard encoder is the sum over the parameters that were copied from it.
    const Gradients dx = etc_gradients(standard, weighed(standard.head(x)));
    const Gradients dy = etc_gradients(etc, weighed(etc.head(all)));
    for (const auto& [name, g] : dx) {
      if (name == "embed.type.weight") continue;
      Tensor total = zeros_like(g);
      const auto collect = [&](std::string from, std::initializer_list<const char*> to) {
        const size_t at = name.find(from);
        if (at == std::string::npos) return;
        for (const char* other : to) {
          std::string copy = name;
          const auto found = dy.find(copy.replace(at, from.size(), other));
          if (found != dy.end()) total = add(total, found->second);
        }
      };
      collect("attention.q", {"attention.long.q", "attention.global.q"});
      collect("attention.out", {"attention.long.out", "attention.global.out"});
      collect("attention.k",
              {"attention.l2l.k", "attention.l2g.k", "attention.g2g.k", "attention.g2l.k"});
      collect("attention.v",
              {"attention.l2l.v", "attention.l2g.v", "attention.g2g.v", "attention.g2l.v"});
      collect("norm1", {"norm_long", "norm_global"});
      collect("norm2", {"feed_forward.norm1"});
      collect("ff.", {"feed_forward.ff."});
      collect("embed.norm", {"embed.norm_long", "embed.norm_global"});
      for (const char* same : {"embed.token", "mlm", "head"}) {
        if (name.starts_with(same)) collect(same, {same});
      }
      EXPECT_LE(distance(total, g), 1e-11 * std::max(1.0, largest_of(g))) << name;
      // The biases of keys have no effect: softmax is invariant to them.
      if (!name.ends_with("attention.k.bias")) {
        EXPECT_GT(largest_of(g), 0) << name;
      }
    }
  }
}

TEST(Etc, LabelsOfDistances) {
  const RelationLabels labels{3};
  std::vector<int64_t> window;
  for (int64_t delta = -5; delta <= 5; ++delta) window.push_back(labels.distance(delta));
  EXPECT_EQ(window, (std::vector<int64_t>{6, 6, 6, 5, 4, 0, 1, 2, 3, 3, 3}));
  EXPECT_EQ(labels.unlinked(), 7);
  EXPECT_EQ(labels.linked(), 8);
  EXPECT_EQ(labels.other_context(), 9);
  const std::vector<std::vector<int64_t>> square = {
      {0, 1, 2, 3, 3, 3, 3, 3}, {4, 0, 1, 2, 3, 3, 3, 3}, {5, 4, 0, 1, 2, 3, 3, 3},
      {6, 5, 4, 0, 1, 2, 3, 3}, {6, 6, 5, 4, 0, 1, 2, 3}, {6, 6, 6, 5, 4, 0, 1, 2},
      {6, 6, 6, 6, 5, 4, 0, 1}, {6, 6, 6, 6, 6, 5, 4, 0}};
  for (int64_t n = 1; n <= 8; ++n) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        EXPECT_EQ(labels.distance(j - i), square[static_cast<size_t>(i)][static_cast<size_t>(j)]);
      }
    }
  }
  // The rows of attention start in its own order, clamp(delta, -k, k) + k. All other labels follow.
  for (int64_t delta = -5; delta <= 5; ++delta) {
    EXPECT_EQ(labels.row(labels.distance(delta)), std::clamp<int64_t>(delta, -3, 3) + 3);
  }
  for (int64_t label = 0; label < 15; ++label) EXPECT_EQ(labels.label(labels.row(label)), label);
  EXPECT_EQ(labels.row(9), 9);
}

TEST(Etc, PairsAreCountedAsTheFormulaSays) {
  const auto counted = [](const EtcConfig& c, const Links& s) {
    const LinkedPatterns p =
        etc_patterns(c, s.inputs(c).structure, s.batch, s.n_l, s.n_g, Device{});
    int64_t long_pairs = 0, global_pairs = 0;
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t i = 0; i < s.n_l; ++i) {
        for (int64_t j = 0; j < s.n_l; ++j)
          long_pairs += label_of(c, s, LinkPiece::l2l, b, i, j) >= 0;
        for (int64_t m = 0; m < s.n_g; ++m) {
          long_pairs += label_of(c, s, LinkPiece::l2g, b, i, m) >= 0;
          global_pairs += label_of(c, s, LinkPiece::g2l, b, m, i) >= 0;
        }
      }
      for (int64_t m = 0; m < s.n_g; ++m) {
        for (int64_t o = 0; o < s.n_g; ++o)
          global_pairs += label_of(c, s, LinkPiece::g2g, b, m, o) >= 0;
      }
    }
    int64_t long_side = 0, global_side = 0;
    for (int64_t b = 0; b < s.batch; ++b) {
      long_side += count_pairs(p.long_side, s.n_l, s.n_l, s.n_g, b, 0).attended;
      global_side += count_pairs(p.global_side, s.n_g, s.n_g, s.n_l, b, 0).attended;
    }
    EXPECT_EQ(long_side, long_pairs);
    EXPECT_EQ(global_side, global_pairs);
    return long_pairs + global_pairs;
  };
  const EtcConfig soft = tiny_etc([](EtcConfig&c) { c.hard_g2l = false; }), hard = tiny_etc();
  for (const int64_t n : {1, 4, 5, 11, 29}) {
    const Links s = sentences(1, n);
    EXPECT_EQ(counted(soft, s),
              s.n_g * s.n_g + 2 * s.n_g * n + patterns::window_pairs(n, soft.radius));
    EXPECT_EQ(counted(hard, s),
              s.n_g * s.n_g + s.n_g * n + n + patterns::window_pairs(n, hard.radius));
    counted(hard, packed_examples(n));
    counted(hard, contexts(n));
    counted(hard, scattered(n));
    counted(soft, edges(soft, n));
    counted(tiny_etc([](EtcConfig& c) { c.hard_l2g = true; }), packed_examples(n));
  }
  EtcConfig base = etc_preset("base");
  base.hard_g2l = false;
  const LinkedPatterns p = etc_patterns(base, {}, 1, 4096, 230, Device{});
  EXPECT_EQ(count_pairs(p.long_side, 4096, 4096, 230, 0, 0).attended +
                count_pairs(p.global_side, 230, 230, 4096, 0, 0).attended,
            2'622'144);
}

TEST(Etc, ContextsHaveNoOrder) {
  const EtcConfig c = tiny_etc();
  // The input has two contexts of (2, 3) sentences and (7, 9) tokens.
  const auto input = [&](bool swapped) {
    Links s;
    s.n_l = 16;
    s.n_g = 5;
    const std::vector<std::vector<int64_t>> lengths = {{3, 4}, {2, 2, 5}};
    std::vector<int64_t> tokens;
    int64_t m = 0;
    for (const int64_t which : swapped ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{0, 1}) {
      int64_t place = 0;
      for (const int64_t n : lengths[static_cast<size_t>(which)]) {
        for (int64_t i = 0; i < n; ++i) {
          s.owner.push_back(m);
          s.context.push_back(which);
          tokens.push_back((which * 9 + place++ * 5) % 20);
        }
        s.global_context.push_back(which);
        ++m;
      }
    }
    EtcInputs in = s.inputs(c);
    in.tokens = Tensor::from(tokens, {1, 16});
    return in;
  };
  const Etc model = randomised<Etc>(c);
  const LinkedStreams x = model.forward(input(false), Pass{}),
                      y = model.forward(input(true), Pass{});
  const auto turned = [](const Tensor& t, int64_t first) {
    return concat({slice(t, 1, first), narrow(t, 1, 0, first)}, 1);
  };
  EXPECT_LE(distance(turned(x.l, 7), y.l), 1e-13);
  EXPECT_LE(distance(turned(x.g, 2), y.g), 1e-13);
  EXPECT_GT(distance(x.l, y.l), 1e-3);
}

TEST(Etc, PackedExamplesAreSeparateRows) {
  const EtcConfig c = tiny_etc();
  Links s = packed_examples(29);
  s.batch = 1;
  for (auto* x : {&s.owner, &s.example}) x->resize(29);
  s.global_example.resize(static_cast<size_t>(s.n_g));
  const Etc model = randomised<Etc>(c);
  const EtcInputs in = s.inputs(c);
  const LinkedStreams all = model.forward(in, Pass{});
  for (const int64_t example : {4, 2}) {
    Links one;
    int64_t first = -1, first_global = -1;
    for (int64_t j = 0; j < 29; ++j) {
      if (s.example[static_cast<size_t>(j)] != example) continue;
      if (first < 0) {
        first = j;
        first_global = s.owner[static_cast<size_t>(j)];
      }
      one.owner.push_back(s.owner[static_cast<size_t>(j)] - first_global);
      ++one.n_l;
      one.n_g = one.owner.back() + 1;
    }
    EtcInputs alone = one.inputs(c);
    alone.tokens = contiguous(narrow(in.tokens, 1, first, one.n_l));
    const LinkedStreams y = model.forward(alone, Pass{});
    EXPECT_LE(distance(contiguous(narrow(all.l, 1, first, one.n_l)), y.l), 1e-13) << example;
    EXPECT_LE(distance(contiguous(narrow(all.g, 1, first_global, one.n_g)), y.g), 1e-13);
  }
}

TEST(Etc, RelationTables) {
  const Links s = contexts(17);
  EtcConfig c = tiny_etc([](EtcConfig& t) { t.n_layer = 1; });
  const EtcInputs in = s.inputs(c);
  EtcAttention attention(c, in_f64);
  randomise(attention, 0.3, 3);
  const Etc model = randomised<Etc>(c);
  const LinkedPatterns see = etc_patterns(c, in.structure, 2, s.n_l, s.n_g, Device{});
  const LinkedStreams h = model.forward(in, Pass{});
  const LinkedStreams x{h.l.detach(), h.g.detach()};
  EXPECT_EQ(check_parameter_gradients(
                attention, [&] { return weighed(attention.forward(x, see, Pass{})); }, 200),
            "");
  // Without b the formula is that of the paper.
  EtcConfig paper = c;
  paper.rel_bias = false;
  EtcAttention plain(paper, in_f64);
  for (NamedTensor& p : named_parameters(attention)) {
    const bool bias = p.name.ends_with("relation_bias");
    if (bias) assign(p.tensor, std::vector<double>(static_cast<size_t>(p.tensor.numel()), 0.0));
    if (bias) continue;
    Tensor to = parameter(plain, p.name);
    assign(to, p.tensor.to_vector<double>());
  }
  const LinkedStreams with = attention.forward(x, see, Pass{}),
                      without = plain.forward(x, see, Pass{});
  EXPECT_LE(distance(with.l, without.l), 1e-14);
  EXPECT_LE(distance(with.g, without.g), 1e-14);
}

TEST(Etc, SharingTiesWeights) {
  const EtcConfig own = tiny_etc([](EtcConfig& c) { c.share_ff = false; });
  const int64_t d = own.d_model, projection = own.n_layer * (d * d + d);
  const int64_t ff = own.n_layer * (2 * d * own.d_ff + own.d_ff + d + 2 * d);
  Etc separate(own, in_f64);
  const int64_t all = parameter_count(separate);
  const Links s = packed_examples(29);
  const EtcInputs in = s.inputs(own);
  // Checks for each kind of sharing how many parameters it saves. `shared_name` maps separate names
  // to shared ones.
  const auto run = [&](const std::function<void(EtcConfig&)>& change, int64_t saved,
                       const std::function<std::string(std::string)>& shared_name) {
    EtcConfig c = own;
    change(c);
    Etc shared = randomised<Etc>(c);
    EXPECT_EQ(parameter_count(shared), all - saved);
    for (NamedTensor& p : named_parameters(separate)) {
      assign(p.tensor, parameter(shared, shared_name(p.name)).to_vector<double>());
    }
    const LinkedStreams x = shared.forward(in, Pass{}), y = separate.forward(in, Pass{});
    EXPECT_LE(distance(x.l, y.l), 1e-13);
    const Gradients dx = etc_gradients(shared, weighed(x)),
                    dy = etc_gradients(separate, weighed(y));
    Gradients sums;
    for (const auto& [name, g] : dy) {
      Tensor& total = sums[shared_name(name)];
      total = total ? add(total, g) : g;
    }
    ASSERT_EQ(sums.size(), dx.size());
    for (const auto& [name, g] : dx) {
      EXPECT_LE(distance(g, sums.at(name)), 1e-11 * std::max(1.0, largest_of(g))) << name;
    }
  };
  const auto swap = [](std::string name, std::string_view from, std::string_view to) {
    const size_t at = name.find(from);
    return at == std::string::npos ? name : name.replace(at, from.size(), to);
  };
  run([](EtcConfig& c) { c.share_kv = true; }, 4 * projection,
      [&](const std::string& n) { return swap(swap(n, ".l2g.", ".l2l."), ".g2l.", ".g2g."); });
  run([](EtcConfig& c) { c.share_qkv = true; }, 7 * projection,
      [&](const std::string& n) {
        return swap(swap(swap(swap(n, ".l2g.", ".l2l."), ".g2l.", ".l2l."), ".g2g.", ".l2l."),
                    ".global.q.", ".long.q.");
      });
  run([](EtcConfig& c) { c.share_out = true; }, projection,
      [&](const std::string& n) { return swap(n, ".global.out.", ".long.out."); });
  run([](EtcConfig& c) { c.share_ff = true; }, ff,
      [&](const std::string& n) {
        return swap(swap(n, ".long_feed", ".feed"), ".global_feed", ".feed");
      });
}

TEST(Etc, NothingBeyondTheRadiusWithoutGlobals) {
  EtcConfig c = tiny_etc([](EtcConfig& t) { t.n_layer = 1; });
  Links s;
  s.n_l = 29;
  s.n_g = 5;
  s.classes = 1;
  s.link_class.assign(29, 0);
  s.link_labels.assign(5, -1);  // no edge between the streams
  c.hard_g2l = false;
  const Etc model = randomised<Etc>(c);
  EtcInputs in = s.inputs(c);
  const Tensor before = model.forward(in, Pass{}).l;
  std::vector<int64_t> tokens = in.tokens.to_vector<int64_t>();
  const int64_t changed = 13;
  tokens[changed] = (tokens[changed] + 1) % 20;
  in.tokens = Tensor::from(tokens, {1, 29});
  const Tensor after = model.forward(in, Pass{}).l;
  for (int64_t i = 0; i < 29; ++i) {
    const bool same = same_bits(contiguous(select(before, 1, i)), contiguous(select(after, 1, i)));
    EXPECT_EQ(same, std::abs(i - changed) > c.radius) << i;
  }
  // Through the global tokens, two layers carry the change everywhere.
  const EtcConfig two = tiny_etc();
  const Etc linked = randomised<Etc>(two);
  const Links owned = sentences(1, 29);
  EtcInputs a = owned.inputs(two), b = a;
  b.tokens = in.tokens;
  const Tensor x = linked.forward(a, Pass{}).l, y = linked.forward(b, Pass{}).l;
  for (int64_t i = 0; i < 29; ++i) {
    EXPECT_FALSE(same_bits(contiguous(select(x, 1, i)), contiguous(select(y, 1, i)))) << i;
  }
}

/// Returns P separate sentences of unequal length, padded.
EtcInputs alone(const EtcConfig& c, int64_t count, uint64_t seed) {
  Links s;
  s.batch = count;
  s.n_l = 6;
  s.n_g = 1;
  for (int64_t p = 0; p < count; ++p) {
    for (int64_t j = 0; j < 6; ++j) {
      const bool valid = j < 3 + p % 4;
      s.owner.push_back(valid ? 0 : -1);
      s.example.push_back(valid ? 0 : -1);
    }
    s.global_example.push_back(0);
  }
  return s.inputs(c, seed);
}

TEST(Etc, ContrastiveLossStartsAtChance) {
  for (const CpcScore score : {CpcScore::bilinear, CpcScore::dot}) {
    for (const CpcEncoder encoder : {CpcEncoder::shared, CpcEncoder::separate}) {
      EtcConfig c = etc_preset("small");
      c.n_layer = 2;
      c.init_std = 0.02;
      c.cpc = true;
      c.cpc_score = score;
      c.cpc_encoder = encoder;
      const Etc model(c, Init{.gen = Generator{3}});
      const Links s = sentences(4, 29);
      const int64_t count = 4 * s.n_g;
      EtcInputs in = s.inputs(c);
      in.tokens = full({4, 29}, static_cast<double>(c.mask_id), DType::i64);
      const double loss =
          model.cpc_loss(model.forward(in, Pass{}), {iota(count), alone(c, count, 5)}, Pass{})
              .item();
      EXPECT_NEAR(loss, std::log(static_cast<double>(count)),
                  0.05 * std::log(static_cast<double>(count)));
    }
  }
}

TEST(Etc, SentencesDoNotLeak) {
  const EtcConfig c = tiny_etc([](EtcConfig& t) { t.cpc = true; });
  Etc model = randomised<Etc>(c);
  EtcInputs sentences_alone = alone(c, 5, 5);
  const Tensor before = model.forward(sentences_alone, Pass{}).g;  // [5, 1, D]
  std::vector<int64_t> tokens = sentences_alone.tokens.to_vector<int64_t>();
  for (int64_t j = 0; j < 6; ++j) tokens[static_cast<size_t>(2 * 6 + j)] += 1;
  EtcInputs other = sentences_alone;
  other.tokens = Tensor::from(tokens, {5, 6});
  const Tensor after = model.forward(other, Pass{}).g;
  for (int64_t p = 0; p < 5; ++p) {
    EXPECT_EQ(same_bits(contiguous(select(before, 0, p)), contiguous(select(after, 0, p))), p != 2);
  }
  // Padding has no effect either: its content is never read.
  tokens = sentences_alone.tokens.to_vector<int64_t>();
  const std::vector<int64_t> valid = sentences_alone.structure.example.to_vector<int64_t>();
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = valid[i] < 0 ? 7 : tokens[i];
  other.tokens = Tensor::from(tokens, {5, 6});
  EXPECT_TRUE(same_bits(before, model.forward(other, Pass{}).g));

  // The loss over both encodings has correct gradients, unless cpc_stop_gradient is set.
  const Links s = sentences(2, 17);
  const EtcInputs in = s.inputs(c);
  const EtcHidden hidden{Tensor::from(std::vector<int64_t>{1, 0, 7, 5, 9}, {5}), sentences_alone};
  const auto loss = [&] { return model.cpc_loss(model.forward(in, Pass{}), hidden, Pass{}); };
  EXPECT_EQ(check_parameter_gradients(model, loss), "");
  EtcConfig stopped = c;
  stopped.cpc_stop_gradient = true;
  Etc second(stopped, in_f64);
  copy_parameters(model, second);
  const Tensor same = second.cpc_loss(second.forward(in, Pass{}), hidden, Pass{});
  EXPECT_DOUBLE_EQ(same.item(), loss().item());
  const Gradients with = etc_gradients(model, loss()), without = etc_gradients(second, same);
  EXPECT_GT(distance(with.at("embed.token.weight"), without.at("embed.token.weight")), 1e-6);
}

// The paper counts the encoder without the pre-training heads.
TEST(Etc, CountsThePapersParameters) {
  const auto millions = [](const char* preset) {
    Etc model(etc_preset(preset), Init{.meta = true});
    int64_t n = 0;
    for (const NamedTensor& p : named_parameters(model)) {
      const bool head =
          p.name.starts_with("mlm.") || p.name.starts_with("cpc.") || p.name.starts_with("head.");
      n += head ? 0 : p.tensor.numel();
    }
    return static_cast<double>(n) * 1e-6;
  };
  EXPECT_EQ(std::round(millions("base_shared")), 109);
  EXPECT_EQ(std::round(millions("base")), 166);
  EXPECT_EQ(std::round(millions("large_roberta")), 558);
  EXPECT_NEAR(millions("large"), 539, 1.3);  // 537.8: the paper's two large models differ by 19,
                                             // two vocabularies by 20.2 million
}

TEST(Etc, Heads) {
  const EtcConfig c = tiny_etc([](EtcConfig& t) {
    t.classes = 5;
    t.span_head = true;
    t.global_tags = 2;
    t.phrases = 3;
    t.global_features = 4;
  });
  Etc model = randomised<Etc>(c);
  Links s = sentences(2, 7);
  EtcInputs in = s.inputs(c);
  in.global_features = full({2, s.n_g, 4}, 0.5, DType::f64);
  const auto loss = [&] {
    const LinkedStreams x = model.forward(in, Pass{});
    const Tensor phrases = model.score_phrases(x);  // [2, 7, 3]
    EXPECT_EQ(to_string(phrases.shape()), "[2, 7, 3]");
    EXPECT_TRUE(std::isinf(phrases.to_vector<double>()[5 * 3 + 2]));
    EXPECT_FALSE(std::isinf(phrases.to_vector<double>()[4 * 3 + 2]));
    return add(add(weighed(model.classify(x, Pass{})), weighed(model.spans(x))),
               add(weighed(model.tag_globals(x)), weighed(narrow(phrases, 1, 0, 5))));
  };
  EXPECT_EQ(check_parameter_gradients(model, loss, 3), "");
  const LinkedStreams x = model.forward(in, Pass{});
  EXPECT_EQ(to_string(model.spans(x).shape()), "[2, 7, 2]");
  EXPECT_EQ(to_string(model.classify(x, Pass{}).shape()), "[2, 5]");
  EXPECT_EQ(model.tag_globals(x).dim(1), s.n_g);
}

TEST(Etc, CheckpointsHaveTheSameGradientsAndKeepLess) {
  const Links s = packed_examples(29);
  std::vector<Gradients> all;
  std::vector<int64_t> saved;
  for (const char* policy : {"standard", "checkpoint"}) {
    const EtcConfig c = tiny_etc([&](EtcConfig& t) {
      t.n_layer = 4;
      t.dropout = 0.2f;
      t.memory = policy;
    });
    Etc model = randomised<Etc>(c);
    const int64_t before = memory_tracker().live()[Category::saved];
    const Tensor loss =
        weighed(model.forward(s.inputs(c), {.training = true, .gen = Generator{4}}));
    saved.push_back(memory_tracker().live()[Category::saved] - before);
    all.push_back(etc_gradients(model, loss));
  }
  for (const auto& [name, g] : all[0]) EXPECT_TRUE(same_bits(g, all[1].at(name))) << name;
  EXPECT_LT(saved[1], saved[0] / 4);
}

// Claim 1: memory is linear in the long input, in the forward and the backward pass.
TEST(Etc, MemoryIsLinearInTheLongInput) {
  const EtcConfig c = tiny_etc();
  Etc model(c, Init{.gen = Generator{1}});
  const auto peak = [&](int64_t n_l) {
    Links s;
    s.n_l = n_l;
    s.n_g = 8;
    for (int64_t j = 0; j < n_l; ++j) s.owner.push_back(j * 8 / n_l);
    const EtcInputs in = s.inputs(c);
    const int64_t before = memory_tracker().live().total();
    memory_tracker().reset_peak();
    etc_gradients(model, weighed(model.forward(in, Pass{})));
    return static_cast<double>(memory_tracker().peak().total() - before);
  };
  peak(1024);
  EXPECT_LT(peak(4096) / peak(1024), 4.2);
}

TEST(Etc, HierarchyOfGlobals) {
  const EtcConfig c = tiny_etc([](EtcConfig& t) { t.relations = 12; });
  // The document has two paragraphs, of one sentence and of two.
  const Tensor level = Tensor::from(std::vector<int32_t>{0, 1, 1, 2, 2, 2}, {1, 6});
  const Tensor parent = Tensor::from(std::vector<int32_t>{-1, 0, 0, 1, 2, 2}, {1, 6});
  const std::vector<int32_t> expected = {0,  11, 11, 9,  9,  9,   // the document
                                         10, 0,  1,  11, 9,  9,   // paragraph 1
                                         10, 4,  0,  9,  11, 11,  // paragraph 2
                                         9,  10, 9,  0,  1,  2,   // sentences
                                         9,  9,  10, 4,  0,  1,   //
                                         9,  9,  10, 5,  4,  0};
  EXPECT_EQ(hierarchy_labels(c.links(), level, parent).to_vector<int32_t>(), expected);
  const std::string message =
      message_of<ValueError>([&] { hierarchy_labels(tiny_etc().links(), level, parent); });
  EXPECT_TRUE(contains(message, "relations >= 2 max_distance + 6 = 12; there are 10")) << message;
}

TEST(Etc, OneStreamAlone) {
  const EtcConfig c = tiny_etc();
  const Etc model = randomised<Etc>(c);
  const LinkedStreams l = model.forward({.tokens = some_tokens(2, 9, 20)}, Pass{});
  EXPECT_EQ(to_string(l.l.shape()), "[2, 9, 16]");
  EXPECT_FALSE(l.g);
  const LinkedStreams g = model.forward({.globals = some_tokens(2, 3, 20)}, Pass{});
  EXPECT_EQ(to_string(g.g.shape()), "[2, 3, 16]");
  EXPECT_FALSE(g.l);
}

TEST(Etc, AttentionMapsAreProbabilities) {
  const Etc model = randomised<Etc>(tiny_etc());
  const Tensor map = model.attention_map(some_tokens(1, 29, 20), 1);  // [H, n, n]
  EXPECT_EQ(to_string(map.shape()), "[2, 34, 34]");
  const std::vector<float> p = map.to_vector<float>();
  for (size_t row = 0; row < 68; ++row) {
    double total = 0;
    for (size_t j = 0; j < 34; ++j) total += p[row * 34 + j];
    EXPECT_NEAR(total, 1, 1e-5);
  }
  EXPECT_EQ(p[20], 0);  // beyond the radius of token 0
}

TEST(Etc, BadInput) {
  const auto refused = [](const char* part, const std::function<void(EtcConfig&)>& change) {
    const std::string message =
        message_of<ValueError>([&] { Etc(tiny_etc(change), Init{.meta = true}); });
    EXPECT_TRUE(contains(message, part)) << message;
  };
  refused("radius is -1; expected 0 or more", [](EtcConfig& c) { c.radius = -1; });
  refused("max_distance is 0", [](EtcConfig& c) { c.max_distance = 0; });
  refused("relations is 9; expected 2 max_distance + 4 = 10",
          [](EtcConfig& c) { c.relations = 9; });
  refused("global_id is 23; expected 0 to vocab - 1 = 22", [](EtcConfig& c) { c.global_id = 23; });
  refused("d_model 16 is not a multiple of n_head 3", [](EtcConfig& c) { c.n_head = 3; });
  refused("n_global is 0", [](EtcConfig& c) { c.n_global = 0; });
  refused("global_positions needs n_positions > 0",
          [](EtcConfig& c) { c.global_positions = true; });
  refused("token_types is 1", [](EtcConfig& c) { c.token_types = 1; });

  const EtcConfig c = tiny_etc();
  const Etc model = randomised<Etc>(c);
  const auto bad = [&](const char* part, const std::function<void(Links&)>& change) {
    Links s = packed_examples(29);
    change(s);
    const std::string message = message_of<Error>([&] { model.forward(s.inputs(c), Pass{}); });
    EXPECT_TRUE(contains(message, part)) << message;
  };
  bad("owner has 9; expected -1 to", [](Links& s) { s.owner[3] = 9; });
  bad("has an owner of example", [](Links& s) { std::swap(s.owner[0], s.owner[25]); });
  bad("example: tokens", [](Links& s) {
    s.owner.clear();
    s.example[1] = 2;
  });
  bad("global_labels has 10; expected -1 to 9",
      [](Links& s) { s.global_labels.assign(static_cast<size_t>(s.n_g * s.n_g), 10); });
  EtcInputs wrong = sentences(2, 29).inputs(c);
  wrong.structure.owner = zeros({2, 28}, DType::i64);
  EXPECT_TRUE(contains(message_of<ShapeError>([&] { model.forward(wrong, Pass{}); }),
                       "owner must have 29 numbers for each of 1 or 2 samples"));
  wrong.structure.owner = zeros({2, 3, 29}, DType::i64);
  EXPECT_TRUE(contains(message_of<ShapeError>([&] { model.forward(wrong, Pass{}); }),
                       "owner must have lists for 29 long tokens: [1 or B, 29, owners]"));
  EXPECT_TRUE(contains(message_of<ValueError>([&] { model.score_phrases({}); }), "phrases > 0"));
}

}  // namespace
}  // namespace longspan::test
