#include "tests/hub/hub_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "core/error.h"
#include "data/io/files.h"
#include "hub/folder.h"
#include "models/encoder.h"
#include "models/generate.h"
#include "models/reformer/reformer.h"
#include "models/transformer/encoder_decoder.h"
#include "models/transformer/transformer.h"
#include "models/transformer_xl/transformer_xl.h"
#include "nn/objective.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/loss.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "train/state.h"

namespace longspan::test {
namespace {

using Tensors = std::map<std::string, Tensor>;

constexpr double tolerance = 1e-10;

/// What a model computes of the inputs of a case.
struct Computed {
  Tensors outputs;
  Tensor loss;
  bool partial = false;  // the loss of the case has a part that the model lacks
};

Tensor find(const Tensors& tensors, const std::string& name) {
  const auto at = tensors.find(name);
  return at == tensors.end() ? Tensor{} : at->second;
}

Tensor f64(const Tensor& x) { return cast(x, DType::f64); }

EncoderInputs inputs_of(const Tensors& in) {
  const auto rows = [](const Tensor& x) { return x && x.rank() == 3 ? flatten(x, 0, 1) : x; };
  return {.tokens = rows(find(in, "in/input_ids")),
          .types = rows(find(in, "in/token_type_ids")),
          .global = rows(find(in, "in/global_attention_mask")),
          .mask = rows(find(in, "in/attention_mask"))};
}

Tensor token_loss_of(const Tensor& logits, const Tensor& labels) {
  return cross_entropy(flatten(logits, 0, 1), flatten(labels));
}

Tensor class_loss(const HubFolder& folder, const Tensor& logits, const Tensor& labels) {
  const std::string& problem = folder.problem_type;
  if (problem == "multi_label_classification") {
    return binary_cross_entropy_with_logits(logits, f64(labels), {});
  }
  if (problem == "regression" || (problem.empty() && logits.dim(1) == 1)) {
    return mse(logits.dim(1) == 1 ? squeeze(logits, 1) : logits, f64(labels));
  }
  return cross_entropy(logits, labels);
}

/// The loss of labels that are the tokens themselves: each predicts the next one.
Tensor next_token_loss(const Tensor& logits, const Tensor& labels) {
  const int64_t n = logits.dim(1) - 1;
  return token_loss_of(slice(logits, 1, 0, n), slice(labels, 1, 1));
}

void headless(Computed& out, const Tensor& hidden, const Tensors& in) {
  out.outputs["last_hidden_state"] = hidden;
  const Tensor weight = find(in, "loss_weight");
  if (weight) out.loss = sum(mul(hidden, weight));
  out.partial = !weight;
}

Computed compute_decoder(const HubFolder& folder, const Transformer& model, const Tensors& in) {
  Computed out;
  const EncoderInputs inputs = inputs_of(in);
  const Tensor labels = find(in, "in/labels");
  const auto hidden = [&] {
    return model.forward(
        TransformerInputs{.tokens = inputs.tokens, .types = inputs.types, .mask = inputs.mask}, {});
  };
  switch (folder.head->task) {
    case HubTask::hidden:
      headless(out, hidden(), in);
      break;
    case HubTask::next_token:
      out.outputs["logits"] = model.head(hidden());
      out.loss = next_token_loss(out.outputs["logits"], labels);
      break;
    case HubTask::classes:
      out.outputs["logits"] = model.class_logits(inputs, {});
      out.loss = class_loss(folder, out.outputs["logits"], labels);
      break;
    case HubTask::tags:
      out.outputs["logits"] = model.tag_logits(inputs, {});
      out.loss = token_loss_of(out.outputs["logits"], labels);
      break;
    default: {
      const SpanLogits spans = model.span_logits(inputs, {});
      out.outputs["start_logits"] = spans.start;
      out.outputs["end_logits"] = spans.end;
      out.loss = span_loss(spans, find(in, "in/start_positions"), find(in, "in/end_positions"));
    }
  }
  return out;
}

Computed compute_sequence(const LanguageModel& any, const Tensors& in) {
  const Tensor given = find(in, "in/decoder_input_ids");
  const Tensor tokens = given ? given : find(in, "decoder_input_ids");
  const Tensor source = find(in, "in/input_ids"), mask = find(in, "in/attention_mask");
  Tensor hidden, logits;
  if (const auto* model = dynamic_cast<const EncoderDecoder*>(&any)) {
    hidden = model->forward({.source = source,
                             .global = find(in, "in/global_attention_mask"),
                             .tokens = tokens,
                             .mask = mask},
                            {});
    if (!given) logits = model->head(hidden);
  } else {
    const auto& plain = dynamic_cast<const Transformer&>(any);
    hidden = plain.forward(TransformerInputs{.tokens = tokens, .source = source, .mask = mask}, {});
    if (!given) logits = plain.head(hidden);
  }
  Computed out;
  if (given) {
    headless(out, hidden, in);
  } else {
    out.outputs["logits"] = logits;
    out.loss = token_loss_of(logits, find(in, "in/labels"));
  }
  return out;
}

/// The logarithms of the probabilities that logits, or such logarithms, stand for.
Tensor logarithms(const Tensor& logits) { return sub(logits, logsumexp(logits, -1, true)); }

/// The lengths of inputs whose padding is at the end.
Tensor lengths_of(const Tensor& mask) {
  if (!mask) return {};
  return cast(sum(f64(mask), {1}), DType::i64);
}

Computed compute_reformer(const HubFolder& folder, Reformer& model, const Tensors& in) {
  Computed out;
  if (const Tensor rotations = find(in, "rotations")) {  // [H, d, R, w]
    model.set_rotations(contiguous(unsqueeze(permute(rotations, {0, 2, 1, 3}), 0)));
  }
  const Tensor labels = find(in, "in/labels");
  const EncoderInputs inputs{.tokens = find(in, "in/input_ids"),
                             .lengths = lengths_of(find(in, "in/attention_mask"))};
  const auto hidden = [&] {
    return model.forward(ReformerInputs{.tokens = inputs.tokens, .lengths = inputs.lengths}, {})
        .hidden;
  };
  switch (folder.head->task) {
    case HubTask::hidden:
      headless(out, hidden(), in);
      break;
    case HubTask::next_token:
      out.outputs["logits"] = model.head(hidden());
      out.loss = next_token_loss(out.outputs["logits"], labels);
      break;
    case HubTask::masked_token:
      out.outputs["logits"] = model.head(hidden());
      out.loss = token_loss_of(out.outputs["logits"], labels);
      break;
    case HubTask::classes:
      out.outputs["logits"] = model.class_logits(inputs, {});
      out.loss = class_loss(folder, out.outputs["logits"], labels);
      break;
    default: {
      const SpanLogits spans = model.span_logits(inputs, {});
      out.outputs["start_logits"] = spans.start;
      out.outputs["end_logits"] = spans.end;
      out.loss = span_loss(spans, find(in, "in/start_positions"), find(in, "in/end_positions"));
    }
  }
  return out;
}

Computed compute_memory(const HubFolder& folder, const TransformerXL& model, const Tensors& in) {
  Computed out;
  const Tensor tokens = find(in, "in/input_ids");
  SegmentMemory memory = empty_memory(model, tokens.dim(0));
  if (folder.head->task == HubTask::hidden) {
    out.outputs["last_hidden_state"] = model.forward(tokens, {});
    out.loss = sum(square(out.outputs["last_hidden_state"]));
    return out;
  }
  out.outputs["prediction_scores"] = logarithms(model.head(model.forward(tokens, {})));
  if (memory_length(model) > 0) {
    SegmentMemory first = empty_memory(model, tokens.dim(0));
    model.logits_after(first, tokens);
    out.outputs["second_scores"] = logarithms(model.logits_after(first, find(in, "in/second")));
  }
  const Tensor targets =
      concat({slice(tokens, 1, 1), full({tokens.dim(0), 1}, ignored_target, DType::i64)}, 1);
  out.loss = model.loss(tokens, targets, memory, {}).loss;
  return out;
}

Computed compute(const HubFolder& folder, LanguageModel& any, const Tensors& in) {
  if (const auto* xl = dynamic_cast<const TransformerXL*>(&any))
    return compute_memory(folder, *xl, in);
  if (auto* reformer = dynamic_cast<Reformer*>(&any))
    return compute_reformer(folder, *reformer, in);
  if (any.objective() == Objective::sequence) return compute_sequence(any, in);
  if (const auto* decoder = dynamic_cast<const Transformer*>(&any)) {
    return compute_decoder(folder, *decoder, in);
  }
  Computed out;
  const auto& model = dynamic_cast<const Encoder&>(any);
  const EncoderInputs inputs = inputs_of(in);
  const Tensor labels = find(in, "in/labels");
  const Tensor hidden = model.forward(inputs, {});
  switch (folder.head->task) {
    case HubTask::hidden:
      headless(out, hidden, in);
      break;
    case HubTask::masked_token: {
      const Tensor logits = model.head(hidden);
      const bool pretraining = static_cast<bool>(find(in, "in/next_sentence_label"));
      out.outputs[pretraining ? "prediction_logits" : "logits"] = logits;
      out.loss = token_loss_of(logits, labels);
      out.partial = pretraining;
      break;
    }
    case HubTask::classes:
      out.outputs["logits"] = model.classify(hidden, {});
      out.loss = class_loss(folder, out.outputs["logits"], labels);
      break;
    case HubTask::tags:
      out.outputs["logits"] = model.tag(hidden, {});
      out.loss = token_loss_of(out.outputs["logits"], labels);
      break;
    case HubTask::spans: {
      const SpanLogits spans = model.span_logits(inputs, {});
      out.outputs["start_logits"] = spans.start;
      out.outputs["end_logits"] = spans.end;
      out.loss = span_loss(spans, find(in, "in/start_positions"), find(in, "in/end_positions"));
      break;
    }
    case HubTask::choice: {
      const Tensor tokens = find(in, "in/input_ids");
      out.outputs["logits"] = reshape(model.classify(hidden, {}), {tokens.dim(0), tokens.dim(1)});
      out.loss = cross_entropy(out.outputs["logits"], labels);
      break;
    }
    default:
      fail<NotImplemented>("hub_cases", "no such task");
  }
  return out;
}

/// The largest difference, relative to values above 1; infinite where shapes or NaNs differ.
double difference(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return INFINITY;
  const std::vector<double> x = f64(a).to_vector<double>(), y = f64(b).to_vector<double>();
  double most = 0, scale = 1;
  for (const double v : y) scale = std::max(scale, std::abs(v));
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = std::abs(x[i] - y[i]);
    if (!(d <= most)) most = std::isnan(d) ? INFINITY : d;
  }
  return most / scale;
}

/// Sets rows of padding to 0, as the case has them.
Tensor kept(const Tensor& x, const Tensor& mask) {
  if (!mask || x.rank() < mask.rank() || x.dim(0) != mask.dim(0) || x.dim(1) != mask.dim(1))
    return x;
  Tensor there = mask;
  while (there.rank() < x.rank()) there = unsqueeze(there, -1);
  return where(not_equal(broadcast_to(there, x.shape()), zeros(x.shape(), there.dtype())), x,
               zeros_like(x.detach()));
}

std::string compare(const HubFolder& folder, LanguageModel& model, const Computed& got,
                    const Tensors& expected) {
  std::string faults;
  const Tensor mask = find(expected, "in/attention_mask");
  const auto hold = [&](const std::string& name, const Tensor& ours, const Tensor& theirs) {
    const double d = difference(ours, theirs);
    if (!(d <= tolerance)) faults += fmt::format(" {}: {:.2g};", name, d);
  };
  for (const auto& [name, x] : got.outputs) {
    const Tensor theirs = find(expected, name);
    if (theirs) hold(name, kept(x.detach(), mask), theirs);
  }
  if (got.partial || !got.loss) return faults;
  const bool has_gradients = std::any_of(
      expected.begin(), expected.end(), [](const auto& e) { return e.first.starts_with("grad/"); });
  hold("loss", reshape(got.loss.detach(), {}), find(expected, "loss"));
  if (!has_gradients) return faults;
  backward(got.loss);
  TensorList gradients = hub_named(folder, model);
  std::map<const void*, Tensor> parameters;  // by their storage, which stored tensors may alias
  for (const NamedTensor& p : named_parameters(model)) parameters[p.tensor.view().data] = p.tensor;
  std::map<std::string, const void*> storage;
  std::set<const void*> known;
  for (NamedTensor& named : gradients) {
    const void* const data = storage[named.name] = named.tensor.view().data;
    const Tensor g = grad(parameters.at(data));
    named.tensor = g ? reshape(g, named.tensor.shape()) : zeros_like(named.tensor.detach());
  }
  Tensors ours;
  for (const NamedTensor& g : hub_stored(folder, gradients)) ours[g.name] = g.tensor;
  for (const auto& [name, theirs] : expected) {
    if (!name.starts_with("grad/")) continue;
    std::string own = name.substr(5);
    if (!ours.contains(own)) own = std::string(folder.format().prefix) + own;
    for (const OtherName& o : folder.format().unused) {  // a tied tensor under its other name
      if (!ours.contains(own) && o.kind == OtherName::Kind::copy && o.name == name.substr(5)) {
        own = std::string(folder.format().prefix) + std::string(o.of);
      }
    }
    const Tensor mine = find(ours, own);
    if (mine) {
      known.insert(storage[own]);
      hold(name, mine, theirs);
    } else if (difference(theirs, zeros_like(theirs)) > 0) {
      faults += fmt::format(" {} is missing;", name);
    }
    ours.erase(own);
  }
  for (const auto& [name, x] : ours) {
    if (known.contains(storage[name])) continue;  // a second name of the same parameter
    if (difference(x, zeros_like(x)) > tolerance && !expected.contains("grad/" + name)) {
      faults += fmt::format(" {} has a gradient;", name);
    }
  }
  return faults;
}

/// The searches of a case: greedy, and two beam searches.
constexpr std::pair<std::string_view, BeamSearch> searches[] = {
    {"greedy", {.beams = 1}},
    {"beam3", {.beams = 3, .length_penalty = 0.7, .early_stopping = EarlyStopping::true_}},
    {"beam4-no-repeat", {.beams = 4, .length_penalty = 2, .no_repeat_ngram = 2}},
};

/// Returns the state from which a model writes, and how many of its tokens are the prompt.
std::unique_ptr<DecodeState> start_of(const LanguageModel& model, const Tensors& in) {
  const Tensor source = find(in, "in/input_ids"), mask = find(in, "in/attention_mask");
  if (const auto* both = dynamic_cast<const EncoderDecoder*>(&model)) {
    return both->start_decoding(
        {.source = source, .global = find(in, "in/global_attention_mask"), .mask = mask});
  }
  if (const auto* writes = ask<WritesSequences>(model)) {
    return writes->start_after({.tokens = source, .mask = mask});
  }
  return need<ContinuesSequences>(model).start_decoding(source.dim(0));
}

/// Returns which searches find other tokens than the package; empty: none.
std::string compare_searches(const HubFolder& folder, const LanguageModel& model,
                             const Tensors& in) {
  std::string faults;
  for (const auto& [name, options] : searches) {
    const Tensor expected = find(in, fmt::format("generated/{}", name));
    if (!expected || !folder.ids.end) continue;
    const bool writes = ask<WritesSequences>(model) != nullptr;
    const int64_t given = writes ? 1 : find(in, "in/input_ids").dim(1);
    const Tensor prompt = contiguous(slice(expected, 1, 0, given));
    BeamSearch search = options;
    search.end = *folder.ids.end;
    const int64_t count = 9;
    const Beams found = beam_search(model, prompt, start_of(model, in), count, search);
    const std::vector<int64_t> ours = contiguous(select(found.tokens, 1, 0)).to_vector<int64_t>();
    const std::vector<int64_t> theirs = contiguous(slice(expected, 1, given)).to_vector<int64_t>();
    const int64_t width = expected.dim(1) - given;
    for (int64_t b = 0; b < expected.dim(0); ++b) {
      for (int64_t i = 0; i < width; ++i) {
        const int64_t a = ours[static_cast<size_t>(b * count + i)];
        if (a != theirs[static_cast<size_t>(b * width + i)]) {
          faults += fmt::format(" {} has another token {} in row {};", name, i, b);
          break;
        }
        if (a == search.end) break;
      }
    }
  }
  return faults;
}

}  // namespace

std::string fault_of_hub_folder(const std::string& path) {
  const HubFolder folder = read_hub_folder(path);
  const std::unique_ptr<ModelSpec> spec = folder.spec();
  check_hub_shapes(folder, *spec);
  const std::unique_ptr<LanguageModel> model =
      spec->build(Init{.gen = Generator{1}, .dtype = DType::f64});
  load_hub_weights(folder, *model);
  return fault_of(folder, *model, path);
}

std::string fault_of(const HubFolder& folder, LanguageModel& model, const std::string& path) {
  Tensors expected;
  if (!std::filesystem::exists(path + "/expected.safetensors")) return {};
  for (NamedTensor& t : read_tensors(path + "/expected.safetensors")) {
    expected[t.name] = std::move(t.tensor);
  }
  if (!expected.contains("loss")) return {};
  return compare(folder, model, compute(folder, model, expected), expected) +
         compare_searches(folder, model, expected);
}

}  // namespace longspan::test
