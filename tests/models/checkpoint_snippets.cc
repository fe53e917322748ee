// The snippets of docs/checkpoints.md. The code between two marks is compiled and run here, and
// compared with the page line by line.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "autograd/mode.h"
#include "models/blockbert/blockbert.h"
#include "models/encoder_hf.h"
#include "models/transformer_xl/transformer_xl_hf.h"
#include "ops/softmax.h"
#include "tests/models/golden_file.h"
#include "train/pretrained.h"
#include "train/state.h"

namespace longspan::test {
namespace {

const std::string root = std::string(LONGSPAN_SOURCE_DIR) + "/";

BlockBertConfig config_read;  // set by read()

BlockBert read_encoder(const std::string& folder) {
  // <reading>
  EncoderKeys keys;
  load_pretrained_config(folder, keys);
  BlockBertConfig config = blockbert_preset("base512");
  set_encoder(keys, config);
  config.n_block = 1;  // every token sees every other, as in RoBERTa
  config.heads_per_shift = {};
  BlockBert model(config, Init{});
  load_pretrained(folder, named_as(roberta_format, model),
                  {.prefix = roberta_format.prefix, .unused = roberta_format.unused});
  // </reading>
  config_read = config;
  return model;
}

void write(const std::string& folder, BlockBert& model, const BlockBertConfig& config) {
  // <writing>
  EncoderKeys keys = encoder_keys(config);
  save_pretrained(folder, named_as(roberta_format, model), to_json(keys));
  // </writing>
}

TransformerXL read_stream(const std::string& folder) {
  // <reading_stream>
  TransformerXLKeys keys;
  load_pretrained_config(folder, keys);
  TransformerXL model(transformer_xl_config(keys), Init{});
  const CheckpointFormat& format = transformer_xl_format(model.config());
  load_pretrained(folder, named_as(format, model),
                  {.prefix = format.prefix, .unused = format.unused});
  // </reading_stream>
  return model;
}

void write_stream(const std::string& folder, TransformerXL& model) {
  // <writing_stream>
  TransformerXLKeys keys = transformer_xl_keys(model.config());
  save_pretrained(folder, named_as(transformer_xl_format(model.config()), model), to_json(keys));
  // </writing_stream>
}

/// Returns the lines without their leading spaces.
std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    const size_t begin = line.find_first_not_of(' ');
    lines.push_back(begin == std::string::npos ? "" : line.substr(begin));
  }
  EXPECT_FALSE(lines.empty()) << path;
  return lines;
}

TEST(CheckpointSnippets, AreThoseOfTheDocs) {
  const auto here = lines_of(root + "tests/models/checkpoint_snippets.cc");
  const auto page = lines_of(root + "docs/checkpoints.md");
  for (const std::string name : {"reading", "writing", "reading_stream", "writing_stream"}) {
    std::vector<std::string> snippet;
    bool inside = false;
    for (const std::string& line : here) {
      if (line == "// </" + name + ">") inside = false;
      if (inside) snippet.push_back(line);
      if (line == "// <" + name + ">") inside = true;
    }
    ASSERT_GE(snippet.size(), 2u);
    EXPECT_NE(std::search(page.begin(), page.end(), snippet.begin(), snippet.end()), page.end())
        << "docs/checkpoints.md has another snippet for " << name;
  }
}

TEST(CheckpointSnippets, ComputeWhatThePackageDoes) {
  const NoGrad off;
  const std::string folder = root + "tests/oracles/checkpoints/roberta";
  BlockBert model = read_encoder(folder);
  std::map<std::string, Tensor> expected;
  for (NamedTensor& t : read_tensors(folder + "/expected.safetensors")) {
    expected[t.name] = t.tensor;
  }
  const auto logits = [&](const BlockBert& m) {
    return without_padding(
        m.head(m.forward({.tokens = expected["tokens"], .lengths = expected["lengths"]}, Pass{})),
        expected["lengths"]);
  };
  EXPECT_LE(distance(logits(model), expected["logits"]), 1e-5);
  const std::string out = testing::TempDir() + "longspan_snippet";
  write(out, model, config_read);
  EXPECT_TRUE(same_bits(logits(read_encoder(out)), logits(model)));
}

TEST(CheckpointSnippets, ReadAndWriteAModelWithAMemory) {
  const NoGrad off;
  const std::string folder = root + "tests/oracles/checkpoints/transfo_xl_widths";
  TransformerXL model = read_stream(folder);
  std::map<std::string, Tensor> expected;
  for (NamedTensor& t : read_tensors(folder + "/expected.safetensors")) {
    expected[t.name] = t.tensor;
  }
  const int64_t n = expected["lengths"].to_vector<int64_t>()[0];
  const Tensor tokens = contiguous(narrow(expected["tokens"], 1, 0, n));
  const auto scores = [&](const TransformerXL& m) {
    SegmentMemory memory = m.empty_memory(tokens.dim(0));
    return log_softmax(m.logits_after(memory, tokens));
  };
  EXPECT_LE(distance(scores(model), narrow(expected["scores"], 1, 0, n)), 1e-5);
  const std::string out = testing::TempDir() + "longspan_snippet_stream";
  write_stream(out, model);
  EXPECT_TRUE(same_bits(scores(read_stream(out)), scores(model)));
}

}  // namespace
}  // namespace longspan::test
