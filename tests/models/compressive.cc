// Compressive Transformer: its two memories, what is compressed and what trains that, and files
// that another implementation made.

#include "models/compressive/compressive.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <tuple>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "models/transformer_xl/transformer_xl.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"
#include "tests/models/costs.h"
#include "tests/models/segments.h"
#include "train/optimizer.h"

namespace longspan::test {
namespace {

ModelInfo compressive_info(const std::string& name,
                           const std::function<void(CompressiveConfig&)>& change) {
  CompressiveConfig c = compressive_preset("tiny");
  c.init_std = 0.3;
  c.embed_std = 0.3;
  c.tie_embedding = false;
  c.loss = CompressionLoss::none;  // central differences would see it in all parameters
  c.segment = 20;                  // decoding moves no memory on in the tests
  change(c);
  CompressiveConfig dropping = c;
  dropping.dropout = dropping.dropout_attn = 0.1f;
  ModelInfo m = streamed_entry<Compressive>(name, c, dropping);
  m.sees = [](int64_t i, int64_t j) { return j <= i; };
  m.macs = [c](int64_t l) { return macs_of(c, l); };
  m.cuts = false;  // what is compressed together follows from the segments
  return m;
}

const RegisteredModel compressive_post =
    compressive_info("compressive_post", [](CompressiveConfig& c) { c.emb_scale = false; });
const RegisteredModel compressive_pre_mean =
    compressive_info("compressive_pre_mean", [](CompressiveConfig& c) {
      c.norm = NormPlace::pre;
      c.untie_biases = true;
      c.compression = Compression::mean;
      c.rate = 3;
      c.eviction = Eviction::floor;
    });
const RegisteredModel compressive_some_layers =
    compressive_info("compressive_some_layers", [](CompressiveConfig& c) {
      c.n_layer = 3;
      c.memory_layers = {0, 2};
      c.emb_scale = false;
    });
const RegisteredModel compressive_most_used =
    compressive_info("compressive_most_used", [](CompressiveConfig& c) {
      c.compression = Compression::most_used;
      c.emb_scale = false;
    });

/// Returns a model with random parameters, of a configuration like `c` but for a change.
template <class Model, class Config>
Model remembering(Config c, const auto& change, DType dtype = DType::f64) {
  change(c);
  return randomised<Model>(c, Init{.gen = Generator{3}, .dtype = dtype}, 0.4, 7);
}

Compressive compressive(const std::function<void(CompressiveConfig&)>& change,
                        DType dtype = DType::f64) {
  return remembering<Compressive>(compressive_preset("tiny"), change, dtype);
}

/// Returns the logits of the segments, joined.
Tensor logits_of(const LanguageModel& model, const Tensor& tokens,
                 const std::vector<int64_t>& lengths) {
  std::vector<Tensor> all;
  each_segment(tokens, lengths, empty_memory(model, tokens.dim(0)),
               [&](const Tensor& x, SegmentMemory memory) {
                 all.push_back(need<Streams>(model).logits_after(memory, x));
                 return memory;
               });
  return concat(all, 1);
}

/// Gives each parameter of a Compressive Transformer that Transformer-XL has too the same value.
void copy_common(TransformerXL& from, Compressive& to) {
  for (const NamedTensor& p : named_parameters(from)) {
    Tensor x = parameter(to, p.name);
    assign(x, p.tensor.to_vector<double>());
  }
}

const std::vector<std::vector<int64_t>> cuts = {{4, 4, 4, 4, 4}, {5, 1, 6, 3, 5}, {1, 1, 9, 2, 7}};

TEST(Compressive, WithoutCompressionItIsTransformerXLWithBothMemories) {
  for (const Compression f :
       {Compression::mean, Compression::max, Compression::conv, Compression::most_used}) {
    for (const NormPlace place : {NormPlace::post, NormPlace::pre}) {
      TransformerXL xl = remembering<TransformerXL>(transformer_xl_preset("tiny"), [&](auto& c) {
        c.mem_len = 7;
        c.norm = place;
      });
      CompressiveConfig c = compressive_preset("tiny");
      c.rate = 1;
      c.mem_len = 4;
      c.compressed_len = 3;
      c.norm = place;
      c.compression = f;
      Compressive model(c, Init{.gen = Generator{5}, .dtype = DType::f64});  // starts as the mean
      copy_common(xl, model);
      const Tensor tokens = some_tokens(2, 20, 17);
      for (const auto& lengths : cuts) {
        EXPECT_LT(distance(logits_of(model, tokens, lengths), logits_of(xl, tokens, lengths)),
                  1e-12);
      }
    }
  }
}

TEST(Compressive, WithoutACompressedMemoryItIsTransformerXL) {
  TransformerXL xl =
      remembering<TransformerXL>(transformer_xl_preset("tiny"), [](auto& c) { c.mem_len = 4; });
  Compressive model = compressive([](auto& c) { c.compressed_len = 0; });
  EXPECT_EQ(named_parameters(model).size(), named_parameters(xl).size());
  copy_common(xl, model);
  const Tensor tokens = some_tokens(2, 20, 17);
  for (const auto& lengths : cuts) {
    EXPECT_TRUE(same_bits(logits_of(model, tokens, lengths), logits_of(xl, tokens, lengths)));
    each_segment(tokens, lengths, model.empty_memory(2),
                 [&](const Tensor& x, const SegmentMemory& memory) {
                   auto result = model.loss(x, x, memory, training);
                   EXPECT_TRUE(result.auxiliary.empty());
                   EXPECT_FALSE(result.memory.layers[0].get<CompressedRows>().fine_begin);
                   return result.memory;
                 });
  }
}

/// Rows [2, n, 6] that all exist.
OldRows old_rows(int64_t n, int64_t rate, uint64_t seed = 3) {
  return {normal({2, n, 6}, Generator{seed}, 0.0, 1.0, DType::f64), zeros({2}, DType::i64),
          zeros({2}, DType::i64), zeros({2, n * rate / rate}, DType::f64)};
}

TEST(Compressive, AveragingConvolutionsAreMeansAndDilationOneIsAConvolution) {
  const Init init{.gen = Generator{2}, .dtype = DType::f64};
  for (const int64_t rate : {1, 2, 3, 5}) {
    const auto of = [&](Compression f, ConvStart start, int64_t dilation) {
      return Compressor({f, 6, rate, dilation, start}, init);
    };
    const OldRows old = old_rows(4 * rate, rate);
    const Tensor mean = of(Compression::mean, ConvStart::average, 1).forward(old);
    EXPECT_LT(distance(of(Compression::conv, ConvStart::average, 1).forward(old), mean), 1e-15);
    const Tensor conv = of(Compression::conv, ConvStart::normal, 1).forward(old);
    EXPECT_GT(distance(conv, mean), 1e-3);
    EXPECT_LT(distance(of(Compression::dilated, ConvStart::normal, 1).forward(old), conv), 1e-15);
    const Tensor dilated = of(Compression::dilated, ConvStart::normal, 2).forward(old);
    EXPECT_EQ(dilated.shape(), conv.shape());
    if (rate > 1) {
      EXPECT_GT(distance(dilated, conv), 1e-3);
    }
  }
}

/// The queue of one sample on the host: names of rows, those of groups with the first row's.
struct HostQueue {
  std::deque<int64_t> fine;
  std::vector<std::vector<int64_t>> compressed;  // all groups that there ever were
  std::vector<int64_t> lost;

