// run_program() as programs of one's own call it.

#include "app/program.h"

#include <gtest/gtest.h>

#include "tests/harness/scratch.h"
#include "train/log.h"

namespace longspan::test {
namespace {

int run_words(std::vector<std::string> words, const OnRow& on_row) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return run_program(static_cast<int>(words.size()), argv.data(), {}, {}, on_row);
}

TEST(Program, TellsOfEachRowThatItLogs) {
  const Folder folder;
  write_bytes(folder / "text", std::string(2000, 'a') + std::string(2000, 'b'));
  const std::string out = folder / "run";
  std::vector<std::string> told;
  const std::vector<std::string> train{"longspan",     "train",
                                       "--model",      "transformer:tiny",
                                       "--data",       "bytes=" + (folder / "text"),
                                       "--steps",      "4",
                                       "--log-every",  "2",
                                       "--eval-every", "2",
                                       "--threads",    "1",
                                       "--out",        out};
  const int status =
      run_words(train, [&](const std::string& run, int64_t step, const Members& figures) {
        EXPECT_EQ(run, out);
        Members row{{"step", step}};
        row.insert(row.end(), figures.begin(), figures.end());
        told.push_back(to_string(Json(std::move(row))));
      });
  EXPECT_EQ(status, 0);
  std::vector<std::string> written;
  for (const Json& row : read_rows(out + "/metrics.jsonl")) written.push_back(to_string(row));
  EXPECT_EQ(told, written);
  EXPECT_EQ(told.size(), 4u);
  EXPECT_EQ(run_words({"longspan", "models", "transformer"}, {}), 0) << "no function is needed";
  std::vector<std::string> refused = train;
  refused.back() += "2";
  const auto fails = [](const std::string&, int64_t, const Members&) {
    throw std::runtime_error("no room");
  };
  EXPECT_EQ(run_words(refused, fails), 1);
}

}  // namespace
}  // namespace longspan::test
