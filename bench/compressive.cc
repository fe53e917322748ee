// Measures the Compressive Transformer. Prints JSON lines on standard output.
//   bench_compressive slots [rounds]        a training step (loss, gradients, update) of the small
//                                           model with each function of compression, beside that of
//                                           Transformer-XL with as many rows of memory and with one
//                                           that reaches as far: multiply-accumulates of the
//                                           forward pass, and milliseconds of the processor
//   bench_compressive macs                  the first of these for the model of the paper on enwik8
//   bench_compressive evaluation [rounds]   microseconds of the processor, multiply-accumulates and
//                                           bytes of a segment in evaluation, with a memory of keys
//                                           and values and with one of states
//   bench_compressive ages FILE CHECKPOINT PICTURE   the attention of the small model of a run to
//                                           six parts each of the compressed memory, the memory and
//                                           the segment, from the oldest on, and a picture of it
// What is timed takes turns; figures are medians over the rounds, ratios too.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "bench/command_line.h"
#include "core/error.h"
#include "data/corpus.h"
#include "data/streams.h"
#include "models/compressive/compressive.h"
#include "models/transformer_xl/transformer_xl.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/elementwise.h"
#include "ops/shape.h"
#include "train/optimizer.h"
#include "train/plot.h"
#include "train/state.h"

namespace longspan::bench {
namespace {

Tensor some_tokens(int64_t batch, int64_t length, Device device = {}) {
  std::vector<int64_t> ids(static_cast<size_t>(batch * length));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i) * 7919 % 251;
  return Tensor::from(ids, {batch, length}, device);
}

double seconds_of(const std::function<void()>& work) {
  const std::clock_t begin = std::clock();
  work();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

/// A model by the name under which its figures are printed.
struct Variant {
  std::string name;
  int64_t rows = 0, tokens = 0;  ///< of the memory of a layer, and the tokens behind them
  std::function<std::unique_ptr<LanguageModel>(const Init&)> make;
};

Variant transformer_xl(TransformerXLConfig c, int64_t rows) {
  c.mem_len = rows;
  return {"transformer_xl", rows, rows,
          [c](const Init& init) { return std::make_unique<TransformerXL>(c, init); }};
}

Variant compressive(CompressiveConfig c, Compression f, CompressionLoss loss) {
  c.compression = f;
  c.loss = loss;
  const std::string name = fmt::format("{}, {}", value_names<Compression>[static_cast<size_t>(f)],
                                       value_names<CompressionLoss>[static_cast<size_t>(loss)]);
  return {name, c.mem_len + c.compressed_len, c.mem_len + c.rate * c.compressed_len,
          [c](const Init& init) { return std::make_unique<Compressive>(c, init); }};
}

/// The variants of both families of models, in sizes that are otherwise equal.
std::vector<Variant> variants(const CompressiveConfig& c, const TransformerXLConfig& xl) {
  const int64_t rows = c.mem_len + c.compressed_len;
  return {transformer_xl(xl, rows),
          transformer_xl(xl, c.mem_len + c.rate * c.compressed_len),
          compressive(c, Compression::mean, CompressionLoss::none),
          compressive(c, Compression::max, CompressionLoss::none),
          compressive(c, Compression::most_used, CompressionLoss::none),
          compressive(c, Compression::conv, CompressionLoss::none),
          compressive(c, Compression::conv, CompressionLoss::autoencode),
          compressive(c, Compression::conv, CompressionLoss::attention)};
}

int64_t macs_of(const LanguageModel& model, int64_t length) {
  const Tensor tokens = zeros({1, length}, DType::i32, model.device());
  const MacCount macs;
  model.loss(tokens, tokens, empty_memory(model, 1), {.training = true, .gen = Generator{1}});
  return macs.total();
}

/// A model that is trained on the same tokens again and again, as streams.
class Trained {
 public:
  Trained(const Variant& v, int64_t batch, int64_t length)
      : model_(v.make(Init{})),
        adam_(named_parameters(*model_)),
        memory_(empty_memory(*model_, batch)),
        tokens_(some_tokens(batch, length)) {
    for (int64_t read = 0; read <= v.tokens; read += length) step();  // until the memory is full
  }
  void step() {
    const Pass pass{.training = true, .gen = Generator{1}};
    auto result = model_->loss(tokens_, tokens_, memory_, pass);
    memory_ = std::move(result.memory);
    backward(result.total());
    clip_gradients(adam_, 0.25);
    adam_.step(1e-4);
  }

 private:
  std::unique_ptr<LanguageModel> model_;
  Adam adam_;
  SegmentMemory memory_;
  Tensor tokens_;
};

int slots(int64_t rounds) {
  constexpr int64_t batch = 4, length = 128;
  const auto all = variants(compressive_preset("small"), transformer_xl_preset("small"));
  std::vector<std::unique_ptr<Trained>> trained;
  for (const Variant& v : all) trained.push_back(std::make_unique<Trained>(v, batch, length));
  std::vector<std::vector<double>> seconds(all.size()), ratios(all.size());
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < all.size(); ++i) {
      seconds[i].push_back(seconds_of([&] { trained[i]->step(); }));
      ratios[i].push_back(seconds[i].back() / seconds[0].back());
    }
  }
  int64_t first = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const int64_t macs = macs_of(*all[i].make(Init{.device = meta_device}), length) * batch;
    if (i == 0) first = macs;
    fmt::print(
        "{{\"model\": \"{}\", \"rows\": {}, \"tokens\": {}, \"macs\": {}, \"ratio_of_macs\": "
        "{:.3f}, \"step_ms\": {:.4g}, \"ratio\": {:.3f}}}\n",
        all[i].name, all[i].rows, all[i].tokens, macs,
        static_cast<double>(macs) / static_cast<double>(first), 1e3 * median(seconds[i]),
        median(ratios[i]));
  }
  return 0;
}

