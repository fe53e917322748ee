// What models derive from the length of sequences: runs keep what it is for the length that they
// are trained with, whatever they read or write later.
#include <gtest/gtest.h>

#include "app/make_config.h"
#include "app/training.h"
#include "autograd/mode.h"
#include "data/io/files.h"
#include "models/all/registry.h"
#include "models/capabilities.h"
#include "models/reformer/reformer.h"
#include "ops/copy.h"
#include "ops/shape.h"
#include "tests/app/small_runs.h"
#include "tests/harness/model_info.h"

namespace longspan::test {
namespace {

/// Returns the field of a model in a configuration as text.
std::string field(const RunConfig& c, const char* name) {
  return to_string(to_json(*c.model)[name]);
}

RunConfig reformer(const std::string& preset, const std::string& length, Settings more = {}) {
  Settings all{typed("model.name", "reformer:" + preset), typed("length", length),
               typed("model.n_max", "1024")};
  all.insert(all.end(), more.begin(), more.end());
  return make_config(all);
}

TEST(SettledLength, BucketsAreThoseOfTheLengthOfTraining) {
  EXPECT_EQ(field(reformer("small", "128"), "buckets"), "[4]");  // chunks of 64
  EXPECT_EQ(field(reformer("small", "1024"), "buckets"), "[32]");
  EXPECT_EQ(field(reformer("small", "200", {typed("model.chunk", "4")}), "buckets"), "[100]");
  EXPECT_EQ(field(reformer("small", "1000", {typed("model.chunk", "4")}), "buckets"), "[32,14]");
  EXPECT_EQ(field(reformer("small_hf", "200"), "buckets"), "[8]");  // padded to 256
  EXPECT_EQ(field(reformer("small_lucid", "1000"), "buckets"), "[14]");
  EXPECT_EQ(field(reformer("small", "128", {typed("model.buckets", "8")}), "buckets"), "[8]");
  EXPECT_EQ(field(reformer("tiny", "30", {typed("model.vocab", "256")}), "buckets"), "[4]");
}

// At the length of training nothing changes: the same buckets, to the bit.
TEST(SettledLength, OnePassOfThatLengthHasTheSameBits) {
  for (const char* preset : {"small", "small_trax2", "small_hf", "small_lucid"}) {
    for (const int64_t length : {30, 90}) {
      ReformerConfig open = reformer_preset(preset), settled;
      open.n_layer = 2;
      open.chunk = open.local_chunk = 8;
      settled = open;
      EXPECT_EQ(settled.settle_length(length), "buckets");
      EXPECT_EQ(settled.settle_length(7), "");
      const Tensor tokens = some_tokens(2, length, 200);
      EXPECT_TRUE(same_bits(Reformer(open, Init{}).logits(tokens, Pass{}),
                            Reformer(settled, Init{}).logits(tokens, Pass{})))
          << preset << ", " << length;
    }
  }
}

// Positions for four times the tokens of training change nothing in what is decoded.
TEST(SettledLength, DecodingPredictsAsOnePassOfTheLengthOfTraining) {
  const NoGrad off;
  const SmallData data;
  int decoders = 0;
  for (const ModelEntry& entry : models()) {
    SCOPED_TRACE(entry.name);
    Settings settings = small_run(data, entry.name);
    const int64_t length = 24;
    settings.push_back(typed("length", std::to_string(length)));
    const Json fields = to_json(*make_config(settings).model);
    // A token that is decoded sees mem_len tokens before it, also where a segment has more.
    if (entry.name == "transformer_xl") settings.push_back(typed("model.mem_len", "24"));
    // Groups of the nearest tokens depend on later ones.
    if (entry.name == "routing") settings.push_back(typed("model.select", "argmax_recent"));
    if (fields.find("n_max") != nullptr) settings.push_back(typed("model.n_max", "96"));
    if (entry.name == "reformer") {
      settings.push_back({"model.buckets", Json(Json::Array{}), ""});  // the preset has some
      settings.push_back(typed("model.chunk", "12"));
    }
    const TrainingRun run(make_config(settings), "");
    const LanguageModel& model = *run.model;
    std::unique_ptr<DecodeState> state;
    try {
      state = need<ContinuesSequences>(model).start_decoding(1);
    } catch (const NotImplemented&) {
      continue;
    }
    ++decoders;
    const Tensor tokens = some_tokens(1, length, 257);
    const Tensor all = model.logits(tokens, Pass{});
    for (int64_t i = 0; i < length; ++i) {
      const Tensor one = need<Decodes>(model).decode(contiguous(narrow(tokens, 1, i, 1)), *state);
      EXPECT_LT(distance(one, contiguous(select(all, 1, i))), 1e-4) << i;
    }
  }
  EXPECT_GE(decoders, 10);
}

// Decoding moves the memory on after as many tokens as a segment of training has.
TEST(SettledLength, DecodingHasTheSegmentsOfTraining) {
  const NoGrad off;
  const SmallData data;
  const TrainingRun run(make_config(small_run(data, "compressive")), "");
  const LanguageModel& model = *run.model;
  const int64_t length = run.config.length, segments = 3;
  EXPECT_EQ(field(run.config, "segment"), std::to_string(length));
  const Tensor tokens = some_tokens(1, segments * length, 257);
  const auto state = need<ContinuesSequences>(model).start_decoding(1);
  SegmentMemory memory = evaluation_memory(model, 1);
  for (int64_t s = 0; s < segments; ++s) {
    const Tensor segment = contiguous(narrow(tokens, 1, s * length, length));
    const Tensor all = need<Streams>(model).logits_after(memory, segment);
    for (int64_t i = 0; i < length; ++i) {
      const Tensor one = need<Decodes>(model).decode(contiguous(narrow(segment, 1, i, 1)), *state);
      EXPECT_LT(distance(one, contiguous(select(all, 1, i))), 1e-4) << s << ", " << i;
    }
  }
}

// Training writes what it has settled into config.toml and says so. A run without it, of an earlier
// version, takes what belongs to its own length, not to that of the command line.
TEST(SettledLength, RunsKeepIt) {
  const SmallData data;
  Settings settings = small_run(data, "reformer");
  settings.push_back(typed("model.name", "reformer:small"));
  settings.push_back(typed("model.n_layer", "1"));
  settings.push_back(typed("model.chunk", "2"));
  const Folder run;
  testing::internal::CaptureStderr();
  train_small(settings, run.path());
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(said, "model.buckets = [8]: for sequences of --length 9")) << said;
  const auto buckets_at = [&](const char* length) {
    Settings all = settings_of_run(run.path());
    all.push_back(typed("length", length));
    return field(make_config(all), "buckets");
  };
  EXPECT_EQ(buckets_at("100"), "[8]");
  std::string toml = read_bytes(run / "config.toml");
  const size_t at = toml.find("buckets = [8]");
  ASSERT_NE(at, std::string::npos);
  write_bytes(run / "config.toml", toml.replace(at, 13, "buckets = []"));
  EXPECT_EQ(buckets_at("100"), "[8]");
  EXPECT_EQ(buckets_at("9"), "[8]");
}

// What is planned for another length has what belongs to that length.
TEST(SettledLength, FollowsTheLengthUntilARunBegins) {
  RunConfig c = reformer("small", "128");
  c.length = 1024;
  c.follow_length();
  EXPECT_EQ(field(c, "buckets"), "[32]");
  RunConfig set = reformer("small", "128", {typed("model.buckets", "8")});
  set.length = 1024;
  set.follow_length();
  EXPECT_EQ(field(set, "buckets"), "[8]");
}

}  // namespace
}  // namespace longspan::test
