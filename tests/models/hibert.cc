// HIBERT as a model, and its golden files.

#include "models/hibert/hibert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autograd/engine.h"
#include "autograd/gradcheck.h"
#include "autograd/mode.h"
#include "core/parallel.h"
#include "models/convert.h"
#include "models/generate.h"
#include "nn/objective.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"
#include "tests/models/golden_file.h"
#include "train/optimizer.h"

namespace longspan::test {
namespace {

using Sentences = std::vector<std::vector<int32_t>>;

HibertConfig tiny_hibert(const std::function<void(HibertConfig&)>& change = [](HibertConfig&) {}) {
  HibertConfig c = hibert_preset("tiny");
  change(c);
  return c;
}

/// Returns sentences of these numbers of tokens, with the end token.
Sentences document(const Hibert& model, std::initializer_list<int64_t> lengths, uint64_t seed) {
  Sentences all;
  for (const int64_t length : lengths) {
    std::vector<int32_t> sentence;
    for (int64_t j = 0; j + 1 < length; ++j) {
      const uint64_t word = philox_word(seed, all.size() * 64 + static_cast<size_t>(j));
      sentence.push_back(static_cast<int32_t>(word % static_cast<uint64_t>(model.vocab() - 4)));
    }
    sentence.push_back(model.special().sentence_end);
    all.push_back(sentence);
  }
  return all;
}

PackedDocuments packed_documents(std::initializer_list<Sentences> documents) {
  PackedDocuments in;
  for (const Sentences& d : documents) in.add(d);
  return in;
}

/// Returns sentence `slot`, which reads `words` with the end token, as what a decoder writes.
void add_target(SentenceTargets& to, const Hibert& model, int64_t slot,
                std::vector<int32_t> words) {
  words.back() = model.special().end;
  to.slots.push_back(slot);
  to.lengths.push_back(std::ssize(words));
  to.inputs.push_back(model.special().begin);
  to.inputs.insert(to.inputs.end(), words.begin(), words.end() - 1);
  to.targets.insert(to.targets.end(), words.begin(), words.end());
}

Sentences masked(const Hibert& model, Sentences d, size_t which) {
  std::fill(d[which].begin(), d[which].end() - 1, model.special().mask);
  return d;
}

Tensor rows(const Tensor& x, int64_t first, int64_t count) {
  return contiguous(narrow(x, 0, first, count)).detach();
}

/// Two documents with a masked sentence each: of 3 and of 1 sentence, one of them empty.
struct Example {
  PackedDocuments in;
  SentenceTargets written;
};

Example example(const Hibert& model) {
  const Sentences a = document(model, {4, 1, 5}, 1), b = document(model, {3}, 2);
  Example e{packed_documents({masked(model, a, 2), masked(model, b, 0)}), {}};
  add_target(e.written, model, 2, a[2]);
  add_target(e.written, model, 3, b[0]);
  return e;
}

std::vector<HibertConfig> variants() {
  return {tiny_hibert(), tiny_hibert([](auto& c) {
            c.n_layer = c.document_layers = c.decoder_layers = 2;
            c.position_offset = 2;
            c.share_all = c.merge_ends = c.merge_begin = true;
            c.smoothing = 0.2;
          }),
          tiny_hibert([](auto& c) {
            c.document_layers = 0;
            c.emb_scale = c.sentence_positions = false;
            c.activation = Activation::gelu_erf;
          })};
}

// ------------------------------------------------------------------------------ what the model
// does

int64_t layer_parameters(int64_t d, int64_t f) {
  return 4 * d * d + 4 * d + 2 * d * f + d + f + 4 * d;
}

TEST(Hibert, ParameterCounts) {
  EXPECT_EQ(12 * layer_parameters(512, 2048), 37'828'608);
  EXPECT_EQ(12 * layer_parameters(768, 3072), 85'054'464);
  for (const char* name : {"tiny", "small", "s", "m"}) {
    HibertConfig c = hibert_preset(name);
    const int64_t layer = layer_parameters(c.d_model, c.d_ff), d = c.d_model;
    const int64_t encoders = c.vocab * d + (c.n_layer + c.document_layers) * layer;
    Hibert whole(c, Init{.meta = true});
    EXPECT_EQ(parameter_count(whole),
              encoders + c.decoder_layers * (layer + 2 * d) + 2 * c.vocab * d)
        << name;
    c.labels = 2;
    Hibert labels(c, Init{.meta = true});
    EXPECT_EQ(parameter_count(labels), encoders + 2 * d + 2) << name;
    c.label_bias = false;
    Hibert plain(c, Init{.meta = true});
    EXPECT_EQ(parameter_count(plain), encoders + 2 * d) << name;
  }
  const HibertConfig s = hibert_preset("s"), m = hibert_preset("m");
  EXPECT_EQ((s.vocab * 512 + 37'828'608) / 100'000, 546);   // 54.6 million
  EXPECT_EQ((m.vocab * 768 + 85'054'464) / 100'000, 1102);  // 110.2 million
}

TEST(Hibert, GradientsOfEveryParameter) {
  for (HibertConfig c : variants()) {
    Hibert model(c, in_f64);
    randomise(model, 0.4, 3);
    const Example e = example(model);
    EXPECT_EQ(
        check_parameter_gradients(
            model, [&] { return model.sentence_loss(e.in, e.written, training).loss; }, 40, 1e-6),
        "");
    c.labels = 2;
    Hibert labels(c, in_f64);
    randomise(labels, 0.4, 4);
    EXPECT_EQ(check_parameter_gradients(
                  labels,
                  [&] {
                    return labels.label_loss(e.in, {0, 1, 1, 0}, training).loss;
                  },
                  40, 1e-6),
              "");
  }
}

/// Every document alone, together, in another order, and with longer sentences beside it, at many
/// places among the tokens.
TEST(Hibert, WhatElseIsInTheBatchChangesNoBit) {
  HibertConfig c = hibert_preset("small");
  c.sentence_length = 130;  // above the rows of a tile
  const Hibert model(c, in_f32);
  const NoGrad off;
  const Sentences a = document(model, {4, 1, 12, 7}, 1), b = document(model, {9, 2}, 2),
                  longer = document(model, {12, 130, 12, 12, 12, 99, 12, 11, 97, 96, 5}, 3);
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    const Tensor alone = model.encode(packed_documents({a}), Pass{});
    const Tensor alone_b = model.encode(packed_documents({b}), Pass{});
    const Tensor all = model.encode(packed_documents({longer, b, a, longer}), Pass{});
    EXPECT_TRUE(same_bits(rows(all, 13, 4), alone.detach()));
    EXPECT_TRUE(same_bits(rows(all, 11, 2), alone_b.detach()));
    SentenceTargets one, many;
    add_target(one, model, 2, a[2]);
    add_target(many, model, 3, longer[3]);
    add_target(many, model, 15, a[2]);
    const Tensor z = model.sentence_logits(packed_documents({a}), one, Pass{});
    const Tensor both =
        model.sentence_logits(packed_documents({longer, b, a, longer}), many, Pass{});
    EXPECT_TRUE(same_bits(rows(both, 12, 12), z.detach()));
    for (int32_t before = 1; before < 130; before += 8) {
      const Sentences other = document(model, {before, 128, 128}, 4);
      const PackedDocuments in = packed_documents({other, a, b});
      EXPECT_TRUE(same_bits(rows(model.encode(in, Pass{}), 3, 4), alone.detach())) << before;
      SentenceTargets last = one;
      last.slots = {3 + one.slots[0]};
      SentenceTargets mixed;  // of two documents, in another order than theirs
      add_target(mixed, model, 1, other[1]);
      add_target(mixed, model, 0, other[0]);
      add_target(mixed, model, 5, a[2]);
      add_target(mixed, model, 2, other[2]);
      EXPECT_TRUE(same_bits(model.sentence_logits(in, last, Pass{}).detach(), z.detach()));
      EXPECT_TRUE(
          same_bits(rows(model.sentence_logits(in, mixed, Pass{}), 128 + before, 12), z.detach()));
    }
  }
  set_num_threads(1);
}

TEST(Hibert, MaskedWordsAreHidden) {
  const Hibert model(hibert_preset("small"), in_f32);
  const NoGrad off;
  const Sentences a = document(model, {4, 6, 12, 7}, 1);
  Sentences other = a, shorter = a;
  other[1] = document(model, {6}, 9)[0];
  shorter[1].erase(shorter[1].begin());
  ASSERT_NE(a[1], other[1]);
  const auto encoded = [&](const Sentences& d) {
    return model.encode(packed_documents({masked(model, d, 1)}), Pass{}).detach();
  };
  EXPECT_TRUE(same_bits(encoded(a), encoded(other)));
  const Tensor x = encoded(a), y = encoded(shorter);
  for (int64_t i = 0; i < 4; ++i) EXPECT_GT(distance(rows(x, i, 1), rows(y, i, 1)), 1e-4) << i;
}

TEST(Hibert, WithoutDocumentLayersSentencesAreAlone) {
  for (const int64_t layers : {0, 1, 2}) {
    HibertConfig c = hibert_preset("small");
    c.document_layers = layers;
    Hibert model(c, in_f32);
    const Sentences a = document(model, {4, 6, 12, 7}, 1);
    Sentences other = a;
    other[1][2] += 1;
    {
      const NoGrad off;
      const Tensor x = model.encode(packed_documents({a}), Pass{}),
                   y = model.encode(packed_documents({other}), Pass{});
      for (const int64_t i : {0, 2, 3}) {
        EXPECT_EQ(same_bits(rows(x, i, 1), rows(y, i, 1)), layers == 0) << i << " of " << layers;
      }
      EXPECT_FALSE(same_bits(rows(x, 1, 1), rows(y, 1, 1)));
    }
    // Tokens of the sentences that are not masked get a gradient through the other layers alone.
    SentenceTargets written;
    add_target(written, model, 1, a[1]);
    backward(model.sentence_loss(packed_documents({masked(model, a, 1)}), written, Pass{}).loss);
    const Tensor of_tokens = grad(parameter(model, "embed.token.weight"));
    double sum = 0;
    for (const size_t s : {0, 2, 3}) {
      for (size_t j = 0; j + 1 < a[s].size(); ++j) {
        for (const float g : rows(of_tokens, a[s][j], 1).to_vector<float>()) sum += std::abs(g);
      }
    }
    EXPECT_EQ(sum == 0, layers == 0) << sum;
  }
}

TEST(Hibert, PermutingSentencesPermutesTheirVectors) {
  for (const bool positions : {false, true}) {
    const Hibert model(tiny_hibert([&](auto& c) { c.sentence_positions = positions; }), in_f64);
    const NoGrad off;
    const Sentences a = document(model, {4, 3, 5, 2}, 1);
    const std::vector<int64_t> order{2, 0, 3, 1};
    Sentences b;
    for (const int64_t i : order) b.push_back(a[static_cast<size_t>(i)]);
    const Tensor x = model.encode(packed_documents({a}), Pass{}),
                 y = model.encode(packed_documents({b}), Pass{});
    const double gap = distance(take(x, Tensor::from(order, {4})).detach(), y.detach());
    if (positions) {
      EXPECT_GT(gap, 1e-3);
    } else {
      EXPECT_LT(gap, 1e-14);
    }
  }
}

TEST(Hibert, DecoderIsCausalAndDecodesOneTokenAtATime) {
  const Hibert model(tiny_hibert([](auto& c) { c.decoder_layers = 2; }), in_f64);
  const NoGrad off;
  const Sentences a = document(model, {4, 5, 5}, 1);
  const PackedDocuments in = packed_documents({masked(model, masked(model, a, 1), 2)});
  SentenceTargets written;
  add_target(written, model, 1, a[1]);
  add_target(written, model, 2, a[2]);
  const Tensor z = model.sentence_logits(in, written, Pass{});
  for (size_t j = 1; j < 5; ++j) {
    SentenceTargets edited = written;
    edited.inputs[j] = (edited.inputs[j] + 1) % 20;
    const Tensor y = model.sentence_logits(in, edited, Pass{});
    const auto n = static_cast<int64_t>(j);
    EXPECT_TRUE(same_bits(rows(z, 0, n), rows(y, 0, n))) << j;
    EXPECT_FALSE(same_bits(rows(z, n, 1), rows(y, n, 1))) << j;
    EXPECT_TRUE(same_bits(rows(z, 5, 5), rows(y, 5, 5))) << j;
  }
  const auto state = model.start_writing(in, {1, 2});
  for (int64_t j = 0; j < 5; ++j) {
    const auto at = [&](int64_t i) { return written.inputs[static_cast<size_t>(i)]; };
    const Tensor next =
        model.decode(Tensor::from(std::vector<int32_t>{at(j), at(5 + j)}, {2, 1}), *state);
    EXPECT_LT(distance(rows(next, 0, 1), rows(z, j, 1)), 1e-12) << j;
    EXPECT_LT(distance(rows(next, 1, 1), rows(z, 5 + j, 1)), 1e-12) << j;
  }
}

TEST(Hibert, WithoutContextAllSentencesAreOneLanguageModel) {
  const Hibert model(tiny_hibert(), in_f64);
  const NoGrad off;
  const Sentences a = document(model, {4, 5, 5}, 1);
  SentenceTargets written;
  for (const int64_t slot : {0, 1, 2}) add_target(written, model, slot, a[1]);
  const Tensor d = model.encode(packed_documents({a}), Pass{});
  const Tensor z = model.head(model.write(d, written, Pass{}));
  const Tensor same = model.head(model.write(zeros_like(d), written, Pass{}));
  for (const int64_t slot : {1, 2}) {
    EXPECT_GT(distance(rows(z, 0, 5), rows(z, 5 * slot, 5)), 1e-3);
    EXPECT_TRUE(same_bits(rows(same, 0, 5), rows(same, 5 * slot, 5)));
  }
}

TEST(Hibert, UniformLogitsLoseTheLogarithmOfTheVocabulary) {
  for (const double smoothing : {0.0, 0.1, 1.0}) {
    Hibert model(tiny_hibert([&](auto& c) { c.smoothing = smoothing; }), in_f64);
    Tensor head = parameter(model, "head.weight");
    assign(head, std::vector<double>(static_cast<size_t>(head.numel()), 0.0));
    const Example e = example(model);
    EXPECT_NEAR(model.sentence_loss(e.in, e.written, training).loss.item(), std::log(24.0), 1e-14);
  }
}

TEST(Hibert, FineTuningStartsFromTheEncoders) {
  HibertConfig c = tiny_hibert();
  Hibert trained(c, in_f32);
  c.labels = 2;
  Hibert labels(c, Init{.gen = Generator{8}});
  std::map<std::string, Tensor> there, before;
  for (const NamedTensor& p : named_parameters(trained)) there[p.name] = p.tensor;
  for (const NamedTensor& p : named_parameters(labels)) before[p.name] = clone(p.tensor.detach());
  const std::vector<std::string> heads = start_from(labels, trained, c.position_offset);
  EXPECT_EQ(heads, (std::vector<std::string>{"tags.weight", "tags.bias"}));
  int copied = 0;
  for (const NamedTensor& p : named_parameters(labels)) {
    if (p.name.starts_with("tags.")) {
      EXPECT_FALSE(there.contains(p.name));
      EXPECT_TRUE(same_bits(p.tensor.detach(), before[p.name])) << p.name;
    } else {
      EXPECT_TRUE(same_bits(p.tensor.detach(), there[p.name].detach())) << p.name;
      ++copied;
    }
  }
  EXPECT_EQ(copied, 1 + 2 * 16);
  EXPECT_EQ(Adam(named_parameters(labels)).steps(), 0);
}

// ---------------------------------------------------------------------------------------- goldens

class HibertGoldens : public testing::TestWithParam<std::string> {};

void expect_hibert_golden(const std::string& name, DType dtype, double tolerance) {
  const GoldenFile golden("hibert", name);
  Hibert model = golden.build<Hibert, HibertConfig>(dtype);
  const auto list = [&](const char* what) {
    return cast(golden[what], DType::i32).to_vector<int32_t>();
  };
  const auto sizes = [&](const char* what) { return golden[what].to_vector<int64_t>(); };
  const PackedDocuments in{list("input.tokens"), sizes("input.sentences"),
                           sizes("input.documents")};
  golden.expect("output.h", model.sentence_vectors(in, Pass{}), tolerance);
  golden.expect("output.d", model.encode(in, Pass{}), tolerance);
  LanguageModel::Losses losses;
  if (model.config().labels > 0) {
    golden.expect("output.logits", model.label_logits(in, Pass{}), tolerance);
    losses = model.label_loss(in, list("input.labels"), training);
  } else {
    const SentenceTargets written{sizes("input.slots"), sizes("input.lengths"),
                                  list("input.inputs"), list("input.targets")};
    golden.expect("output.logits", model.sentence_logits(in, written, Pass{}), tolerance);
    losses = model.sentence_loss(in, written, training);
  }
  golden.expect("output.loss", losses.loss, tolerance);
  backward(losses.total());
  golden.expect_gradients(model, tolerance);
}

TEST_P(HibertGoldens, EveryOutputAndGradient) {
  expect_hibert_golden(GetParam(), DType::f64, 1e-11);
}
TEST_P(HibertGoldens, InF32) { expect_hibert_golden(GetParam(), DType::f32, 2e-5); }

INSTANTIATE_TEST_SUITE_P(Hibert, HibertGoldens, testing::ValuesIn(golden_names("hibert")),
                         own_name);

// --------------------------------------------------------------------------------- properties

TEST(Hibert, AttendsWithinSentencesAndDocumentsAlone) {
  HibertConfig c = hibert_preset("s");
  c.vocab = 5;
  c.n_layer = 2;
  c.document_layers = 1;
  const Hibert model(c, Init{.device = meta_device});
  PackedDocuments in{.tokens = std::vector<int32_t>(30 * 50, 0),
                     .sentences = std::vector<int64_t>(30, 50),
                     .documents = {30}};
  MacCount count;
  {
    const NoGrad off;
    model.encode(in, Pass{});
  }
  const int64_t d = 512, f = 2048, n = 1500, s = 30;
  const int64_t pairs = s * 50 * 50, first = n * (4 * d * d + 2 * d * f) + 2 * d * pairs;
  const int64_t last = 2 * n * d * d + s * (2 * d * d + 2 * d * f) + 2 * d * s * 50;
  const int64_t documents = s * (4 * d * d + 2 * d * f) + 2 * d * s * s;
  EXPECT_EQ(count.total(), first + last + documents);
  EXPECT_EQ(pairs + s * s, 75'900);
  EXPECT_EQ(n * n / (pairs + s * s), 29);
}

TEST(Hibert, OneDropoutMaskServesAllTokensOfASentence) {
  Hibert model(tiny_hibert([](auto& c) {
                 c.dropout = 0.5f;
                 c.dropout_attn = 0;
               }),
               in_f64);
  // Without the other branches and norms' effects, the rows of a sentence would be equal: gradients
  // of c are a multiple of the mask, so a column of c that is dropped has none at all.
  const Sentences a = document(model, {5}, 1);
  SentenceTargets written;
  add_target(written, model, 0, a[0]);
  Tensor d = clone(model.encode(packed_documents({a}), Pass{}).detach());
  set_requires_grad(d);
  const Tensor y = model.write(d, written, training);
  backward(sum(mul(y, normal(y.shape(), Generator{3}, 0, 1, DType::f64))));
  int64_t dropped = 0;
  for (const double g : grad(d).to_vector<double>()) dropped += g == 0;
  EXPECT_GT(dropped, 0);
  EXPECT_LT(dropped, 8);
}

TEST(Hibert, BadInputsAreNamed) {
  const Hibert model(tiny_hibert(), in_f64);
  const auto message = [&](const PackedDocuments& in) {
    return message_of<Error>([&] { model.encode(in, Pass{}); });
  };
  EXPECT_TRUE(contains(message({}), "got no documents"));
  EXPECT_TRUE(contains(message({{1, 2}, {2}, {2}}), "documents of 2 sentences in all, and 1"));
  EXPECT_TRUE(contains(message({{1}, {2}, {1}}), "sentences of 2 tokens in all, and 1"));
  EXPECT_TRUE(contains(message({{}, {0}, {1}}), "expected its end token at least"));
  EXPECT_TRUE(contains(message({{1}, {1}, {1, 0}}), "a document of 0 sentences"));
  EXPECT_TRUE(contains(message({{1, 1, 1, 1, 1, 1}, {6}, {1}}), "at most sentence_length = 5"));
  EXPECT_TRUE(contains(message({{24}, {1}, {1}}), "24"));
  const PackedDocuments in = packed_documents({document(model, {3, 2}, 1)});
  const auto written = [&](const SentenceTargets& t) {
    return message_of<Error>([&] { model.sentence_loss(in, t, Pass{}); });
  };
  EXPECT_TRUE(contains(written({}), "expected a sentence"));
  EXPECT_TRUE(contains(written({{2}, {1}, {1}, {1}}), "sentence 2 is to be written; expected 0"));
  EXPECT_TRUE(contains(message_of<Error>([&] { model.label_logits(in, Pass{}); }), "labels is 0"));
  const Hibert labels(tiny_hibert([](auto& c) { c.labels = 2; }), in_f64);
  EXPECT_TRUE(contains(message_of<Error>([&] {
                         labels.sentence_loss(in, {{0}, {1}, {1}, {1}}, Pass{});
                       }),
                       "labels is 2, and such a model writes no sentences"));
  EXPECT_TRUE(contains(message_of<Error>([&] { labels.label_loss(in, {1}, Pass{}); }),
                       "got 1 labels for 2 sentences"));
  for (const auto& [field, change] :
       {std::pair<const char*, std::function<void(HibertConfig&)>>{
            "sentence_length is 1", [](auto& c) { c.sentence_length = 1; }},
        {"vocab is 4", [](auto& c) { c.vocab = 4; }},
        {"d_model is 2", [](auto& c) { c.d_model = 2; }},
        {"labels is 1", [](auto& c) { c.labels = 1; }},
        {"smoothing is 2", [](auto& c) { c.smoothing = 2; }},
        {"decoder_layers is 0", [](auto& c) { c.decoder_layers = 0; }}}) {
    EXPECT_TRUE(
        contains(message_of<ValueError>([&] { Hibert(tiny_hibert(change), in_f64); }), field))
        << field;
  }
}

/// Maps of a row: within sentences, at the ends of sentences, and between these.
TEST(Hibert, AttentionMapsArePlacedAtTheTokensOfARow) {
  const Hibert model(tiny_hibert([](auto& c) { c.n_layer = 2; }), in_f64);
  const int64_t end = model.special().sentence_end;
  const Tensor tokens = Tensor::from(std::vector<int64_t>{1, 2, end, 3, 4, 5, 6, 7}, {1, 8});
  const std::vector<int64_t> of{0, 0, 0, 1, 1, 1, 1, 2};  // ends are added after 6 and 7
  const auto is_end = [](int64_t i) { return i == 2 || i == 6 || i == 7; };
  ASSERT_EQ(model.layers(), 3);
  for (int64_t layer = 0; layer < 3; ++layer) {
    const Tensor map = model.attention_map(tokens, layer);
    ASSERT_EQ(map.shape(), (Shape{2, 8, 8}));
    const std::vector<float> all = map.to_vector<float>();
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < 8; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < 8; ++j) {
          const double p = all[static_cast<size_t>((h * 8 + i) * 8 + j)];
          sum += p;
          const bool within = of[static_cast<size_t>(i)] == of[static_cast<size_t>(j)];
          const bool seen =
              layer == 2 ? is_end(i) && is_end(j) : within && (layer == 0 || is_end(i));
          EXPECT_EQ(p > 0, seen) << layer << ": " << i << ", " << j;
        }
        EXPECT_NEAR(sum, layer == 0 || is_end(i) ? 1 : 0, 1e-6) << layer << ": " << i;
      }
    }
  }
  EXPECT_THROW(model.attention_map(tokens, 3), ValueError);
  EXPECT_THROW(model.attention_outline(0, 8), NotImplemented);
}

/// A row's masked sentence is written token by token, greedily or by beams.
TEST(Hibert, WritesTheMaskedSentencesOfRows) {
  const Hibert model(tiny_hibert(), in_f64);
  const DocumentTokens s = model.special();
  const Sentences a = document(model, {4, 5, 3}, 1);
  std::vector<int32_t> row;
  for (const auto& sentence : masked(model, a, 1)) {
    row.insert(row.end(), sentence.begin(), sentence.end());
  }
  const Tensor tokens = Tensor::from(row, {1, 12});
  const auto from_row = model.start_after({tokens});
  const auto from_packed = model.start_writing(packed_documents({masked(model, a, 1)}), {1});
  const Tensor begin = Tensor::from(std::vector<int32_t>{s.begin}, {1, 1});
  EXPECT_TRUE(same_bits(model.decode(begin, *from_row), model.decode(begin, *from_packed)));
  const Beams found =
      beam_search(model, begin, model.start_after({tokens}), 5, {.beams = 3, .end = s.end});
  EXPECT_EQ(found.tokens.dim(-1), 5);
  const std::string message = message_of<ValueError>([&] {
    model.start_after({Tensor::from(std::vector<int32_t>{1, 2, 3}, {1, 3})});
  });
  EXPECT_TRUE(contains(message, "row 0 has no masked sentence to write")) << message;
}

/// Rows of tokens are documents whose sentences end at the end token, or are cut.
TEST(Hibert, ReadsRowsAsDocuments) {
  const Hibert model(tiny_hibert(), in_f64);
  const NoGrad off;
  const DocumentTokens s = model.special();
  EXPECT_EQ(model.logits(Tensor::from(std::vector<int32_t>{1, 2, 3, 4, s.sentence_end}, {1, 5}), {})
                .shape(),
            (Shape{1, 5, 24}));  // as long as a sentence may be, with an end of its own
  const std::vector<int32_t> row{1, 2, s.sentence_end, 3, s.mask, s.mask, s.mask, s.mask, 7};
  const Tensor tokens = Tensor::from(row, {1, 9});
  std::vector<int32_t> target(9, ignored_target);
  target[4] = 9;
  target[6] = 8;
  const Tensor targets = Tensor::from(target, {1, 9});
  // 3 and three masks are a sentence of 5 tokens with its end; so are the others.
  PackedDocuments in;
  in.add({{1, 2, s.sentence_end},
          {3, s.mask, s.mask, s.mask, s.sentence_end},
          {s.mask, 7, s.sentence_end}});
  const SentenceTargets written{.slots = {1},
                                .lengths = {4},
                                .inputs = {s.begin, 3, 9, s.mask},
                                .targets = {ignored_target, 9, ignored_target, 8}};
  EXPECT_EQ(model.loss(tokens, targets, {}, Pass{}).loss.item(),
            model.sentence_loss(in, written, Pass{}).loss.item());
  const Tensor none = Tensor::from(std::vector<int32_t>(9, ignored_target), {1, 9});
  EXPECT_EQ(model.loss(tokens, none, {}, Pass{}).loss.item(), 0);
  SentenceTargets all;
  add_target(all, model, 0, {1, 2, s.sentence_end});
  add_target(all, model, 1, {3, s.mask, s.mask, s.mask, s.sentence_end});
  add_target(all, model, 2, {s.mask, 7, s.sentence_end});
  const Tensor z = model.sentence_logits(in, all, Pass{}), found = model.logits(tokens, Pass{});
  for (const auto& [at, of] : {std::pair{0, 0}, {2, 2}, {3, 3}, {6, 6}, {7, 8}, {8, 9}}) {
    EXPECT_TRUE(same_bits(rows(select(found, 0, 0), at, 1), rows(z, of, 1))) << at;
  }
  const Hibert labels(tiny_hibert([](auto& c) { c.labels = 2; }), in_f64);
  target.assign(9, ignored_target);
  target[2] = 1;
  target[6] = 0;
  EXPECT_EQ(labels.loss(tokens, Tensor::from(target, {1, 9}), {}, Pass{}).loss.item(),
            labels.label_loss(in, {1, 0, ignored_target}, Pass{}).loss.item());
}

}  // namespace
}  // namespace longspan::test