int macs() {
  CompressiveConfig c = compressive_preset("enwik8");
  TransformerXLConfig xl = transformer_xl_preset("enwik8_large");
  xl.d_head = c.d_head;
  int64_t first = 0;
  for (const Variant& v : variants(c, xl)) {
    const int64_t macs = macs_of(*v.make(Init{.device = meta_device}), c.segment);
    if (first == 0) first = macs;
    fmt::print(
        "{{\"model\": \"{}\", \"preset\": \"enwik8\", \"rows\": {}, \"tokens\": {}, \"macs\": {}, "
        "\"ratio_of_macs\": {:.3f}}}\n",
        v.name, v.rows, v.tokens, macs, static_cast<double>(macs) / static_cast<double>(first));
  }
  return 0;
}

int64_t bytes_of(const SegmentMemory& memory) {
  int64_t bytes = 0;
  for (const NamedTensor& x : named_tensors(memory)) bytes += x.tensor.nbytes();
  for (const LayerMemory& m : memory.layers) {
    if (const Tensor& table = m.get<ProjectedDistances>().table) bytes += table.nbytes();
  }
  return bytes;
}

/// Prints what evaluation with n_cm compressed rows costs.
void evaluate(int64_t compressed, int64_t rounds) {
  const NoGrad off;
  CompressiveConfig c = compressive_preset("small");
  c.compressed_len = compressed;
  const Compressive model(c, Init{});
  const Tensor tokens = some_tokens(1, c.segment);
  SegmentMemory memories[] = {model.evaluation_memory(1), empty_memory(model, 1)};
  const auto next = [&](SegmentMemory& memory) {
    memory = model.loss(tokens, tokens, memory, Pass{}).memory;
  };
  int64_t macs[2] = {};
  for (int i = 0; i < 2; ++i) {
    for (int64_t read = 0; read <= model.memory_tokens(); read += c.segment) next(memories[i]);
    const MacCount count;
    next(memories[i]);
    macs[i] = count.total();
  }
  std::vector<double> seconds[2], ratios;
  for (int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < 2; ++i) seconds[i].push_back(seconds_of([&] { next(memories[i]); }));
    ratios.push_back(seconds[1].back() / seconds[0].back());
  }
  const auto line = [&](int i) {
    return fmt::format("{{\"us\": {:.4g}, \"macs\": {}, \"bytes\": {}}}", 1e6 * median(seconds[i]),
                       macs[i], bytes_of(memories[i]));
  };
  fmt::print(
      "{{\"fine\": {}, \"compressed\": {}, \"segment\": {}, \"keys\": {}, \"states\": {}, "
      "\"ratio\": {:.3f}}}\n",
      c.mem_len, compressed, c.segment, line(0), line(1), median(ratios));
}

