#include "models/all/registry.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <set>
#include <typeinfo>

#include "autograd/mode.h"
#include "core/backends.h"
#include "core/memory.h"
#include "models/capabilities.h"
#include "models/transformer/transformer.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "train/config.h"

namespace longspan::test {
namespace {

/// Sets every numeric field of the given name to a number and leaves the other fields unchanged.
class Set final : public Fields {
 public:
  explicit Set(std::string name, int64_t number) : name_(std::move(name)), number_(number) {}
  int hits = 0, fields = 0;

 private:
  void take(std::string_view name, auto& value) {
    ++fields;
    if (name != name_) return;
    value = static_cast<std::remove_reference_t<decltype(value)>>(number_);
    ++hits;
  }
  void field(std::string_view n, bool& x) override { take(n, x); }
  void field(std::string_view n, int64_t& x) override { take(n, x); }
  void field(std::string_view n, uint64_t& x) override { take(n, x); }
  void field(std::string_view n, float& x) override { take(n, x); }
  void field(std::string_view n, double& x) override { take(n, x); }
  void field(std::string_view, std::string&) override { ++fields; }
  void field(std::string_view, std::vector<int64_t>&) override { ++fields; }
  void field(std::string_view, std::vector<std::string>&) override { ++fields; }
  void choice(std::string_view n, int& x, std::span<const std::string_view> names) override {
    EXPECT_FALSE(names.empty());
    take(n, x);
  }
  void written(std::string_view, std::string& text, bool (*valid)(std::string_view),
               std::string_view) override {
    EXPECT_TRUE(valid(text));
    ++fields;
  }
  void enter(std::string_view) override {}
  void leave() override {}

