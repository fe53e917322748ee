// Reads and writes checkpoints of Transformer-XL in the format of the package transformers, see
// tests/oracles/transformer_xl_checkpoints.py.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "autograd/mode.h"
#include "models/transformer_xl/transformer_xl_hf.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"
#include "ops/softmax.h"
#include "tests/harness/messages.h"
#include "tests/models/golden_file.h"
#include "train/pretrained.h"

namespace longspan::test {
namespace {

const std::string transfo_xl =
    std::string(LONGSPAN_SOURCE_DIR) + "/tests/oracles/checkpoints/transfo_xl_";

TransformerXLKeys transformer_xl_keys_of(const std::string& path) {
  TransformerXLKeys keys;
  load_pretrained_config(path, keys);
  return keys;
}

TransformerXL read_transformer_xl(const std::string& path, DType dtype) {
  TransformerXL model(transformer_xl_config(transformer_xl_keys_of(path)),
                      Init{.gen = Generator{1}, .dtype = dtype});
  const CheckpointFormat& format = transformer_xl_format(model.config());
  load_pretrained(path, named_as(format, model),
                  {.prefix = format.prefix, .unused = format.unused});
  return model;
}

class TransformerXLWeights : public testing::TestWithParam<std::string> {};

/// In f64: logarithms of probabilities, and the losses, of two segments.
TEST_P(TransformerXLWeights, ComputeWhatThePackageDoes) {
  const NoGrad off;
  const TransformerXL model = read_transformer_xl(transfo_xl + GetParam(), DType::f64);
  auto expected = tensors_of(transfo_xl + GetParam() + "/expected.safetensors");
  SegmentMemory memory = model.empty_memory(2), scored = memory;
  int64_t at = 0, segment = 0;
  for (const int64_t n : expected["lengths"].to_vector<int64_t>()) {
    const Tensor tokens = contiguous(narrow(expected["tokens"], 1, at, n));
    const Tensor scores = log_softmax(model.memory_length() > 0 ? model.logits_after(scored, tokens)
                                                                : model.logits(tokens, Pass{}));
    EXPECT_LE(distance(scores, narrow(expected["scores"], 1, at, n)), 1e-12);
    const Tensor next = concat({narrow(tokens, 1, 1, n - 1), full({2, 1}, -100, DType::i64)}, 1);
    auto result = model.loss(tokens, next, memory, Pass{});
    EXPECT_NEAR(result.loss.item(), expected["losses"].to_vector<double>().at(segment), 1e-12);
    memory = std::move(result.memory);
    at += n;
    ++segment;
  }
  EXPECT_EQ(segment, 2);
}

/// The export equals the import, name by name and bit by bit. If the environment variable names a
/// folder, the export stays there for the reference implementation to read back.
TEST_P(TransformerXLWeights, GoBothWays) {
  TransformerXL model = read_transformer_xl(transfo_xl + GetParam(), DType::f32);
  const char* keep = std::getenv("LONGSPAN_TEST_CHECKPOINTS");
  const std::string out =
      (keep != nullptr ? std::string(keep) + "/" : testing::TempDir() + "longspan_checkpoints_") +
      "transfo_xl_" + GetParam();
  const TransformerXLConfig& c = model.config();
  TransformerXLKeys keys = transformer_xl_keys(c),
                    theirs = transformer_xl_keys_of(transfo_xl + GetParam());
  EXPECT_EQ(to_json(keys), to_json(theirs)) << "keys go out as they came in";
  save_pretrained(out, named_as(transformer_xl_format(c), model), to_json(keys));
  TransformerXLKeys written = transformer_xl_keys_of(out);
  EXPECT_EQ(to_json(written), to_json(theirs));

  auto before = tensors_of(transfo_xl + GetParam() + "/model.safetensors");
  const auto after = tensors_of(out + "/model.safetensors");
  EXPECT_EQ(before.erase("transformer.pos_emb.inv_freq"), 1u) << "the frequencies are a constant";
  EXPECT_EQ(after.size(), before.size());
  for (const auto& [name, x] : before) {
    ASSERT_EQ(after.count(name), 1u) << name;
    EXPECT_TRUE(same_bits(after.at(name), x)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, TransformerXLWeights,
                         testing::Values("plain", "shared", "clusters", "clusters_untied", "widths",
                                         "widths_untied", "widths_all_shared", "no_memory"),
                         own_name);

/// Returns the message of the refusal of a config.json with these members.
std::string config_refusal(const std::string& members) {
  const std::string path = testing::TempDir() + "longspan_transfo_xl_config";
  std::filesystem::create_directories(path);
  std::ofstream(path + "/config.json") << "{" + members + "}";
  return message_of<ValueError>([&] { transformer_xl_config(transformer_xl_keys_of(path)); });
}

TEST(TransformerXLMembers, WhatTheModelWouldNotDoIsRefused) {
  for (const auto& [member, says] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"("model_type": "xlnet")", "model_type is \"xlnet\"; expected \"transfo-xl\""},
           {R"("attn_type": 1)", "attn_type is 1; expected 0"},
           {R"("d_embed": 8)", "d_embed is 8; expected d_model, 1024"},
           {R"("ext_len": 4)", "ext_len is 4; expected 0"},
           {R"("init": "uniform")", "init is \"uniform\"; expected \"normal\""},
           {R"("proj_init_std": 0.5)", "proj_init_std is 0.5; expected 0.01"},
           {R"("sample_softmax": 100)", "sample_softmax is 100; expected -1"},
           {R"("tie_weight": false)", "tie_weight is false; expected true"},
           {R"("adaptive": false)", "adaptive is false"},
           {R"("cutoffs": [])", "div_val is 4; without cutoffs expected 1"},
           {R"("tie_projs": [false, true])", "tie_projs has 2 entries; expected 4"},
           {R"("mem_len": 0)", "same_length is true; expected false without a memory"},
           {R"("n_token": 19)", "n_token is 19, and is not known here"},
       }) {
    EXPECT_PRED2(contains, config_refusal(member), says) << member;
  }
}

/// The members of the released checkpoint for WikiText-103.
TEST(TransformerXLMembers, ThoseOfTheReleasedModelAreKnown) {
  const std::string path = testing::TempDir() + "longspan_transfo_xl_released";
  std::filesystem::create_directories(path);
  std::ofstream(path + "/config.json") << R"({
    "adaptive": true, "architectures": ["TransfoXLLMHeadModel"], "attn_type": 0, "clamp_len": 1000,
    "cutoffs": [20000, 40000, 200000], "d_embed": 1024, "d_head": 64, "d_inner": 4096,
    "d_model": 1024, "div_val": 4, "dropatt": 0.0, "dropout": 0.1, "eos_token_id": 0, "ext_len": 0,
    "init": "normal", "init_range": 0.01, "init_std": 0.02, "layer_norm_epsilon": 1e-05,
    "mem_len": 1600, "model_type": "transfo-xl", "n_head": 16, "n_layer": 18, "pre_lnorm": false,
    "proj_init_std": 0.01, "proj_share_all_but_first": true, "same_length": true,
    "sample_softmax": -1, "task_specific_params": {}, "tgt_len": 128,
    "tie_projs": [false, true, true, true], "tie_weight": true, "untie_r": true,
    "vocab_size": 267735})";
  const TransformerXLConfig c = transformer_xl_config(transformer_xl_keys_of(path));
  EXPECT_EQ(c.window, 1600);
  EXPECT_EQ(c.clamp, 1000);
  EXPECT_EQ(c.tie_projections, (std::vector<int64_t>{1, 2, 3}));
  TransformerXLKeys keys = transformer_xl_keys(c), defaults;
  defaults.tie_projs = {0, 1, 1, 1};
  EXPECT_EQ(to_json(keys), to_json(defaults)) << "the defaults of the package";
  keys.tie_projs.clear();
  EXPECT_EQ(transformer_xl_config(keys).tie_projections, (std::vector<int64_t>{1, 2, 3}));
  keys.proj_share_all_but_first = false;
  EXPECT_TRUE(transformer_xl_config(keys).tie_projections.empty());
}

