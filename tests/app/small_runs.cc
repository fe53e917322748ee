#include "tests/app/small_runs.h"
#include "app/make_config.h"

#include <cmath>
#include <optional>

#include "app/tasks/pairs.h"
#include "app/training.h"
#include "core/generator.h"
#include "models/document_model.h"

namespace longspan::test {

SmallData::SmallData() {
  std::string bytes;
  for (int i = 0; i < 600; ++i) {
    bytes += static_cast<char>('a' + philox_word(3, i % 37 + i / 200 * 7) % 16);
  }
  write_bytes(text(), bytes);
  const char* words[] = {"ab", "cde", "f", "ghij"};
  for (const auto& [part, count] : {std::pair{"train", 5}, {"valid", 3}, {"test", 1}}) {
    std::string articles, summaries;
    for (int i = 0; i < count; ++i) {
      const std::string word = words[i % 4], more = i % 2 == 0 ? " <S_SEP> no x" : "";
      articles += "it is " + word + " <S_SEP> a " + word + more + " <S_SEP> end\n";
      summaries += "a " + word + "\n";
    }
    write_bytes(folder_ / (std::string(part) + ".article"), articles);
    write_bytes(folder_ / (std::string(part) + ".summary"), summaries);
  }
}

Setting typed(const std::string& key, const std::string& value) {
  return {key, Json(value), key, true};
}

Settings small_run(const SmallData& data, std::string_view model) {
  const std::unique_ptr<ModelSpec> spec = find_model(std::string(model) + ":tiny");
  const Json fields = to_json(*spec);
  const auto made = spec->build(Init{.meta = true});
  Settings all{typed("model.name", std::string(model) + ":tiny"),
               typed("steps", "6"),
               typed("batch", "2"),
               typed("threads", "1"),
               typed("seed", "7"),
               typed("log_every", "1"),
               typed("optimizer.lr", "0.01"),
               typed("optimizer.clip", "0.5")};
  const auto set = [&](const char* key, const char* value) { all.push_back(typed(key, value)); };
  if (ask<ReadsDocuments>(*made) != nullptr) {
    set("task", "documents");
    all.push_back(typed("data", "documents=" + data.documents()));
    set("model.vocab", "260");
  } else if (made->objective() == Objective::sequence) {
    set("task", "wiki-leads");
    all.push_back(typed("data", "wiki-leads=" + data.documents()));
    set("model.vocab", "259");
    set("length", "20");
    set("target_length", "6");
  } else {
    set("task", "bytes");
    all.push_back(typed("data", "bytes=" + data.text()));
    set("split", "80/20/0");
    set("length", "9");
    set("model.vocab", "257");
    if (fields.find("mask_id") != nullptr) set("model.mask_id", "256");
  }
  if (fields.find("dropout") != nullptr) set("model.dropout", "0.1");
  return all;
}

namespace {

/// Returns the texts that an encoder-decoder writes for the validation split, as JSON.
Json texts_of(const TaskData& data) {
  Json::Array all;
  const auto* pairs = dynamic_cast<const PairData*>(&data);
  const int64_t count = pairs == nullptr ? 0 : std::ssize(pairs->documents("valid"));
  for (int64_t i = 0; i < count; ++i) {
    for (const std::string& sentence : data.answer(data.input("valid", i), {.beams = 2})) {
      for (const char byte : sentence) all.push_back(int64_t{byte});
    }
  }
  return all;
}

}  // namespace

namespace {

/// A sample of the validation split: its bits, all figures, and how far it said it was.
struct SampleFigures {
  double bits = 0;
  std::string figures;
  std::vector<int64_t> done;
};

SampleFigures of_sample(const TaskData& data, int64_t tokens) {
  SampleFigures found;
  int64_t items = 0;
  const Evaluating sample(tokens, [&](int64_t done, int64_t all) {
    EXPECT_TRUE(done >= 0 && done <= all) << done << " of " << all;
    EXPECT_TRUE(items == 0 || all == items) << "one count for one walk through the split";
    if (done == 0 || (!found.done.empty() && done < found.done.back())) found.done.clear();
    items = done == all ? 0 : all;
    found.done.push_back(done);
  });
  found.bits = data.bits("valid");
  const auto [again, report] = data.evaluate("valid");
  EXPECT_NEAR(again, found.bits, 1e-12 * found.bits);
  found.figures = to_string(Json(report.figures));
  return found;
}

}  // namespace

Members expect_figures_of_any_batch(const Settings& settings) {
  double bits = 0;
  Members figures;
  std::optional<SampleFigures> first;
  for (const char* batch : {"1", "2", "3", "64"}) {
    SCOPED_TRACE(batch);
    Settings all = settings;
    all.push_back(typed("batch", batch));
    const TrainingRun run(make_config(all), "");
    const auto data = open_task_data(run);
    const auto [found, report] = data->evaluate("valid");
    Members mine = report.figures;
    for (const JsonMember& m : data->written("valid", {.beams = 2}).figures) mine.push_back(m);
    if (run.model->objective() == Objective::sequence) mine.emplace_back("texts", texts_of(*data));
    EXPECT_TRUE(std::isfinite(found));
    if (std::string_view(batch) == "1") {
      bits = found;
      figures = mine;
    }
    EXPECT_NEAR(found, bits, 1e-12 * bits);
    EXPECT_NEAR(data->bits("valid"), bits, 1e-12 * bits);
    EXPECT_EQ(to_string(Json(mine)), to_string(Json(figures)));

    const SampleFigures whole = of_sample(*data, int64_t{1} << 40);
    EXPECT_EQ(whole.bits, data->bits("valid"));
    EXPECT_EQ(whole.figures, to_string(Json(report.figures)));
    const SampleFigures some = of_sample(*data, 2 * run.config.length);
    EXPECT_TRUE(std::isfinite(some.bits) || data->may_lack_targets());
    EXPECT_FALSE(some.done.empty());
    if (!first) first = some;
    if (std::isfinite(some.bits)) {
      EXPECT_NEAR(some.bits, first->bits, 1e-12 * first->bits);
    }
    EXPECT_EQ(some.figures, first->figures);
  }
  return figures;
}

void train_small(const Settings& settings, const std::string& out, const std::string& checkpoint) {
  Beginning from{
      .out = out, .checkpoint = checkpoint, .newest = checkpoint, .resume = !checkpoint.empty()};
  Prepared prepared(std::move(from), {.config = make_config(settings)});
  Training(prepared).run();
}

}  // namespace longspan::test
