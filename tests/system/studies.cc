// longspan study: what each study writes, on runs of some seconds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include "data/io/json.h"
#include "tests/system/program.h"

namespace longspan::test {
namespace {

using StudyRow = std::map<std::string, std::string>;

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line);
  for (std::string cell; std::getline(in, cell, ',');) cells.push_back(cell);
  return cells;
}

/// Reads a table, whose lines must have a cell for each column.
std::vector<StudyRow> read_table(const std::string& path) {
  std::istringstream in(read(path));
  std::string line;
  std::getline(in, line);
  const std::vector<std::string> columns = cells_of(line);
  std::vector<StudyRow> rows;
  while (std::getline(in, line)) {
    std::vector<std::string> cells = cells_of(line);
    cells.resize(std::max(cells.size(), columns.size()));  // an empty last cell
    EXPECT_EQ(cells.size(), columns.size()) << line;
    StudyRow row;
    for (size_t i = 0; i < columns.size(); ++i) row[columns[i]] = cells[i];
    rows.push_back(std::move(row));
  }
  return rows;
}

double number(const StudyRow& row, const std::string& column) {
  const auto at = row.find(column);
  EXPECT_NE(at, row.end()) << column;
  return at == row.end() ? std::nan("") : std::stod(at->second);
}

Outcome study(const std::string& name, const std::vector<std::string>& options,
              const std::string& out) {
  std::vector<std::string> words = {"study", name};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--out", out});
  return run(words);
}

const std::vector<std::string> names = {"memory",   "budget", "reversible", "lsh",
                                        "features", "entmax", "quality"};

TEST(Study, ListsStudiesAndWhatEachTakes) {
  const Outcome list = run({"study", "--help"});
  EXPECT_EQ(list.code, 0);
  for (const std::string& name : names) {
    EXPECT_NE(list.out.find("\n  " + name + " "), std::string::npos) << list.out;
    const Outcome help = run({"study", name, "--help"});
    EXPECT_EQ(help.code, 0) << help.err;
    EXPECT_NE(help.out.find("longspan study " + name), std::string::npos) << help.out;
    for (const char* option : {"--out", "--format"}) {
      EXPECT_NE(help.out.find(option), std::string::npos) << help.out;
    }
  }
}

TEST(Study, SaysWhatItDoesNotKnow) {
  const Folder folder;
  const auto refused = [](const std::vector<std::string>& words, const std::string& part) {
    const Outcome o = run(words);
    EXPECT_EQ(o.code, 1);
    EXPECT_NE(o.err.find(part), std::string::npos) << o.err;
  };
  const std::string out = folder / "s";
  refused({"study", "memroy", "--out", out}, "\"memroy\"; did you mean memory?");
  refused({"study"}, "no study given; expected longspan study NAME, one of memory, budget");
  refused({"study", "lsh"}, "no folder given");
  refused({"study", "lsh", "more", "--out", out}, "\"more\" belongs to no option");
  refused({"study", "lsh", "--out", out, "--format", "gif"}, "\"gif\"; expected png, svg or pdf");
  refused({"study", "lsh", "--out", out, "--chunks", "0"}, "--chunks: got 0");
  refused({"study", "lsh", "--out", out, "--layers", "3"}, "--layers");
  refused({"study", "entmax", "--out", out, "--alphas", "1,2.5"}, "--alphas: got 2.5");
  refused({"study", "entmax", "--out", out, "--alphas", "one"}, "\"one\"; expected numbers");
  refused({"study", "features", "--out", out, "--kinds", "relu"}, "approximate no softmax");
  refused({"study", "features", "--out", out, "--rows", "some"}, "expected some of iid");
  refused({"study", "budget", "--out", out, "--budgets", "much"}, "--budgets");
  refused({"study", "budget", "--out", out, "--strategies", "chekpoint"},
          "did you mean checkpoint");
  refused({"study", "reversible", "--out", out, "--strategies", "standard"},
          "expected reversible, reversible:K");
  refused({"study", "reversible", "--out", out, "--dtypes", "f8"}, "expected some of f32");
  refused({"study", "quality", "--out", out, "--steps", "9", "--task", "duplicate"},
          "compares at equal time");
  refused({"study", "quality", "--out", out, "--model", "performer", "--models", "reformer"},
          "leave one out");
  EXPECT_FALSE(exists(out));
  write(folder / "full/file", "x");
  refused({"study", "entmax", "--out", folder / "full"}, "is not empty");
}