/// Returns for each layer the share of each of the 18 parts, oldest first, a mean over segments of
/// the test split that are read with full memories.
std::vector<std::vector<double>> shares_by_age(const Compressive& model, const CorpusPart& text) {
  constexpr int64_t streams = 16, most = 64;
  const CompressiveConfig& c = model.config();
  const EvaluationStreams data(text, streams, c.segment, model.memory_tokens());
  SegmentMemory memory = model.evaluation_memory(streams);
  Tensor sums;
  const int64_t before = model.memory_tokens() / c.segment + 1;
  const int64_t end = std::min(data.size() - 1, before + most);
  require(end > before, "ages", "the text has {} segments; expected {}", data.size(), before + 2);
  for (int64_t i = 0; i < end; ++i) {
    const Batch batch = data[i];
    if (i >= before) {
      const Tensor share = model.attention_shares(batch.tokens, memory);  // [N, T]
      sums = sums ? add(sums, share) : share;
    }
    memory = model.loss(batch.tokens, batch.targets, memory, Pass{}).memory;
  }
  sums = div(sums, static_cast<double>(end - before));
  std::vector<std::vector<double>> all;
  for (int64_t layer = 0; layer < model.layers(); ++layer) {
    std::vector<double> parts;
    int64_t at = model.memory_length() - c.mem_len - c.compressed_len;
    for (const int64_t n : {c.compressed_len, c.mem_len, c.segment}) {
      const Tensor keys = narrow(select(sums, 0, layer), 0, at, n);
      for (const double x : in_buckets(contiguous(keys).to_vector<double>(), 6)) {
        parts.push_back(x);
      }
      at += n;
    }
    all.push_back(std::move(parts));
  }
  return all;
}

int ages(const std::string& file, const std::string& checkpoint, const std::string& picture) {
  const NoGrad off;
  const CompressiveConfig c = compressive_preset("small");
  Compressive model(c, Init{});
  read_parameters(checkpoint, named_parameters(model));
  const auto all = shares_by_age(model, ByteCorpus::open(file).test());
  LinePlot plot{.title = "attention by age: compressed memory 1-6, memory 7-12, segment 13-18",
                .x_label = "sixths of the three kinds of keys, the oldest first",
                .y_label = "per cent of a row's attention, for one key",
                .log_y = true,
                .whole_x = true,
                .width = 900,
                .height = 540};
  const int64_t sizes[] = {c.compressed_len, c.mem_len, c.segment};
  for (size_t layer = 0; layer < all.size(); ++layer) {
    Series s{
        .name = fmt::format("layer {}", layer), .markers = true, .colour = static_cast<int>(layer)};
    for (size_t i = 0; i < all[layer].size(); ++i) {
      s.x.push_back(static_cast<double>(i + 1));
      s.y.push_back(600 * all[layer][i] / static_cast<double>(sizes[i / 6]));
    }
    fmt::print("{{\"layer\": {}, \"shares\": [{:.4f}], \"per_cent_of_a_key\": [{:.4f}]}}\n", layer,
               fmt::join(all[layer], ", "), fmt::join(s.y, ", "));
    plot.series.push_back(std::move(s));
  }
  write_line_plot(picture, plot);
  return 0;
}

int run(int argc, const char* const* argv) {
  int64_t rounds = 9;
  std::string file, checkpoint, picture;
  CommandLine command("bench_compressive", "What compressed memories cost, save and are used for.");
  CommandLine s = command.part("slots", "a training step with each function of compression");
  CommandLine m = command.part("macs", "multiply-accumulates for the model of the paper");
  CommandLine e =
      command.part("evaluation", "a segment, with a memory of keys and values or states");
  CommandLine a = command.part("ages", "attention by age, of the model of a run");
  for (CommandLine* part : {&s, &e}) part->option("rounds", rounds, "turns of each case");
  a.option("file", file, "the text");
  a.option("checkpoint", checkpoint, "of the small model");
  a.option("picture", picture, "what to write");
  for (const char* name : {"file", "checkpoint", "picture"}) a.require(name);
  command.read(argc, argv);
  if (s.chosen()) return slots(rounds);
  if (m.chosen()) return macs();
  if (a.chosen()) return ages(file, checkpoint, picture);
  for (const int64_t compressed : {64, 256}) evaluate(compressed, rounds);
  return 0;
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) try {
  return longspan::bench::run(argc, argv);
} catch (const longspan::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