TEST(TransformerXLMembers, WhatThePackageCannotDoIsNotWritten) {
  const auto refused = [](const std::function<void(TransformerXLConfig&)>& change) {
    TransformerXLConfig c = transformer_xl_preset("tiny");
    c.phantom_zero_memory = true;
    EXPECT_EQ(transformer_xl_keys(c).mem_len, 6);
    change(c);
    return message_of<ValueError>([&] { transformer_xl_keys(c); });
  };
  EXPECT_PRED2(contains, refused([](auto& c) { c.phantom_zero_memory = false; }),
               "phantom_zero_memory is false");
  EXPECT_PRED2(contains, refused([](auto& c) { c.window = 4; }), "window is 4");
  EXPECT_PRED2(contains, refused([](auto& c) { c.norm = NormPlace::pre; }), "final_norm is true");
  EXPECT_PRED2(contains, refused([](auto& c) { c.head_bias = false; }), "has head_bias");
  EXPECT_PRED2(contains, refused([](auto& c) { c.emb_scale = false; }), "emb_scale");
  EXPECT_PRED2(contains, refused([](auto& c) { c.token_head.soft_cap = 30; }), "no soft_cap");
  EXPECT_PRED2(contains, refused([](auto& c) { c.tie_projections = {1}; }),
               "tie_projections has 1");
}

