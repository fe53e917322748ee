#include "models/capabilities.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "models/all/registry.h"
#include "models/document_model.h"
#include "tests/harness/messages.h"
#include "train/config.h"

namespace longspan::test {
namespace {

std::unique_ptr<LanguageModel> model_on_meta(std::string_view name, const Settings& changes = {}) {
  const auto spec = find_model(name);
  set_fields(*spec, changes);
  return spec->build(Init{.meta = true});
}

// What a model does follows from its objective, for every preset of every model.
TEST(Capabilities, FollowTheObjective) {
  for (const ModelEntry& entry : models()) {
    for (const Preset& preset : entry.presets) {
      const auto model = entry.make(preset.name)->build(Init{.meta = true});
      SCOPED_TRACE(std::string(entry.name) + ":" + std::string(preset.name));
      const Objective objective = model->objective();
      EXPECT_EQ(ask<WritesSequences>(*model) != nullptr, objective == Objective::sequence);
      EXPECT_EQ(ask<FillsMasks>(*model) != nullptr, objective == Objective::masked_token);
      const bool continues = ask<ContinuesSequences>(*model) != nullptr;
      EXPECT_TRUE(!continues || objective == Objective::next_token);
      EXPECT_EQ(empty_memory(*model, 2).layers.empty(), ask<Streams>(*model) == nullptr);
      EXPECT_GE(max_input_length(*model), 1);
      EXPECT_NE(ask<ShowsAttention>(*model), nullptr);
      EXPECT_FALSE(capabilities_of(*model).empty());
    }
  }
}

/// A key of a model that decides about a capability, without it and with it.
struct Switch {
  const char* model;
  const char* key;
  Json off, on;
  bool (*has)(const LanguageModel&);
};

template <class Capability>
bool can(const LanguageModel& model) {
  return ask<Capability>(model) != nullptr;
}

TEST(Capabilities, FollowTheConfiguration) {
  const Switch switches[] = {
      {"longformer", "classes", Json(0), Json(3), can<ClassifiesSequences>},
      {"longformer", "tags", Json(0), Json(3), can<TagsTokens>},
      {"longformer", "span_head", Json(false), Json(true), can<FindsSpans>},
      {"longformer", "choice_head", Json(false), Json(true), can<ChoosesCandidates>},
      {"bp_encoder", "classes", Json(0), Json(3), can<ClassifiesSequences>},
      {"bigbird", "causal", Json(false), Json(true), can<ContinuesSequences>},
      {"reformer", "causal", Json(false), Json(true), can<ContinuesSequences>},
      {"reformer", "causal", Json(true), Json(false), can<FillsMasks>},
      {"transformer", "wiring", Json("decoder"), Json("encoder"), can<FillsMasks>},
      {"transformer", "wiring", Json("encoder"), Json("decoder"), can<ContinuesSequences>},
      {"transformer", "wiring", Json("decoder"), Json("encoder_decoder"), can<WritesSequences>},
      {"transformer_xl", "mem_len", Json(0), Json(8), can<Streams>},
  };
  for (const Switch& s : switches) {
    SCOPED_TRACE(std::string(s.model) + " " + s.key);
    EXPECT_FALSE(s.has(*model_on_meta(s.model, {{s.key, s.off, "test"}})));
    EXPECT_TRUE(s.has(*model_on_meta(s.model, {{s.key, s.on, "test"}})));
  }
}

TEST(Capabilities, WhatIsMissingNamesWhatIsThere) {
  const auto decoder = model_on_meta("transformer");
  const std::string text = message_of<NotImplemented>([&] { need<WritesSequences>(*decoder); });
  EXPECT_TRUE(contains(text, "needs writing a sequence after a source")) << text;
  EXPECT_TRUE(contains(text,
                       "this model has continuing a sequence, sequences split over "
                       "processes (ranks.sequence), pictures of its attention"))
      << text;
  // Its class has it, and the name of the capability says what to set.
  const auto encoder = model_on_meta("longformer");
  const std::string head = message_of<NotImplemented>([&] { need<FindsSpans>(*encoder); });
  EXPECT_TRUE(contains(head, "places of answers (model.span_head)")) << head;
  EXPECT_NE(implements<FindsSpans>(*encoder), nullptr);
  EXPECT_EQ(implements<FindsSpans>(*model_on_meta("sparse_transformer")), nullptr);
}

TEST(Capabilities, ListModels) {
  EXPECT_EQ(models_with<ReadsDocuments>(), std::vector<std::string>{"hibert"});
  EXPECT_EQ(models_with<ReversibleLayers>(), std::vector<std::string>{"reformer"});
  const std::vector<std::string> finders = models_with<FindsSpans>();
  EXPECT_NE(std::find(finders.begin(), finders.end(), "longformer"), finders.end());
  EXPECT_EQ(std::find(finders.begin(), finders.end(), "sparse_transformer"), finders.end());
}

}  // namespace
}  // namespace longspan::test
