// Figures of a split do not depend on how its samples are grouped: for every model on its kind of
// data, and for tasks whose samples differ in length. Generated tasks: generated_tasks.cc.
#include <gtest/gtest.h>

#include "app/tasks/task_data.h"
#include "core/generator.h"
#include "data/tokenizers/tokenizer.h"
#include "models/all/registry.h"
#include "tests/app/small_runs.h"

namespace longspan::test {
namespace {

TEST(Grouping, OfNoModelChangesItsFigures) {
  const SmallData data;
  for (const ModelEntry& entry : models()) {
    SCOPED_TRACE(entry.name);
    expect_figures_of_any_batch(small_run(data, entry.name));
  }
}

TEST(Grouping, OfOtherDocumentsAndPairs) {
  const SmallData data;
  Settings labels = small_run(data, "hibert");
  labels.push_back(typed("model.labels", "2"));
  EXPECT_FALSE(expect_figures_of_any_batch(labels).empty());
  for (const char* model : {"led", "bigbird_pegasus", "bp_translator"}) {
    SCOPED_TRACE(model);
    Settings gaps = small_run(data, model);
    gaps.push_back(typed("gap_sentences", "0.4"));
    expect_figures_of_any_batch(gaps);
    Settings longer = small_run(data, model);
    longer.push_back(typed("length", "48"));
    EXPECT_FALSE(expect_figures_of_any_batch(longer).empty());
  }
  Settings pairs = small_run(data, "led");
  pairs.push_back(typed("model.name", "transformer:base"));
  for (const auto& [key, value] :
       {std::pair{"n_layer", "1"}, {"d_model", "16"}, {"d_ff", "16"}, {"n_head", "2"}}) {
    pairs.push_back(typed(std::string("model.") + key, value));
  }
  expect_figures_of_any_batch(pairs);
}

// Streams are read in the same number whatever the batch is, and the number is a figure.
TEST(Grouping, OfStreamsIsAFigure) {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>('a' + philox_word(5, i) % 11);
  write_bytes(folder / "text", text);
  const SmallData data;
  Settings settings = small_run(data, "transformer_xl");
  settings.push_back(typed("data", "bytes=" + folder / "text"));
  settings.push_back(typed("split", "30/70/0"));
  const Members figures = expect_figures_of_any_batch(settings);
  ASSERT_EQ(figures.size(), 1u);
  EXPECT_EQ(figures[0].name, "streams");
  EXPECT_EQ(figures[0].value, Json(int64_t{2100 / (16 * (9 + 9))}));
}

// Pieces of a tokenizer: samples of other lengths, of which a batch has the longest.
TEST(Grouping, OfSamplesOfOtherLengths) {
  const Folder folder;
  const auto records = [](uint64_t seed, const char* letters) {
    std::string all;
    for (int r = 0; r < 12; ++r) {
      all += ">r\n";
      for (int i = 0; i < 40; ++i) all += letters[philox_word(seed, r * 40 + i) % 5];
      all += "\n";
    }
    return all;
  };
  write_bytes(folder / "positive.fasta", records(1, "AAACG"));
  write_bytes(folder / "negative.fasta", records(2, "ACGTT"));
  std::string text;
  for (int i = 0; i < 300; ++i) text += i % 3 == 0 ? "ACGTAAC\n" : "AACGTTT\n";
  const std::string tokenizer = folder / "dna.model";
  write_bytes(tokenizer, train_sentence_pieces(text, {.kind = "bpe", .vocabulary = 270}));
  for (const char* model : {"bigbird", "blockbert", "longformer", "linformer", "bp_encoder"}) {
    SCOPED_TRACE(model);
    Settings settings{typed("model.name", std::string(model) + ":tiny"),
                      typed("task", "promoter"),
                      typed("data", "promoter=" + folder.path()),
                      typed("split", "40/60/0"),
                      typed("tokenizer", tokenizer),
                      typed("threads", "1"),
                      typed("length", "64"),
                      typed("model.vocab", "271"),
                      typed("model.classes", "1")};
    const Json fields = to_json(*find_model(std::string(model) + ":tiny"));
    if (fields.find("mlm_head") != nullptr) settings.push_back(typed("model.mlm_head", "false"));
    if (fields.find("globals") != nullptr) settings.push_back(typed("model.globals", "first"));
    EXPECT_FALSE(expect_figures_of_any_batch(settings).empty());
  }
}

}  // namespace
}  // namespace longspan::test
