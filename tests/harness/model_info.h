#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/model.h"
#include "nn/init.h"
#include "nn/memory_policy.h"

namespace longspan::test {

/// The entry of a model in the table that tests every model. It generates these tests:
///   influence   d output i / d input j is 0 exactly if no path through the layers connects them
///   outline     attention_outline() lists every pair with a probability, once, and gives the same
///               influence through the layers
///   gradients   of every parameter, in f64, against central differences, with dropout
///   learning    the loss falls on `task`
///   round trip  a model with other weights and buffers gives the same logits, bit for bit, once it
///               holds these
///   bytes       bytes visited, buffers included, are bytes tracked as parameters, and none are
///               leaked
///   macs        the count of a forward pass is macs(length), on the host and on the meta device;
///               no memory policy changes it, and only what a policy recomputes adds to it
///   draws       no two sites of a forward pass draw the same random numbers
///   policies    losses and gradients have the same bits under every memory policy that keeps the
///               function; in chunks, weight gradients agree up to rounding; reversible policies
///               match the same streams with stored activations, or throw
///   threads     losses and gradients have the same bits for 1, 2 and 3 threads
///   recorded    replayed training steps on a device have the bits of steps that are run, with
///               dropout; or recording is refused with the given reason
///   decoding    token-by-token decoding gives the logits of one pass; only if the model decodes
/// and, if the model keeps a memory between segments, the laws in stream_laws.h.
struct ModelInfo {
  std::string name;
  /// A small model with an embedding table of its own named "embed.token.weight"; at least 16
  /// tokens.
  std::function<std::unique_ptr<LanguageModel>(const Init&)> make;
  /// The same with all its kinds of dropout, under a memory policy.
  std::function<std::unique_ptr<LanguageModel>(const Init&, const MemoryPolicy&)> make_with_dropout;
  /// Whether row i of one layer attends directly to row j != i.
  std::function<bool(int64_t i, int64_t j)> sees;
  /// Multiply-accumulates of the loss over one segment, by the closed formula.
  std::function<int64_t(int64_t length)> macs;
  int64_t length = 11;  ///< of the test sequences; at most the vocabulary
  /// Token t of sample b of the task that the model must learn within `steps` steps of Adam to a
  /// loss below `reach` nats; positions before `counted_from` do not count.
  std::function<int64_t(int64_t b, int64_t t)> task;
  int64_t counted_from = 0;
  int64_t steps = 250;
  double lr = 1e-2, reach = 0.5;
  bool masked = false;  ///< predicts masked tokens at random positions instead of the next token
  bool decodes = true;
  bool cuts = true;      ///< whether a stream may be cut anywhere, if the model keeps a memory
  bool outlined = true;  ///< whether the outline is known without tokens
  std::string unrecorded = {};  ///< part of the reason for not recording; empty: recorded
};

/// Adds an entry to the table; made as a static object.
class RegisteredModel {
 public:
  RegisteredModel(ModelInfo info);  // NOLINT: converting on purpose
};

/// Where the parameters of models in tests start.
inline const Init in_f32{.gen = Generator{7}};
inline const Init in_f64{.gen = Generator{7}, .dtype = DType::f64};

/// Returns all entries.
const std::vector<ModelInfo>& registered_models();

/// Returns hash-based tokens [B, L] that are the same on every machine.
Tensor some_tokens(int64_t batch, int64_t length, int64_t vocab, uint64_t seed = 1);

/// Compares the gradients of every parameter with central differences of `loss` in f64, at up to
/// `elements` elements of each. Returns a description of errors, empty if there are none.
std::string check_parameter_gradients(Module& module, const std::function<Tensor()>& loss,
                                      int64_t elements = 5, double tolerance = 2e-6);

/// Returns the largest |a - b|; 1e300 if the shapes differ.
double distance(const Tensor& a, const Tensor& b);
bool same_bits(const Tensor& a, const Tensor& b);

/// Overwrites a parameter with values, whatever its dtype.
void assign(Tensor& parameter, const std::vector<double>& values);
/// Returns parameter `name` of a module. Fails the test if there is none.
Tensor parameter(Module& module, const std::string& name);
/// Copies every parameter and buffer of `from` to the one of the same name in `to`.
void copy_parameters(Module& from, Module& to);
/// Draws every parameter from N(0, deviation^2), and gains of norms from 1 plus that, so that
/// nothing vanishes.
void randomise(Module& module, double deviation, uint64_t seed);

}  // namespace longspan::test
