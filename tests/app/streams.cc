// Runs of models with a memory between segments: what is passed on, in steps, accumulated batches,
// recorded steps, checkpoints and evaluation.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "app/make_config.h"
#include "app/step.h"
#include "app/training.h"
#include "app/training_steps.h"
#include "autograd/engine.h"
#include "autograd/mode.h"
#include "core/graph.h"
#include "models/all/registry.h"
#include "models/model_spec.h"
#include "ops/copy.h"
#include "ops/shape.h"
#include "tests/app/small_runs.h"
#include "tests/app/stepped_run.h"
#include "tests/harness/device.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "tests/harness/scratch.h"
#include "train/state.h"

namespace longspan::test {
namespace {

RunConfig stream_config(const Folder& folder, int64_t accumulate = 1, const char* device = "cpu",
                        const char* model = "transformer_xl:tiny",
                        const std::vector<std::pair<const char*, std::string>>& more = {}) {
  std::vector<Setting> settings{
      typed("task", "bytes"),     typed("data", "bytes=" + text_in(folder)),
      typed("model.name", model), typed("model.vocab", "256"),
      typed("length", "6"),       typed("batch", "3"),
      typed("steps", "8"),        typed("accumulate", std::to_string(accumulate)),
      typed("log_every", "1"),    typed("eval_every", "0"),
      typed("device", device)};
  for (const auto& [key, value] : more) settings.push_back(typed(key, value));
  return make_config(settings);
}

std::vector<std::vector<float>> memories_in_f32(const std::vector<SegmentMemory>& memories) {
  std::vector<std::vector<float>> all;
  for (const SegmentMemory& m : memories) {
    for (const NamedTensor& t : named_tensors(m)) {
      all.push_back(cast(t.tensor.detach(), DType::f32).to_vector<float>());
    }
  }
  return all;
}

TEST(StreamsOfARun, PassTheMemoryOnAfterAnUpdateOrASkippedStep) {
  const Folder folder;
  SteppedRun r(stream_config(folder));
  const auto before = memories_in_f32(r.memories);
  r.steps.gradients(0, 8, 1);
  EXPECT_EQ(memories_in_f32(r.memories), before);  // a step that fails can be taken again
  r.optimizer->clear_gradients();
  r.steps.gradients(0, 8, 1);
  r.steps.pass_memories_on();
  EXPECT_NE(memories_in_f32(r.memories), before);
  EXPECT_EQ(r.memories[0].position, 6);
  r.optimizer->clear_gradients();
  const double with = r.take(1);
  SteppedRun fresh(stream_config(folder));
  EXPECT_NE(fresh.take(1), with);  // without the first segment
}

// Two batches of three streams are one batch of six, up to rounding.
TEST(StreamsOfARun, OfAccumulatedBatchesAreIndependent) {
  const Folder folder;
  RunConfig whole = stream_config(folder);
  whole.batch = 6;
  SteppedRun a(stream_config(folder, 2)), b(std::move(whole));
  for (int64_t step = 0; step < 4; ++step) {
    EXPECT_NEAR(a.take(step), b.take(step), 1e-5) << step;
  }
  ASSERT_EQ(a.memories.size(), 2u);
  const Tensor all = b.memories[0].layers[1].get<InputRows>().states;
  for (int64_t i = 0; i < 2; ++i) {
    EXPECT_LT(distance(a.memories[static_cast<size_t>(i)].layers[1].get<InputRows>().states,
                       contiguous(narrow(all, 0, 3 * i, 3))),
              1e-4);
  }
}

TEST(StreamsOfARun, BeginAnewWithTheNextEpoch) {
  const Folder folder;
  RunConfig c = stream_config(folder);
  c.length = 60;
  c.batch = 30;
  SteppedRun r(std::move(c));  // 5,400 bytes of training: two segments in each stream
  r.take(0);
  EXPECT_EQ(r.memories[0].layers[0].get<InputRows>().begin.to_vector<int64_t>(),
            std::vector<int64_t>(30, 0));
  const SegmentMemory empty = empty_memory(*r.run.model, 30);
  EXPECT_FALSE(r.data->reset(1));
  ASSERT_TRUE(r.data->reset(2));
  const SegmentMemory next = forget(r.memories[0], r.data->reset(2));
  EXPECT_EQ(memories_in_f32({next}), memories_in_f32({empty}));
  r.take(1);
  const int64_t bytes = memory_tracker().live()[Category::memory];
  // Step 2 reads what it would read after an empty memory: its loss is that of the data by hand.
  const auto after = [&](const SegmentMemory& memory) {
    const NoGrad off;
    return losses_of(r.run, *r.data->batch(2), memory, Pass{}).loss.item();
  };
  const double alone = after(empty);
  EXPECT_NE(after(r.memories[0]), alone);
  EXPECT_EQ(r.take(2), alone);  // there is no dropout
  EXPECT_EQ(memory_tracker().live()[Category::memory], bytes);
}

TEST(StreamsOfARun, HaveTheSameBitsInRecordedSteps) {
  if (!is_available(cuda)) GTEST_SKIP() << "skipped: no device";
  for (const char* model : {"transformer_xl:tiny", "compressive:tiny"}) {
    for (const int64_t accumulate : {1, 2}) {
      const Folder folder;
      RunConfig graph = stream_config(folder, accumulate, "cuda", model);
      graph.graph = true;
      SteppedRun replayed(std::move(graph)),
          plain(stream_config(folder, accumulate, "cuda", model));
      for (int64_t step = 0; step < 6; ++step) {
        EXPECT_EQ(replayed.take(step), plain.take(step)) << step;
      }
      EXPECT_EQ(replayed.steps.refusal(), "");
      EXPECT_EQ(memories_in_f32(replayed.memories), memories_in_f32(plain.memories));
    }
  }
}

TEST(StreamsOfARun, ResumeWithTheSameBits) {
  const Folder folder, whole, parts;
  RunConfig config = stream_config(folder, 2);
  config.save_every = 5;
  train_run(std::move(config), whole.path());
  std::filesystem::create_directories(parts / "checkpoints");
  std::filesystem::copy(whole / "checkpoints/step-5", parts / "checkpoints/step-5",
                        std::filesystem::copy_options::recursive);
  train_run(stream_config(folder, 2), parts.path(), parts / "checkpoints/step-5");
  for (const char* file : {"model", "optimizer"}) {
    const std::string name = fmt::format("checkpoints/step-8/{}.safetensors", file);
    EXPECT_FALSE(read_bytes(whole / name).empty());
    EXPECT_EQ(read_bytes(whole / name), read_bytes(parts / name)) << name;
  }
}

// What streams in other segments, in other batches, or of other data would read next is not what
// follows the tokens of their memories. They begin anew, and go on from there with the same bits.
TEST(StreamsOfARun, BeginAnewWhereTheyCannotGoOn) {
  const Folder folder, out;
  RunConfig config = stream_config(folder, 2);
  config.save_every = 5;
  train_run(std::move(config), out.path());
  const std::string at = out / "checkpoints/step-5";
  const auto copied = [](const std::string& from, const std::string& run, int64_t step) {
    std::filesystem::create_directories(run + "/checkpoints");
    const std::string path = checkpoint_path(run, step);
    std::filesystem::copy(from, path, std::filesystem::copy_options::recursive);
    return path;
  };
  const auto with = [&](int64_t length, int64_t batch, int64_t accumulate, uint64_t seed) {
    RunConfig c = stream_config(folder, accumulate);
    c.length = length;
    c.batch = batch;
    c.seed = seed;
    c.save_every = 1;
    return c;
  };
  const auto prepared = [&](RunConfig c, const std::string& checkpoint) {
    return Prepared(
        {.out = out.path(), .checkpoint = checkpoint, .newest = checkpoint, .resume = true},
        {.config = std::move(c)});
  };
  const Prepared same = prepared(with(6, 3, 2, 1), at);
  EXPECT_NE(memories_in_f32(same.memories), memories_in_f32({empty_memory(*same.run.model, 3)}));
  EXPECT_EQ(same.remarks, std::vector<std::string>{"save_every is 1, and was 5"});
  const std::tuple<int64_t, int64_t, int64_t, uint64_t, const char*> cases[] = {
      {4, 3, 2, 1, "length"},
      {6, 4, 2, 1, "the batch of a step"},
      {6, 3, 1, 1, "the batch of a step"},
      {6, 3, 2, 2, "seed"}};
  for (const auto& [length, batch, accumulate, seed, what] : cases) {
    const Prepared other = prepared(with(length, batch, accumulate, seed), at);
    EXPECT_EQ(other.remarks.back(),
              fmt::format("the streams begin anew, with empty memories, at the beginning of their "
                          "parts of the data, since other than before are: {}",
                          what));
    std::vector<SegmentMemory> empty;
    for (int64_t i = 0; i < accumulate; ++i) empty.push_back(empty_memory(*other.run.model, batch));
    EXPECT_EQ(memories_in_f32(other.memories), memories_in_f32(empty));
    const TrainingRun fresh(with(length, batch, accumulate, seed), "");
    const auto data = open_task_data(fresh);
    data->prepare();
    for (int64_t i = 0; i < 3 * accumulate; ++i) {
      EXPECT_TRUE(same_bits(other.data->batch(5 * accumulate + i)->tokens, data->batch(i)->tokens));
    }
    EXPECT_TRUE(other.data->reset(5 * accumulate));
    EXPECT_FALSE(other.data->reset(6 * accumulate));

    const Folder whole, parts;
    train_run(with(length, batch, accumulate, seed), whole.path(), copied(at, whole.path(), 5));
    train_run(with(length, batch, accumulate, seed), parts.path(),
              copied(whole / "checkpoints/step-6", parts.path(), 6));
    for (const char* file : {"model", "optimizer"}) {
      const std::string name = fmt::format("checkpoints/step-8/{}.safetensors", file);
      EXPECT_FALSE(read_bytes(whole / name).empty());
      EXPECT_EQ(read_bytes(whole / name), read_bytes(parts / name)) << what;
    }
  }
}

TEST(StreamsOfARun, NeedTheMemoryThatWasPredicted) {
  const Folder folder;
  for (const int64_t accumulate : {1, 3}) {
    RunConfig config = stream_config(folder, accumulate);
    StepPlanner planner(config);
    const StepMemory predicted = planner.step(planner.own()),
                     measured = planner.step(planner.own(), Device{});
    EXPECT_EQ(predicted.peak(), measured.peak());
    EXPECT_EQ(predicted.at_peak[Category::memory], measured.at_peak[Category::memory]);
    // Each batch has its streams' memory before and after: 2 layers of [3, 6, 12] and their begins.
    EXPECT_EQ(measured.at_peak[Category::memory], accumulate * 2 * (2 * 896 + 64));
  }
}

// What streams keep between segments: in closed form, predicted, and measured.
TEST(StreamsOfARun, KeepTheBytesThatWerePredicted) {
  struct Case {
    const char *model, *field;
    std::function<int64_t(int64_t)> rows;
    int64_t begins;    // tensors with a number for each stream
    int64_t of_a_row;  // i64 of each row
  };
  const auto same = [](int64_t n) { return n; };
  const Case cases[] = {
      {"transformer_xl:tiny", "model.mem_len", same, 1, 0},
      {"adaptive_span:tiny", "model.span_max", same, 1, 0},
      // As many rows as can live: L + R - 1, R = 3.
      {"expire_span:tiny", "model.span_max", [](int64_t n) { return n + 2; }, 2, 1},
      // 4 fine rows, and one that waits for its pair.
      {"compressive:tiny", "model.compressed_len", [](int64_t n) { return n + 5; }, 4, 0}};
  const Folder folder;
  for (const Case& c : cases) {
    for (const int64_t length : {5, 32, 301}) {
      RunConfig config =
          stream_config(folder, 1, "cpu", c.model, {{c.field, std::to_string(length)}});
      const auto model = config.model->build(Init{.meta = true});
      const int64_t width = empty_memory(*model, 1).layers[0].get<InputRows>().states.dim(2);
      const auto block = [](int64_t bytes) { return memory::block_bytes(bytes); };
      const int64_t rows = c.rows(length), layers = model->layers(),
                    of_layer = block(3 * rows * width * 4) + c.of_a_row * block(3 * rows * 8),
                    expected = layers * of_layer + c.begins * block(3 * 8);
      const StepPlanner planner(config);
      EXPECT_EQ(planner.memory_of_streams(), expected) << c.model << " " << length;
      EXPECT_EQ(planner.memory_of_streams(Device{}), expected) << c.model << " " << length;
    }
  }
}

TEST(StreamsOfARun, AreScoredInSegmentsWithTheirMemory) {
  const Folder folder;
  const TrainingRun run(stream_config(folder), "");
  const auto data = open_task_data(run);
  EXPECT_TRUE(std::isfinite(data->bits("valid")));
  EXPECT_EQ(data->protocol("valid"), "segments of 6 tokens after a memory of 6, in 1 stream");
  EXPECT_EQ(data->protocol("train"),
            "segments of 6 tokens after a memory of 6, in 28 streams that read 6 tokens before "
            "they count");
}

// Samples that are longer than a segment are cut, and each begins with an empty memory.
TEST(StreamsOfARun, CutLongSamples) {
  const TrainingRun run(
      make_config({typed("task", "period"), typed("model.name", "transformer_xl:tiny"),
                   typed("period.length", "20"), typed("period.period", "7"), typed("length", "6"),
                   typed("batch", "2"), typed("steps", "8"), typed("period.held_out", "3")}),
      "");
  const auto data = open_task_data(run);
  ASSERT_TRUE(data->streams());
  for (int64_t step = 0; step < 8; ++step) {
    const auto b = data->batch(step);
    ASSERT_TRUE(b);
    EXPECT_EQ(b->tokens.dim(1), step % 4 == 3 ? 2 : 6) << step;
    EXPECT_EQ(static_cast<bool>(data->reset(step)), step % 4 == 0) << step;
  }
  EXPECT_TRUE(std::isfinite(data->bits("valid")));
  const TaskData::Evaluation found = data->evaluate("valid");
  EXPECT_EQ(found.bits, data->bits("valid"));
  EXPECT_EQ(found.report.figures.size(), 1u);
}

}  // namespace
}  // namespace longspan::test
