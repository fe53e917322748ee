// Times workloads on this engine for bench/peers/compare.py: one JSON request per line on standard
// input, one JSON line as answer. bench/peers/worker.py, which does the same in PyTorch, documents
// the protocol and each figure.

#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "bench/family.h"
#include "bench/harness.h"
#include "core/backends.h"
#include "core/error.h"
#include "core/kernels/matmul.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/precision.h"
#include "models/reformer/reformer.h"
#include "models/transformer/transformer.h"
#include "ops/attention/block_attention.h"
#include "ops/attention/edge_attention.h"
#include "ops/attention/linear_attention.h"
#include "ops/attention/lsh.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "ops/optim.h"
#include "ops/patterns/pattern.h"
#include "ops/patterns/tree.h"
#include "ops/shape.h"
#include "ops/softmax.h"
#include "train/optimizer.h"

namespace longspan::bench {
namespace {

using Json = nlohmann::json;

/// The device and dtype of workloads, except of those with a fixed dtype.
struct Placement {
  Device device;
  DType dtype = DType::f32;
};
Placement place;

Tensor there(const Tensor& x) { return to_device(x, place.device); }
Tensor made(const Shape& shape, uint32_t seed, float scale = 1.0f) {
  const NoGrad off;
  return there(cast(values(shape, seed, scale), place.dtype));
}
double magnitude_of(const Tensor& x) {
  const NoGrad off;
  return magnitude(to_device(cast(x.detach(), DType::f32), Device{}));
}

/// Returns the precision to which f32 matrix products round, from the request's `precision`.
MatmulPrecision precision_of(const Json& request) {
  const std::string name = request.value("precision", "f32");
  if (name == "bf16") return MatmulPrecision::bf16;
  if (name != "f32") throw std::invalid_argument("unknown precision " + name);
  return MatmulPrecision::f32;
}

/// A prepared workload. `check` is the mean magnitude of its results.
struct Workload {
  std::function<void()> run;
  double check = 0;
  int64_t peak_bytes = 0;  // 0: not measured
};

/// Makes a workload from forward(inputs): its forward, its backward, or both, with gradients for
/// floating inputs.
template <class F>
Workload differentiable(F forward, std::vector<Tensor> inputs, const std::string& pass) {
  if (pass == "forward") {
    const NoGrad no_grad;
    const double check = magnitude_of(forward(inputs));
    return {[=] {
              const NoGrad none;
              forward(inputs);
            },
            check};
  }
  std::vector<Tensor> leaves;
  for (Tensor& x : inputs) {
    if (is_floating(x.dtype())) leaves.push_back(set_requires_grad(x));
  }
  const std::vector<Tensor> y = {forward(inputs)};
  const std::vector<Tensor> dy = {y[0].rank() > 0 ? made(y[0].shape(), 90)
                                                  : there(Tensor::scalar(1.0f))};
  double check = 0;
  for (const Tensor& dx : gradients(y, dy, leaves, true)) {
    check += magnitude_of(dx) / static_cast<double>(leaves.size());
  }
  if (pass == "backward") return {[=] { gradients(y, dy, leaves, true); }, check};
  return {[=] { gradients(std::vector<Tensor>{forward(inputs)}, dy, leaves); }, check};
}

/// c = a b with the layouts of y = x W^T (NT), dx = dy W (NN) and dW = dy^T x (TN).
Workload gemm(const Json& request) {
  const Json& shape = request.at("shape");
  const int64_t m = shape.at("m"), n = shape.at("n"), k = shape.at("k");
  const std::string layout = shape.at("layout"), variant = request.at("variant");
  const bool at = layout.at(0) == 'T', bt = layout.at(1) == 'T';
  const Tensor a = made(at ? Shape{k, m} : Shape{m, k}, 1);
  const Tensor b = made(bt ? Shape{n, k} : Shape{k, n}, 2);
  Tensor c = Tensor::empty({m, n}, place.dtype, place.device);

  if (variant == "openblas") {
    openblas_set_num_threads(num_threads());
    const auto* pa = static_cast<const float*>(a.view().data);
    const auto* pb = static_cast<const float*>(b.view().data);
    auto* pc = static_cast<float*>(c.mut().data);
    const auto run = [=] {
      cblas_sgemm(CblasRowMajor, at ? CblasTrans : CblasNoTrans, bt ? CblasTrans : CblasNoTrans,
                  static_cast<blasint>(m), static_cast<blasint>(n), static_cast<blasint>(k), 1.0f,
                  pa, static_cast<blasint>(at ? m : k), pb, static_cast<blasint>(bt ? k : n), 0.0f,
                  pc, static_cast<blasint>(n));
    };
    run();
    const double check = magnitude_of(c);
    return {[run, a, b, c] { run(); }, check};
  }
  if (variant != "longspan") throw std::invalid_argument("gemm: unknown variant " + variant);
  const Tensor left = at ? transpose(a) : a, right = bt ? transpose(b) : b;
  const auto run = [left, right, c]() mutable {
    kernels::matmul(c.device(), left.view(), right.view(), c.mut(), kernels::no_epilogue);
  };
  Workload workload{run, 0};
  workload.run();
  workload.check = magnitude_of(c);
  return workload;
}

/// q k v [B, H, L, d].
std::vector<Tensor> heads(const Json& shape) {
  const Shape size = {shape.value("batch", 1), shape.at("heads"), shape.at("length"),
                      shape.at("width")};
  return {made(size, 1, 2.0f), made(size, 2, 2.0f), made(size, 3, 2.0f)};
}

/// Causal attention.
Workload attention(const Json& request) {
  const auto forward = [](const std::vector<Tensor>& in) {
    return block_attention(in[0], in[1], in[2], patterns::causal()).out;
  };
  return differentiable(forward, heads(request.at("shape")), request.at("pass"));
}

/// Causal attention to the last `window` keys, self included.
Workload band(const Json& request) {
  const int64_t window = request.at("shape").at("window");
  const auto forward = [window](const std::vector<Tensor>& in) {
    return block_attention(in[0], in[1], in[2], patterns::local(window)).out;
  };
  return differentiable(forward, heads(request.at("shape")), request.at("pass"));
}

/// Attention by positive random features, causal unless the request says otherwise.
Workload linear(const Json& request) {
  const Json& shape = request.at("shape");
  const Tensor projection =
      cast(made({shape.at("features"), shape.at("width")}, 4, 3.5f), accumulator_of(place.dtype));
  const bool causal = request.value("causal", true);
  const auto forward = [projection, causal](const std::vector<Tensor>& in) {
    LinearAttentionOptions options;
    options.causal = causal;
    return linear_attention(in[0], in[1], in[2], projection, options).out;
  };
  return differentiable(forward, heads(shape), request.at("pass"));
}

/// Attention over a binary tree of `length` tokens, with relations: queries, keys and values of all
/// nodes. Causal unless the request says otherwise.
Workload tree(const Json& request) {
  const Json& shape = request.at("shape");
  const TreeOptions options{
      .k = shape.at("k"), .clip = shape.value("clip", 4), .causal = request.value("causal", true)};
  const int64_t length = shape.at("length"), width = shape.at("width");
  Json nodes = shape;
  nodes["length"] = Tree{length}.nodes();
  std::vector<Tensor> in = heads(nodes);
  in.push_back(made({options.labels(), width}, 4, 1.0f));
  const auto forward = [options, length](const std::vector<Tensor>& x) {
    return edge_attention(x[0], x[1], x[2], x[3], tree_edges(std::span(&length, 1), options));
  };
  return differentiable(forward, in, request.at("pass"));
}

/// LSH attention of shared queries and keys to hashed chunks and those before them, including hash
/// and sort. Rule `paper`: earlier keys of the query's own bucket, each once; otherwise all keys of
/// the window, in each round.
Workload lsh(const Json& request) {
  const Json& shape = request.at("shape");
  const std::vector<Tensor> all = heads(shape);
  LshOptions options;
  options.chunk = shape.at("chunk");
  if (request.at("rule") == "paper") {
    options.causal = true;
  } else {
    options.same_bucket = false;
    options.duplicates = LshDuplicates::off;
    options.wrap = LshWrap::round;
  }
  const LshBuckets buckets = lsh_auto_buckets(shape.at("length"), options.chunk);
  options.buckets = buckets.count();
  const Tensor rotations = lsh_rotations(Generator{1}, shape.at("heads"), shape.at("rounds"),
                                         shape.at("width"), buckets, DType::f32, place.device);
  const auto forward = [=](const std::vector<Tensor>& in) {
    const Tensor ids = lsh_buckets(in[0].detach(), rotations, buckets);
    return lsh_attention(in[0], in[1], ids, options).out;
  };
  return differentiable(forward, {all[0], all[1]}, request.at("pass"));
}

/// softmax, layer_norm, gelu and cross_entropy on [rows, n].
Workload rowwise(const Json& request) {
  const int64_t rows = request.at("shape").at("rows"), n = request.at("shape").at("n");
  const std::string op = request.at("op"), pass = request.at("pass");
  const Tensor x = made({rows, n}, 1, 4.0f);
  if (op == "gelu_erf") {
    return differentiable([](const std::vector<Tensor>& in) { return gelu_erf(in[0]); }, {x}, pass);
  }
  if (op == "gelu_tanh") {
    return differentiable([](const std::vector<Tensor>& in) { return gelu_tanh(in[0]); }, {x},
                          pass);
  }
  if (op == "softmax") {
    return differentiable([](const std::vector<Tensor>& in) { return softmax(in[0]); }, {x}, pass);
  }
  if (op == "layer_norm") {
    const std::vector<Tensor> inputs = {x, made({n}, 2) + 1.0, made({n}, 3)};
    return differentiable(
        [](const std::vector<Tensor>& in) { return layer_norm(in[0], in[1], in[2]); }, inputs,
        pass);
  }
  if (op == "cross_entropy") {
    std::vector<int64_t> targets(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i) targets[static_cast<size_t>(i)] = i * 7919 % n;
    const std::vector<Tensor> inputs = {x, there(Tensor::from(targets, {rows}))};
    return differentiable([](const std::vector<Tensor>& in) { return cross_entropy(in[0], in[1]); },
                          inputs, pass);
  }
  throw std::invalid_argument("rowwise: unknown op " + op);
}

/// One update of all parameters.
Workload adam(const Json& request) {
  const Shape size = {request.at("shape").at("parameters")};
  const Tensor p = made(size, 1), g = made(size, 2, 0.1f);
  const Tensor m = Tensor::zeros(size, place.dtype, place.device),
               v = Tensor::zeros(size, place.dtype, place.device);
  AdamStep step;
  step.lr = 1e-3;
  step.correction1 = 1 - step.beta1;
  step.correction2 = 1 - step.beta2;
  const auto run = [=] { adam_update(p, g, m, v, step); };
  run();
  const double check = magnitude_of(p);
  return {run, check};
}

/// One training step of a pre-norm causal language model with learned positions: forward, backward,
/// AdamW. If `window` is positive, attention is a causal band.
Workload gpt_step(const Json& request) {
  const Json& shape = request.at("shape");
  const int64_t batch = shape.at("batch"), length = shape.at("length");
  TransformerConfig config;
  config.vocab = shape.at("vocabulary");
  config.n_layer = shape.at("layers");
  config.n_head = shape.at("heads");
  config.d_model = shape.at("model");
  config.d_ff = 4 * config.d_model;
  config.n_max = length;
  config.activation = Activation::gelu_erf;
  config.positions = Positions::learned;
  config.qkv_bias = config.out_bias = config.head_bias = true;
  config.window = shape.value("window", 0);
  if (config.window > 0) config.local = Locality::exact;

  if (place.dtype == DType::bf16) config.precision = Precision::bf16;
  const auto model = std::make_shared<Transformer>(config, Init{.device = place.device});
  const auto optimizer = std::make_shared<AdamW>(named_parameters(*model));
  std::vector<int64_t> token(static_cast<size_t>(batch * length)), target(token.size());
  for (size_t i = 0; i < token.size(); ++i) {
    token[i] = static_cast<int64_t>(i) * 7919 % config.vocab;
    target[i] = (token[i] + 7919) % config.vocab;
  }
  const Tensor tokens = there(Tensor::from(token, {batch, length}));
  const Tensor targets = there(Tensor::from(target, {batch, length}));
  const auto step = [=] {
    const Pass pass{.training = true, .gen = {}, .row = 0};
    const Tensor loss = model->loss(tokens, targets, {}, pass).loss;
    backward(loss);
    optimizer->step(1e-3);
    return loss.item();
  };
  const double check = step();
  return {[step] { step(); }, check};
}

/// One training step of a Reformer with the rules of transformers and its axial positions: forward,
/// backward, AdamW, with a memory policy. The peak is measured in the second step, less the memory
/// that the process held before.
Workload reformer_step(const Json& request) {
  const Json& shape = request.at("shape");
  const int64_t length = shape.at("length"), model_width = shape.at("model");
  ReformerConfig config = reformer_variant({}, ReformerVariant::hf);
  config.vocab = shape.at("vocabulary");
  config.n_layer = shape.at("layers");
  config.n_head = shape.at("heads");
  config.d_head = shape.at("width");
  config.d_model = model_width;
  config.d_ff = 2 * model_width;
  config.n_max = length;
  config.layers = "local,lsh";
  config.rounds = shape.at("rounds");
  config.position_shape = {128, length / 128};
  config.position_widths = {model_width / 4, model_width - model_width / 4};
  config.init_std = config.embed_std = 0.02;
  config.memory = shape.value("memory", std::string("reversible")).c_str();
  const auto model = std::make_shared<Reformer>(config, Init{.device = place.device});
  const auto optimizer = std::make_shared<AdamW>(named_parameters(*model));
  std::vector<int64_t> token(static_cast<size_t>(length)), target(token.size());
  for (size_t i = 0; i < token.size(); ++i) {
    token[i] = static_cast<int64_t>(i) * 7919 % config.vocab;
    target[i] = (token[i] + 7919) % config.vocab;
  }
  const Tensor tokens = there(Tensor::from(token, {1, length}));
  const Tensor targets = there(Tensor::from(target, {1, length}));
  const auto step = [=] {
    const Pass pass{.training = true, .gen = {}, .row = 0};
    const Tensor loss = model->loss(tokens, targets, {}, pass).loss;
    backward(loss);
    optimizer->step(1e-3);
    return loss.item();
  };
  const double check = step();
  MemoryTracker& tracker = memory_tracker(place.device);
  tracker.reset_peak();
  step();
  return {[step] { step(); }, check, tracker.peak().total()};
}

/// Makes a workload that computes all gradients.
template <class Run>
Workload everything(std::shared_ptr<const Run> run) {
  double check = 0;
  const std::vector<Tensor> all = run->both();
  for (const Tensor& dx : all) check += magnitude_of(dx) / static_cast<double>(all.size());
  return {[run] { run->both(); }, check};
}

/// Attention of a family of bench/family.h, forward and backward.
Workload family(const Json& request) {
  const Json& shape = request.at("shape");
  const std::string name = request.at("family");
  const FamilyLayer layer = family_layer(name, shape.at("length"), shape.at("heads"));
  return everything(std::make_shared<const AttentionRun>(layer, shape.at("width")));
}

/// The same layer with projections.
Workload layer(const Json& request) {
  const Json& shape = request.at("shape");
  const std::string name = request.at("family");
  return everything(std::make_shared<const LayerRun>(name, shape.at("length"), shape.at("heads"),
                                                     shape.at("width")));
}

using Maker = Workload (*)(const Json&);
const std::map<std::string, Maker> makers = {
    {"gemm", gemm},
    {"attention", attention},
    {"band", band},
    {"rowwise", rowwise},
    {"adam", adam},
    {"gpt_step", gpt_step},
    {"family", family},
    {"layer", layer},
    {"reformer_step", reformer_step},
    {"lsh", lsh},
    {"linear_attention", linear},
    {"tree", tree},
};

struct Sample {
  double cpu, cpu_total, wall;
};

Sample measure(const Workload& workload, int64_t calls) {
  synchronize(place.device);
  const std::map<int, double> before = thread_times();
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) workload.run();
  synchronize(place.device);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  double most = 0, total = 0;
  for (const auto& [tid, t] : thread_times()) {
    const auto found = before.find(tid);
    const double spent = found == before.end() ? t : t - found->second;
    most = std::max(most, spent);
    total += spent;
  }
  const auto n = static_cast<double>(calls);
  return {most / n, total / n, wall.count() / n};
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  const size_t half = x.size() / 2;
  return x.size() % 2 ? x[half] : 0.5 * (x[half - 1] + x[half]);
}

/// The workload of the last request, cached for the next one.
struct Prepared {
  std::string key;
  Workload workload;
  int64_t calls = 1;
};

Json answer(const Json& request, Prepared& prepared) {
  const std::string name = request.at("workload");
  if (name == "describe") {
    return {{"peer", "longspan"},
            {"capability", instructions()},
            {"peak_instructions", peak_instructions()},
            {"openblas", openblas_get_corename()}};
  }
  if (name == "fma_peak") return {{"flops", fma_peak(request.at("threads"))}};
  if (name == "dot_peak") return {{"flops", dot_peak(request.at("threads"))}};
  if (name == "loading_peak") return {{"flops", loading_peak(request.at("threads"))}};
  if (name == "loading_probe") return {{"flops", loading_probe(request.at("threads"))}};
  if (name == "triad") return {{"bytes_per_second", triad_bandwidth(request.at("threads"))}};

  if (num_threads() != request.at("threads")) set_num_threads(request.at("threads"));
  Json fields = request;
  fields.erase("repeats");
  const std::string key = fields.dump();
  if (key != prepared.key) {
    prepared = {};
    place.device = parse_device(request.value("device", "cpu"));
    place.dtype = request.value("dtype", "f32") == "bf16" ? DType::bf16 : DType::f32;
    set_matmul_precision(precision_of(request));
    const auto maker = makers.find(name);
    if (maker == makers.end()) throw std::invalid_argument("unknown workload " + name);
    prepared.workload = maker->second(request);
    prepared.workload.run();
    const double seconds = request.at("seconds");
    Sample once = measure(prepared.workload, 1);
    const auto spent = [&once] { return place.device == Device{} ? once.cpu_total : once.wall; };
    while (spent() * static_cast<double>(prepared.calls) < seconds / 4) {
      prepared.calls *= 2;
      once = measure(prepared.workload, prepared.calls);
    }
    prepared.calls = std::max<int64_t>(1, std::lround(seconds / once.wall));
    prepared.key = key;
  }

  std::vector<double> cpu, cpu_total, wall;
  for (int i = 0; i < request.at("repeats").get<int>(); ++i) {
    const Sample s = measure(prepared.workload, prepared.calls);
    cpu.push_back(s.cpu);
    cpu_total.push_back(s.cpu_total);
    wall.push_back(s.wall);
  }
  Json reply = {{"check", prepared.workload.check}, {"calls", prepared.calls}};
  const auto put = [&reply](const std::string& field, const std::vector<double>& x) {
    reply[field] = *std::min_element(x.begin(), x.end());
    reply[field + "_median"] = median(x);
  };
  if (prepared.workload.peak_bytes > 0) reply["peak_bytes"] = prepared.workload.peak_bytes;
  put("cpu", cpu);
  put("cpu_total", cpu_total);
  put("wall", wall);
  return reply;
}

}  // namespace
}  // namespace longspan::bench

int main() {
  using longspan::bench::Json;
  longspan::bench::Prepared prepared;
  std::string line;
  for (int c = std::getchar(); c != EOF; c = std::getchar()) {
    if (c != '\n') {
      line.push_back(static_cast<char>(c));
      continue;
    }
    Json reply;
    try {
      reply = longspan::bench::answer(Json::parse(line), prepared);
    } catch (const std::exception& e) {
      reply = {{"error", e.what()}};
    }
    std::printf("%s\n", reply.dump().c_str());
    std::fflush(stdout);
    line.clear();
  }
  return 0;
}
