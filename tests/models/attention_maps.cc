// Attention maps of all models of the registry.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "models/all/registry.h"
#include "nn/layer.h"
#include "train/config.h"

namespace longspan::test {
namespace {

/// Returns tokens [1, n] that all models have, with several sentences for those that read some.
Tensor drawn_tokens(const LanguageModel& model, int64_t n) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) {
    ids.push_back(
        static_cast<int32_t>(1 + (i * 7 + i / 5) % (std::min<int64_t>(model.vocab(), 30) - 3)));
  }
  return Tensor::from(ids, {1, n});
}

std::unique_ptr<LanguageModel> model_of(std::string_view name, const Settings& changes = {}) {
  const auto spec = find_model(name);
  set_fields(*spec, changes);
  return spec->build(Init{Generator(5)});
}

/// Returns how many keys each row of a head sees; empty if that depends on the tokens.
std::vector<int64_t> seen_by_rows(const ShowsAttention& model, int64_t layer, int64_t n,
                                  int64_t head, const std::vector<float>& map) {
  AttentionOutline outline;
  try {
    outline = model.attention_outline(layer, n);
  } catch (const NotImplemented&) {
    return {};
  }
  std::vector<bool> pairs(map.size(), false);
  std::vector<int64_t> seen(static_cast<size_t>(outline.rows), 0);
  EXPECT_EQ(static_cast<size_t>(outline.rows * outline.columns), map.size());
  count_pairs(outline, head, [&](int64_t row, int64_t column) {
    pairs.at(static_cast<size_t>(row * outline.columns + column)) = true;
    ++seen.at(static_cast<size_t>(row));
  });
  for (size_t i = 0; i < map.size(); ++i) {
    EXPECT_TRUE(pairs[i] || map[i] == 0) << "head " << head << ", pair " << i << " is not seen";
  }
  return seen;
}

/// Expects rows that sum to 1, or to 0 where `seen` says that no key is seen; without it, some rows
/// may see none.
void expect_rows(const std::vector<float>& map, int64_t keys, const std::vector<int64_t>& seen,
                 double tolerance = 1e-5) {
  const auto rows = map.size() / static_cast<size_t>(keys);
  size_t empty = 0;
  for (size_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (size_t key = 0; key < static_cast<size_t>(keys); ++key) {
      const float p = map[row * static_cast<size_t>(keys) + key];
      EXPECT_TRUE(p >= 0 && p <= 1.00001F) << p;
      sum += static_cast<double>(p);
    }
    const bool none = seen.empty() ? sum == 0 : seen[row] == 0;
    EXPECT_NEAR(sum, none ? 0.0 : 1.0, tolerance) << "row " << row;
    empty += none ? 1 : 0;
  }
  EXPECT_LT(empty, rows);
}

TEST(AttentionMaps, OfEveryModelAreProbabilitiesWithinItsPattern) {
  for (const ModelEntry& entry : models()) {
    SCOPED_TRACE(entry.name);
    const auto model = model_of(entry.name);
    const auto& shown = need<ShowsAttention>(*model);
    const int64_t n = std::min<int64_t>(37, max_input_length(*model));
    const Tensor tokens = drawn_tokens(*model, n);
    for (int64_t layer = 0; layer < model->layers(); ++layer) {
      SCOPED_TRACE(layer);
      const Tensor map = shown.attention_map(tokens, layer);  // [H, L, T]
      ASSERT_EQ(map.rank(), 3);
      const std::vector<float> all = map.to_vector<float>();
      const auto size = static_cast<std::ptrdiff_t>(map.dim(1) * map.dim(2));
      for (int64_t head = 0; head < map.dim(0); ++head) {
        const std::vector<float> own(all.begin() + head * size, all.begin() + (head + 1) * size);
        expect_rows(own, map.dim(2), seen_by_rows(shown, layer, n, head, own));
      }
    }
  }
}

TEST(AttentionMaps, OfDecodersAreThoseOfTheirTwoAttentions) {
  std::vector<std::unique_ptr<LanguageModel>> all;
  int64_t writers = 0;
  for (const ModelEntry& entry : models()) {
    all.push_back(model_of(entry.name));
    writers += ask<WritesSequences>(*all.back()) != nullptr ? 1 : 0;
  }
  EXPECT_EQ(writers, 3);
  all.push_back(model_of("transformer", {{"wiring", Json("encoder_decoder"), "test"}}));
  all.push_back(model_of("led", {{"memory", Json("reversible"), "test"}}));
  all.push_back(model_of("led", {{"precision", Json("f16"), "test"}}));
  for (const auto& model : all) {
    const auto* const shown = ask<ShowsDecoder>(*model);
    ASSERT_EQ(shown != nullptr, ask<WritesSequences>(*model) != nullptr);
    if (shown == nullptr) continue;
    const int64_t s = 21, l = 13;
    // Each probability of the last model is rounded to 11 bits.
    const double tolerance = model == all.back() ? 0x1p-11 : 1e-5;
    const Tensor source = drawn_tokens(*model, s), tokens = drawn_tokens(*model, l);
    for (int64_t layer = 0; layer < shown->decoder_layers(); ++layer) {
      const Tensor own = shown->decoder_map(source, tokens, layer, false);
      const Tensor cross = shown->decoder_map(source, tokens, layer, true);
      EXPECT_GE(own.dim(1), l);  // nodes of a tree come after its leaves
      EXPECT_EQ(own.dim(1), own.dim(2));
      EXPECT_EQ(cross.dim(1), l);
      EXPECT_EQ(cross.dim(2), s);
      const std::vector<float> p = own.to_vector<float>(), q = cross.to_vector<float>();
      expect_rows(p, own.dim(2), {}, tolerance);
      expect_rows(q, s, std::vector<int64_t>(q.size() / static_cast<size_t>(s), s), tolerance);
      for (int64_t head = 0; head < own.dim(0); ++head) {
        for (int64_t row = 0; row < l; ++row) {
          for (int64_t key = row + 1; key < l; ++key) {
            EXPECT_EQ(p[static_cast<size_t>((head * own.dim(1) + row) * own.dim(2) + key)], 0);
          }
        }
      }
    }
    EXPECT_THROW(shown->decoder_map(source, tokens, shown->decoder_layers(), true), ValueError);
  }
  const auto decoder = model_of("transformer");
  EXPECT_EQ(ask<ShowsDecoder>(*decoder), nullptr);
}

}  // namespace
}  // namespace longspan::test
