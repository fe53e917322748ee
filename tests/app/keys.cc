// The keys of configurations: each is declared once, with its range and its meaning.

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "app/make_config.h"
#include "app/tasks/table.h"
#include "models/all/registry.h"
#include "tests/harness/messages.h"
#include "train/config.h"

namespace longspan::test {
namespace {

/// Records the range of each field, by its whole name.
class RangeReader final : public RangedFields {
 public:
  struct Declared {
    std::string name;
    Range range;
    bool whole = true;
  };
  std::vector<Declared> all;

 private:
  void number(const Number& n, const Range& range) override {
    std::string key;
    for (const std::string& section : sections()) key += section + ".";
    all.push_back({key + std::string(n.name), range, n.whole});
  }
};

/// Values next to a range, on both sides of it.
std::vector<double> outside_of(const Range& range) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> values;
  if (range.low > -infinity) values.push_back(range.above ? range.low : range.low - 1);
  if (range.high < infinity) values.push_back(range.below ? range.high : range.high + 1);
  std::erase(values, range.also);
  return values;
}

TEST(Keys, EachHasAMeaning) {
  const auto expect_meanings = [](const std::vector<Key>& keys, std::string_view owner) {
    EXPECT_FALSE(keys.empty()) << owner;
    for (const Key& key : keys) {
      EXPECT_FALSE(key.meaning.empty()) << owner << ": " << key.name;
      EXPECT_EQ(key.meaning.find('\n'), std::string::npos) << owner << ": " << key.name;
    }
  };
  for (const ModelEntry& entry : models()) {
    expect_meanings(keys_of(*find_model(entry.name)), entry.name);
  }
  for (const TaskEntry& task : tasks()) {
    const auto made = task.make(task.set);
    const std::vector<Key> keys = keys_of(*made);
    if (!keys.empty()) expect_meanings(keys, task.set.id);
  }
}

TEST(Keys, ModelsRefuseWhatIsOutsideARange) {
  size_t tried = 0;
  for (const ModelEntry& entry : models()) {
    RangeReader reader;
    find_model(entry.name)->visit(reader);
    std::set<std::string> done;
    for (const auto& [name, range, whole] : reader.all) {
      for (const double value : outside_of(range)) {
        const auto model = find_model(entry.name);
        const Json one = whole ? Json(static_cast<int64_t>(value)) : Json(value);
        const bool list = to_json(*model)[name].is_array();
        set_fields(*model, Settings{{name, list ? Json(Json::Array{one}) : one, "test"}});
        const std::string text = message_of<ValueError>([&] { model->build(Init{.meta = true}); });
        EXPECT_TRUE(contains(text, name) && contains(text, "expected"))
            << entry.name << ": " << name << " = " << value << ": " << text;
        ++tried;
      }
    }
  }
  EXPECT_GT(tried, 300u);
}

// Those of a task, of the run and of the optimiser, by their whole names.
TEST(Keys, RunsRefuseWhatIsOutsideARange) {
  size_t tried = 0;
  for (const TaskEntry& task : tasks()) {
    const Setting name{"task", std::string(task.set.id), "--task", true};
    RunConfig config = make_config({name});
    RangeReader reader;
    config.visit(reader);
    for (const auto& [key, range, whole] : reader.all) {
      if (key.starts_with("model.")) continue;
      for (const double value : outside_of(range)) {
        const Json written = whole ? Json(static_cast<int64_t>(value)) : Json(value);
        const std::string text = message_of<ValueError>([&] {
          make_config({name, {key, written, "config.toml:7"}});
        });
        EXPECT_TRUE(contains(text, key + " is ") && contains(text, "(config.toml:7): expected"))
            << task.set.id << ": " << key << " = " << value << ": " << text;
        ++tried;
      }
    }
  }
  EXPECT_GT(tried, 1000u);
}

}  // namespace
}  // namespace longspan::test
