#include "data/labelled/table.h"

#include "core/error.h"
#include "core/memory.h"
#include "tests/harness/gzip.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::Folder;
using test::message_of;
using test::write_bytes;

using Texts = std::vector<std::string>;

/// Rows as text: "a=1|b=x (place)".
Texts read_all(const std::string& path) {
  TableReader reader(path);
  Texts all;
  for (TableRow row; reader.next(row);) {
    std::string text;
    for (const std::string& name : row.columns()) {
      text += (text.empty() ? "" : "|") + name + "=" + to_string(*row.find(name));
    }
    all.push_back(text);
  }
  return all;
}

Texts read_text(std::string_view bytes, const std::string& name) {
  const Folder folder;
  write_bytes(folder / name, bytes);
  return read_all(folder / name);
}

std::string refusal(std::string_view bytes, const std::string& name) {
  return message_of<IoError>([&] { read_text(bytes, name); });
}

TEST(Table, ReadsCsvAsRfc4180) {
  const Texts expected = {R"(text="a"|label="1")", R"(text="b, \"c\"\u000ad"|label="")",
                          R"(text=""|label="x y")"};
  const std::string csv = "text,label\na,1\n\"b, \"\"c\"\"\nd\",\n\"\",x y";
  EXPECT_EQ(read_text(csv, "x.csv"), expected);
  EXPECT_EQ(read_text(csv + "\n", "x.csv"), expected);
  EXPECT_EQ(read_text("\xEF\xBB\xBF" + csv + "\n\n\n", "x.csv"), expected);
  EXPECT_EQ(read_text(test::gzip(csv), "x.csv.gz"), expected);
  EXPECT_EQ(read_text("text,label\r\na,1\r\n\r\n\"b, \"\"c\"\"\nd\",\r\n\"\",x y\r\n", "x.csv"),
            expected);
  EXPECT_EQ(read_text("text\tlabel\na\t1\n\"b, \"\"c\"\"\nd\"\t\n\t\"x y\"\n", "x.tsv"), expected);
  EXPECT_EQ(read_text("a\nit said \"no\"\n", "x.tab"), (Texts{R"(a="it said \"no\"")"}));
  EXPECT_EQ(read_text("a\n\"x\ty\"\n", "x.tsv"), (Texts{R"(a="x\u0009y")"}));
  EXPECT_EQ(read_text("a,b\nx\ry,\r\n", "x.csv"), (Texts{R"(a="x\u000dy"|b="")"}));
  EXPECT_TRUE(read_text("text,label\n", "x.csv").empty());
  EXPECT_TRUE(read_text("text,label", "x.csv").empty());
  EXPECT_EQ(read_text(",a\n0,x\n", "x.csv"), (Texts{R"(="0"|a="x")"}));  // an index
}

TEST(Table, RefusesDamagedCsv) {
  EXPECT_TRUE(contains(refusal("a,b\n1,2\n\n1\n", "x.csv"),
                       "x.csv: row 2 (line 4) has 1 fields, and the header 2 columns"));
  EXPECT_TRUE(contains(refusal("a,b\n1,2,3\n", "x.csv"), "row 1 (line 2) has 3 fields"));
  EXPECT_TRUE(contains(refusal("a,b\n1,2\n\"x\ny,3\n4,5", "x.csv"),
                       "x.csv: row 2 (line 3): a quote that opens a field is never closed"));
  EXPECT_TRUE(
      contains(refusal("a,b\n\"x\"y,2\n", "x.csv"), "row 1 (line 2): text follows the quote"));
  EXPECT_TRUE(contains(refusal("a,b\n\"x\"\ry,2\n", "x.csv"), "text follows the quote"));
  EXPECT_TRUE(contains(refusal("\"a", "x.csv"), "x.csv: header: a quote"));
  EXPECT_TRUE(contains(refusal("a\rb\rc", "x.csv"), "the header has a carriage return in it"));
  EXPECT_TRUE(contains(refusal("a\n\xE9\n", "x.csv"), "row 1 (line 2) is not UTF-8; convert"));
  EXPECT_TRUE(contains(refusal(std::string_view("a\nx\0y\n", 6), "x.csv"), "has a NUL byte"));
  EXPECT_TRUE(contains(refusal("a,b,a\n", "x.csv"), "the header has the column \"a\" twice"));
  EXPECT_TRUE(contains(refusal("", "x.csv"), "x.csv is empty"));
  EXPECT_TRUE(contains(refusal("\xEF\xBB\xBF\n\n", "x.tsv"), "x.tsv is empty"));
  // Lines inside of quotes count.
  EXPECT_TRUE(contains(refusal("a,b\n\"1\n2\n3\",2\nx\n", "x.csv"), "row 2 (line 5) has 1 fields"));
}

TEST(Table, ReadsObjectsByLine) {
  const Texts expected = {R"(text="a\u000ab"|label=1)", R"(text="ü"|label=null)"};
  const std::string lines =
      "{\"text\": \"a\\nb\", \"label\": 1}\n\n{\"text\": \"ü\", \"label\": null}";
  for (const char* name : {"x.jsonl", "x.ndjson", "x.json"}) {
    EXPECT_EQ(read_text(lines, name), expected);
    EXPECT_EQ(read_text("\xEF\xBB\xBF" + lines + "\r\n  \n", name), expected);
  }
  EXPECT_EQ(read_text(test::gzip(lines), "x.jsonl.gz"), expected);
  EXPECT_EQ(read_text("{\"a\": 1}", "x.json"), (Texts{"a=1"}));
  EXPECT_EQ(read_text("{\"data\": 1}\n{\"data\": 2}", "x.json"), (Texts{"data=1", "data=2"}));
}

TEST(Table, RefusesDamagedLines) {
  EXPECT_TRUE(
      contains(refusal("{\"a\": 1}\n\n{\"a\": }\n", "x.jsonl"), "x.jsonl: row 2 (line 3): "));
  EXPECT_TRUE(
      contains(refusal("{\"a\": 1}\n[2]\n", "x.jsonl"),
               "row 2 (line 2): expected an object with a member for each column, got an array"));
  EXPECT_TRUE(contains(refusal("{\"a\": 1, \"a\": 2}\n", "x.jsonl"), "\"a\" is given twice"));
  EXPECT_TRUE(contains(refusal("{\"a\": \"\xE9\"}\n", "x.jsonl"), "row 1 (line 1): "));
  EXPECT_TRUE(contains(refusal(std::string(100'000, '['), "x.jsonl"), "nested deeper than"));
  EXPECT_TRUE(contains(refusal(std::string(100'000, '['), "x.json"), "nested deeper than"));
  EXPECT_TRUE(contains(refusal("", "x.jsonl"), "x.jsonl is empty"));
  EXPECT_TRUE(contains(refusal(" \n", "x.json"), "x.json is empty"));
  EXPECT_TRUE(contains(refusal("{\"a\":\n 1}", "x.json"), "an object without an array \"data\""));
  EXPECT_TRUE(contains(refusal("7", "x.json"), "row 1 (line 1): expected an object"));
  EXPECT_TRUE(contains(refusal("[1]", "x.json"), "entry 1 is an integer"));
}

TEST(Table, ReadsArraysOfObjects) {
  const Texts expected = {"a=1", "a=2"};
  EXPECT_EQ(read_text("[{\"a\": 1}, {\"a\": 2}]", "x.json"), expected);
  EXPECT_EQ(read_text("\xEF\xBB\xBF\n[\n{\"a\": 1},\n{\"a\": 2}\n]\n", "x.json"), expected);
  EXPECT_EQ(read_text("{\"version\": 1, \"data\": [{\"a\": 1}, {\"a\": 2}]}", "x.json"), expected);
  EXPECT_EQ(read_text("{\n\"data\": [{\"a\": 1},\n {\"a\": 2}]\n}", "x.json"), expected);
  EXPECT_TRUE(read_text("[]", "x.json").empty());
}

TEST(Table, ReadsQuestionsOfSquad) {
  const std::string squad = R"({"version": "v2.0", "data": [{"title": "T", "paragraphs": [
    {"context": "A b.", "qas": [{"id": "1", "question": "q?", "answers": [], "is_impossible": true},
                                {"id": "2", "question": "r?", "answers": [{"text": "b", "answer_start": 2}]}]},
    {"context": "C.", "qas": []}]}, {"paragraphs": []}]})";
  const Texts rows = read_text(squad, "dev-v2.0.json");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0],
            R"(id="1"|question="q?"|answers=[]|is_impossible=true|context="A b."|title="T")");
  EXPECT_EQ(
      rows[1],
      R"(id="2"|question="r?"|answers=[{"text":"b","answer_start":2}]|context="A b."|title="T")");
  EXPECT_TRUE(
      contains(refusal(R"({"data": [{"paragraphs": [{"qas": []}, {"context": 1}]}]})", "x.json"),
               "x.json: article 1, paragraph 2: "));
  EXPECT_TRUE(
      contains(refusal(R"({"data": [{"paragraphs": [{"qas": [{}]}]}]})", "x.json"), "context"));
}

TEST(Table, HoldsOneRowOfALargeFile) {
  const Folder folder;
  std::string text = "text\n";
  for (int i = 0; i < 40'000; ++i) text += std::string(100, 'x') + "\n";
  write_bytes(folder / "x.csv", text);
  const int64_t before = memory_tracker().live()[Category::data];
  memory_tracker().reset_peak();
  TableReader reader(folder / "x.csv");
  int64_t rows = 0;
  for (TableRow row; reader.next(row); ++rows) EXPECT_EQ(row.find("text")->string().size(), 100u);
  EXPECT_EQ(rows, 40'000);
  EXPECT_EQ(memory_tracker().peak()[Category::data], before);
}

TEST(Table, SortsFilesIntoSplits) {
  const Folder folder;
  for (const char* name :
       {"train.jsonl", "train-00001-of-2.csv.gz", "validation.tsv", "dev-v2.0.json", "test_a.jsonl",
        "trained.csv", "notes.txt", "train.txt", "other.csv"}) {
    write_bytes(folder / name, "x");
  }
  const TableFiles files = find_tables({folder.path()});
  EXPECT_EQ(files.train, (Texts{folder / "train-00001-of-2.csv.gz", folder / "train.jsonl"}));
  EXPECT_EQ(files.valid, (Texts{folder / "dev-v2.0.json", folder / "validation.tsv"}));
  EXPECT_EQ(files.test, (Texts{folder / "test_a.jsonl"}));
  const TableFiles named = find_tables({folder / "other.csv", folder / "test_a.jsonl"});
  EXPECT_EQ(named.train, (Texts{folder / "other.csv"}));
  EXPECT_EQ(named.test, (Texts{folder / "test_a.jsonl"}));
  EXPECT_TRUE(contains(message_of<IoError>([&] { find_tables({folder / "notes.txt"}); }),
                       "has no ending that says what it holds; expected .jsonl"));
  EXPECT_TRUE(
      contains(message_of<IoError>([&] { find_tables({folder / "none.csv"}); }), "does not exist"));
  const Folder empty;
  EXPECT_TRUE(contains(message_of<IoError>([&] { find_tables({empty.path()}); }),
                       "has no file for training, validation or testing"));
  EXPECT_TRUE(
      contains(message_of<IoError>([&] { TableReader(folder / "notes.txt"); }), "no ending"));
  EXPECT_TRUE(
      contains(message_of<IoError>([&] { TableReader(folder / "none.csv"); }), "cannot open"));
}

}  // namespace
}  // namespace longspan