  void after(const CompressedQueue& q, const std::vector<int64_t>& segment) {
    fine.insert(fine.end(), segment.begin(), segment.end());
    const int64_t evicted = std::max<int64_t>(0, std::ssize(fine) - q.fine);
    for (int64_t g = 0; g < evicted / q.rate; ++g) {
      compressed.emplace_back(fine.begin(), fine.begin() + q.rate);
      fine.erase(fine.begin(), fine.begin() + q.rate);
    }
    for (int64_t i = 0; q.eviction == Eviction::floor && i < evicted % q.rate; ++i) {
      lost.push_back(fine.front());
      fine.pop_front();
    }
  }
  /// Returns what the queue holds; a group is minus the name of its first row.
  std::vector<int64_t> rows(const CompressedQueue& q) const {
    std::vector<int64_t> all;
    for (int64_t g = std::max<int64_t>(0, std::ssize(compressed) - q.compressed);
         g < std::ssize(compressed); ++g) {
      all.push_back(-compressed[static_cast<size_t>(g)][0]);
    }
    all.insert(all.end(), fine.begin(), fine.end());
    return all;
  }
};

/// Three streams of a queue, of which some begin anew between segments.
void expect_queue(const CompressedQueue& q, uint64_t seed) {
  const int64_t capacity = q.capacity();
  std::vector<HostQueue> host(3);
  std::vector<int64_t> begin(3, capacity), fine_begin(3, capacity), next_name(3, 1);
  Tensor states = zeros({3, capacity, 1}, DType::f64);
  for (uint64_t step = 0; step < 12; ++step) {
    const auto length = static_cast<int64_t>(philox_word(seed, step) % 7 + 1);
    for (size_t b = 0; b < 3; ++b) {
      if (philox_word(seed + 1, 3 * step + b) % 6 != 0) continue;
      host[b] = {};
      begin[b] = fine_begin[b] = capacity;
      next_name[b] = 1;
    }
    std::vector<double> names;
    for (size_t b = 0; b < 3; ++b) {
      std::vector<int64_t> segment(static_cast<size_t>(length));
      std::iota(segment.begin(), segment.end(), next_name[b]);
      next_name[b] += length;
      names.insert(names.end(), segment.begin(), segment.end());
      host[b].after(q, segment);
    }
    const auto u = q.after(Tensor::from(begin, {3}), Tensor::from(fine_begin, {3}), length);
    EXPECT_EQ(u.groups, q.max_groups(length));
    const Tensor rows = concat({states, Tensor::from(names, {3, length, 1})}, 1);
    const Tensor old = permute_rows(rows, u.old);
    const Tensor first = slice(old, 1, 0, to_end, q.rate);  // of each group
    states = permute_rows(concat({rows, neg(first)}, 1), u.next);
    begin = u.begin.to_vector<int64_t>();
    fine_begin = u.fine_begin.to_vector<int64_t>();
    const auto new_begin = u.new_begin.to_vector<int64_t>();
    const auto old_begin = u.old_begin.to_vector<int64_t>();
    for (size_t b = 0; b < 3; ++b) {
      const auto own = [&](const Tensor& x) {
        return contiguous(select(x, 0, static_cast<int64_t>(b))).to_vector<double>();
      };
      const std::vector<double> all = own(states);
      std::vector<int64_t> seen(all.begin() + begin[b], all.end());
      EXPECT_EQ(seen, host[b].rows(q));
      EXPECT_EQ(capacity - fine_begin[b], std::ssize(host[b].fine));
      EXPECT_TRUE(
          std::all_of(all.begin(), all.begin() + begin[b], [](double x) { return x == 0; }));
      EXPECT_EQ(old_begin[b], new_begin[b] * q.rate);
      const std::vector<double> evicted = own(old);
      for (int64_t g = u.groups - 1, k = std::ssize(host[b].compressed) - 1; g >= new_begin[b];
           --g, --k) {
        for (int64_t t = 0; t < q.rate; ++t) {
          EXPECT_EQ(static_cast<int64_t>(evicted[static_cast<size_t>(g * q.rate + t)]),
                    host[b].compressed.at(static_cast<size_t>(k)).at(static_cast<size_t>(t)));
        }
      }
    }
  }
  for (const HostQueue& h : host) {  // with carry each token is compressed once, in order
    std::vector<int64_t> tokens;
    for (const auto& group : h.compressed) tokens.insert(tokens.end(), group.begin(), group.end());
    tokens.insert(tokens.end(), h.fine.begin(), h.fine.end());
    const bool all = std::adjacent_find(tokens.begin(), tokens.end(), [](int64_t a, int64_t b) {
                       return b != a + 1;
                     }) == tokens.end();
    EXPECT_TRUE(all || q.eviction == Eviction::floor);
    EXPECT_TRUE(h.lost.empty() || q.eviction == Eviction::floor);
  }
}

TEST(Compressive, EveryTokenIsCompressedOnceAndInOrderUnlessFloorLosesTheRest) {
  uint64_t seed = 10;
  for (const Eviction eviction : {Eviction::carry, Eviction::floor}) {
    for (const int64_t rate : {1, 2, 3, 5, 9}) {
      for (const int64_t fine : {1, 4, 6}) {
        for (const int64_t compressed : {1, 3}) {
          expect_queue({compressed, fine, rate, eviction}, seed);
          seed += 2;
        }
      }
    }
  }
}

/// The value of the loss of compression after two segments of `tokens` [B, 2 n].
double loss_after_two(const Compressive& model, const Tensor& tokens) {
  const int64_t n = tokens.dim(1) / 2;
  double last = -1;
  each_segment(tokens, {n, n}, empty_memory(model, tokens.dim(0)),
               [&](const Tensor& x, const SegmentMemory& memory) {
                 auto result = model.loss(x, x, memory, training);
                 last = result.auxiliary.at(0).value.item();
                 return result.memory;
               });
  return last;
}

TEST(Compressive, NothingIsLostOfEqualRowsAndWithoutCompression) {
  const Compressive mean = compressive([](auto& c) {
    c.n_layer = 1;
    c.compression = Compression::mean;
  });
  EXPECT_LE(loss_after_two(mean, full({2, 8}, 3, DType::i64)), 1e-15);
  EXPECT_GT(loss_after_two(mean, some_tokens(2, 8, 17)), 1e-3);
  CompressiveConfig c = compressive_preset("tiny");
  c.rate = 1;
  const Compressive identity(c, Init{.gen = Generator{5}, .dtype = DType::f64});
  EXPECT_LE(loss_after_two(identity, some_tokens(2, 8, 17)), 1e-15);
}

bool compresses(const std::string& name) {
  return name.find("compressor") != std::string::npos || name.find("restorer") != std::string::npos;
}

TEST(Compressive, NoLossTrainsWhatIsNotItsOwn) {
  for (const NormPlace place : {NormPlace::post, NormPlace::pre}) {
    for (const CompressionLoss loss : {CompressionLoss::attention, CompressionLoss::autoencode}) {
      for (const Compression f : {Compression::conv, Compression::dilated}) {
        for (const char* policy : {"standard", "checkpoint", "lean"}) {
          Compressive model = compressive([&](auto& c) {
            c.norm = place;
            c.loss = loss;
            c.compression = f;
            c.memory.set(policy);
          });
          const Tensor tokens = some_tokens(2, 4, 17);
          SegmentMemory memory = model.empty_memory(2);
          for (int64_t s = 0; s < 3; ++s)
            memory = model.loss(tokens, tokens, memory, Pass{}).memory;
          for (const bool of_compression : {true, false}) {
            for (const NamedTensor& p : named_parameters(model)) set_grad(p.tensor, {});
            const auto result = model.loss(tokens, tokens, memory, training);
            backward(of_compression ? result.auxiliary.at(0).value : result.loss);
            for (const NamedTensor& p : named_parameters(model)) {
              // No gradient at all is an exact zero.
              EXPECT_EQ(static_cast<bool>(grad(p.tensor)), compresses(p.name) == of_compression)
                  << p.name;
              EXPECT_EQ(p.clip_group, compresses(p.name) ? "compression" : "");
            }
          }
        }
      }
    }
  }
}

TEST(Compressive, CompressingDoesNotFreezeKeysAndValues) {
  Compressive model = compressive([](auto&) {});
  const Tensor tokens = some_tokens(2, 4, 17);
  SegmentMemory memory = model.empty_memory(2);
  for (int64_t s = 0; s < 5; ++s) {
    for (const NamedTensor& p : named_parameters(model)) set_grad(p.tensor, {});
    auto result = model.loss(tokens, tokens, memory, training);
    backward(result.total());
    memory = std::move(result.memory);
    for (const NamedTensor& p : named_parameters(model)) EXPECT_TRUE(grad(p.tensor)) << p.name;
  }
}

/// Names some parameters of a module, so that only they are checked.
struct Part final : Module {
  Part(Module& module, const std::function<bool(const std::string&)>& has) {
    for (const NamedTensor& p : named_parameters(module)) {
      if (has(p.name)) parameters.push_back(p);
    }
  }
  void visit(Visitor& v) override {
    for (NamedTensor& p : parameters) v(p.name, p.tensor);
  }
  TensorList parameters;
};

TEST(Compressive, WithHistoryTheNextSegmentTrainsTheCompression) {
  for (const Compression f : {Compression::conv, Compression::dilated}) {
    for (const NormPlace place : {NormPlace::post, NormPlace::pre}) {
      Compressive model = compressive([&](auto& c) {
        c.history = true;
        c.loss = CompressionLoss::none;
        c.compression = f;
        c.norm = place;
        c.mem_len = 2;
        c.tie_embedding = false;
      });
      const Tensor tokens = some_tokens(2, 8, 17);
      const auto loss = [&] {
        std::vector<Tensor> losses;
        each_segment(tokens, {4, 4}, model.empty_memory(2),
                     [&](const Tensor& x, const SegmentMemory& memory) {
                       auto result = model.loss(x, x, memory, training);
                       losses.push_back(result.loss);
                       return result.memory;
                     });
        return add(losses[0], losses[1]);
      };
      EXPECT_EQ(check_parameter_gradients(model, loss), "");
      const Tensor weight = parameter(model, "layers.0.attention.compressor.weight");
      set_grad(weight, {});
      backward(loss());
      EXPECT_GT(distance(grad(weight), zeros_like(weight)), 1e-6);
    }
  }
}

void expect_decoding(const Compressive& model, int64_t batch) {
  const NoGrad off;
  const int64_t n = model.config().segment, length = 5 * n + n / 2;
  const Tensor tokens = some_tokens(batch, length, 17);
  std::vector<int64_t> lengths(5, n);
  lengths.push_back(n / 2);
  const Tensor expected = logits_of(model, tokens, lengths);  // [B, L, V]
  for (const int64_t together : {1, 3, 7}) {                  // tokens in a call
    auto state = model.start_decoding(batch);
    for (int64_t t = 0; t < length; t += together) {
      const int64_t count = std::min(together, length - t);
      const Tensor z = model.decode(contiguous(narrow(tokens, 1, t, count)), *state);
      EXPECT_LT(distance(z, select(expected, 1, t + count - 1)), 1e-12) << t;
    }
  }
}

TEST(Compressive, DecodesAsSegments) {
  for (const NormPlace place : {NormPlace::post, NormPlace::pre}) {
    const auto with = [&](const std::function<void(CompressiveConfig&)>& change) {
      const Compressive model = compressive([&](auto& c) {
        c.norm = place;
        change(c);
      });
      expect_decoding(model, 2);
    };
    with([](auto&) {});
    with([](auto& c) { c.rate = 3; });
    with([](auto& c) {
      c.rate = 3;
      c.eviction = Eviction::floor;
      c.clamp = 2;
    });
    with([](auto& c) { c.compression = Compression::most_used; });
    with([](auto& c) {
      c.start = MemoryStart::zeros;
      c.compression = Compression::dilated;
    });
    with([](auto& c) {
      c.segment = 5;
      c.mem_len = 2;
      c.compression = Compression::max;
    });
    with([](auto& c) { c.compressed_len = 0; });
    with([](auto& c) {
      c.compressed_len = 0;
      c.start = MemoryStart::zeros;
    });
    for (const MemoryStart start : {MemoryStart::grow, MemoryStart::zeros}) {
      with([&](auto& c) {
        c.n_layer = 3;
        c.memory_layers = {1};
        c.start = start;
      });
    }
  }
}

/// Models whose evaluation is compared with that from states.
std::vector<Compressive> evaluated_models() {
  using enum Compression;
  std::vector<Compressive> all;
  for (const NormPlace place : {NormPlace::post, NormPlace::pre}) {
    const auto with = [&](const std::function<void(CompressiveConfig&)>& change) {
      all.push_back(compressive([&](auto& c) {
        c.norm = place;
        change(c);
      }));
    };
    for (const Compression f : {mean, max, conv, dilated, most_used}) {
      for (const Eviction eviction : {Eviction::carry, Eviction::floor}) {
        with([&](auto& c) {
          c.compression = f;
          c.eviction = eviction;
          c.rate = 3;
        });
      }
    }
    with([](auto& c) { c.rate = 9; });
    with([](auto& c) { c.clamp = 2; });
    with([](auto& c) { c.memory.set("reversible"); });
    with([](auto& c) { c.compressed_len = 0; });
    with([](auto& c) { c.start = MemoryStart::zeros; });
    with([](auto& c) {
      c.n_layer = 3;
      c.memory_layers = {1};
    });
    with([](auto& c) {
      c.compressed_len = 0;
      c.memory_layers = {0};
    });
  }
  return all;
}

TEST(Compressive, EvaluationFromKeysIsThatFromStates) {
  const NoGrad off;
  const Tensor tokens = some_tokens(3, 40, 17);
  const Tensor reset = Tensor::from(std::vector<uint8_t>{0, 1, 0}, {3});
  const Tensor order = Tensor::from(std::vector<int64_t>{2, 1, 0}, {3});
  int number = 0;
  for (const Compressive& model : evaluated_models()) {
    SCOPED_TRACE(number++);
    for (const auto& lengths : cuts) {
      SegmentMemory states = model.empty_memory(3), keys = model.evaluation_memory(3);
      int64_t at = 0;
      for (int64_t s = 0; s < 10; ++s) {
        const int64_t n = lengths[static_cast<size_t>(s % 5)];
        const Tensor x = contiguous(narrow(tokens, 1, at, n));
        const Tensor expected = model.logits_after(states, x);
        EXPECT_LT(distance(model.logits_after(keys, x), expected), 1e-12) << s;
        if (s == 6) {
          states = take_rows(forget(states, reset), order, false);
          keys = take_rows(forget(keys, reset), order, false);
        }
        at += n;
      }
    }
  }
}

TEST(Compressive, EvaluationProjectsARowOnceAndKeepsNoOtherStatesThanFineOnes) {
  const NoGrad off;
  for (const CompressionLoss loss : {CompressionLoss::none, CompressionLoss::attention}) {
    const Compressive model = compressive([&](auto& c) {
      c.loss = loss;
      c.rate = 3;
    });
    const CompressiveConfig& c = model.config();
    const Tensor tokens = some_tokens(2, 4, 17);
    SegmentMemory memory = model.evaluation_memory(2);
    const TensorList first = named_tensors(memory);
    int64_t macs = 0;
    for (int64_t s = 0; s < 6; ++s) {
      const MacCount count;
      memory = model.loss(tokens, tokens, memory, Pass{}).memory;
      macs = count.total();
      const TensorList now = named_tensors(memory);
      ASSERT_EQ(now.size(), first.size());
      for (size_t i = 0; i < now.size(); ++i) {
        EXPECT_EQ(now[i].tensor.shape(), first[i].tensor.shape()) << now[i].name;
      }
    }
    EXPECT_EQ(memory.layers[0].get<InputRows>().states.dim(1), 4 + 2);
    EXPECT_EQ(memory.layers[0].get<KeyValues>().keys.dim(2), 4 + 4 + 2);
    const int64_t l = 4, d = c.d_model, before = 10, groups = 2,
                  pairs = l * before + l * (l + 1) / 2;
    const int64_t layer =
        4 * l * d * d + 2 * d * pairs + groups * (c.rate + 2) * d * d + 2 * l * d * c.d_ff;
    EXPECT_EQ(macs, 2 * (c.n_layer * layer + l * d * c.vocab));
    EXPECT_TRUE(
        contains(message_of<ValueError>([&] { model.loss(tokens, tokens, memory, training); }),
                 "training takes empty_memory()"));
  }
}

TEST(Compressive, BeamsMayBeReordered) {
  const NoGrad off;
  for (const Compression f : {Compression::conv, Compression::most_used}) {
    const Compressive model = compressive([&](auto& c) { c.compression = f; });
    const Tensor tokens = some_tokens(2, 21, 17);
    const Tensor order = Tensor::from(std::vector<int64_t>{1, 1, 0}, {3});
    const auto part = [&](const Tensor& x, int64_t t, int64_t n) {
      return contiguous(narrow(x, 1, t, n));
    };
    auto beams = model.start_decoding(2), whole = model.start_decoding(3);
    const Tensor all = take(tokens, order);
    model.decode(part(tokens, 0, 10), *beams);
    model.decode(part(all, 0, 10), *whole);
    beams->take_rows(order, false);
    for (int64_t t = 10; t < 21; ++t) {
      const Tensor z = model.decode(part(all, t, 1), *beams);
      EXPECT_LT(distance(z, model.decode(part(all, t, 1), *whole)), 1e-13);
    }
  }
}

TEST(Compressive, TheMostUsedRowsAreKeptInTheirOrder) {
  const Compressor kept({Compression::most_used, 6, 2}, Init{.dtype = DType::f64});
  OldRows old = old_rows(6, 2);
  // The second sample has two groups: rows 2 to 5.
  old.begin = Tensor::from(std::vector<int64_t>{0, 2}, {2});
  old.new_begin = Tensor::from(std::vector<int64_t>{0, 1}, {2});
  old.usage = Tensor::from(std::vector<double>{0.1, 0.3, 0.2, 0.3, 0.3, 0.3,  //
                                               9, 9, 0.2, 0.5, 0.2, 0.2},
                           {2, 6});
  const Tensor y = kept.forward(old);
  const auto row = [](const Tensor& x, int64_t b, int64_t i) {
    return contiguous(select(select(x, 0, b), 0, i)).to_vector<double>();
  };
  EXPECT_EQ(row(y, 0, 0), row(old.rows, 0, 3));  // of four equal ones the newer three
  EXPECT_EQ(row(y, 0, 1), row(old.rows, 0, 4));
  EXPECT_EQ(row(y, 0, 2), row(old.rows, 0, 5));
  EXPECT_EQ(row(y, 1, 0), std::vector<double>(6, 0.0));
  EXPECT_EQ(row(y, 1, 1), row(old.rows, 1, 3));
  EXPECT_EQ(row(y, 1, 2), row(old.rows, 1, 5));
}

TEST(Compressive, UsageIsTheAttentionThatRowsOfTheMemoryGot) {
  const Compressive model = compressive([](auto& c) {
    c.compression = Compression::most_used;
    c.n_layer = 1;
    c.rate = 9;  // more than a segment evicts at first
    c.mem_len = 8;
  });
  const Tensor tokens = some_tokens(2, 12, 17);
  SegmentMemory memory = model.empty_memory(2);
  const int64_t capacity = memory.layers[0].get<InputRows>().states.dim(1);
  std::vector<double> mass(static_cast<size_t>(capacity)), asked(mass);
  int64_t read = 0;
  each_segment(tokens, {4, 4, 4}, memory, [&](const Tensor& x, const SegmentMemory& before) {
    const NoGrad off;
    const Tensor shares = model.attention_shares(x, before);  // [1, T]
    EXPECT_NEAR(sum(shares).item(), 1, 1e-14);
    const std::vector<double> share = shares.to_vector<double>();
    for (int64_t j = 0; j < capacity; ++j) {
      const auto at = static_cast<size_t>(j);
      const bool exists = j >= capacity - read;
      EXPECT_EQ(share[at] > 0, exists);
      mass[at] += share[at] * 4 * 3 * 2;  // rows, heads, samples
      asked[at] += exists ? 4 * 3 : 0;
    }
    auto next = model.loss(x, x, before, Pass{}).memory;
    mass.erase(mass.begin(), mass.begin() + 4);
    asked.erase(asked.begin(), asked.begin() + 4);
    mass.resize(static_cast<size_t>(capacity));
    asked.resize(static_cast<size_t>(capacity));
    read += 4;
    const Tensor usage = next.layers[0].get<CompressedRows>().usage;  // [B, capacity, 2]
    const auto sums = contiguous(sum(select(usage, 2, 0), {0})).to_vector<double>();
    for (size_t j = 0; j < sums.size(); ++j) EXPECT_NEAR(sums[j], mass[j], 1e-13) << j;
    EXPECT_EQ(capacity - next.layers[0].get<CompressedRows>().fine_begin.to_vector<int64_t>()[0],
              read);
    for (int64_t j = capacity - read; j < capacity; ++j) {
      EXPECT_EQ(usage.to_vector<double>()[static_cast<size_t>(2 * j + 1)],
                asked[static_cast<size_t>(j)]);
    }
    return next;
  });
}

TEST(Compressive, NothingIsCompressedWhileAGroupIsNotFull) {
  for (const Eviction eviction : {Eviction::carry, Eviction::floor}) {
    const Compressive model = compressive([&](auto& c) {
      c.rate = 5;
      c.eviction = eviction;
      c.compression = Compression::most_used;
      c.loss = CompressionLoss::attention;
    });
    const Tensor tokens = some_tokens(2, 4, 17);
    SegmentMemory memory = model.empty_memory(2);
    for (int64_t s = 0; s < 2; ++s) {
      auto result = model.loss(tokens, tokens, memory, training);
      memory = std::move(result.memory);
      const LayerMemory& m = memory.layers[1];
      EXPECT_TRUE(same_bits(m.get<InputRows>().begin, m.get<CompressedRows>().fine_begin));
      if (eviction == Eviction::floor) {
        EXPECT_TRUE(result.auxiliary.empty());  // no group of five fits into a segment of four
      } else {
        EXPECT_EQ(result.auxiliary.at(0).value.item(), 0);
      }
    }
  }
}

TEST(Compressive, Gradients) {
  using enum Compression;
  for (const auto& [f, loss] : std::vector<std::tuple<Compression, CompressionLoss>>{
           {mean, CompressionLoss::autoencode},
           {max, CompressionLoss::autoencode},
           {conv, CompressionLoss::attention},
           {conv, CompressionLoss::autoencode},
           {dilated, CompressionLoss::attention},
           {dilated, CompressionLoss::autoencode},
           {most_used, CompressionLoss::autoencode}}) {
    for (const LossNorm norm : {LossNorm::mse, LossNorm::l2}) {
      const bool first = norm == LossNorm::mse;
      Compressive model = compressive([&](auto& c) {
        c.compression = f;
        c.loss = loss;
        c.loss_norm = norm;
        c.rate = 3;
        c.norm = first ? NormPlace::post : NormPlace::pre;
        c.untie_biases = !first;
        c.dropout = c.dropout_attn = 0.1f;
      });
      Part compression(model, compresses);
      Part others(model, [](const std::string& name) { return !compresses(name); });
      SegmentMemory memory = model.empty_memory(2);
      for (const int64_t n : {7, 4, 1}) {  // first with both memories empty
        const Tensor tokens = some_tokens(2, n, 17);
        EXPECT_EQ(
            check_parameter_gradients(
                compression,
                [&] { return model.loss(tokens, tokens, memory, training).auxiliary[0].value; }),
            "");
        EXPECT_EQ(check_parameter_gradients(
                      others, [&] { return model.loss(tokens, tokens, memory, training).loss; }),
                  "");
        memory = model.loss(tokens, tokens, memory, Pass{}).memory;
      }
    }
  }
}

TEST(Compressive, ZerosAreCompressedToTheBias) {
  Compressive model = compressive([](auto& c) {
    c.start = MemoryStart::zeros;
    c.mem_len = 8;
  });
  const Tensor tokens = some_tokens(2, 8, 17);
  SegmentMemory last;
  each_segment(tokens, {4, 4}, model.empty_memory(2),
               [&](const Tensor& x, const SegmentMemory& memory) {
                 return last = model.loss(x, x, memory, Pass{}).memory;
               });
  for (int64_t i = 0; i < 2; ++i) {
    const LayerMemory& m = last.layers[static_cast<size_t>(i)];
    EXPECT_EQ(m.get<InputRows>().begin.to_vector<int64_t>(),
              (std::vector<int64_t>{1, 1}));  // carry has a row more
    EXPECT_EQ(m.get<CompressedRows>().fine_begin.to_vector<int64_t>(),
              (std::vector<int64_t>{5, 5}));
    const auto bias =
        parameter(model, "layers." + std::to_string(i) + ".attention.compressor.bias");
    for (int64_t row = 1; row < 5; ++row) {
      const Tensor rows = select(m.get<InputRows>().states, 1, row);  // [B, D]
      EXPECT_LT(distance(rows, expand(bias.detach(), rows.shape())), 1e-15);
    }
  }
}

/// Returns how many tokens before it the hidden state of row `row` of the last segment depends on.
int64_t compressive_reach(const Compressive& model, int64_t row, int64_t segments) {
  const int64_t length = model.config().segment;
  std::vector<int64_t> ids(static_cast<size_t>(length * segments));
  std::iota(ids.begin(), ids.end(), 0);
  for (int64_t& i : ids) i %= 49;
  std::vector<int64_t> y(static_cast<size_t>(length), ignored_target);
  y[static_cast<size_t>(row)] = 3;
  const Tensor targets = Tensor::from(y, {1, length});
  const auto loss = [&] {
    const NoGrad off;
    double last = 0;
    each_segment(Tensor::from(ids, {1, std::ssize(ids)}),
                 std::vector<int64_t>(static_cast<size_t>(segments), length), model.empty_memory(1),
                 [&](const Tensor& x, const SegmentMemory& memory) {
                   auto result = model.loss(x, targets, memory, Pass{});
                   last = result.loss.item();
                   return result.memory;
                 });
    return last;
  };
  const double before = loss();
  const int64_t at = length * (segments - 1) + row;
  for (int64_t i = 0; i <= at; ++i) {
    const int64_t old = std::exchange(ids[static_cast<size_t>(i)], 49);
    const bool changed = loss() != before;
    ids[static_cast<size_t>(i)] = old;
    if (changed) return at - i;
  }
  return -1;
}

TEST(Compressive, ReachesAsFarAsTheFormulaSays) {
  const auto with = [](const std::function<void(CompressiveConfig&)>& change) {
    return compressive([&](auto& c) {
      c.vocab = 50;
      c.n_layer = 2;
      change(c);
    });
  };
  const Compressive floor = with([](auto& c) {
    c.rate = 3;
    c.eviction = Eviction::floor;
  });
  EXPECT_EQ(floor.memory_tokens(), 4 + 4 * 4);
  EXPECT_EQ(compressive_reach(floor, 3, 14), 43);
  EXPECT_EQ(compressive_reach(floor, 0, 14), 40);
  const Compressive deep = with([](auto& c) {
    c.n_layer = 3;
    c.segment = c.mem_len = 8;
    c.compressed_len = 6;
    c.rate = 4;
  });
  EXPECT_EQ(deep.memory_tokens(), 8 + 4 * 6);
  EXPECT_EQ(compressive_reach(deep, 7, 15), 103);
  EXPECT_EQ(compressive_reach(deep, 0, 15), 96);
  const Compressive carry = with([](auto&) {});
  EXPECT_EQ(compressive_reach(carry, 3, 9), 2 * (4 + 2 * 4) + 3);
  const auto layers = [&](const std::vector<int64_t>& which) {
    return with([&](auto& c) {
      c.n_layer = 3;
      c.memory_layers = which;
    });
  };
  EXPECT_EQ(compressive_reach(layers({1}), 3, 9), 4 + 2 * 4 + 3);
  EXPECT_EQ(compressive_reach(layers({0, 2}), 3, 9), 2 * (4 + 2 * 4) + 3);
  EXPECT_EQ(compressive_reach(layers({0, 2}), 0, 9), 2 * (4 + 2 * 4));
}

TEST(Compressive, LayersWithoutMemoriesKeepNothing) {
  const auto bytes_of = [](const std::vector<int64_t>& which) {
    const Compressive model = compressive([&](auto& c) {
      c.n_layer = 3;
      c.memory_layers = which;
      c.compression = Compression::conv;
    });
    const Tensor tokens = some_tokens(2, 4, 17);
    SegmentMemory memory = model.empty_memory(2);
    for (int64_t s = 0; s < 3; ++s) memory = model.loss(tokens, tokens, memory, training).memory;
    int64_t bytes = 0;
    for (const NamedTensor& x : named_tensors(memory)) {
      bytes += x.tensor.nbytes();
    }
    return bytes;
  };
  const int64_t all = bytes_of({});
  EXPECT_GT(all, 0);
  EXPECT_EQ(bytes_of({0, 1, 2}), all);
  EXPECT_EQ(3 * bytes_of({0, 2}), 2 * all);
  EXPECT_EQ(3 * bytes_of({1}), all);
  Compressive model = compressive([](auto& c) { c.memory_layers = {1}; });
  for (const NamedTensor& p : named_parameters(model)) {
    EXPECT_FALSE(compresses(p.name) && p.name.starts_with("layers.0.")) << p.name;
  }
  EXPECT_TRUE(parameter(model, "layers.1.attention.compressor.weight"));
  const Tensor tokens = some_tokens(2, 4, 17);
  SegmentMemory memory = model.empty_memory(2);
  for (int64_t s = 0; s < 4; ++s) memory = model.loss(tokens, tokens, memory, Pass{}).memory;
  const Tensor shares = model.attention_shares(tokens, memory);  // [N, T]
  EXPECT_EQ(sum(narrow(select(shares, 0, 0), 0, 0, 9)).item(), 0);
  EXPECT_GT(sum(narrow(select(shares, 0, 1), 0, 0, 9)).item(), 0.1);
  EXPECT_NEAR(sum(shares).item(), 2, 1e-13);
}

TEST(Compressive, AResetIsANewStream) {
  for (const MemoryStart start : {MemoryStart::grow, MemoryStart::zeros}) {
    for (const Compression f : {Compression::conv, Compression::dilated, Compression::most_used}) {
      const Compressive model = compressive([&](auto& c) {
        c.start = start;
        c.compression = f;
        c.rate = 3;
      });
      const NoGrad off;
      const Tensor tokens = some_tokens(3, 32, 17);
      SegmentMemory memory = model.empty_memory(3), alone = model.empty_memory(1);
      for (int64_t t = 0; t < 32; t += 4) {
        if (t == 12) memory = forget(memory, Tensor::from(std::vector<uint8_t>{0, 1, 0}, {3}));
        const Tensor x = contiguous(narrow(tokens, 1, t, 4));
        const Tensor together = model.logits_after(memory, x);
        if (t < 12) continue;
        const Tensor apart = model.logits_after(alone, contiguous(narrow(x, 0, 1, 1)));
        EXPECT_LT(distance(narrow(together, 0, 1, 1), apart), 1e-13) << t;
      }
    }
  }
}

TEST(Compressive, TheLossIsTheMeanOverSamplesThatHaveCompressed) {
  for (const CompressionLoss loss : {CompressionLoss::attention, CompressionLoss::autoencode}) {
    for (const LossNorm norm : {LossNorm::mse, LossNorm::l2}) {
      const Compressive model = compressive([&](auto& c) {
        c.loss = loss;
        c.loss_norm = norm;
      });
      const NoGrad off;
      const Tensor tokens = some_tokens(3, 4, 17);
      const auto of = [&](const std::vector<int64_t>& samples, const SegmentMemory& memory) {
        const Tensor ids = Tensor::from(samples, {std::ssize(samples)});
        const Tensor x = take(tokens, ids);
        return model.loss(x, x, take_rows(memory, ids, false), training)
            .auxiliary.at(0)
            .value.item();
      };
      SegmentMemory memory = model.empty_memory(3);
      for (int64_t s = 0; s < 3; ++s) memory = model.loss(tokens, tokens, memory, Pass{}).memory;
      const double first = of({0}, memory), last = of({2}, memory);
      EXPECT_GT(std::abs(first - last), 1e-6);
      EXPECT_NEAR(of({0, 1, 2}, memory), (first + of({1}, memory) + last) / 3, 1e-13);
      memory = forget(memory, Tensor::from(std::vector<uint8_t>{0, 1, 0}, {3}));
      EXPECT_EQ(of({1}, memory), 0);  // nothing falls out of its memory yet
      EXPECT_NEAR(of({0, 1, 2}, memory), (first + last) / 2, 1e-13);
    }
  }
}

/// Returns losses and gradients of the third segment.
std::vector<Tensor> third_step(const CompressiveConfig& c, DType dtype) {
  Compressive model(c, Init{.gen = Generator{3}, .dtype = dtype});
  randomise(model, 0.4, 7);
  const Tensor tokens = some_tokens(2, 4, 17);
  SegmentMemory memory = model.empty_memory(2);
  for (int64_t s = 0; s < 2; ++s) memory = model.loss(tokens, tokens, memory, Pass{}).memory;
  auto result = model.loss(tokens, tokens, memory, training);
  backward(result.total());
  std::vector<Tensor> all{result.loss.detach(), result.auxiliary.at(0).value.detach()};
  for (const NamedTensor& m : named_tensors(result.memory)) all.push_back(m.tensor);
  for (const NamedTensor& p : named_parameters(model)) {
    all.push_back(grad(p.tensor) ? grad(p.tensor) : zeros({}, dtype));
  }
  return all;
}

TEST(Compressive, MemoryPoliciesChangeNoBit) {
  for (const Compression f : {Compression::conv, Compression::dilated, Compression::most_used}) {
    for (const CompressionLoss loss : {CompressionLoss::attention, CompressionLoss::autoencode}) {
      CompressiveConfig c = compressive_preset("tiny");
      c.compression = f;
      c.loss = loss;
      c.norm = loss == CompressionLoss::attention ? NormPlace::post : NormPlace::pre;
      c.dropout = c.dropout_attn = 0.1f;
      const auto with = [&](const char* policy) {
        c.memory.set(policy);
        return third_step(c, DType::f32);
      };
      const auto expect_same = [&](const std::vector<Tensor>& expected, const char* policy) {
        const auto got = with(policy);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_TRUE(same_bits(got[i], expected[i])) << policy << " " << i;
        }
      };
      const auto standard = with("standard"), two_streams = with("reversible:exact:stored");
      for (const char* policy : {"lean", "selective", "checkpoint", "checkpoint:2"}) {
        expect_same(standard, policy);
      }
      expect_same(two_streams, "reversible:exact");
    }
  }
}

TEST(Compressive, AListOfAllLayersIsNone) {
  CompressiveConfig c = compressive_preset("tiny");
  const auto none = third_step(c, DType::f32);
  c.memory_layers = {0, 1};
  const auto all = third_step(c, DType::f32);
  ASSERT_EQ(all.size(), none.size());
  for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(same_bits(all[i], none[i])) << i;
}

TEST(Compressive, ItsLossFallsWhileTheModelIsFrozen) {
  for (const CompressionLoss loss : {CompressionLoss::attention, CompressionLoss::autoencode}) {
    Compressive model = compressive([&](auto& c) {
      c.loss = loss;
      c.mem_len = c.segment = 8;
    });
    TensorList own;
    for (const NamedTensor& p : named_parameters(model)) {
      if (compresses(p.name)) own.push_back(p);
    }
    Adam adam(own);
    const Tensor tokens = some_tokens(4, 8, 17);
    SegmentMemory memory = model.empty_memory(4);
    for (int64_t s = 0; s < 2; ++s) memory = model.loss(tokens, tokens, memory, Pass{}).memory;
    double first = 0, last = 0;
    for (int64_t step = 0; step < 60; ++step) {
      const auto result = model.loss(tokens, tokens, memory, training);
      last = result.auxiliary.at(0).value.item();
      if (step == 0) first = last;
      backward(result.auxiliary[0].value);
      adam.step(1e-2);
    }
    EXPECT_LT(last, 0.7 * first);
  }
}

/// Compares logits, losses, memories and gradients of several segments with a file.
void expect_compressive_golden(const std::string& name, DType dtype, double tolerance) {
  const GoldenFile golden("compressive", name);
  CompressiveConfig config;
  set_fields(config, golden.settings);
  config.history = name.ends_with("history");
  Compressive model(config, Init{.gen = Generator{1}, .dtype = dtype});
  golden.set_parameters(model);
  std::vector<Tensor> losses, auxiliary, totals;
  const auto keep = [&](const LanguageModel::Losses& result) {
    losses.push_back(result.loss.detach());
    auxiliary.push_back(result.auxiliary.empty() ? zeros({}, dtype)
                                                 : result.auxiliary[0].value.detach());
    if (config.history) {
      totals.push_back(result.total());
    } else {
      backward(result.total());
    }
  };
  const SegmentMemory memory = train_on_segments(golden, model, tolerance, keep);
  if (config.history) backward(sum(stack(totals, 0)));
  golden.expect("output.losses", stack(losses, 0), tolerance);
  golden.expect("output.auxiliary", stack(auxiliary, 0), tolerance);
  golden.expect_gradients(model, tolerance);
  for (int64_t i = 0; i < config.n_layer; ++i) {
    const std::string at = std::to_string(i);
    const LayerMemory& m = memory.layers[static_cast<size_t>(i)];
    if (!config.remembers(i)) {
      EXPECT_TRUE(m.empty());
      continue;
    }
    const Tensor expected = golden["output.memory." + at];
    const Tensor& states = m.get<InputRows>().states;
    const int64_t rows = expected.dim(1), capacity = states.dim(1);
    golden.expect("output.memory." + at, narrow(states.detach(), 1, capacity - rows, rows),
                  tolerance);
    if (config.compressed_len == 0) continue;
    EXPECT_EQ(m.get<InputRows>().begin.to_vector<int64_t>()[0], capacity - rows);
    EXPECT_EQ(m.get<CompressedRows>().fine_begin.to_vector<int64_t>()[0],
              capacity - static_cast<int64_t>(golden["output.fine." + at].item()));
  }
}

class CompressiveGoldens : public testing::TestWithParam<std::string> {};
TEST_P(CompressiveGoldens, InF64) { expect_compressive_golden(GetParam(), DType::f64, 1e-12); }
TEST_P(CompressiveGoldens, InF32) { expect_compressive_golden(GetParam(), DType::f32, 5e-5); }
INSTANTIATE_TEST_SUITE_P(Compressive, CompressiveGoldens,
                         testing::ValuesIn(golden_names("compressive")), own_name);

TEST(Compressive, BucketsOfAttentionAddUp) {
  const Compressive model = compressive([](auto&) {}, DType::f32);
  const Tensor tokens = some_tokens(2, 4, 17);
  SegmentMemory memory = model.empty_memory(2);
  for (int64_t s = 0; s < 4; ++s) memory = model.loss(tokens, tokens, memory, Pass{}).memory;
  const Tensor shares = model.attention_shares(tokens, memory);
  ASSERT_EQ(shares.shape(), (Shape{2, 13}));
  const auto of_layer = contiguous(select(shares, 0, 1)).to_vector<double>();
  const std::vector<double> buckets = in_buckets(of_layer, 3);
  EXPECT_NEAR(std::accumulate(buckets.begin(), buckets.end(), 0.0), 1, 1e-6);
  EXPECT_NEAR(buckets[2], std::accumulate(of_layer.begin() + 9, of_layer.end(), 0.0), 1e-12);
  EXPECT_EQ(in_buckets({0.5, 0.25, 0.25}, 3), (std::vector<double>{0.5, 0.25, 0.25}));
  EXPECT_THROW(in_buckets({1.0}, 0), ValueError);
}

TEST(Compressive, SaysWhatDoesNotFit) {
  const auto refusal = [](const std::function<void(CompressiveConfig&)>& change) {
    return message_of<ValueError>([&] { compressive(change); });
  };
  EXPECT_TRUE(contains(refusal([](auto& c) { c.mem_len = 0; }), "mem_len"));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.rate = 0; }), "rate"));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.compressed_len = -1; }), "compressed_len"));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.segment = 0; }), "segment"));
  for (const std::vector<int64_t>& layers :
       std::vector<std::vector<int64_t>>{{2}, {-1}, {1, 0}, {1, 1}}) {
    EXPECT_TRUE(contains(refusal([&](auto& c) { c.memory_layers = layers; }), "memory_layers"));
  }
  const Compressive model = compressive([](auto&) {});
  const Tensor tokens = some_tokens(2, 4, 17);
  EXPECT_THROW(model.loss(tokens, tokens, model.empty_memory(3), Pass{}), ShapeError);
  EXPECT_TRUE(contains(model.remark(7), "model.segment"));
  EXPECT_EQ(model.remark(4), "");
}

TEST(Compressive, HasTheSizesOfItsConfiguration) {
  const auto count = [](const char* preset) {
    return compressive_entry().make(preset)->parameters();
  };
  // Transformer-XL's 277 M of the large model for enwik8, and c D^2 + D in each of 24 layers.
  const int64_t convolutions = 24 * (3 * 1024 * 1024 + 1024);
  EXPECT_NEAR(static_cast<double>(count("enwik8") - convolutions), 277e6, 1e6);
  const auto xl = transformer_xl_entry().make("wikitext103_large")->parameters();
  EXPECT_EQ(count("wikitext103") - xl, 18 * (4 * 1024 * 1024 + 1024));
}

}  // namespace
}  // namespace longspan::test
