#include "train/step_memory.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cmath>

#include "core/matmul_library.h"
#include "models/all/registry.h"
#include "models/capabilities.h"
#include "models/transformer/transformer.h"
#include "nn/objective.h"
#include "train/config.h"

namespace longspan {
namespace {

Tensor some_ids(int64_t batch, int64_t length, Device device) {
  std::vector<int32_t> ids(static_cast<size_t>(batch * length));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 5 % 11 + 5);
  Tensor x = Tensor::from(ids, {batch, length}, device);
  x.set_category(Category::data);
  return x;
}

/// Runs `steps` training steps of a model and returns the memory of the last one.
StepMemory step_of(const ModelSpec& spec, Device device, int64_t batch, int64_t length, int steps,
                   bool traced = false) {
  const Usage base = memory_tracker(device).live();
  const auto model = spec.build(Init{Generator{1}, device});
  Adam adam(named_parameters(*model));
  const Tensor tokens = some_ids(batch, length, device), targets = some_ids(batch, length, device);
  SegmentMemory memory = empty_memory(*model, batch);  // what exists of it, attention has work with
  const auto loss = [&] {
    const Pass pass{.training = true, .gen = Generator{2}};
    if (model->objective() == Objective::sequence) {
      return need<WritesSequences>(*model).sequence_loss({tokens}, tokens, targets, pass).loss;
    }
    auto result = model->loss(tokens, targets, memory, pass);
    memory = std::move(result.memory);
    return result.loss;
  };
  for (int i = 1; i < steps; ++i) measure_step(device, adam, loss, {.clip = 1.0, .base = base});
  std::optional<MemoryTrace> trace;
  if (traced) trace.emplace(device);
  return measure_step(device, adam, loss,
                      {.clip = 1.0, .base = base, .trace = traced ? &*trace : nullptr});
}

/// A memory strategy, and the models that refuse it.
struct Strategy7 {
  std::string_view memory;
  int64_t chunks = 1;
  std::vector<std::string_view> refused = {};
};

class MemoryOfModels : public testing::TestWithParam<Strategy7> {};

/// Returns the smallest preset of a model, made narrow, with this many layers.
std::unique_ptr<ModelSpec> small_model(const ModelEntry& entry, const Strategy7& strategy,
                                       int64_t layers) {
  auto spec = entry.make(entry.presets[0].name);
  const Json fields = to_json(*spec);
  Settings small{{"memory", Json(strategy.memory), ""}};
  const std::pair<const char*, int64_t> sizes[] = {{"chunks", strategy.chunks},
                                                   {"n_layer", layers},
                                                   {"d_model", 32},
                                                   {"d_ff", 48},
                                                   {"n_max", 512},
                                                   {"n_max_target", 512}};
  for (const auto& [name, size] : sizes) {
    if (fields.find(name) != nullptr) small.push_back({name, Json(size), ""});
  }
  set_fields(*spec, small);
  return spec;
}

/// Expects the prediction on the meta device to equal the measurement on the host: parameters,
/// gradients, optimiser state and saved bytes exactly, peaks of live bytes within 2 %.
void expect_as_predicted(const ModelSpec& spec, int64_t batch, int64_t length) {
  const StepMemory predicted = step_of(spec, meta_device, batch, length, 1);
  const StepMemory measured = step_of(spec, {}, batch, length, 2);
  EXPECT_GT(measured.saved, 0);
  EXPECT_EQ(predicted.saved, measured.saved);
  EXPECT_EQ(predicted.parameter, measured.parameter);
  EXPECT_EQ(predicted.gradient, measured.gradient);
  EXPECT_EQ(predicted.optimizer, measured.optimizer);
  EXPECT_EQ(predicted.macs, measured.macs);
  EXPECT_EQ(predicted.again, measured.again);
  const auto near = [](int64_t a, int64_t b) {
    EXPECT_LE(std::abs(static_cast<double>(a) / static_cast<double>(b) - 1), 0.02)
        << a << " predicted, " << b << " measured";
  };
  near(predicted.forward_peak, measured.forward_peak);
  near(predicted.backward_peak, measured.backward_peak);
  near(predicted.update_peak, measured.update_peak);
}

/// Layers and tokens of a model.
struct Depth {
  int64_t layers, length;
};

void expect_models_as_predicted(const Strategy7& strategy, std::initializer_list<Depth> shapes) {
  std::vector<std::string_view> refused;
  for (const ModelEntry& entry : models()) {
    try {
      small_model(entry, strategy, 2)->build(Init{.device = meta_device});
    } catch (const Error& e) {
      refused.push_back(entry.name);
      continue;
    }
    for (const auto& [layers, length] : shapes) {
      SCOPED_TRACE(fmt::format("{} N {} L {}", entry.name, layers, length));
      expect_as_predicted(*small_model(entry, strategy, layers), length == 128 ? 2 : 1, length);
    }
  }
  EXPECT_EQ(refused, strategy.refused);
}

TEST_P(MemoryOfModels, PredictedBytesAreThoseMeasured) {
  expect_models_as_predicted(GetParam(), {{2, 128}, {4, 256}});
}

TEST_P(MemoryOfModels, SlowPredictedBytesAreThoseMeasuredAtEveryDepth) {
  expect_models_as_predicted(GetParam(), {{2, 512}, {4, 128}, {4, 512}, {8, 128}, {8, 512}});
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, MemoryOfModels,
    testing::Values(Strategy7{"standard"}, Strategy7{"lean"}, Strategy7{"selective"},
                    Strategy7{"checkpoint"}, Strategy7{"checkpoint:2"},
                    Strategy7{"checkpoint:2+1+rest"}, Strategy7{"checkpoint", 2},
                    Strategy7{"reversible", 1, {}}, Strategy7{"reversible", 2, {}},
                    Strategy7{"reversible:2", 1, {}}, Strategy7{"reversible:exact", 1, {}}),
    [](const auto& of) {
      std::string name = fmt::format("{}_{}", of.param.memory, of.param.chunks);
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      return name;
    });

// On OpenBLAS our kernels need no scratch memory. OpenBLAS's own allocations are not counted.
TEST(Memory, PredictedBytesAreThoseMeasuredOnOpenBlas) {
  const WithMatmulLibrary openblas(MatmulLibrary::openblas);
  for (const ModelEntry& entry : models()) {
    SCOPED_TRACE(entry.name);
    const auto spec = small_model(entry, Strategy7{"checkpoint"}, 2);
    expect_as_predicted(*spec, 2, 128);
  }
}

/// Section 4: A_att = u T (D + D + 3 H d + H d) + 4 T (2 + H), A_ff = u T (2 D + 2 F) + 8 T. The
/// stack also saves the final norm's input and statistics, the loss the gradients of its input and
/// of its weight.
TEST(Memory, SavedBytesAreTheFormulasOfALayer) {
  for (const bool narrow : {false, true}) {
    const int64_t B = 2, L = 64, T = B * L, D = 32, F = 48, H = 2, u = narrow ? 2 : 4;
    const auto spec = find_model("transformer");
    for (const int64_t N : {1, 3}) {
      set_fields(*spec, Settings{{"n_layer", Json(N), ""},
                                 {"d_model", Json(D), ""},
                                 {"d_ff", Json(F), ""},
                                 {"n_head", Json(H), ""},
                                 {"activation", Json("gelu_erf"), ""},
                                 {"positions", Json("none"), ""},
                                 {"precision", Json(narrow ? "bf16" : "f32"), ""}});
      const int64_t a_att = u * T * (D + D + 3 * D + D) + 4 * T * (2 + H);
      const int64_t a_ff = u * T * (2 * D + 2 * F) + 8 * T;
      // With bf16: the weights of matrix products and the gains of norms, cast for the computation.
      const int64_t casts = narrow ? u * (4 * D * D + 2 * D * F + 2 * D) : 0;
      const int64_t V = 256, end_casts = narrow ? u * D : 0;  // the gain of the final norm
      const int64_t ends = u * T * D + 8 * T + u * T * D + u * V * D + end_casts;
      const StepMemory m = step_of(*spec, meta_device, B, L, 1, true);
      int64_t sum = 0;
      for (const SavedTerm& t : m.terms) sum += t.bytes;
      EXPECT_EQ(sum, m.saved);
      EXPECT_EQ(m.saved, N * (a_att + a_ff + casts) + ends) << (narrow ? "bf16" : "f32");
    }
  }
}

/// Saved products are not recomputed: lean recomputes none, selective only the last product of
/// attention, checkpoint all but the last product of each segment.
TEST(Memory, WhatIsRunAgainIsCounted) {
  const int64_t B = 1, L = 64, T = B * L, D = 32, F = 48, N = 3;
  const auto again = [&](const char* memory) {
    const auto spec = find_model("transformer");
    set_fields(*spec, Settings{{"n_layer", Json(N), ""},
                               {"d_model", Json(D), ""},
                               {"d_ff", Json(F), ""},
                               {"positions", Json("none"), ""},
                               {"memory", Json(memory), ""}});
    return step_of(*spec, meta_device, B, L, 1).again;
  };
  const int64_t pairs = L * (L + 1) / 2;
  const int64_t block = 4 * T * D * D + 2 * pairs * D + 2 * T * D * F;
  EXPECT_EQ(again("standard"), 0);
  EXPECT_EQ(again("lean"), 0);
  EXPECT_EQ(again("selective"), N * T * D * D);
  EXPECT_EQ(again("checkpoint"), N * (block - T * D * F));
  EXPECT_EQ(again("checkpoint:3"), N * block - T * D * F);
  EXPECT_EQ(again("checkpoint:1+rest"), block - T * D * F);
}

TEST(Memory, TermsAreFormulas) {
  const auto spec = find_model("local_transformer");
  set_fields(*spec, Settings{{"n_layer", Json(3), ""}});
  const int64_t B = 2, L = 128;
  const StepMemory m = step_of(*spec, meta_device, B, L, 1, true);
  const StepMemory longer = step_of(*spec, meta_device, B, 2 * L, 1, true);
  const TermNames names{
      B, L, DType::f32, {{128, "D"}, {512, "F"}, {4, "H"}, {32, "d"}}, &longer.terms};
  EXPECT_EQ(formula_of(collect_terms(m.terms, names), 3),
            "N (4 u T H d + u T F + 4 u T D + u T H + 4 u T) + 2 u T D + u 256 D + 2 u T");
}

TEST(Memory, SizesAreReadAndWritten) {
  EXPECT_EQ(parse_bytes("4GiB"), int64_t{4} << 30);
  EXPECT_EQ(parse_bytes("1.5 MiB"), 3 << 19);
  EXPECT_EQ(parse_bytes("64K"), 65536);
  EXPECT_EQ(parse_bytes("1000"), 1000);
  // K and KiB are 1024 bytes, KB is 1000; and so on.
  for (const auto& [text, bytes] : {std::pair{"20MiB", int64_t{20} << 20},
                                    {"20m", 20 << 20},
                                    {"20MB", 20'000'000},
                                    {"3KiB", 3072},
                                    {"3kb", 3000},
                                    {"4GB", 4'000'000'000},
                                    {"4G", int64_t{4} << 30},
                                    {"2TB", 2'000'000'000'000},
                                    {"2T", int64_t{2} << 40},
                                    {"7B", 7}}) {
    EXPECT_EQ(parse_bytes(text), bytes) << text;
    EXPECT_TRUE(ByteSize::valid(text)) << text;
  }
  for (const char* bad :
       {"", "GiB", "-1", "4 parsecs", "0", "1e30", "inf", "nan", "20XiB", "0.5"}) {
    try {
      parse_bytes(bad, "--budget");
      FAIL() << bad;
    } catch (const ValueError& e) {
      EXPECT_EQ(std::string(e.what()).find("--budget: \""), 0u) << e.what();
      EXPECT_NE(std::string(e.what()).find("20MiB"), std::string::npos) << e.what();
    }
    EXPECT_EQ(ByteSize::valid(bad), std::string_view(bad) == "0") << bad;
  }
  for (const auto& [bytes, text] : {std::pair{int64_t{0}, "0"},
                                    {1000, "1000"},
                                    {1024, "1KiB"},
                                    {20 << 20, "20MiB"},
                                    {3 << 19, "1536KiB"},
                                    {int64_t{5000} << 40, "5000TiB"}}) {
    ByteSize size;
    size.bytes = bytes;
    EXPECT_EQ(size.text(), text);
    size.set(text);
    EXPECT_EQ(size.bytes, bytes);
  }
  EXPECT_EQ(bytes_text(1000), "1000 B");
  EXPECT_EQ(bytes_text(3 << 19), "1.5 MiB");
  EXPECT_EQ(bytes_text(int64_t{13} << 28), "3.25 GiB");
}

TEST(Memory, NothingOfThePlanHasBytes) {
  const Usage host = memory_tracker().live();
  const Tensor x = Tensor::zeros({1 << 20, 1 << 20}, DType::f32, meta_device);
  EXPECT_EQ(memory_tracker(meta_device).live()[Category::other], int64_t{4} << 40);
  EXPECT_EQ(memory_tracker().live().total(), host.total());
}

TEST(LargestFitting, FindsTheLastSizeThatFits) {
  int calls = 0;
  const auto straight = [&](int64_t n) {
    ++calls;
    return 100 + 3 * n;
  };
  EXPECT_EQ(largest_fitting(straight, 7, 1, 1'000'000, 1000), 300);
  EXPECT_LE(calls, 6);  // a straight line is found at once
  EXPECT_EQ(largest_fitting(straight, 7, 64, 1'000'000, 1000), 256);
  EXPECT_EQ(largest_fitting(straight, 900, 1, 1'000'000, 1000), 300);  // from above
  EXPECT_EQ(largest_fitting(straight, 7, 1, 250, 1000), 250);
  EXPECT_EQ(largest_fitting(straight, 7, 64, 250, 1000), 192);
  EXPECT_EQ(largest_fitting(straight, 7, 1, 1'000'000, 99), 0);
  EXPECT_EQ(largest_fitting(straight, 7, 64, 63, 1000), 0);
  for (int64_t budget = 0; budget < 500; budget += 7) {
    const auto curved = [](int64_t n) { return n * n; };
    const auto root = static_cast<int64_t>(std::sqrt(static_cast<double>(budget)));
    EXPECT_EQ(largest_fitting(curved, 3, 1, 1000, budget), root) << budget;
  }
  // A size that cannot be built ends the search at the last one that could.
  const auto refused = [](int64_t n) { return n > 50 ? -1 : n; };
  EXPECT_LE(largest_fitting(refused, 10, 1, 1000, 400), 50);
  EXPECT_GE(largest_fitting(refused, 10, 1, 1000, 400), 10);
  EXPECT_THROW(largest_fitting(straight, 1, 0, 10, 10), ValueError);
}

}  // namespace
}  // namespace longspan