  std::string name_;
  int64_t number_;
};

TEST(Registry, EveryPresetCanBePlanned) {
  const auto live = [] {
    const Usage now = memory_tracker().live();
    return now.total() - now[Category::cache];
  };
  std::set<std::string> names;
  for (const ModelEntry& entry : models()) {
    EXPECT_TRUE(names.insert(std::string(entry.name)).second);
    ASSERT_FALSE(entry.presets.empty());
    EXPECT_EQ(entry.presets.front().name, "small");
    for (const Preset& p : entry.presets) {
      const auto spec = entry.make(p.name);
      const int64_t before = live();
      EXPECT_GT(spec->parameters(), 0);
      EXPECT_EQ(live(), before);
      EXPECT_GT(spec->defaults().length, 0);
      EXPECT_FALSE(p.description.empty());
    }
  }
}

/// Builds a model with one field set, in a child process. Returns 0 if the model was built or an
/// Error was thrown.
int built_with(const ModelEntry& entry, const std::string& field, int64_t value) {
  const pid_t child = fork();
  if (child != 0) {
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  alarm(20);
  set_memory_limit({}, int64_t{1} << 30);
  int code = 0;
  try {
    const auto spec = entry.make("tiny");
    Set set(field, value);
    spec->visit(set);
    spec->build(Init{.gen = Generator{1}});
  } catch (const Error&) {
  } catch (...) {
    code = 1;
  }
  _exit(code);
}

TEST(Registry, AbsurdSizesAreErrorsBeforeAnythingIsBuilt) {
  for (const ModelEntry& entry : models()) {
    const auto spec = entry.make("tiny");
    const Json fields = to_json(*spec);
    for (const JsonMember& member : fields.object()) {
      if (!member.value.is_integer()) continue;
      for (const int64_t value : {int64_t{100'000'000}, int64_t{4'000'000'000'000'000'000}}) {
        EXPECT_EQ(built_with(entry, member.name, value), 0)
            << entry.name << " with " << member.name << " = " << value;
      }
    }
    set_fields(*spec, Settings{{"n_layer", Json(int64_t{100'000'000}), ""}});
    const std::string text = message_of<ValueError>([&] { spec->build(Init{.meta = true}); });
    EXPECT_NE(text.find("n_layer is 100000000; expected 10000 or less"), std::string::npos) << text;
  }
}

TEST(Registry, AModelWithoutMemoryForItsParametersIsNotBegun) {
  const auto spec = find_model("transformer");
  const int64_t count = spec->parameters(), allocations = memory_tracker().allocations();
  set_memory_limit({}, 4 * count - 1);
  const std::string text = message_of<OutOfMemory>([&] { spec->build(Init{.gen = Generator{1}}); });
  set_memory_limit({}, 0);
  EXPECT_NE(text.find(fmt::format("it has {} parameters", count)), std::string::npos) << text;
  EXPECT_LT(memory_tracker().allocations() - allocations, 200);  // as on the meta device
}

/// Returns the loss of a freshly built model in bits per token. Tokens are uniformly random, so
/// that no model can do better than log2(vocab).
double first_loss(const LanguageModel& model, int64_t length) {
  const NoGrad off;
  const int64_t most = std::min(length, model.max_length());
  const Tensor tokens = some_tokens(1, most, model.vocab());
  const Tensor targets = some_tokens(1, most, model.vocab(), 2);
  switch (model.objective()) {
    case Objective::next_token:
      return model.loss(tokens, targets, empty_memory(model, 1), {}).loss.item() / std::log(2.0);
    case Objective::sequence: {
      const int64_t source = std::min(length, max_input_length(model));
      return need<WritesSequences>(model)
                 .sequence_loss({some_tokens(1, source, model.vocab(), 3)}, tokens, targets, {})
                 .loss.item() /
             std::log(2.0);
    }
    case Objective::masked_token:
      break;
  }
  // Masks every sixth token. Only masked tokens count as targets.
  std::vector<int64_t> seen = tokens.to_vector<int64_t>(), hidden = seen;
  for (size_t i = 0; i < seen.size(); ++i) {
    if (i % 6 != 0) {
      hidden[i] = ignored_target;
    } else {
      seen[i] = mask_token(model);
    }
  }
  const Shape shape = tokens.shape();
  return model.loss(Tensor::from(seen, shape), Tensor::from(hidden, shape), {}, {}).loss.item() /
         std::log(2.0);
}

// The laws of tests/harness/model_info.h hold for classes: each has at least one entry.
TEST(Registry, EveryModelHasAnEntryInTheTableOfLaws) {
  for (const ModelEntry& entry : models()) {
    const auto model = entry.make(entry.presets.front().name)->build(Init{.meta = true});
    if (ask<WritesSequences>(*model) != nullptr) continue;  // the laws are of one sequence
    const bool found = std::any_of(registered_models().begin(), registered_models().end(),
                                   [&](const ModelInfo& info) {
                                     const auto small = info.make(Init{.meta = true});
                                     return typeid(*small) == typeid(*model);
                                   });
    EXPECT_TRUE(found) << entry.name << " has no ModelInfo; tests/models/ has those of others, and "
                       << "docs/adding-a-model.md says what it is";
  }
}

TEST(Registry, PagesHaveARowOfEveryModel) {
  for (const char* page : {"/README.md", "/docs/models.md"}) {
    std::ifstream file(std::string(LONGSPAN_SOURCE_DIR) + page);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    for (const ModelEntry& entry : models()) {
      EXPECT_TRUE(contains(text, fmt::format("\n| `{}` |", entry.name)))
          << page << " has no row of " << entry.name << "; write one";
    }
  }
}

TEST(Registry, FirstLossIsNearThatOfKnowingNothing) {
  for (const ModelEntry& entry : models()) {
    const auto spec = entry.make("small");
    for (const uint64_t seed : {1, 2}) {
      const auto model = spec->build(Init{.gen = Generator{seed}});
      const double uniform = std::log2(static_cast<double>(model->vocab()));
      EXPECT_NEAR(first_loss(*model, spec->defaults().length), uniform, 0.3)
          << entry.name << ", seed " << seed;
    }
  }
}

/// After extend_positions(n) every model supports n tokens.
TEST(Registry, PositionsCanBeExtended) {
  constexpr int64_t any = std::numeric_limits<int64_t>::max();
  int extended = 0, refused = 0;
  for (const ModelEntry& entry : models()) {
    for (const Preset& p : entry.presets) {
      SCOPED_TRACE(fmt::format("{}:{}", entry.name, p.name));
      const auto spec = entry.make(p.name);
      const auto longest = [&] { return max_input_length(*spec->build(Init{.meta = true})); };
      const int64_t before = longest(), parameters = spec->parameters();
      if (before == any) {
        EXPECT_EQ(spec->extend_positions(1 << 20), "");
        EXPECT_EQ(spec->parameters(), parameters);
        continue;
      }
      EXPECT_EQ(spec->extend_positions(before), "");
      EXPECT_EQ(spec->parameters(), parameters);
      try {
        const std::string name(spec->extend_positions(2 * before + 1));
        EXPECT_TRUE(name == "n_max" || name == "source_n_max" || name == "n_positions") << name;
        EXPECT_EQ(longest(), 2 * before + 1);
        EXPECT_NE(spec->parameters(), parameters);  // a squarer grid may have fewer parameters
        ++extended;
      } catch (const ValueError& e) {  // grids of rows, columns and colours cannot be extended
        EXPECT_NE(std::string(e.what()).find("position_shape"), std::string::npos) << e.what();
        EXPECT_EQ(longest(), before);
        ++refused;
      }
    }
  }
  EXPECT_GT(extended, 30);
  EXPECT_EQ(refused, 5);
}

TEST(Registry, PublishedSizes) {
  const auto count = [](std::string_view name) { return find_model(name)->parameters(); };
  EXPECT_EQ(count("transformer:gpt2"), 124'439'808);
  EXPECT_EQ(count("transformer:bert"), 109'514'298);  // includes the masked-token head, no pooler
  // Includes the classifiers of the auxiliary losses, two for each layer.
  EXPECT_NEAR(static_cast<double>(count("transformer:t12")), 44e6, 0.5e6);
  EXPECT_NEAR(static_cast<double>(count("transformer:t64")), 235e6, 1e6);
  EXPECT_NEAR(static_cast<double>(count("transformer:base")), 65e6, 3e6);
  EXPECT_NEAR(static_cast<double>(count("transformer:big")), 213e6, 6e6);
}

TEST(Registry, FindsByNameAndNamesTheNearest) {
  EXPECT_EQ(find_model("transformer")->parameters(), find_model("transformer:small")->parameters());
  for (const auto& [wrong, right] : {std::pair{"transfromer", "\"transformer\""},
                                     {"local", "\"local_transformer"},
                                     {"transformer:gpt", "\"transformer:gpt2\""},
                                     {"", "did you mean"}}) {
    try {
      find_model(wrong);
      FAIL() << wrong;
    } catch (const ValueError& e) {
      EXPECT_NE(std::string(e.what()).find(right), std::string::npos) << e.what();
    }
  }
  EXPECT_THROW(transformer_preset("none"), ValueError);
  EXPECT_THROW(local_transformer_preset("none"), ValueError);
}

constexpr Preset own_presets[] = {{"small", "one of one's own"}, {"large", "another"}};

ModelEntry own_entry() {
  return {"own_model", "a model from outside", own_presets, [](std::string_view preset) {
            return find_model(preset == "small" ? "transformer:tiny" : "transformer");
          }};
}

// In a child process, since the other tests count on the models of the library alone.
TEST(Registry, ModelsOfOnesOwnAreFoundByName) {
  const pid_t child = fork();
  if (child == 0) {
    const size_t before = models().size();
    register_model(own_entry());
    bool good = models().size() == before + 1 && models().back().name == "own_model";
    good = good &&
           find_model("own_model")->parameters() == find_model("transformer:tiny")->parameters();
    good = good &&
           find_model("own_model:large")->parameters() == find_model("transformer")->parameters();
    good =
        good && contains(message_of<ValueError>([] { find_model("own_mode"); }), "\"own_model\"");
    good = good && contains(message_of<ValueError>([] { register_model(own_entry()); }),
                            "there is a model \"own_model\" already");
    _exit(good ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(Registry, RefusesEntriesThatProgramsCouldNotUse) {
  const auto error = [](auto change) {
    ModelEntry entry = own_entry();
    change(entry);
    return message_of<ValueError>([&] { register_model(entry); });
  };
  const size_t before = models().size();
  EXPECT_TRUE(contains(error([](ModelEntry& e) { e.name = ""; }), "the name \"\""));
  EXPECT_TRUE(contains(error([](ModelEntry& e) { e.name = "own:model"; }),
                       "the name \"own:model\": expected one or more of a-z, 0-9 and _"));
  EXPECT_TRUE(contains(error([](ModelEntry& e) { e.name = "transformer"; }),
                       "there is a model \"transformer\" already"));
  EXPECT_TRUE(contains(error([](ModelEntry& e) { e.presets = {}; }),
                       "the presets of own_model begin with nothing; expected \"small\" first"));
  EXPECT_TRUE(contains(error([](ModelEntry& e) { e.presets = e.presets.subspan(1); }),
                       "begin with \"large\""));
  static constexpr Preset bad[] = {{"small", ""}, {"large one", ""}};
  EXPECT_TRUE(contains(error([](ModelEntry& e) { e.presets = bad; }),
                       "a preset of own_model, \"large one\""));
  static constexpr Preset twice[] = {{"small", ""}, {"big", ""}, {"big", ""}};
  EXPECT_TRUE(contains(error([](ModelEntry& e) { e.presets = twice; }), "two presets \"big\""));
  EXPECT_TRUE(
      contains(error([](ModelEntry& e) { e.make = nullptr; }), "own_model has no function"));
  EXPECT_EQ(models().size(), before);
}

TEST(Registry, FieldsChangeWhatIsBuilt) {
  const auto spec = find_model("transformer");
  const int64_t before = spec->parameters();
  Set layers("n_layer", 2);
  spec->visit(layers);
  EXPECT_EQ(layers.hits, 1);
  EXPECT_GT(layers.fields, 30);
  EXPECT_LT(spec->parameters(), before);
  EXPECT_EQ(spec->build(Init{.gen = Generator{1}})->layers(), 2);
}

TEST(Registry, SmallModelsAreAsTheySay) {
  const auto local = find_model("local_transformer")->build(Init{.gen = Generator{1}});
  EXPECT_EQ(local->objective(), Objective::next_token);
  EXPECT_EQ(local->vocab(), 256);
  EXPECT_EQ(local->layers(), 4);
  EXPECT_EQ(local->device(), Device{});
  const TransformerConfig c = local_transformer_preset("small");
  EXPECT_EQ(c.window, 64);
  EXPECT_EQ(c.shaw_clip, 64);
  const auto encoder = find_model("transformer:encoder")->build(Init{.gen = Generator{1}});
  EXPECT_EQ(encoder->objective(), Objective::masked_token);
  EXPECT_EQ(mask_token(*encoder), 256);
}

// Errors must be thrown before any work and must say what was given, what is expected and what to
// do.
struct Wrong {
  const char* name;
  std::function<void(TransformerConfig&)> change;
  const char* message;
};

TEST(TransformerRejects, Configurations) {
  const std::vector<Wrong> cases{
      {"no layers", [](auto& c) { c.n_layer = 0; }, "n_layer is 0; expected 1 or more"},
      {"no heads", [](auto& c) { c.n_head = 0; }, "n_head is 0; expected 1 or more"},
      {"no vocabulary", [](auto& c) { c.vocab = 0; }, "vocab is 0"},
      {"negative width", [](auto& c) { c.d_model = -4; }, "d_model is -4"},
      {"negative heads", [](auto& c) { c.d_head = -1; }, "d_head is -1; expected 0 or more"},
      {"negative tables", [](auto& c) { c.d_embed = -2; }, "d_embed is -2"},
      {"negative types", [](auto& c) { c.token_types = -1; }, "token_types is -1"},
      {"negative classes", [](auto& c) { c.classes = -3; }, "classes is -3"},
      {"no epsilon", [](auto& c) { c.norm_eps = 0; }, "norm_eps is 0; expected more than 0"},
      {"negative deviation", [](auto& c) { c.init_std = -0.1; }, "init_std is -0.1"},
      {"source of a decoder", [](auto& c) { c.source_vocab = 9; },
       "source_vocab needs wiring = encoder_decoder"},
      {"no targets", [](auto& c) { c.n_target = 0; }, "n_target is 0; expected 1 or more"},
      {"encoder that predicts further",
       [](auto& c) {
         c.wiring = Wiring::encoder;
         c.n_target = 2;
       },
       "layer_loss and n_target > 1 need wiring = decoder"},
      {"weight of targets", [](auto& c) { c.target_weight = -1; }, "target_weight is -1"},
      {"heads do not divide", [](auto& c) { c.n_head = 3; },
       "d_model 16 is not a multiple of n_head 3; set d_head"},
      {"local without window", [](auto& c) { c.local = Locality::exact; },
       "window is 0; expected 1 or more with local = exact"},
      {"block encoder",
       [](auto& c) {
         c.local = Locality::block;
         c.window = 4;
         c.wiring = Wiring::encoder;
       },
       "local = block is causal"},
      {"local seq2seq",
       [](auto& c) {
         c.local = Locality::exact;
         c.window = 4;
         c.wiring = Wiring::encoder_decoder;
       },
       "not for encoder_decoder"},
      {"mlm decoder", [](auto& c) { c.mlm_head = true; }, "mlm_head needs wiring = encoder"},
      {"dropout 1", [](auto& c) { c.dropout = 1; }, "dropout is 1; expected 0 <= p < 1"},
      {"dropout below 0", [](auto& c) { c.dropout = -0.5f; }, "dropout is -0.5"},
      {"attention dropout", [](auto& c) { c.dropout_attn = 2; }, "dropout_attn is 2"},
      {"neither a share nor -1", [](auto& c) { c.dropout_emb = -0.5f; }, "dropout_emb is -0.5"},
      {"every token", [](auto& c) { c.dropout_token = 1; }, "dropout_token is 1"},
      {"smoothing", [](auto& c) { c.label_smoothing = 1; }, "label_smoothing is 1"},
      {"odd sinusoid",
       [](auto& c) {
         c.positions = Positions::sinusoid;
         c.d_model = 17;
         c.n_head = 1;
       },
       "width 17 is odd"},
      {"negative clip", [](auto& c) { c.shaw_clip = -1; }, "clip is -1"},
  };
  for (const Wrong& w : cases) {
    TransformerConfig c = transformer_preset("tiny");
    w.change(c);
    const int64_t before = memory_tracker().live().total();
    try {
      Transformer(c, Init{.gen = Generator{1}});
      ADD_FAILURE() << w.name << " was taken";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(w.message), std::string::npos)
          << w.name << ": " << e.what();
    }
    EXPECT_EQ(memory_tracker().live().total(), before) << w.name;
  }
}

struct WrongInput {
  const char* name;
  std::function<void(const Transformer&)> call;
  const char* message;
};

TEST(TransformerRejects, Inputs) {
  TransformerConfig c = transformer_preset("tiny");
  c.positions = Positions::learned;
  const Transformer model(c, Init{.gen = Generator{1}});
  const auto ids = [](const std::vector<int64_t>& v) {
    return Tensor::from(v, {1, static_cast<int64_t>(v.size())});
  };
  const std::vector<WrongInput> cases{
      {"id too large",
       [&](const Transformer& m) {
         m.logits(ids({1, 17}), Pass{});
       },
       "17"},
      {"negative id", [&](const Transformer& m) { m.logits(ids({-1}), Pass{}); }, "-1"},
      {"target too large",
       [&](const Transformer& m) {
         m.loss(ids({1, 2}), ids({3, 17}), {}, Pass{});
       },
       "17"},
      {"too long", [](const Transformer& m) { m.logits(some_tokens(1, 17, 17), Pass{}); },
       "position 16 is beyond the learned table of 16 positions"},
      {"rank 1", [](const Transformer& m) { m.logits(Tensor::zeros({4}, DType::i64), Pass{}); },
       "tokens must be [B, L]"},
      {"floating tokens",
       [](const Transformer& m) {
         m.logits(Tensor::zeros({1, 4}), Pass{});
       },
       "ids"},
      {"other batch of targets",
       [](const Transformer& m) {
         m.loss(some_tokens(2, 4, 17), some_tokens(1, 4, 17), {}, Pass{});
       },
       "targets must be [B, L]"},
      {"other length of targets",
       [](const Transformer& m) {
         m.loss(some_tokens(1, 4, 17), some_tokens(1, 5, 17), {}, Pass{});
       },
       "targets must be [B, L]"},
      {"floating targets",
       [](const Transformer& m) {
         m.loss(some_tokens(1, 4, 17), Tensor::zeros({1, 4}), {}, Pass{});
       },
       "targets"},
      {"memory of another model",
       [](const Transformer& m) {
         SegmentMemory memory;
         memory.layers.resize(2);
         m.loss(some_tokens(1, 4, 17), some_tokens(1, 4, 17), memory, Pass{});
       },
       "got a memory of 2 layers; this model keeps none"},
      {"source for a decoder",
       [](const Transformer& m) {
         m.forward({.tokens = some_tokens(1, 4, 17), .source = some_tokens(1, 4, 17)}, Pass{});
       },
       "only an encoder_decoder takes a source"},
      {"encode", [](const Transformer& m) { m.encode(some_tokens(1, 4, 17), {}, Pass{}); },
       "only an encoder_decoder encodes"},
      {"classify",
       [](const Transformer& m) {
         m.classify(Tensor::zeros({1, 4, 16}));
       },
       "classes > 0"},
      {"decoding another batch",
       [](const Transformer& m) { m.decode(some_tokens(2, 1, 17), *m.start_decoding(1)); },
       "decoding takes tokens [1, n]"},
      {"decoding nothing",
       [](const Transformer& m) {
         m.decode(Tensor::zeros({1, 0}, DType::i64), *m.start_decoding(1));
       },
       "n >= 1"},
      {"another model's state",
       [](const Transformer& m) {
         DecodeState other;
         m.decode(some_tokens(1, 1, 17), other);
       },
       "another model's"},
      {"attention map of no layer",
       [](const Transformer& m) { m.attention_map(some_tokens(1, 4, 17), 2); }, "layer 2 of 2"},
      {"lengths of another batch",
       [](const Transformer& m) {
         m.forward({.tokens = some_tokens(2, 4, 17),
                    .lengths = Tensor::from(std::vector<int64_t>{4}, {1})},
                   Pass{});
       },
       "valid"},
  };
  for (const WrongInput& w : cases) {
    EXPECT_THROW(w.call(model), Error) << w.name;  // fills the cache of layouts for these lengths
    const int64_t before = memory_tracker().live().total();
    try {
      w.call(model);
      ADD_FAILURE() << w.name << " was taken";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(w.message), std::string::npos)
          << w.name << ": " << e.what();
    }
    EXPECT_EQ(memory_tracker().live().total(), before) << w.name;
  }
  if (!is_available({DeviceKind::cuda, 0})) {
    EXPECT_THROW(parse_device("cuda"), DeviceError);
  }
}

}  // namespace
}  // namespace longspan::test