TEST(Study, TakesItsNameBehindOptionsToo) {
  const Folder folder;
  const Outcome o = run({"study", "--out", folder / "s", "--lengths", "8", "--alphas", "1",
                         "--scales", "1", "--format", "svg", "entmax"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(names_in(folder / "s"),
            (std::vector<std::string>{"entmax.csv", "keys_by_alpha.svg", "keys_by_length.svg"}));
}

TEST(Study, MemoryHasTheTimeOfEachStep) {
  const Folder folder;
  const Outcome o = study("memory",
                          {"--model", "transformer:tiny", "--batch", "1", "--depths", "1,2",
                           "--lengths", "8", "--strategies", "standard lean", "--repeats", "2"},
                          folder / "s");
  ASSERT_EQ(o.code, 0) << o.err;
  for (const char* picture : {"time_depth", "time_length", "trade_off"}) {
    EXPECT_TRUE(exists(folder / "s/" + picture + ".png")) << picture;
  }
  const std::vector<StudyRow> rows = read_table(folder / "s/memory.csv");
  ASSERT_EQ(rows.size(), 6U);
  for (const StudyRow& row : rows) {
    EXPECT_EQ(number(row, "predicted_saved"), number(row, "saved"));
    EXPECT_EQ(number(row, "timed_steps"), 2);
    EXPECT_GT(number(row, "seconds"), 0);
    EXPECT_LE(number(row, "seconds"), number(row, "median_seconds"));
  }
}

/// A shape that cannot be built is refused before anything is measured.
TEST(Study, MemoryRefusesAShapeBeforeItBegins) {
  const Folder folder;
  const Outcome o = study("memory",
                          {"--model", "routing", "--batch", "1", "--length", "64", "--depths",
                           "4,1", "--strategies", "standard"},
                          folder / "s");
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("study: 1 layers of 64 tokens: routing"), std::string::npos) << o.err;
  EXPECT_FALSE(exists(folder / "s"));
  EXPECT_EQ(o.out, "");
}

TEST(Study, BudgetIsThatOfPredictions) {
  const Folder folder;
  const std::vector<std::string> model = {"--model",          "local_transformer", "--set",
                                          "model.d_model=32", "--batch",           "1"};
  std::vector<std::string> options = model;
  options.insert(options.end(),
                 {"--budgets", "80MiB,64MiB", "--strategies", "standard,checkpoint"});
  const Outcome o = study("budget", options, folder / "s");
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(names_in(folder / "s"),
            (std::vector<std::string>{"budget.csv", "deepest.png", "longest.png"}));
  const std::vector<StudyRow> rows = read_table(folder / "s/budget.csv");
  ASSERT_EQ(rows.size(), 4U);
  for (const StudyRow& row : rows) {
    std::vector<std::string> memory = model;
    memory.insert(memory.begin(), {"memory", "--json"});
    memory.insert(memory.end(), {"--budget", row.at("budget")});
    std::istringstream lines(run(memory).out);
    for (std::string line; std::getline(lines, line);) {
      const Json said = parse_json(line);
      if (said["memory"].string() != row.at("memory")) continue;
      EXPECT_EQ(number(row, "longest"), static_cast<double>(said["longest"].integer()));
      EXPECT_EQ(number(row, "deepest"), static_cast<double>(said["deepest"].integer()));
    }
  }
  EXPECT_EQ(rows[0].at("budget"), std::to_string(64 << 20));  // in order
  EXPECT_GT(number(rows[1], "longest"), number(rows[0], "longest"));
  EXPECT_GT(number(rows[2], "longest"), number(rows[0], "longest"));  // checkpoint
}

TEST(Study, ReversibleIsExactOnAGrid) {
  const Folder folder;
  const Outcome o = study("reversible",
                          {"--model", "transformer:tiny", "--length", "16", "--batch", "1",
                           "--depths", "2,6", "--dtypes", "f32,f64"},
                          folder / "s");
  ASSERT_EQ(o.code, 0) << o.err;
  const std::vector<StudyRow> rows = read_table(folder / "s/reversible.csv");
  ASSERT_EQ(rows.size(), 8U);
  for (const StudyRow& row : rows) {
    const double error = number(row, "error");
    if (row.at("strategy") == "reversible:exact") {
      EXPECT_EQ(error, 0);
      EXPECT_EQ(number(row, "stream_error"), 0);
      EXPECT_GT(number(row, "error_f64"), 0);  // of the grid
    } else if (row.at("dtype") == "f32") {
      EXPECT_GT(error, 0);
      EXPECT_LT(error, 1e-4);
      EXPECT_GT(number(row, "stored_error_f64"), 0);
    } else {
      EXPECT_LT(error, 1e-12);
      EXPECT_EQ(number(row, "stored_error_f64"), 0);  // it is the reference
    }
  }
  EXPECT_TRUE(exists(folder / "s/errors.png"));
}

TEST(Study, ReversibleSaysWhichModelsItDoesNotSuit) {
  const Folder folder;
  const Outcome o = study("reversible", {"--model", "expire_span", "--set", "model.layer_drop=0.1"},
                          folder / "s");
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("study reversible does not suit expire_span of 2 layers: "),
            std::string::npos)
      << o.err;
  EXPECT_NE(o.err.find("layer_drop"), std::string::npos) << o.err;
  EXPECT_FALSE(exists(folder / "s"));
}