/// Returns a folder with the config.json of a checkpoint, and its tensors as `change` leaves them.
template <class F>
std::string changed(const std::string& name, F change) {
  const std::string path = testing::TempDir() + "longspan_copies";
  std::filesystem::create_directories(path);
  TensorList tensors = read_tensors(transfo_xl + name + "/model.safetensors");
  change(tensors);
  write_tensors(path + "/model.safetensors", tensors, {});
  std::filesystem::copy_file(transfo_xl + name + "/config.json", path + "/config.json",
                             std::filesystem::copy_options::overwrite_existing);
  return path;
}

std::string refused(const std::string& path) {
  return message_of<IoError>([&] { read_transformer_xl(path, DType::f32); });
}

TEST(TransformerXLCheckpoints, SharedParametersHaveACopyInEachLayer) {
  const auto without = [](const std::string& copy) {
    return changed("shared", [&](TensorList& tensors) {
      std::erase_if(tensors, [&](const NamedTensor& t) { return t.name == copy; });
    });
  };
  read_transformer_xl(without("none"), DType::f32);
  const std::string copy = "transformer.layers.1.dec_attn.r_w_bias";
  EXPECT_PRED2(contains,
               message_of<IoError>([&] { read_transformer_xl(without(copy), DType::f32); }),
               "1 missing:\n    " + copy);
  const std::string other = changed("shared", [&](TensorList& tensors) {
    for (NamedTensor& t : tensors) {
      if (t.name == copy) t.tensor = zeros(t.tensor.shape());
    }
  });
  EXPECT_PRED2(contains, refused(other), copy + " and transformer.r_w_bias");
}

/// Tied tables and projections may be in the file, as copies; the frequencies are constants.
TEST(TransformerXLCheckpoints, CopiesAndConstantsAreLookedAt) {
  const auto with = [](const std::string& name, const std::string& of, bool same) {
    return changed("widths_all_shared", [&](TensorList& tensors) {
      const auto at = std::find_if(tensors.begin(), tensors.end(),
                                   [&](const NamedTensor& t) { return t.name == of; });
      ASSERT_NE(at, tensors.end()) << of;
      tensors.push_back({name, same ? clone(at->tensor) : zeros(at->tensor.shape())});
    });
  };
  for (const std::string i : {"0", "1"}) {
    for (const auto& [ours, theirs] : std::initializer_list<std::pair<std::string, std::string>>{
             {"crit.out_layers." + i + ".weight",
              "transformer.word_emb.emb_layers." + i + ".weight"},
             {"crit.out_projs." + i, "transformer.word_emb.emb_projs." + i}}) {
      read_transformer_xl(with(ours, theirs, true), DType::f32);
      EXPECT_PRED2(contains, refused(with(ours, theirs, false)), ours + " and " + theirs);
    }
  }
  const auto frequencies = [](double factor) {
    return changed("plain", [&](TensorList& tensors) {
      for (NamedTensor& t : tensors) {
        if (t.name == "transformer.pos_emb.inv_freq") t.tensor = mul(t.tensor, factor);
      }
    });
  };
  read_transformer_xl(frequencies(1), DType::f32);
  EXPECT_PRED2(contains, refused(frequencies(1.0001)), "inv_freq: expected 10000^(-2 i / d)");
}

}  // namespace
}  // namespace longspan::test
