// The table of tasks: what holds for every row.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "app/make_config.h"
#include "app/tasks/table.h"
#include "data/tasks.h"
#include "models/all/registry.h"
#include "models/capabilities.h"
#include "tests/harness/messages.h"

namespace longspan::test {
namespace {

RunConfig config_for(std::string_view task, std::string_view model) {
  return make_config({{"task", std::string(task), "--task", true},
                      {"model.name", std::string(model), "--model", true},
                      {"length", "64", "--length", true},
                      {"batch", "2", "--batch", true}});
}

// A task runs its own forward pass on synthetic inputs with the models that suit it, and names
// itself, the model and others for the rest.
TEST(Tasks, SuitAModelOrSayWhatItLacks) {
  size_t suited = 0, refused = 0;
  for (const ModelEntry& entry : models()) {
    for (const TaskEntry& row : tasks()) {
      SCOPED_TRACE(std::string(row.set.id) + " with " + std::string(entry.name));
      const RunConfig c = config_for(row.set.id, entry.name);
      const auto model = c.model->build(Init{.device = meta_device});
      const Task& task = *c.of_task;
      if (task.suits(*model)) {
        const SegmentMemory memory = empty_memory(*model, c.batch);
        const LanguageModel::Losses losses = task.synthetic_loss(
            {*model, c, meta_device, c.length, memory, {.training = true, .gen = Generator{1}}});
        EXPECT_EQ(losses.loss.numel(), 1);
        EXPECT_EQ(task_for(*model, c.task), c.task);
        ++suited;
        continue;
      }
      ++refused;
      std::string text;
      try {
        task.require_suited(c, *model);
      } catch (const ValueError& e) {
        text = e.what();
      }
      if (text.empty()) {  // its class has the head, with the number of outputs that the data say
        EXPECT_NE(implements<ClassifiesSequences>(*model), nullptr);
        continue;
      }
      EXPECT_TRUE(contains(text, row.set.id)) << text;
      EXPECT_TRUE(contains(text, entry.name) || contains(text, "expected true")) << text;
    }
  }
  EXPECT_GT(suited, 300u);
  EXPECT_GT(refused, 300u);
}

TEST(Tasks, FollowAModelWhoseUserNamesNone) {
  const auto task_of = [](const char* model, const char* key = nullptr, Json value = {}) {
    Settings all{{"model.name", model, "--model", true}};
    if (key != nullptr) all.push_back({key, std::move(value), "--set"});
    return make_config(with_task_of_model(all)).task;
  };
  EXPECT_EQ(task_of("transformer"), "bytes");
  EXPECT_EQ(task_of("hibert"), "bytes");
  EXPECT_EQ(task_of("led"), "wiki-leads");
  EXPECT_EQ(task_of("longformer:triviaqa"), "triviaqa");
  EXPECT_EQ(task_of("longformer:wikihop"), "wikihop");
  EXPECT_EQ(task_of("transformer", "model.wiring", Json("encoder_decoder")), "wiki-leads");
}

// Sizes that nobody has set follow from the task; a vocabulary that is large enough stays.
TEST(Tasks, GiveAModelItsSizes) {
  struct Case {
    const char *model, *task;
    Settings more;
    std::string remark, field, value;
  };
  const Setting small{"model.vocab", "300", "--set", true};
  const Case cases[] = {
      {"led", "wiki-leads", {}, "as many as the tokens of wiki-leads", "vocab", "259"},
      {"hibert", "documents", {}, "", "vocab", "4096"},
      {"longformer", "needle-qa", {}, "the head that needle-qa trains", "span_head", "true"},
      {"longformer", "marker", {}, "an output for each answer of marker", "classes", "1"},
      {"longformer", "motif-dna", {{"motifs.pairs", "3", "--set", true}}, "", "classes", "3"},
      {"longformer", "promoter", {}, "an output for each answer of promoter", "classes", "1"},
      {"longformer:wikihop", "wikihop", {small}, "", "vocab", "300"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(std::string(one.model) + " on " + one.task);
    Settings all = one.more;
    all.push_back({"model.name", one.model, "--model", true});
    all.push_back({"task", one.task, "--task", true});
    RunConfig c = make_config(all);
    const std::string remark = fill_sizes(c, all);
    EXPECT_TRUE(contains(remark, one.remark)) << remark;
    EXPECT_EQ(to_string(to_json(*c.model)[one.field]), one.value);
    EXPECT_EQ(fill_sizes(c, all), "") << "twice";
  }
  RunConfig bytes = make_config({});
  EXPECT_EQ(fill_sizes(bytes, {}), "");
}

TEST(Tasks, RefuseOptionsOfOthers) {
  const std::string text = message_of<ValueError>([] {
    make_config({{"task", "bytes", "--task", true}, {"extracts.chunk", "3", "--set", true}});
  });
  EXPECT_TRUE(contains(text,
                       "extracts.chunk: --set: it is an option of --task topic-docs, topic-labels, "
                       "wiki-leads, documents"))
      << text;
  EXPECT_TRUE(contains(text, "and the task is bytes: leave it out")) << text;
  // In files they are those of earlier versions, which had all of them.
  EXPECT_NO_THROW(make_config({{"extracts.chunk", 3, "config.toml:4"}}));
}

std::unique_ptr<SampleTask> make_duplicate() { return sample_tasks()[0].make(); }

TEST(Tasks, OfOnesOwnAreRefusedIfTheirNameIsTaken) {
  const auto refusal = [](SampleTaskEntry entry) {
    return message_of<ValueError>([&] { register_task(entry); });
  };
  EXPECT_TRUE(contains(refusal({"bytes", "x", "", make_duplicate}), "a task bytes already"));
  EXPECT_TRUE(contains(refusal({"", "x", "", make_duplicate}), "has no name"));
  EXPECT_TRUE(contains(refusal({"x", "x", "", nullptr}), "no function"));
  EXPECT_TRUE(contains(refusal({"x", "optimizer", "", make_duplicate}), "optimizer"));
}

}  // namespace
}  // namespace longspan::test
