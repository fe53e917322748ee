// The warnings of a run about steps that go wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/system/program.h"
#include "train/log.h"

namespace longspan::test {
namespace {

class Warnings : public testing::Test {
 protected:
  Warnings() { write(folder_ / "text", some_text(20'000)); }

  Outcome train(const std::vector<std::string>& more) {
    std::filesystem::remove_all(out());
    std::vector<std::string> w = {"train",
                                  "--model",
                                  "transformer",
                                  "--data",
                                  "bytes=" + folder_ / "text",
                                  "--length",
                                  "16",
                                  "--batch",
                                  "2",
                                  "--set",
                                  "model.d_model=16",
                                  "--set",
                                  "model.n_head=2",
                                  "--set",
                                  "model.d_ff=16",
                                  "--set",
                                  "schedule.warmup=0",
                                  "--log-every",
                                  "1",
                                  "--out",
                                  out()};
    w.insert(w.end(), more.begin(), more.end());
    return run(w);
  }
  std::string out() const { return folder_ / "run"; }

  /// Returns the figure of this name from each row that has it.
  std::vector<double> figures(std::string_view name) const {
    std::vector<double> all;
    for (const Json& row : read_rows(out() + "/metrics.jsonl")) {
      if (const Json* figure = row.find(name)) all.push_back(figure->number());
    }
    return all;
  }

  Folder folder_;
};

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST_F(Warnings, OfALossThatIsNoNumber) {
  const Outcome o = train({"--layers", "1", "--lr", "1e30", "--steps", "5"});
  EXPECT_GT(o.code, 0);
  EXPECT_NE(o.err.find("the loss of step 2 is nan"), std::string::npos) << o.err;
  EXPECT_FALSE(exists(out() + "/summary.json"));
  EXPECT_EQ(figures("loss").size(), 1u);
}

TEST_F(Warnings, OfReversibleLayersThatDrift) {
  const std::string warning = "inverting the layers ends";
  const auto reversible = [&](const char* lr) {
    return train({"--layers", "16", "--memory", "reversible:64", "--lr", lr, "--steps", "8"});
  };
  Outcome o = reversible("1");  // the learning rate is far too high
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(count(o.err, warning), 1u) << o.err;
  std::vector<double> errors = figures("inversion_error");
  EXPECT_EQ(errors.size(), 8u);
  EXPECT_GT(*std::max_element(errors.begin(), errors.end()), 1e-2);

  o = reversible("1e-3");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(count(o.err, warning), 0u) << o.err;
  errors = figures("inversion_error");
  EXPECT_EQ(errors.size(), 8u);
  EXPECT_GT(*std::min_element(errors.begin(), errors.end()), 0);
  EXPECT_LT(*std::max_element(errors.begin(), errors.end()), 1e-5);

  o = train({"--layers", "2", "--steps", "2"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(figures("inversion_error").empty());
}

}  // namespace
}  // namespace longspan::test
