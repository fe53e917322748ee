// The keys of configurations: each is declared once, with its range and its meaning.

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "app/run_config.h"
#include "data/tasks.h"
#include "models/all/registry.h"
#include "tests/harness/messages.h"
#include "train/config.h"

namespace longspan::test {
namespace {

/// Records the range of each field, by its name.
class RangeReader final : public Fields {
 public:
  struct Declared {
    std::string name;
    Range range;
    bool whole = true;
  };
  std::vector<Declared> all;

  void within(const Range& range) override { next_ = range; }
  void field(std::string_view, bool&) override { next_.reset(); }
  void field(std::string_view name, int64_t&) override { take(name, true); }
  void field(std::string_view name, uint64_t&) override { take(name, true); }
  void field(std::string_view name, float&) override { take(name, false); }
  void field(std::string_view name, double&) override { take(name, false); }
  void field(std::string_view, std::string&) override { next_.reset(); }
  void field(std::string_view, std::vector<int64_t>&) override { next_.reset(); }
  void field(std::string_view, std::vector<std::string>&) override { next_.reset(); }
  void choice(std::string_view, int&, std::span<const std::string_view>) override { next_.reset(); }
  void written(std::string_view, std::string&, bool (*)(std::string_view),
               std::string_view) override {
    next_.reset();
  }
  void enter(std::string_view) override {}
  void leave() override {}

 private:
  void take(std::string_view name, bool whole) {
    if (next_) all.push_back({std::string(name), *next_, whole});
    next_.reset();
  }
  std::optional<Range> next_;
};

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
  for (const SampleTaskEntry& task : sample_tasks()) {
    expect_meanings(keys_of(*task.make()), task.id);
  }
}

TEST(Keys, ModelsRefuseWhatIsOutsideARange) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  size_t tried = 0;
  for (const ModelEntry& entry : models()) {
    RangeReader reader;
    find_model(entry.name)->visit(reader);
    std::set<std::string> done;
    for (const auto& [name, range, whole] : reader.all) {
      std::vector<double> outside;
      if (range.low > -infinity) outside.push_back(range.above ? range.low : range.low - 1);
      if (range.high < infinity) outside.push_back(range.below ? range.high : range.high + 1);
      for (const double value : outside) {
        if (value == range.also) continue;
        const auto model = find_model(entry.name);
        const Json written = whole ? Json(static_cast<int64_t>(value)) : Json(value);
        set_fields(*model, Settings{{name, written, "test"}});
        const std::string text = message_of<ValueError>([&] { model->build(Init{.meta = true}); });
        EXPECT_TRUE(contains(text, name) && contains(text, "expected"))
            << entry.name << ": " << name << " = " << value << ": " << text;
        ++tried;
      }
    }
  }
  EXPECT_GT(tried, 300u);
}

}  // namespace
}  // namespace longspan::test
