// Generated tasks in runs of the program: each entry of their table trains and is scored.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "app/make_config.h"
#include "app/tasks/samples.h"
#include "data/tasks.h"
#include "models/capabilities.h"
#include "tests/app/clusters_run.h"
#include "tests/app/small_runs.h"
#include "tests/harness/messages.h"
#include "train/config.h"

namespace longspan::test {
namespace {

Setting set_option(const std::string& key, const std::string& value) {
  return {key, Json(value), "--set " + key, true};
}

/// Returns the settings of a small run of a task, with a model that its targets need.
Settings settings_of(const SampleTaskEntry& entry) {
  const TargetKind targets = entry.make()->targets();
  Settings all{set_option("task", std::string(entry.id)), set_option("batch", "2"),
               set_option("steps", "2"), set_option("threads", "1"),
               set_option(std::string(entry.section) + ".held_out", "3")};
  const auto add = [&](const char* key, const char* value) {
    all.push_back(set_option(key, value));
  };
  if (targets == TargetKind::tokens) {
    add("model.name", "transformer:tiny");
    add("model.vocab", "64");
    add("length", entry.id == "collision" ? "120" : "30");
  } else if (targets == TargetKind::sentences) {
    add("model.name", "hibert:tiny");
    add("model.vocab", "64");
    add("model.labels", entry.id == "topic-docs" ? "0" : "2");
  } else {
    add("model.name", "longformer:small");
    add("length", targets == TargetKind::span ? "64" : "256");
    add("model.n_layer", "1");
    add("model.vocab", "4200");
    add("model.mlm_head", "false");
    add(targets == TargetKind::span ? "model.span_head" : "model.classes",
        targets == TargetKind::span ? "true" : "1");
  }
  if (entry.id == "motif-dna") {
    add("motifs.nearest", "20");
    add("model.globals", "first");
  }
  if (entry.id == "period") add("period.period", "10");
  if (entry.id == "recall") add("recall.document", "10");
  if (entry.id == "two-distance") add("two_distance.far", "10");
  if (entry.id == "lookup") add("lookup.far", "10");
  if (entry.id == "retrieval") add("retrieval.keys", "8");
  if (entry.id == "collision") {  // particles that meet often
    add("collision.grid", "2");
    add("collision.colours", "1");
  }
  return all;
}

TEST(GeneratedTasks, TrainAndAreScored) {
  for (const SampleTaskEntry& entry : sample_tasks()) {
    SCOPED_TRACE(entry.id);
    const TrainingRun run(make_config(settings_of(entry)), "");
    const auto data = open_task_data(run);
    data->prepare();
    EXPECT_EQ(data->size("train"), 4);
    EXPECT_EQ(data->size("valid"), 3);
    const TaskData::Forward first = data->forward(0, {}, Pass{}),
                            again = data->forward(0, {}, Pass{});
    EXPECT_GT(first.counted, 0);
    EXPECT_GT(first.tokens, 0);
    EXPECT_TRUE(std::isfinite(first.losses.loss.item()));
    EXPECT_EQ(first.losses.loss.item(), again.losses.loss.item());
    EXPECT_NE(first.losses.loss.item(), data->forward(1, {}, Pass{}).losses.loss.item());
    EXPECT_TRUE(std::isfinite(data->bits("valid")));
    const auto [bits, report] = data->evaluate("test");
    EXPECT_EQ(bits, data->bits("test"));
    EXPECT_FALSE(report.lines.empty());
    ASSERT_FALSE(report.figures.empty());
    EXPECT_EQ(report.figures[0].name, "accuracy");
    std::vector<int32_t> tokens = data->first_tokens(100);
    EXPECT_GE(tokens.size(), 30u);
    tokens.resize(5);
    EXPECT_EQ(data->first_tokens(5), tokens);
  }
}

TEST(GeneratedTasks, AreScoredAlikeInAnyBatch) {
  for (const SampleTaskEntry& entry : sample_tasks()) {
    SCOPED_TRACE(entry.id);
    Settings settings = settings_of(entry);
    settings.push_back(set_option(std::string(entry.section) + ".held_out", "5"));
    EXPECT_FALSE(expect_figures_of_any_batch(settings).empty());
  }
}

// The mean loss is over the same targets as the figures: a model of equal logits has the bits of a
// uniform guess.
TEST(GeneratedTasks, OfEqualLogitsHaveTheBitsOfAGuess) {
  for (const SampleTaskEntry& entry : sample_tasks()) {
    SCOPED_TRACE(entry.id);
    const TrainingRun run(make_config(settings_of(entry)), "");
    for (NamedTensor& p : named_parameters(*run.model)) {
      for (int64_t i = 0; i < p.tensor.numel(); ++i) p.tensor.mut().as<float>()[i] = 0;
    }
    const TargetKind targets = entry.make()->targets();
    const double choices = targets == TargetKind::labels ? 2.0
                           : targets == TargetKind::span ? 64.0
                           : entry.id == "topic-labels"  ? 2.0
                                                         : double(run.model->vocab());
    EXPECT_NEAR(open_task_data(run)->bits("valid"), std::log2(choices), 1e-5);
  }
}

TEST(GeneratedTasks, SamplesOfUnequalLengthsArePadded) {
  const auto with_spans = [](const SampleTaskEntry& e) {
    return e.make()->targets() == TargetKind::span;
  };
  const auto entry = std::find_if(sample_tasks().begin(), sample_tasks().end(), with_spans);
  ASSERT_NE(entry, sample_tasks().end());
  const TrainingRun run(make_config(settings_of(*entry)), "");
  const auto& model = need<FindsSpans>(*run.model);
  const std::vector<Sample> samples{{{5, 6, 7}, {1, 2}, {0, 2}}, {{8}, {0, 0}, {0}}};
  const EncoderInputs both = inputs_of(samples, model.takes_global_tokens(), {});
  EXPECT_EQ(both.tokens.to_vector<int32_t>(), (std::vector<int32_t>{5, 6, 7, 8, 0, 0}));
  EXPECT_EQ(both.lengths.to_vector<int64_t>(), (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(both.global.to_vector<uint8_t>(), (std::vector<uint8_t>{1, 0, 1, 1, 0, 0}));
  const EncoderInputs one = inputs_of(std::span(samples).first(1), model.takes_global_tokens(), {});
  EXPECT_FALSE(one.lengths);
  const auto ends = [&](const EncoderInputs& in) {
    return model.span_logits(in, Pass{}).end.to_vector<float>();
  };
  const std::vector<float> padded = ends(both), alone = ends(one);
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), padded.begin()));
  EXPECT_FALSE(
      inputs_of(std::vector<Sample>{{{5, 6}, {}}}, model.takes_global_tokens(), {}).global);
}

TEST(GeneratedTasks, HaveTheirOwnOptions) {
  Settings settings = settings_of(sample_tasks()[0]);
  const RunConfig c = make_config(settings);
  EXPECT_EQ(samples_of(c).held_out, 3);
  RunConfig bytes = make_config({set_option("task", "bytes")});
  const Json plain = to_json(bytes);
  EXPECT_EQ(plain.find("motifs"), nullptr);
  // Earlier versions wrote the options of all tasks into every config.toml.
  const Setting kmer{"motifs.kmer", 6, "config.toml:9"};
  EXPECT_NO_THROW(make_config(
      {set_option("task", "bytes"), kmer, Setting{"duplicate.held_out", 256, "config.toml:12"}}));
  const std::string other = message_of<ValueError>([] {
    make_config({set_option("task", "bytes"), set_option("motifs.kmer", "6")});
  });
  EXPECT_TRUE(contains(other, "an option of --task motif-dna, and the task is bytes")) << other;
  const std::string message = message_of<ValueError>([] {
    make_config({set_option("task", "bytes"), set_option("motifs.kmers", "6")});
  });
  EXPECT_TRUE(contains(message, "motifs.kmers")) << message;
  settings.push_back(set_option("motifs.held_out", "-1"));
  const std::string range = message_of<ValueError>([&] { make_config(settings); });
  EXPECT_TRUE(contains(range, "motifs.held_out is -1")) << range;
}

// A task with a length of its own keeps it, whatever the run's is.
TEST(GeneratedTasks, MayBeLongerThanTheRun) {
  const auto length = [](const char* task, const char* option, const char* value) {
    const RunConfig c = make_config(
        {set_option("task", task), set_option("length", "1024"), set_option(option, value)});
    return samples_of(c).fitted(c.length, 64)->shape().length;
  };
  EXPECT_EQ(length("period", "period.length", "0"), 1024);
  EXPECT_EQ(length("period", "period.length", "5000"), 5000);
  EXPECT_EQ(length("corridor", "corridor.length", "5000"), 5000);
  EXPECT_EQ(length("two-distance", "two_distance.length", "5000"), 5000);
  EXPECT_EQ(length("lookup", "lookup.length", "5000"), 5000);
  EXPECT_EQ(length("marked-recall", "marked_recall.length", "5000"), 5000);
  EXPECT_EQ(length("recall", "recall.documents", "0"), 1024);
  EXPECT_EQ(length("recall", "recall.documents", "4"), 2048);
  EXPECT_EQ(length("collision", "collision.steps", "2000"), 16000);
  const std::string below = message_of<ValueError>([&] { length("lookup", "lookup.near", "-1"); });
  EXPECT_TRUE(contains(below, "lookup.near is -1")) << below;
}

TEST(GeneratedTasks, SayWhichModelTheyNeed) {
  const auto refusal = [](const char* task, const char* model) {
    return message_of<ValueError>([&] {
      const TrainingRun run(make_config({set_option("task", task), set_option("model.name", model),
                                         set_option("length", "30")}),
                            "");
      open_task_data(run);
    });
  };
  EXPECT_TRUE(contains(refusal("copy-memory", "longformer:small"), "copy-memory is for decoders"));
  EXPECT_TRUE(contains(refusal("needle-qa", "transformer:tiny"), "model.span_head=true"));
  EXPECT_TRUE(contains(refusal("needle-qa", "longformer:small"), "model.span_head=true"));
  EXPECT_TRUE(contains(refusal("marker", "sparse_transformer:tiny"), "choose an encoder"));
  EXPECT_TRUE(contains(refusal("marker", "bp_encoder:tiny"), "model.classes: got 3; expected 1"));
}

// Models other than encoders in BERT's shape may have classes too.
TEST(GeneratedTasks, RootsOfTreesAnswerForWholeSequences) {
  const TrainingRun run(
      make_config({set_option("task", "motif-dna"), set_option("motifs.held_out", "3"),
                   set_option("motifs.nearest", "20"), set_option("motifs.furthest", "40"),
                   set_option("model.name", "bp_encoder:motif"), set_option("length", "60"),
                   set_option("batch", "2"), set_option("steps", "2")}),
      "");
  const auto data = open_task_data(run);
  data->prepare();
  const TaskData::Forward f = data->forward(0, {}, Pass{});
  EXPECT_EQ(f.counted, 2);
  EXPECT_NEAR(f.losses.loss.item(), std::log(2.0), 0.5);
  EXPECT_EQ(data->evaluate("test").report.figures[0].name, "accuracy");
}

}  // namespace
}  // namespace longspan::test