TEST(Study, LshSeesAllInOneChunk) {
  const Folder folder;
  const std::vector<std::string> options = {"--length",   "64",  "--chunks", "8,64",
                                            "--rounds",   "1,2", "--heads",  "2",
                                            "--clusters", "4",   "--causal"};
  ASSERT_EQ(study("lsh", options, folder / "s").code, 0);
  const std::vector<StudyRow> rows = read_table(folder / "s/lsh.csv");
  ASSERT_EQ(rows.size(), 2U * 2 * 2 * 2);
  for (const StudyRow& row : rows) {
    const double mass = number(row, "mass");
    if (row.at("chunk") == "64" && row.at("keys_of") == "chunks") {
      EXPECT_EQ(mass, 1);
      EXPECT_EQ(number(row, "top"), 1);
    } else {
      EXPECT_LT(mass, 1);
    }
  }
  for (const char* picture : {"mass_random", "mass_clustered", "top_random", "top_clustered"}) {
    EXPECT_TRUE(exists(folder / "s/" + picture + ".png")) << picture;
  }
  // The same seed gives the same table, another one another.
  ASSERT_EQ(study("lsh", options, folder / "again").code, 0);
  EXPECT_EQ(read(folder / "again/lsh.csv"), read(folder / "s/lsh.csv"));
  std::vector<std::string> other = options;
  other.insert(other.end(), {"--seed", "2"});
  ASSERT_EQ(study("lsh", other, folder / "other").code, 0);
  EXPECT_NE(read(folder / "other/lsh.csv"), read(folder / "s/lsh.csv"));
}

TEST(Study, FeaturesErrLessWhereThereAreMore) {
  const Folder folder;
  const Outcome o = study("features",
                          {"--features", "16,1024", "--draws", "5", "--length", "64",
                           "--deviations", "0.25", "--kinds", "positive,phase"},
                          folder / "s");
  ASSERT_EQ(o.code, 0) << o.err;
  const std::vector<StudyRow> rows = read_table(folder / "s/features.csv");
  ASSERT_EQ(rows.size(), 8U);
  for (size_t i = 0; i < rows.size(); i += 2) {
    EXPECT_LT(number(rows[i + 1], "error"), number(rows[i], "error") / 3) << rows[i].at("kind");
  }
  EXPECT_TRUE(exists(folder / "s/error_0.25.png"));
}

TEST(Study, EntmaxHasNoZerosForSoftmax) {
  const Folder folder;
  const Outcome o = study("entmax", {"--alphas", "1 1.5 2", "--lengths", "32,128", "--scales", "1"},
                          folder / "s");
  ASSERT_EQ(o.code, 0) << o.err;
  const std::vector<StudyRow> rows = read_table(folder / "s/entmax.csv");
  ASSERT_EQ(rows.size(), 6U);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].at("alpha") == "1") {
      EXPECT_EQ(number(rows[i], "zeros"), 0);
      EXPECT_EQ(number(rows[i], "keys"), number(rows[i], "length"));
    } else {
      EXPECT_GT(number(rows[i], "zeros"), number(rows[i - 1], "zeros"));
    }
  }
}

TEST(Study, QualityTrainsForEqualTime) {
  const Folder folder;
  write(folder / "text", some_text(20'000));
  const std::vector<std::string> common = {"--data",      "bytes=" + folder / "text",
                                           "--length",    "16",
                                           "--batch",     "2",
                                           "--log-every", "1",
                                           "--threads",   "1",
                                           "--seconds",   "1"};
  std::vector<std::string> options = common;
  options.insert(options.end(),
                 {"--model", "transformer:tiny", "--strategies", "standard reversible+chunks"});
  const Outcome o = study("quality", options, folder / "s");
  ASSERT_EQ(o.code, 0) << o.err << o.out;
  const std::vector<StudyRow> rows = read_table(folder / "s/quality.csv");
  ASSERT_EQ(rows.size(), 2U);
  for (const StudyRow& row : rows) {
    const Json summary = parse_json(read(folder / "s/runs/" + row.at("run") + "/summary.json"));
    EXPECT_EQ(number(row, "parameters"), static_cast<double>(summary["parameters"].integer()));
    EXPECT_NEAR(number(row, "valid_bits"), summary["valid_bpb"].number(), 1e-5);
    EXPECT_GE(number(row, "seconds"), 1);
    EXPECT_LT(number(row, "seconds"), 4);
    EXPECT_GT(number(row, "peak"), 0);
  }
  EXPECT_NE(read(folder / "s/runs/reversible+chunks/config.toml").find("memory = \"reversible\""),
            std::string::npos);
  for (const char* picture : {"quality.png", "curves.png"}) {
    EXPECT_TRUE(exists(folder / "s/" + picture)) << picture;
  }
  // One that cannot train on these data is said to have failed, and the others are there.
  options = common;
  options.insert(options.end(), {"--models", "transformer:tiny,led"});
  const Outcome models = study("quality", options, folder / "m");
  EXPECT_EQ(models.code, 1);
  EXPECT_NE(models.out.find("failed: task: led maps a sequence"), std::string::npos) << models.out;
  const std::vector<StudyRow> trained = read_table(folder / "m/quality.csv");
  ASSERT_EQ(trained.size(), 1U);
  EXPECT_EQ(trained[0].at("run"), "transformer:tiny");
}

}  // namespace
}  // namespace longspan::test
