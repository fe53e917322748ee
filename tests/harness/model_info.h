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

/// The entry of a model in the table that tests every model. From it come
///   influence   d output i / d input j vanishes exactly where no path through the layers leads
///   outline     attention_outline() names every pair that has a probability, once, and leads
///               through the layers to the same influence
///   gradients   of every parameter, in f64, against central differences, dropout on
///   learning    the loss falls on `task`
///   round trip  a model with other weights gives the same logits, bit for bit, once it holds these
///   bytes       bytes visited are bytes tracked as parameters, and none stay behind
///   macs        the count of a forward pass is macs(length)
///   draws       no two sites of a forward pass draw the same random numbers
///   policies    losses and gradients are the same bits under every memory policy that keeps the
///               function, and of weights to rounding in chunks; reversible ones have those of the
///               same streams stored, or are refused
///   threads     losses and gradients are the same bits for 1, 2 and 3 threads
///   recorded    training steps that are replayed on a device have the bits of those that are run,
///               dropout on; or the recording is refused for the reason given
///   decoding    token by token gives the logits of one pass; only where the model decodes
struct ModelInfo {
  std::string name;
  /// Small, with an embedding table of its own named "embed.token.weight"; at least 16 tokens.
  std::function<std::unique_ptr<LanguageModel>(const Init&)> make;
  /// The same with every dropout that it has, under a memory policy.
  std::function<std::unique_ptr<LanguageModel>(const Init&, const MemoryPolicy&)> make_with_dropout;
  /// Whether one layer lets row i read row j != i directly.
  std::function<bool(int64_t i, int64_t j)> sees;
  int64_t length = 11;  ///< of the sequences of the tests; at most the vocabulary
  /// Token t of sample b of the task that the model shall learn within `steps` steps of Adam to a
  /// loss below `reach` nats; positions before `counted_from` do not count.
  std::function<int64_t(int64_t b, int64_t t)> task;
  int64_t counted_from = 0;
  int64_t steps = 250;
  double lr = 1e-2, reach = 0.5;
  bool masked = false;  ///< tokens at random places are hidden instead of predicting the next one
  bool decodes = true;
  bool outlined = true;         ///< who sees whom is known before there are tokens
  std::string unrecorded = {};  ///< part of the reason why its steps cannot be; empty: they can
};

/// Adds an entry to the table; made as a static object.
class RegisteredModel {
 public:
  RegisteredModel(ModelInfo info);  // NOLINT: converting on purpose
};

/// [B, L] of the first tokens of a hash: the same on every machine.
Tensor some_tokens(int64_t batch, int64_t length, int64_t vocab, uint64_t seed = 1);

/// Compares the gradients of every parameter with central differences of `loss` in f64, at up to
/// `elements` places of each. Returns what is wrong, empty if nothing.
std::string check_parameter_gradients(Module& module, const std::function<Tensor()>& loss,
                                      int64_t elements = 5, double tolerance = 2e-6);

/// Largest |a - b|; 1e300 where shapes differ.
double distance(const Tensor& a, const Tensor& b);
bool same_bits(const Tensor& a, const Tensor& b);

/// Writes values over a parameter, whatever its dtype.
void assign(Tensor& parameter, const std::vector<double>& values);
/// Parameter `name` of a module. Fails the test where there is none.
Tensor parameter(Module& module, const std::string& name);
/// Copies every parameter of `from` into the one of the same name of `to`.
void copy_parameters(Module& from, Module& to);
/// Makes every parameter N(0, deviation^2), gains of norms 1 + that, so that nothing vanishes.
void randomise(Module& module, double deviation, uint64_t seed);

}  // namespace longspan::test
